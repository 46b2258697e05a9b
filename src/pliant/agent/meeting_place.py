"""Meeting place: the private directory in which workers of one replica find each other.

Owns where it lies and whose it is.  An agent removes its own, and the fork server that of an agent
that was killed; where both were killed at one moment the next agent of this user does.  Must not
know what lies in it.
"""

from __future__ import annotations

import contextlib
import json
import os
import shutil
import stat
import tempfile
from collections.abc import Iterator
from dataclasses import asdict
from pathlib import Path

from pliant.machine.files import PRIVATE, read_own, write_new
from pliant.machine.processes import ProcessMark

MOST_LETTERS = 40
"""Of the path in which one is made: the name of a Unix socket has 107 in all."""

PREFIX = "pliant-"

OWNER = ".agent"
"""File in it that says whose it is; without it a directory of such a name is not ours."""


def make_meeting_place() -> Path:
    """Make a directory for sockets, which only this user can enter.

    Raises:
        OSError: there is no place for it.
    """
    for place in _places():
        with contextlib.suppress(OSError):
            return _make_in(place)
    usual = _usual_place()
    raise OSError(
        f"its workers have no directory to meet in: {usual} cannot be written, or its path is "
        f"longer than {MOST_LETTERS} letters; set TMPDIR"
    )


def remove_abandoned() -> None:
    """Remove those whose agent was killed together with its fork server."""
    for place in _places():
        for path in Path(place).glob(f"{PREFIX}*"):
            if _is_abandoned(path):
                shutil.rmtree(path, ignore_errors=True)


def _places() -> Iterator[str]:
    for place in dict.fromkeys((_usual_place(), "/tmp", "/dev/shm")):  # noqa: S108
        if len(place) <= MOST_LETTERS:
            yield place


def _usual_place() -> str:
    with contextlib.suppress(OSError):  # all that it knows are full
        return tempfile.gettempdir()
    return "/tmp"  # noqa: S108 - made by mkdtemp, 0700


def _make_in(place: str) -> Path:
    made = Path(tempfile.mkdtemp(prefix=PREFIX, dir=place))
    try:
        write_new(made / OWNER, json.dumps(asdict(ProcessMark.own())).encode(), mode=PRIVATE)
    except OSError:
        shutil.rmtree(made, ignore_errors=True)
        raise
    return made


def _is_abandoned(path: Path) -> bool:
    """Whether it is a meeting place of this user's whose agent has ended, as far as can be told."""
    try:
        found = path.lstat()
        if not stat.S_ISDIR(found.st_mode) or found.st_uid != os.geteuid():
            return False
        owner = ProcessMark.of(json.loads(read_own(path / OWNER)))
    except (OSError, ValueError, AttributeError):
        return False
    return owner is not None and owner.lives() is False
