"""Meeting place: the private directory in which workers of one replica find each other.

Owns where it lies and whose it is.  An agent removes its own, and the fork server that of an agent
that was killed; where both were killed at one moment the next agent of this user does.  Must not
know what lies in it.

Several containers may share ``/tmp``, and process ids mean nothing in another's.  So an agent keeps
a file in it locked for as long as it lives, which the kernel knows in all of them; and says whose
it is only once that is so.
"""

from __future__ import annotations

import contextlib
import errno
import json
import os
import shutil
import stat
import tempfile
from collections.abc import Iterator
from dataclasses import asdict, dataclass
from pathlib import Path

from pliant.machine.descriptors import shortage_of
from pliant.machine.files import PRIVATE, open_private, open_regular, read_own, write_new
from pliant.machine.locks import lock, lock_is_held
from pliant.machine.processes import ProcessMark

MOST_LETTERS = 40
"""Of the path in which one is made: the name of a Unix socket has 107 in all."""

PREFIX = "pliant-"

OWNER = ".agent"
"""File in it that says whose it is; without it a directory of such a name is not ours."""


HELD = ".held"
"""File in it that its agent has locked."""

IS_HELD = "is_held"
"""Field of what says whose it is: whether it is locked; without it nobody but processes tell."""


@dataclass(frozen=True, slots=True)
class MeetingPlace:
    """One that is there; ``remove`` once."""

    path: Path

    held: int
    """Descriptor of the file that is locked as long as it is open."""

    def remove(self) -> None:
        """Remove it with all that is in it."""
        shutil.rmtree(self.path, ignore_errors=True)
        os.close(self.held)


def make_meeting_place() -> MeetingPlace:
    """Make a directory for sockets, which only this user can enter.

    Raises:
        OSError: there is no place for it.
    """
    for place in _places():
        try:
            return _make_in(place)
        except OSError as error:
            if error.errno in (errno.EMFILE, errno.ENFILE):
                raise OSError(error.errno, shortage_of(error)) from error
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


def _make_in(place: str) -> MeetingPlace:
    made = Path(tempfile.mkdtemp(prefix=PREFIX, dir=place))
    try:
        held = open_private(made / HELD, os.O_RDWR)
        try:
            owner = asdict(ProcessMark.own()) | {IS_HELD: _is_free(held)}
            write_new(made / OWNER, json.dumps(owner).encode(), mode=PRIVATE)
        except OSError:
            os.close(held)
            raise
    except OSError:
        shutil.rmtree(made, ignore_errors=True)
        raise
    return MeetingPlace(made, held)


def _is_abandoned(path: Path) -> bool:
    """Whether it is a meeting place of this user's whose agent has ended, as far as can be told."""
    try:
        found = path.lstat()
        if not stat.S_ISDIR(found.st_mode) or found.st_uid != os.geteuid():
            return False
        said = json.loads(read_own(path / OWNER))
        owner = ProcessMark.of(said)
    except (OSError, ValueError, AttributeError):
        return False
    if owner is None:
        return False
    lives, tells = owner.lives(), said.get(IS_HELD) is True
    if lives is None and owner.is_of_this_boot and tells:
        return _nobody_holds(path / HELD)
    # Two virtual machines of one name may share the directory: to each the other is a boot before.
    return lives is False and not (tells and lock_is_held(path / HELD))


def _nobody_holds(path: Path) -> bool:
    """Whether a file is there and nobody has it locked; the lock is taken for this moment."""
    try:
        fd = open_regular(path, os.O_RDWR | os.O_NOFOLLOW)
    except OSError:
        return False
    try:
        return _is_free(fd)
    finally:
        os.close(fd)


def _is_free(fd: int) -> bool:
    """Lock an open file, if nobody else has; False, too, where there are no locks."""
    with contextlib.suppress(OSError):
        return lock(fd, within_s=0)
    return False
