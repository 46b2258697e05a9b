"""Origin: which run wrote a checkpoint, and whether another one may go on from it.

Owns what a checkpoint says of its run for that, and the sentences.  Must not know storage, nor what
must be equal for equal bits (``engine.identity``).

A run is the same as the one before if it is the same job with the same arguments, or with others
that leave its identity alone, to which learning rates belong: so a longer run goes on.  What may
differ as well: the number of replicas, where the script lies, what it says, and where the place is.
What differs is told.
"""

from __future__ import annotations

import shlex
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any, Self

from pydantic import TypeAdapter, ValidationError

from pliant.checkpoint.dcp.manifest import Manifest, digest_of
from pliant.engine.script_files import text_of
from pliant.engine.state.durable import Facts

MOST_CHANGES = 3
"""That are named."""

PLACE = "<checkpoints>"
"""Stands for the place of the checkpoints where a script was given it as an argument."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Origin:
    """The run that wrote a checkpoint, or that wants to go on from it."""

    run: str
    """The same for all replicas, and when the job is resumed."""

    job: str
    """Its name; empty for a script that runs alone."""

    script: str
    """Name of the file, whether it was run as such or as a module; of a package with the package's.
    """

    script_digest: str
    arguments: tuple[str, ...]
    settings: Mapping[str, str] = field(default_factory=dict)
    """What the script gave its schedulers."""

    @classmethod
    def of(cls, facts: Facts, *, run: str, place: str) -> Self | None:
        """Return the origin that a session is; None if it is no script's."""
        if not facts.command:
            return None
        script, *arguments = facts.command
        return cls(
            run=run,
            job=facts.job if facts.holder else "",
            script=_name(Path(script)),
            script_digest=_digest(script),
            arguments=tuple(_without_place(word, place) for word in arguments),
            settings=dict(facts.settings),
        )

    def __str__(self) -> str:
        command = shlex.join([self.script, *self.arguments]).replace(f"'{PLACE}'", PLACE)
        return f"job {self.job} ({command})" if self.job else command


_ORIGIN: TypeAdapter[Origin] = TypeAdapter(Origin)


def origin_of(facts: Mapping[str, Any]) -> Origin | None:
    """Return which run the facts of a manifest tell of; None: they do not say."""
    try:
        return _ORIGIN.validate_python(facts.get("origin"))
    except ValidationError:
        return None


def difference(mine: Origin, theirs: Origin) -> str | None:
    """Say why one run does not go on where the other has left off; None: it does."""
    if mine.job and theirs.job:
        if mine.job != theirs.job:
            return f"this is another job: {mine}"
    elif mine.script != theirs.script:
        return f"this is another script: {mine}"
    return None


def _changes(mine: Origin, theirs: Origin) -> list[str]:
    """Name what the script gives its schedulers otherwise than before."""
    now, before = mine.settings, theirs.settings
    return [
        f"{name} is {now[name]} in the script now, and was {before[name]}"
        for name in now
        if name in before and now[name] != before[name]
    ]


def beginning(manifest: Manifest, place: str) -> str:
    """Say from what a run goes on."""
    theirs = origin_of(manifest.facts)
    who = str(theirs or manifest.job)
    return (
        f"goes on after step {manifest.committed}, from checkpoint {manifest.name} of {place}, "
        f"written {manifest.created} by {who}"
    )


def caution(mine: Origin | None, theirs: Origin | None) -> str:
    """Say what else there is to know about going on; empty if there is nothing."""
    if theirs is None:
        return "; it does not say with which arguments it was written"
    if mine is None:
        return ""
    said = "; the script has changed since" if mine.script_digest != theirs.script_digest else ""
    if mine.arguments != theirs.arguments:
        said += f"; its arguments are now {_words(mine.arguments)}"
    if changed := _changes(mine, theirs):
        said += f"; {'; '.join(changed[:MOST_CHANGES])}: the checkpoint's values count, so that "
        said += "learning rates may end elsewhere than the script says"
    return said


def _name(script: Path) -> str:
    return str(Path(script.parent.name, script.name)) if script.stem == "__main__" else script.name


def _without_place(word: str, place: str) -> str:
    name, separator, value = word.rpartition("=")
    return f"{name}{separator}{PLACE}" if value == place else word


def _digest(script: str) -> str:
    text = text_of(Path(script).absolute())
    return digest_of(text) if text else ""


def _words(arguments: Sequence[str]) -> str:
    return shlex.join(arguments).replace(f"'{PLACE}'", PLACE) or "none"
