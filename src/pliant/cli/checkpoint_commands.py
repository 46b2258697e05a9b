"""``pliant checkpoint ...``: save one now, look at them, prove them whole, take them elsewhere.

Owns what people type and read.  Knows nothing of formats; the room ``checkpoint`` does, which needs
torch and is imported by the command that uses it.

    exit code   means
    0           done, and what was looked at is sound, or the same
    1           damaged, or different
    2           the user's input, or the storage refused
"""

from __future__ import annotations

import json
import threading
from collections.abc import Callable
from dataclasses import asdict
from functools import wraps
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any, cast

import typer
from rich.table import Table

from pliant import client
from pliant.cli.arguments import Job, Json
from pliant.cli.help import CommandGroup, argument, option
from pliant.cli.terminal import complain, draw, print_json, say
from pliant.cli.which_job import JobPlace, from_any_host, the_job
from pliant.core.errors import EXIT_FAILED, EXIT_OK, ConfigError
from pliant.core.text import counted
from pliant.machine.named_modules import ENGINE_PACKAGES, lacking_engine

if TYPE_CHECKING:
    from pliant.checkpoint.dcp.read import StoredCheckpoint
    from pliant.checkpoint.store.base import Storage, StorageOptions

LOOK_S = 0.2
"""Between two looks whether a checkpoint has come, in seconds."""

app = typer.Typer(
    name="checkpoint",
    cls=CommandGroup,
    no_args_is_help=True,
    rich_markup_mode=None,
    help="Save, list, verify, prune and export checkpoints.",
)

Root = Annotated[str, argument("PLACE", "Directory or URL that holds checkpoints.")]
Place = Annotated[str, argument("PLACE", "A checkpoint, or what holds several: the newest.")]
Option = Annotated[
    list[str] | None, option("--option KEY=VALUE", "Passed to the storage; may be repeated.")
]
Trust = Annotated[bool, option("--trust", "Read what may run code of whoever wrote it.")]


def _with_engine(command: Callable[..., int]) -> Callable[..., int]:
    """Say in one sentence what to install, and end with 1 for what is damaged."""

    @wraps(command)
    def run(*args: Any, **kwargs: Any) -> int:
        try:
            from pliant.checkpoint.dcp.read import load  # noqa: F401 - torch is there
            from pliant.checkpoint.failures import DamagedError, UntrustedError
        except ModuleNotFoundError as error:
            if error.name not in ENGINE_PACKAGES:
                raise
            raise lacking_engine("pliant checkpoint", error.name) from error
        try:
            return command(*args, **kwargs)
        except UntrustedError as error:
            raise ConfigError(str(error).replace("with trust", "with --trust")) from error
        except DamagedError as error:
            return complain(str(error), EXIT_FAILED)

    return run


@app.command("ls")
@_with_engine
def list_checkpoints(place: Root, option: Option = None, as_json: Json = False) -> int:
    """List the checkpoints of a place, newest first.

    Reads manifests and sizes of files; verify reads everything.
    """
    from pliant.checkpoint.catalogue import listed
    from pliant.checkpoint.store.open import open_storage

    found = listed(open_storage(place, _options(option)))
    if as_json:
        return print_json({"checkpoints": [asdict(one) for one in found]})
    if not found:
        say(f"{place} holds no checkpoint")
        return EXIT_OK
    table = Table("name", "steps", "lineage", "size", "made", "job", "state", box=None)
    for one in found:
        table.add_row(
            one.name,
            str(one.committed),
            str(one.lineage),
            _size(one.num_bytes),
            one.created[:19],
            one.job,
            one.damage or "whole",
        )
    return draw(table, soft_wrap=True)


@app.command("show")
@_with_engine
def show(place: Place, option: Option = None, trust: Trust = False, as_json: Json = False) -> int:
    """Show where a checkpoint is from and all that it holds."""
    checkpoint = _open(place, option, trust=trust)
    items = [
        {"name": item.name, "kind": item.kind, "dtype": item.dtype, "shape": list(item.shape)}
        for item in checkpoint.items.values()
    ]
    about = asdict(checkpoint.manifest) if checkpoint.manifest else {}
    about.pop("items", None)
    if as_json:
        return print_json({"place": checkpoint.place, "manifest": about or None, "items": items})
    say(checkpoint.place if about else f"{checkpoint.place}: not written by pliant")
    for key in ("job", "committed", "lineage", "generation", "created") if about else ():
        say(f"  {key}: {about[key]}")
    for key in ("identity", "versions", "facts"):
        for name, value in about.get(key, {}).items():
            say(f"  {key}.{name}: {value}")
    table = Table("item", "type", "shape", box=None)
    for item in checkpoint.items.values():
        shape = str(list(item.shape)) if item.kind == "tensor" else ""
        table.add_row(item.name, item.dtype or "object", shape)
    return draw(table, soft_wrap=True)


@app.command("verify")
@_with_engine
def verify(
    place: Place,
    every: Annotated[bool, option("--all", "Every checkpoint of the place.")] = False,
    option: Option = None,
    trust: Trust = False,
    as_json: Json = False,
) -> int:
    """Read every byte; name each tensor that is damaged.

    Exits with 1 if there is one.  A foreign checkpoint has no digests: its tensors must load.
    """
    from pliant.checkpoint.catalogue import listed
    from pliant.checkpoint.catalogue import verify as verified

    storage, name = _resolved(place, option)
    is_root = name != ""  # else the place is one checkpoint, with whatever name
    names = [one.name for one in listed(storage)] if every and is_root else [name]
    verdicts = [verified(storage, one, trust=trust) for one in names]
    if as_json:
        print_json({"checkpoints": [{**asdict(v), "sound": v.is_sound} for v in verdicts]})
    for verdict in () if as_json else verdicts:
        what = storage.place(verdict.name)
        for sentence in verdict.damage:
            say(sentence)
        amount = f"{counted(verdict.num_items, 'item')}, {_size(verdict.num_bytes)}"
        if verdict.damage:
            say(f"{what} is damaged")
        elif verdict.has_digests:
            say(f"{what} is sound: {amount}, every digest matches")
        else:
            say(f"{what} loads: {amount}; it has no digests, so a changed byte may go unseen")
    return EXIT_OK if all(verdict.is_sound for verdict in verdicts) else EXIT_FAILED


@app.command("prune")
@_with_engine
def prune(
    place: Root,
    keep: Annotated[int, option("--keep N", "Newest ones that stay.")] = 3,
    milestones: Annotated[
        str | None, option("--milestones N|N,N,...", "Kept as well: every N steps, or these.")
    ] = None,
    dry_run: Annotated[bool, option("--dry-run", "Say what would go, and leave it.")] = False,
    option: Option = None,
    as_json: Json = False,
) -> int:
    """Remove old ones, never the newest that verifies.

    Leftovers of unfinished saves go too.  Refused while a job writes to the place.
    """
    from uuid import uuid4

    from pliant.checkpoint import catalogue
    from pliant.checkpoint.lease import JobLease
    from pliant.checkpoint.store.open import open_storage

    storage = open_storage(place, _options(option))
    kept = _milestones(milestones)
    swept: list[str] = []
    if dry_run:
        removed = catalogue.prune(storage, keep=keep, milestones=kept, dry_run=True)
    else:
        lease = JobLease(storage, f"prune-{uuid4().hex[:8]}", ttl_s=60.0)
        lease.ensure()
        try:
            removed = catalogue.prune(storage, keep=keep, milestones=kept)
            swept = catalogue.sweep(storage)
        finally:
            lease.release()
    if as_json:
        return print_json({"removed": removed, "leftovers": swept, "dry_run": dry_run})
    for name in removed:
        say(f"{'would remove' if dry_run else 'removed'} {storage.place(name)}")
    if swept:
        say(f"removed {counted(len(swept), 'leftover')} of unfinished saves")
    if not removed and not swept:
        say(f"nothing to remove from {place}")
    return EXIT_OK


@app.command("export")
@_with_engine
def export(
    place: Place,
    file: Annotated[Path, argument("FILE", "The file to write; with --like the directory.")],
    under: Annotated[str, option("--under NAME", "Which part of the checkpoint.")] = "model",
    repeat_tied: Annotated[
        bool, option("--repeat-tied", "Write a tied weight under each of its names.")
    ] = False,
    like: Annotated[
        Path | None,
        option("--like DIR", "Its files of weights, and its configuration and tokenizer."),
    ] = None,
    option: Option = None,
    as_json: Json = False,
) -> int:
    """Write the model's weights and buffers as safetensors."""
    from pliant.checkpoint.export import export as exported
    from pliant.checkpoint.export import export_like

    if like is None:
        done = exported(_open(place, option), file, under=under, repeat_tied=repeat_tied)
    else:
        done = export_like(_open(place, option), file, like, under=under)
    if as_json:
        return print_json(asdict(done))
    say(f"{done.path}: {counted(done.num_tensors, 'tensor')}, {_size(done.num_bytes)}")
    for name, holder in done.tied.items():
        say(f"  {name} is tied to {holder}, and is written once")
    return EXIT_OK


@app.command("now")
@from_any_host
def save_now(job: Job = None, as_json: Json = False) -> int:
    """Save a checkpoint at the next step boundary of a running job.

    The job trains on meanwhile.  Waits until the checkpoint is there, and reads every byte of it if
    it can be read from here.  Exits with 1 if none comes.
    """
    asked = the_job(cast(JobPlace, job))
    step = asked.checkpoint()["step"]
    kept, why = _awaited(asked, step)
    if kept is None:
        return complain(f"no checkpoint of step {step} or later: {why}", EXIT_FAILED)
    damage, unread = _proved(str(kept["place"] or ""))
    shown = str(kept["place"] or kept["name"])
    if as_json:
        print_json({**kept, "verified": None if unread else not damage, "damage": damage})
    elif damage:
        say("\n".join([*damage, f"{shown} is damaged"]))
    elif unread:
        say(f"{shown}: step {kept['committed']}, saved; not verified from here: {unread}")
    else:
        say(f"{shown}: step {kept['committed']}, saved; every digest matches")
    return EXIT_FAILED if damage else EXIT_OK


def _awaited(job: client.Job, step: int) -> tuple[dict[str, Any] | None, str]:
    """Wait for a checkpoint of so many steps; return it, or why none comes."""
    pause = threading.Event()
    while True:
        try:
            found = job.status()
        except ConfigError as error:
            return None, f"{error}; whether it was saved is not known"
        kept, failure, asked = (
            found[name] for name in ("checkpoint", "checkpoint_failure", "checkpoint_asked")
        )
        if kept is not None and kept["committed"] >= step:
            return kept, ""
        if found["exit_code"] is not None or found["state"] in client.GONE:
            return None, f"the job is {found['state']}"
        if asked is None:
            return None, "the request was lost with a coordinator or with the state; ask again"
        if failure is not None and failure["at"] >= asked["at"]:
            again = f"; the job tries again in {failure['retry_s']:g} s" * bool(failure["retry_s"])
            return None, f"{failure['reason']}{again}"
        pause.wait(LOOK_S)


def _proved(place: str) -> tuple[list[str], str]:
    """Read a whole checkpoint; return what is damaged, and why it could not be read if so."""
    from pliant.checkpoint.failures import StorageError  # without torch

    try:
        from pliant.checkpoint.catalogue import verify as verified

        storage, name = _resolved(place, None)
        return list(verified(storage, name, trust=False).damage), ""
    except (ConfigError, StorageError) as error:
        return [], str(error)
    except ModuleNotFoundError as error:
        return [], f"{error.name} is not installed here"


def _options(given: list[str] | None) -> StorageOptions:
    from pliant.checkpoint.store.base import StorageOptions

    values: dict[str, Any] = {}
    for pair in given or []:
        key, equals, text = pair.partition("=")
        if not equals or not key:
            raise ConfigError(f"--option {pair!r} is not KEY=VALUE, for instance timeout_s=30")
        try:
            values[key] = json.loads(text)
        except ValueError:
            values[key] = text
    own = {"timeout_s": values.pop("timeout_s")} if "timeout_s" in values else {}
    return StorageOptions(**own, fsspec=values)


def _resolved(place: str, option: list[str] | None) -> tuple[Storage, str]:
    """Return the root and the name of the checkpoint that is meant."""
    from pliant.checkpoint import catalogue
    from pliant.checkpoint.dcp import layout
    from pliant.checkpoint.store.open import open_storage

    options = _options(option)
    parent, _, last = place.rstrip("/").rpartition("/")
    if layout.parse_name(last):
        return open_storage(parent or ("/" if place.startswith("/") else "."), options), last
    storage = open_storage(place, options)
    files = {entry.name for entry in storage.entries()}
    if files & {layout.MANIFEST, layout.METADATA}:
        return storage, ""
    there = catalogue.listed(storage)
    if not there:
        raise ConfigError(f"{place} holds no checkpoint")
    return storage, there[0].name


def _open(place: str, option: list[str] | None, *, trust: bool = False) -> StoredCheckpoint:
    from pliant.checkpoint.dcp.read import open_checkpoint

    storage, name = _resolved(place, option)
    return open_checkpoint(storage, name, trust=trust)


def _milestones(text: str | None) -> int | list[int] | None:
    if text is None:
        return None
    try:
        numbers = [int(part) for part in text.split(",")]
    except ValueError:
        raise ConfigError(f"--milestones {text!r} is neither N nor N,N,...") from None
    if min(numbers) < 1:
        raise ConfigError(f"--milestones {text!r}: steps begin at 1")
    return numbers[0] if len(numbers) == 1 else numbers


def _size(num_bytes: int) -> str:
    for unit, size in (("GB", 1e9), ("MB", 1e6), ("kB", 1e3)):
        if num_bytes >= size:
            return f"{num_bytes / size:.1f} {unit}"
    return f"{num_bytes} B"
