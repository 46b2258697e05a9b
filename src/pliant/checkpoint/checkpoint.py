"""Checkpoint: what a script says about durable state, and a session's way to it.

Owns the public object, its refusals, and putting the parts of this room together for one session:
place, lease, writer, reader (``engine.state.durable.Durability``).  Must not know how any of them
works.
"""

from __future__ import annotations

import contextlib
import os
import uuid
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import asdict, dataclass, replace
from functools import partial
from pathlib import Path
from typing import Any

import torch

from pliant.checkpoint import catalogue, origin
from pliant.checkpoint.dcp.layout import DOCUMENT, PLACE
from pliant.checkpoint.dcp.read import load, open_checkpoint, read_manifest
from pliant.checkpoint.failures import DamagedError, MissingError
from pliant.checkpoint.lease import JobLease
from pliant.checkpoint.origin import Origin, origin_of
from pliant.checkpoint.publisher import CheckpointPublisher, SaveOptions
from pliant.checkpoint.store.base import Storage, StorageOptions
from pliant.checkpoint.store.open import open_storage
from pliant.checkpoint.writer import Writer
from pliant.core.durability import parse_interval
from pliant.core.errors import ConfigError
from pliant.core.values import DEVICE, NO_CHECKPOINT, CheckpointInfo, FromCheckpoint, Lineage
from pliant.engine.local_tensors import TensorPart
from pliant.engine.state.durable import CheckpointChannel, CheckpointDamaged, Facts, Snapshot
from pliant.engine.worker.bootstrap import check_orders
from pliant.engine.worker.once import place_of_job

MAX_FOUND = 8
"""How many checkpoints a replica offers to go on from, newest first."""

NOT_SAID = {"mesh": "none"}
"""What is so of a run whose identity does not say it."""

FREE = frozenset({"torch", "kernels", "numerics", "on_nonfinite"})
"""What may differ between a checkpoint and the run that goes on from it, with a warning."""


class Checkpoint:
    """Keeps a run on a directory or an object store, and goes on from what is there.

    Args:
        path: a directory, or a URL that fsspec knows: ``s3://bucket/gpt``, ``gs://...``.
        every: ``"500steps"``, ``"10min"`` (s, min, h), or ``"auto"``: from what a save costs and
            how often replicas are lost.
        keep: how many of the newest stay.
        milestones: every so many steps one stays for ever; or a list of counts of steps.
        storage_options: passed to the file system (keys, ``endpoint_url``, ...).
        max_unprotected: ends the job when saves have failed for so long, as ``"1h"``; None: never.
        timeout_s: longest wait for one answer of an object store, in seconds.

    A checkpoint is a ``torch.distributed.checkpoint`` directory; see docs/howto/checkpoints.md.

    Raises:
        ConfigError: an argument cannot work; the sentence says what to change.
    """

    def __init__(
        self,
        path: str | os.PathLike[str],
        *,
        every: str = "auto",
        keep: int = 3,
        milestones: int | Sequence[int] | None = None,
        storage_options: Mapping[str, Any] | None = None,
        max_unprotected: str | None = None,
        timeout_s: float = 60.0,
    ) -> None:
        if (orders := check_orders()) is not None:  # a history of a check has its own place
            path, storage_options = orders.checkpoints, None
        if keep < 1:
            raise ConfigError(f"keep={keep} checkpoints must be at least 1")
        if isinstance(milestones, int) and milestones < 1:
            raise ConfigError(f"milestones={milestones} must be at least 1 step apart")
        limit = None if max_unprotected is None else parse_interval(max_unprotected)
        if limit is not None and limit.seconds is None:
            raise ConfigError(
                f"max_unprotected={max_unprotected!r} must be a time, as '30min' or '1h'"
            )
        options = StorageOptions(fsspec=dict(storage_options or {}), timeout_s=timeout_s)
        self._options = SaveOptions(
            interval=parse_interval(every),
            keep=keep,
            milestones=milestones,
            max_unprotected_s=None if limit is None else limit.seconds,
        )
        self._path = os.fspath(path)
        self._storage_options = options
        self._storage = open_storage(_absolute(self._path), options)
        self._lease: JobLease | None = None
        self._writer: Writer | None = None
        self._channel: CheckpointChannel | None = None
        self._origin: Origin | None = None
        self._look: Callable[[], tuple[CheckpointInfo, ...]] | None = None
        self._found: tuple[CheckpointInfo, ...] = ()
        self._mark = ""

    @property
    def path(self) -> str:
        """The place, as it was given."""
        return self._path

    # --- engine.state.durable.Durability ------------------------------------------------------

    def open(self, facts: Facts, channel: CheckpointChannel) -> tuple[CheckpointInfo, ...]:
        """Take the place; return what is there to go on from, newest first.

        Raises:
            ConfigError: another job holds it, or what is there is of another run.
        """
        holder = facts.holder or f"{facts.job}-{uuid.uuid4().hex[:8]}"
        if facts.out:
            self._take_place_of_job(facts, channel)
        self._lease = JobLease(self._storage, holder, pid=facts.pid)
        self._channel = channel
        self._origin = Origin.of(facts, run=holder, place=self._path)
        if not facts.is_follower:
            self._lease.ensure()
            self._mark = _mark_of(self._storage) if facts.holder else ""
            self._look = partial(self._usable, facts, channel, run=holder)
            self._found = self._look()
        publisher = CheckpointPublisher(
            storage=self._storage,
            options=self._options,
            job=facts.job,
            run=holder,
            identity=dict(facts.identity),
            origin=None if self._origin is None else asdict(self._origin),
            channel=channel,
            lease=self._lease,
        )
        self._writer = Writer(publisher)
        return self._found

    @property
    def mark(self) -> str:
        """What tells this place from others of its name on other nodes; empty: not known."""
        return self._mark

    def find_anew(self) -> tuple[CheckpointInfo, ...]:
        """Return what is there by now; what was seen last, if the place cannot be read."""
        if self._look is not None:
            with contextlib.suppress(OSError):
                self._found = self._look()
        return self._found

    def reader(self, name: str) -> StoredReader:
        """Open one that was found, and say where the run goes on."""
        with _told_as_damage():
            manifest = open_checkpoint(self._storage, name).manifest
        if manifest is not None and self._channel is not None:
            caution = origin.caution(self._origin, origin_of(manifest.facts))
            place = self._storage.place()
            self._channel.resumed(f"{origin.beginning(manifest, place)}{caution}")
        return StoredReader(self._storage, name)

    def is_due(self, committed: int, asked_after: int) -> bool:
        """Whether the boundary after so many steps is to be saved."""
        return self._open().is_due(committed, asked_after)

    def begin(self, snapshot: Snapshot, *, is_needed: bool) -> bool:
        """Copy this replica's share and write it in the background."""
        return self._open().begin(snapshot, is_needed=is_needed)

    @property
    def is_settled(self) -> bool:
        """Whether this replica's part of all that was begun is done."""
        return self._writer is None or self._writer.is_settled

    @property
    def may_be_left(self) -> bool:
        """Whether who leaves need not wait for what was begun."""
        return self._writer is None or self._writer.may_be_left

    @property
    def unsaved(self) -> str:
        """Why the last save that was tried failed; empty if it did not."""
        return "" if self._writer is None else self._writer.unsaved

    def lose(self) -> None:
        """Forget what is being written."""
        self._open().lose()

    def close(self, *, wait_s: float, is_over: bool) -> None:
        """End; give the place back if the run is over."""
        has_ended = True
        if self._writer is not None:
            has_ended = self._writer.close(wait_s=wait_s)
            self._writer = None
        if self._lease is not None and is_over and has_ended:
            self._lease.release()

    def _take_place_of_job(self, facts: Facts, channel: CheckpointChannel) -> None:
        """Keep checkpoints where the first replica of the job does."""

        def holds(place: str) -> bool:
            with contextlib.suppress(OSError):
                return bool(catalogue.listed(open_storage(place, self._storage_options)))
            return False

        mine = _absolute(self._path)
        place = place_of_job(Path(facts.out), "checkpoints", mine, facts.life, holds=holds)
        if place == mine:
            return
        self._storage = open_storage(place, self._storage_options)
        channel.noted(
            f"checkpoints go to {place}, as this run began, and not to {mine}: a place named by "
            "time or process is another on every replica, and what the script itself writes "
            "there is split; use pliant.run_dir() (pliant docs prepare-data)",
            lasting=True,
        )

    def _open(self) -> Writer:
        if self._writer is None:
            raise AssertionError("used before a session had opened it")
        return self._writer

    def _usable(
        self, facts: Facts, channel: CheckpointChannel, *, run: str
    ) -> tuple[CheckpointInfo, ...]:
        """Return the published checkpoints of this run that look whole; say which do not.

        Only their manifests are read: each byte is proved when one is loaded.  If all are damaged
        they are returned, so that the run is refused and does not silently begin anew.
        """
        begins_anew = facts.from_checkpoint is FromCheckpoint.NEVER
        found: list[CheckpointInfo] = []
        damaged: list[CheckpointInfo] = []
        there = catalogue.listed(self._storage)
        for one in there:
            if len(found) == MAX_FOUND:
                break
            seen = CheckpointInfo(
                name=one.name, committed=one.committed, lineage=Lineage(one.lineage)
            )
            if one.damage is not None:
                channel.noted(f"skipped: {one.damage}")
                damaged.append(seen)
                continue
            try:
                manifest = read_manifest(self._storage, one.name)
            except MissingError:  # pruned meanwhile, by those that train
                continue
            theirs = origin_of(manifest.facts)
            if begins_anew and (theirs is None or theirs.run != run):
                continue
            if not found:
                self._check_identity(one.name, manifest.identity, facts, channel)
                self._check_origin(one.name, theirs, facts.from_checkpoint)
            found.append(replace(seen, calls=int(manifest.facts.get("calls", 0))))
        if begins_anew and there and not found:
            channel.noted(
                f"begins at step 0; what others wrote to {self._storage.place()} goes as this run "
                f"saves (keep={self._options.keep})"
            )
            newest = Lineage(max(one.lineage for one in there))
            return (CheckpointInfo(name=NO_CHECKPOINT, committed=0, lineage=newest),)
        return tuple(found or damaged[:MAX_FOUND])

    def _check_origin(self, name: str, theirs: Origin | None, wanted: FromCheckpoint) -> None:
        """Refuse to go on from what another job wrote, or this one with other arguments."""
        if wanted is not FromCheckpoint.AUTO or self._origin is None or theirs is None:
            return
        if (why := origin.difference(self._origin, theirs)) is not None:
            raise ConfigError(
                f"checkpoint {name} of {self._storage.place()} was written by {theirs}, and {why}; "
                "give this run a place of its own, go on all the same with --from-checkpoint "
                "anyway, or begin anew with --from-checkpoint never (a script that runs alone: "
                "PLIANT_FROM_CHECKPOINT=anyway)"
            )

    def _check_identity(
        self, name: str, theirs: Mapping[str, Any], facts: Facts, channel: CheckpointChannel
    ) -> None:
        """Refuse, by the first value that differs, what would not give the run's own bits."""
        theirs = {**NOT_SAID, **theirs}
        for key, mine in {**NOT_SAID, **dict(facts.identity)}.items():
            if key not in theirs or theirs[key] == mine:
                continue
            what = f"{key} is {mine} here and {theirs[key]} in checkpoint {name}"
            is_group = " of optimizer " in key
            if is_group and facts.from_checkpoint is FromCheckpoint.AUTO:
                raise ConfigError(
                    f"{what} of {self._storage.place()}, which would go on with what it was; give "
                    "this run a place of its own, or go on all the same with --from-checkpoint "
                    "anyway (a script that runs alone: PLIANT_FROM_CHECKPOINT=anyway)"
                )
            if key in FREE or is_group or key.startswith(DEVICE):
                said = f"{what}: the bits may differ from those of an undisturbed run"
                channel.noted(said, lasting=True)
                continue
            raise ConfigError(
                f"{what} of {self._storage.place()}; go on with what it was, or give this run a "
                "place of its own (with --init it can start from those weights)"
            )


@dataclass(frozen=True, slots=True)
class StoredReader:
    """One checkpoint, opened when something of it is wanted (``CheckpointReader``)."""

    storage: Storage
    name: str

    def document(self) -> bytes:
        """Return the engine's document."""
        with _told_as_damage():
            value = load(open_checkpoint(self.storage, self.name), [DOCUMENT])[DOCUMENT]
        if not isinstance(value, bytes):
            raise CheckpointDamaged(f"its {DOCUMENT} is a {type(value).__name__}")
        return value

    def read(self, into: Mapping[str, torch.Tensor], parts: Mapping[str, TensorPart]) -> None:
        """Fill the tensors, each proved by its digest."""
        with _told_as_damage():
            load(open_checkpoint(self.storage, self.name), list(into), into=into, parts=parts)


@contextlib.contextmanager
def _told_as_damage() -> Iterator[None]:
    """Turn what is wrong with a checkpoint into what the engine knows of it."""
    try:
        yield
    except (DamagedError, MissingError, ConfigError) as error:
        raise CheckpointDamaged(str(error)) from error


def _mark_of(storage: Storage) -> str:
    """Return the mark of a place, which the first replica that comes makes."""
    if not storage.has_one_winner:  # two might make one
        return ""
    mark = uuid.uuid4().hex
    if storage.create(PLACE, mark.encode()):
        return mark
    return bytes(storage.read_range(PLACE, 0, len(mark))).decode("ascii", "replace")


def _absolute(path: str | os.PathLike[str]) -> str:
    """Return where a place is whatever directory the script changes to."""
    text = os.fspath(path)
    return text if "://" in text else str(Path(text).absolute())
