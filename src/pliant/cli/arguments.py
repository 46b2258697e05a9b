"""Options that several commands have, and what was typed where the parser cannot tell.

Owns each option once, and how durations, devices, teams, users and fields of a policy are read;
whether the word after ``--pool``, which may stand alone, is the pool's name or what is to run, and
whose an option behind the script is.  Knows nothing of what they mean.
"""

from __future__ import annotations

import math
import os
import re
import shlex
from collections.abc import Collection, Iterable, Sequence
from pathlib import Path
from typing import Annotated, Any

import yaml
from typer.core import TyperCommand

from pliant.cli.help import argument, job_names, option
from pliant.coordinator.trackers import check_place
from pliant.core.device_names import cores_of, hidden_one
from pliant.core.errors import ConfigError
from pliant.core.placement import PlacementRule
from pliant.core.tenancy import DEFAULT_POOL
from pliant.core.text import MOST_S, seconds_of
from pliant.core.values import Labels
from pliant.machine.named_modules import FLAG as MODULE
from pliant.machine.named_modules import file_of, module_of
from pliant.machine.registry import StateDirectory
from pliant.spec.job import WEB_ADDRESS
from pliant.spec.model import NAME
from pliant.spec.pool import devices_of
from pliant.wire.bounds import LABEL, MOST_LABELS

POOL = "--pool"

LISTS = ("replicaDiscreteValues",)
"""Fields of which ``2,4,8`` is a value."""


TORCHRUNS = (
    *("--nproc-per-node", "--node-rank", "--standalone", "--master-addr"),
    *("--master-port", "--rdzv-backend", "--rdzv-endpoint", "--rdzv-id", "--rdzv-conf"),
)
"""Options that are typed out of habit, for which pliant has no use."""


class RunCommand(TyperCommand):
    """``pliant run``, in which ``--pool`` needs no name."""

    has_script = True
    """Whether the last word is what to run, and no name."""

    def parse_args(self, ctx: Any, args: list[str]) -> list[str]:
        """Spell the pool's name out before the words are parsed."""
        if self.has_script:
            _refuse_torchruns(args)
        switches = [one for one in self.get_params(ctx) if getattr(one, "is_flag", False)]
        alone = {word for option in switches for word in option.opts}
        left = super().parse_args(ctx, with_name(args, alone=alone, has_script=self.has_script))
        if self.has_script and ctx.params.get("target"):
            flags = {word for option in self.params for word in option.opts}  # --help passes
            what = [ctx.params["target"], *(ctx.params.get("arguments") or [])]
            at = 1 if module_of(what) is None else 2
            left_over = of_script(
                what[:at], what[at:], flags=flags, alone=alone, command=ctx.command_path
            )
            ctx.params["arguments"] = [*what[1:at], *left_over]
        return left


class ExplainCommand(RunCommand):
    """``pliant explain``, in which ``--pool`` needs no name, and nothing is run."""

    has_script = False


def _refuse_torchruns(typed: Sequence[str]) -> None:
    """Say what is ours in place of an option of torchrun that is typed first."""
    flag = typed[0].partition("=")[0] if typed else ""
    if flag.replace("_", "-") in TORCHRUNS:
        raise ConfigError(
            f"{flag} is torchrun's: leave it out; --max N is how many replicas there may be, and "
            "on several hosts pliant run --join HOST:PORT --nnodes MIN:MAX runs them"
        )


def state_directory() -> StateDirectory:
    """Return where the records of this user's jobs and pools lie."""
    return StateDirectory.of(os.environ)


def with_name(
    typed: Sequence[str], *, alone: Collection[str], has_script: bool = True
) -> list[str]:
    """Give ``--pool`` the default name if no name follows it; options ``alone`` take no value.

    A name is what a pool can be called and is neither a file nor the last word: that is the script.
    Our options end at ``-m MODULE`` as they do at a script.
    """
    spelt, at = [], 0
    while at < len(typed) and typed[at].startswith("-") and typed[at] != "--":
        word = typed[at]
        at += 1
        if word == POOL:
            is_named = at < len(typed) - has_script and _is_name(typed[at])
            spelt.append(f"{POOL}={typed[at] if is_named else DEFAULT_POOL}")
            at += is_named
            continue
        if has_script and word[:2] == MODULE:
            glued = [word[2:]] if word != MODULE else []
            return [*spelt, "--", MODULE, *glued, *typed[at:]]
        spelt.append(word)
        if "=" not in word and word not in alone:
            spelt += typed[at : at + 1]
            at += 1
    return [*spelt, *typed[at:]]


def of_script(
    what: Sequence[str],
    typed: Sequence[str],
    *,
    flags: Collection[str],
    alone: Collection[str],
    command: str,
) -> list[str]:
    """Return what is the script's of the words behind it: all, but for a ``--`` right behind it.

    ``flags`` are the options of ours, of which those ``alone`` take no value.

    Raises:
        ConfigError: one is an option of ours, and the script has no such word.
    """
    if list(typed[:1]) == ["--"]:
        return list(typed[1:])
    script = " ".join(what)
    for at, word in enumerate(typed):
        if word == "--":
            break
        flag = word.partition("=")[0]
        if flag.startswith("--") and flag in flags and not _has_word(what, flag):
            has_value = "=" not in word and flag not in alone
            value = [each for each in typed[at + 1 : at + 2] if has_value and each[:1] != "-"]
            ours, theirs = shlex.join([word, *value, *what]), shlex.join([*what, "--", *typed])
            raise ConfigError(
                f"{flag} stands behind {script}, which does not name it: write {command} {ours} "
                f"if it is for pliant, and {command} {theirs} if it is for the script"
            )
    return list(typed)


def _has_word(what: Sequence[str], flag: str) -> bool:
    """Whether a script names an option, as far as can be seen without running it."""
    script = file_of(what, Path.cwd())
    try:
        text = None if script is None else script.read_text(errors="replace")
    except OSError:
        text = None
    if text is None:
        return True  # what is wrong with it is said by who reads it
    return re.search(rf"(?<![\w-]){re.escape(flag)}(?![\w-])", text) is not None


def _is_name(word: str) -> bool:
    return NAME.fullmatch(word) is not None and not Path(word).is_file()


def changes_of(assignments: Iterable[str]) -> dict[str, Any]:
    """Read ``maxReplicas=6``, ``replicaDiscreteValues=2,4,8``, ``backoff.factor=3``.

    Raises:
        ConfigError: a word is no such assignment, or a field is given twice.
    """
    changes: dict[str, Any] = {}
    for word in assignments:
        key, equals, text = word.partition("=")
        if not equals or not key or not text:
            raise ConfigError(f"{word!r} is not KEY=VALUE, for instance maxReplicas=6")
        *outer, name = key.split(".")
        place = changes
        for part in outer:
            inner = place.setdefault(part, {})
            if not isinstance(inner, dict):
                raise ConfigError(f"{key} and {part} are both given")
            place = inner
        if name in place:
            raise ConfigError(f"{key} is given twice")
        place[name] = _value(name, text)
    return changes


def _value(name: str, text: str) -> Any:
    if text.lower() in ("none", "null"):
        return None
    if name in LISTS and not text.startswith("["):
        text = f"[{text}]"
    try:
        return yaml.safe_load(text)
    except yaml.YAMLError:
        return text


def seconds(flag: str, text: str) -> float:
    """Read a duration: ``30``, ``30s``, ``1.5m``, ``1h``."""
    found = seconds_of(text if text.strip()[-1:].isalpha() else f"{text}s")
    if found is None:
        raise ConfigError(f"{flag} {text!r} is no duration; write it like 30s, 5m or 1h")
    if found > MOST_S:
        raise ConfigError(f"{flag} {text} is too long; at most {MOST_S:g} s can be waited for")
    return found


def some_seconds(flag: str, text: str, otherwise: str = "") -> float:
    """Read a duration that is more than 0.

    Raises:
        ConfigError: it is 0, or no duration; ``otherwise`` says what to type instead of 0.
    """
    value_s = seconds(flag, text)
    if value_s == 0:
        raise ConfigError(f"{flag} {text} must be more than 0{otherwise}")
    return value_s


def labels_of(flag: str, text: str) -> Labels:
    """Read the labels of a host.

    Raises:
        ConfigError: they are none, or too many.
    """
    words = text.split(",") if text else []
    found = dict(word.partition("=")[::2] for word in words)
    if len(found) < len(words) or len(found) > MOST_LABELS:
        raise ConfigError(
            f"{flag} {text} must name each label once, and {MOST_LABELS} of them at most"
        )
    for part in (part for pair in found.items() for part in pair):
        if not LABEL.fullmatch(part):
            raise ConfigError(
                f"{flag} {text} must be KEY=VALUE, or several with commas, each of letters, "
                "digits, '.', '_', '/' and '-', at most 63, such as rack=a"
            )
    return tuple(sorted(found.items()))


def price_of(where: str, text: str) -> float:
    """Return a price.

    Raises:
        ConfigError: it is none.
    """
    try:
        price = float(text)
    except ValueError:
        price = -1.0
    if not 0 <= price < math.inf:
        raise ConfigError(f"{where} {text} must be a number from 0 on")
    return price


def trackers_of(where: str, text: str) -> str:
    """Return trackers, with commas between them.

    Raises:
        ConfigError: one of them is none that can be used here.
    """
    for one in text.split(","):
        check_place(one)
    return text


def web_address(where: str, text: str) -> str:
    """Return a URL.

    Raises:
        ConfigError: it is none of the web.
    """
    if not re.fullmatch(WEB_ADDRESS, text):
        raise ConfigError(f"{where} {text} must be a URL that begins with http:// or https://")
    return text


def placement_of(flag: str, text: str) -> PlacementRule:
    """Read where replicas go.

    Raises:
        ConfigError: there is no such way.
    """
    try:
        return PlacementRule.of(text)
    except ConfigError as error:
        raise ConfigError(f"{flag}: {error}") from None


def shown_replica(flag: str, text: str) -> str:
    """Read whose output to show: ``all``, ``none``, or the name of a replica or of a worker.

    Raises:
        ConfigError: it is none of them.
    """
    if not re.fullmatch(r"all|none|r[1-9]\d*(\.\d+)?", text):
        raise ConfigError(f"{flag} {text!r} is neither all nor none nor a replica such as r1")
    return text


Job = Annotated[
    str | None, option("--job NAME", "Which job, if several run.", autocompletion=job_names)
]
Json = Annotated[bool, option("--json", "Print JSON instead of text.")]
LogJson = Annotated[bool, option("--json", "Print the event log's records as they come.")]
Out = Annotated[Path | None, option("--out DIR", "Look at the run in this directory instead.")]
TlsCa = Annotated[
    Path | None,
    option(
        "--tls-ca FILE",
        "The coordinator speaks TLS; this CA signs its certificate.",
        envvar="PLIANT_TLS_CA",
    ),
]
TlsCertificate = Annotated[
    Path | None,
    option(
        "--tls-certificate FILE",
        "This host's, if the coordinator wants one.",
        envvar="PLIANT_TLS_CERTIFICATE",
    ),
]
TlsKey = Annotated[
    Path | None, option("--tls-key FILE", "Of that certificate.", envvar="PLIANT_TLS_KEY")
]
PoolName = Annotated[
    str | None, option("--pool NAME", "Which pool, if several run.", envvar="PLIANT_POOL")
]
Detach = Annotated[bool, option("--detach", "Run in the background; follow it with status.")]
Target = Annotated[str, argument("SCRIPT|-m MODULE|JOB.YAML", "What to run.")]
Arguments = Annotated[
    list[str] | None,
    argument("ARGS", "The script's; behind -- if they look like options of pliant."),
]


Device = Annotated[str, argument("DEVICE", "Its number, or its name.")]
Kind = Annotated[str, option("--kind KIND", "Of which kind.  [default: the pool's first]")]
Why = Annotated[str, option("--reason TEXT", "Why, for those who wait for it.")]


def devices_here(
    typed: str | None, in_file: str | int | None, *, place: str
) -> tuple[int | None, tuple[str, ...] | None]:
    """Return how many devices there are, and what they are called; None: it was not said.

    What was typed comes before what a file says at a place of it.

    Raises:
        ConfigError: there cannot be so many, a core is not this machine's, or a variable hides one.
    """
    said, given = (in_file, place) if typed is None else (typed, "--devices")
    if said is None:
        return None, None
    number, names = devices_of(said, given=given)
    if strange := sorted(cores_of(names or ()) - os.sched_getaffinity(0)):
        raise ConfigError(f"{given} {said}: core {strange[0]} is not one of this machine's")
    if hidden := hidden_one(names or (), os.environ):
        raise ConfigError(f"{given} {said}: {hidden}, by which this process sees its devices")
    return number, names


ALL = "*"
"""No class is called so."""

Team = Annotated[str, argument("TEAM", "A new one, or one that is there.")]
Quota = Annotated[int | None, option("--quota N", "Devices that are its own.")]
NoQuota = Annotated[bool, option("--no-quota", "It has none, and may use all devices.")]
BorrowLimit = Annotated[int | None, option("--borrow-limit N", "Idle devices beyond its quota.")]
NoBorrowLimit = Annotated[bool, option("--no-borrow-limit", "It may use all that are idle.")]
Reclaim = Annotated[
    str | None,
    option("--reclaim LowerPriority|SameTeam|Never", "Whom its claims may take devices from."),
]
ByClass = Annotated[
    list[str] | None,
    option("--by CLASS", "Only claims of this class may.  Repeatable; '*': all may."),
]


def rules_of(
    quota: int | None,
    no_quota: bool,
    borrow_limit: int | None,
    no_borrow_limit: bool,
    reclaim: str | None,
    by: list[str] | None,
) -> dict[str, Any]:
    """Return what a request says of what a team may use; what is not in it stays.

    Raises:
        ConfigError: the options contradict each other.
    """
    said = _number("quota", quota, "--quota", is_none=no_quota)
    said |= _number("borrowLimit", borrow_limit, "--borrow-limit", is_none=no_borrow_limit)
    if borrow_limit is not None and quota is None:
        raise ConfigError(f"--borrow-limit {borrow_limit} counts from a quota; give --quota, too")
    rule: dict[str, Any] = {"from": reclaim} if reclaim else {}
    rule |= {"by": None if ALL in by else by} if by else {}
    return {**said, "reclaim": rule} if rule else said


def _number(field: str, number: int | None, flag: str, *, is_none: bool) -> dict[str, Any]:
    if is_none and number is not None:
        raise ConfigError(f"{flag} {number} and --no-{flag[2:]}: leave out one of them")
    return {field: number} if is_none or number is not None else {}


EVERYBODY = "*"
"""No user is called so."""

ForUsers = Annotated[
    list[str] | None,
    option(
        "--user USER", "For this user only.  Repeatable; '*': for everybody.  [default: as before]"
    ),
]


def users_of(typed: list[str] | None) -> dict[str, list[str] | None]:
    """Return what a request says of the users; nothing: they stay."""
    if not typed:
        return {}
    return {"users": None if EVERYBODY in typed else typed}
