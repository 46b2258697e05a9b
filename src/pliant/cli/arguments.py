"""What was typed, where the parser of the command line cannot tell.

Owns how durations and fields of a policy are read, whether the word after ``--pool``, which may
stand alone, is the pool's name or what is to run, and whose an option behind the script is.  Knows
nothing of what they mean.
"""

from __future__ import annotations

import os
import re
import shlex
from collections.abc import Collection, Iterable, Sequence
from pathlib import Path
from typing import Any

import yaml
from typer.core import TyperCommand

from pliant.core.durations import MOST_S, seconds_of
from pliant.core.errors import ConfigError
from pliant.core.pool_defaults import DEFAULT_POOL
from pliant.machine.named_modules import FLAG as MODULE
from pliant.machine.named_modules import file_of, module_of
from pliant.machine.registry import StateDirectory
from pliant.spec.model import NAME

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
    """Say what is ours in place of an option of torchrun that is typed first.

    Raises:
        ConfigError: there is one.
    """
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
