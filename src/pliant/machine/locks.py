"""Locks between processes: flock, which the kernel frees when the last that shares one has died.

Owns how long is waited for one.  Knows nothing of what it keeps others from.
"""

from __future__ import annotations

import fcntl
import os
import threading
import time
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

AGAIN_S = 0.01
"""Between two tries, in seconds."""


def lock(fd: int, *, shared: bool = False, within_s: float | None = None) -> bool:
    """Lock an open file or directory until it is closed; return whether that came about.

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


@contextmanager
def locked(path: Path, *, shared: bool = False, within_s: float | None = None) -> Iterator[bool]:
    """Hold the lock of a directory, or of a file that is made for it and stays; see ``lock``."""
    how = os.O_RDONLY if path.is_dir() else os.O_RDWR | os.O_CREAT
    fd = os.open(path, how | os.O_CLOEXEC, 0o666)
    try:
        yield lock(fd, shared=shared, within_s=within_s)
    finally:
        os.close(fd)
