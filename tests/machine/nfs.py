"""Locks as a file system of another machine has them."""

from __future__ import annotations

import errno
import fcntl
import os
from collections.abc import Callable


def lock_as_on_nfs(fd: int, how: int, *, flock: Callable[[int, int], None] = fcntl.flock) -> None:
    """There a shared lock wants a file open for reading, an exclusive one for writing: flock(2)."""
    mode = fcntl.fcntl(fd, fcntl.F_GETFL) & os.O_ACCMODE
    if mode == (os.O_WRONLY if how & fcntl.LOCK_SH else os.O_RDONLY):
        raise OSError(errno.EBADF, "Bad file descriptor")
    flock(fd, how)
