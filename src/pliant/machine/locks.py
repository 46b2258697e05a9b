"""Locks between processes: flock, which the kernel frees when the last that shares one has died.

Owns how long is waited for one.  Knows nothing of what it keeps others from.

On NFS an exclusive lock wants a file that is open for writing, so that no directory can be locked:
flock(2).
"""

from __future__ import annotations

import errno
import fcntl
import os
import threading
import time
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import BinaryIO

from pliant.machine.files import open_private, open_regular
from pliant.machine.interfaces import user_name
from pliant.machine.processes import process_user

AGAIN_S = 0.01
"""Between two tries, in seconds."""

WAIT_S = 30.0
"""Longest wait for a lock that is held for moments, in seconds; a slow disk may take a few."""


def lock(fd: int, *, shared: bool = False, within_s: float | None = None) -> bool:
    """Lock an open file until it is closed; return whether that came about.

    It is tried for ``within_s``; 0: once; None: for as long as it takes.

    Raises:
        OSError: the file system has no locks.
    """
    how = fcntl.LOCK_SH if shared else fcntl.LOCK_EX
    if within_s is None:
        fcntl.flock(fd, how)
        return True
    pause, until_s = threading.Event(), time.monotonic() + within_s
    while True:
        try:
            fcntl.flock(fd, how | fcntl.LOCK_NB)
        except BlockingIOError:
            if time.monotonic() >= until_s:
                return False
            pause.wait(AGAIN_S)
        else:
            return True


def lock_is_held(path: Path) -> bool:
    """Whether somebody holds the lock of a file; else it is taken for the moment of the look."""
    try:
        fd = _open(path)
    except OSError:
        return False
    try:
        return not lock(fd, within_s=0)
    except OSError:
        return False
    finally:
        os.close(fd)


@contextmanager
def held(path: Path, *, within_s: float = WAIT_S) -> Iterator[None]:
    """Hold a lock that others hold for moments only.

    Raises:
        TimeoutError: somebody holds it for longer; says who.
    """
    with locked(path, within_s=within_s) as is_ours:
        if not is_ours:
            raise _held_too_long(path, within_s)
        yield


def lock_file(path: Path, *, within_s: float) -> int | None:
    """Open and lock a file that others replace, as it is by then; None: not within that time.

    Raises:
        OSError: it is not there, cannot be opened, or the file system has no locks.
    """
    until_s = time.monotonic() + within_s
    while True:
        fd, is_it = _open(path), False
        try:
            is_ours = lock(fd, within_s=max(0.0, until_s - time.monotonic()))
            is_it = is_ours and _is_at(path, fd)
        finally:
            if not is_it:
                os.close(fd)
        if is_it:
            return fd
        if not is_ours or time.monotonic() >= until_s:
            return None


@contextmanager
def held_file(path: Path, *, within_s: float = WAIT_S) -> Iterator[BinaryIO]:
    """Hold the lock of a file that is replaced under it; yield what is there to be read.

    Raises:
        TimeoutError: as ``held``.
        OSError: as ``lock_file``.
    """
    fd = lock_file(path, within_s=within_s)
    if fd is None:
        raise _held_too_long(path, within_s)
    with os.fdopen(fd, "rb") as file:
        yield file


def _open(path: Path) -> int:
    """Open a file for its lock; for writing where that may be, as NFS wants it."""
    try:
        return open_regular(path, os.O_RDWR | os.O_NOFOLLOW)
    except OSError:
        return open_regular(path, os.O_RDONLY | os.O_NOFOLLOW)


def _is_at(path: Path, fd: int) -> bool:
    """Whether an open file is the one that has this name."""
    try:
        return os.path.samestat(os.fstat(fd), path.stat())
    except OSError:
        return False


def _held_too_long(path: Path, within_s: float) -> TimeoutError:
    said = f"{who_holds(path)} has held its lock for {within_s:g} s"
    return TimeoutError(errno.ETIMEDOUT, said, str(path))


def who_holds(path: Path) -> str:
    """Name who holds the lock of a file, and whose process that is, for people.

    As everybody can see it: also of other users' processes, and of one that took the lock, left it
    to others that share it, and is gone.
    """
    try:
        inode = path.stat().st_ino
        lines = Path("/proc/locks").read_text().splitlines()
    except OSError:
        lines = []
    for line in lines:  # 1: FLOCK  ADVISORY  WRITE 4711 00:2a:123456 0 EOF
        words = line.split()
        if "FLOCK" in words and "->" not in words and words[-3].endswith(f":{inode}"):
            pid = words[-4]
            uid = process_user(int(pid))
            if uid is None:
                return f"what process {pid} has left behind"
            return f"process {pid} of user {user_name(uid)}"
    return "another process"


@contextmanager
def locked(path: Path, *, shared: bool = False, within_s: float | None = None) -> Iterator[bool]:
    """Hold the lock of a file that is made for it and stays; see ``lock``."""
    fd = open_private(path, os.O_RDWR)
    try:
        yield lock(fd, shared=shared, within_s=within_s)
    finally:
        os.close(fd)
