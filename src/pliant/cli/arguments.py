"""An option that may stand alone: ``--pool`` before the script, with or without a name.

Owns the one question that the command line's parser cannot answer: whether the word after
``--pool`` is the pool's name, or what is to run.  Knows nothing of either.
"""

from __future__ import annotations

from collections.abc import Collection, Sequence
from pathlib import Path
from typing import Any

from typer.core import TyperCommand

from pliant.core.pool_defaults import DEFAULT_POOL
from pliant.spec.model import NAME

POOL = "--pool"


class RunCommand(TyperCommand):
    """``pliant run``, in which ``--pool`` needs no name."""

    has_script = True
    """Whether the last word is what to run, and no name."""

    def parse_args(self, ctx: Any, args: list[str]) -> list[str]:
        """Spell the pool's name out before the words are parsed."""
        options = self.get_params(ctx)
        alone = {word for option in options if _is_switch(option) for word in option.opts}
        return super().parse_args(ctx, with_name(args, alone=alone, has_script=self.has_script))


class ExplainCommand(RunCommand):
    """``pliant explain``, in which ``--pool`` needs no name, and nothing is run."""

    has_script = False


def with_name(
    words: Sequence[str], *, alone: Collection[str], has_script: bool = True
) -> list[str]:
    """Give ``--pool`` the default name if no name follows it.

    A name is what a pool can be called and is neither a file nor the last word: that is the script.

    Args:
        words: what was typed after ``pliant run``.
        alone: options that take no value.
        has_script: the last word is what to run.
    """
    said, at = [], 0
    while at < len(words) and words[at].startswith("-") and words[at] != "--":
        word = words[at]
        at += 1
        if word == POOL:
            is_named = at < len(words) - has_script and _is_name(words[at])
            said.append(f"{POOL}={words[at] if is_named else DEFAULT_POOL}")
            at += is_named
            continue
        said.append(word)
        if "=" not in word and word not in alone:
            said += words[at : at + 1]
            at += 1
    return [*said, *words[at:]]


def _is_name(word: str) -> bool:
    return NAME.fullmatch(word) is not None and not Path(word).is_file()


def _is_switch(option: Any) -> bool:
    return bool(getattr(option, "is_flag", False))
