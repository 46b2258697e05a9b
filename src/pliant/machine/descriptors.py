"""Descriptors kept for what must not fail when a process has run out of them.

Owns a few open files that mean nothing, how many a process may have, and how it is said that there
are no more.  Knows nothing of what they are lent for.
"""

from __future__ import annotations

import errno
import os
import re
import resource
from collections.abc import Iterator
from contextlib import contextmanager

MOST_FILES = 65_536
"""That a process is let have open: a limit that is far away costs time where all are closed."""


class SpareDescriptors:
    """So many descriptors that nobody else can take; given up with the object."""

    def __init__(self, number: int) -> None:
        self._number = number
        self._kept: list[int] = []
        self._take()

    @contextmanager
    def lent(self) -> Iterator[None]:
        """Let what is opened within have them; they are taken again as far as there are any."""
        self._give()
        try:
            yield
        finally:
            self._take()

    def __del__(self) -> None:
        self._give()

    def _give(self) -> None:
        while self._kept:
            os.close(self._kept.pop())

    def _take(self) -> None:
        while len(self._kept) < self._number:
            try:
                self._kept.append(os.open(os.devnull, os.O_RDONLY | os.O_CLOEXEC))
            except OSError:
                return


def allow_many(most: int = MOST_FILES) -> None:
    """Let this process have as many files open as its user may: each agent of a job is one."""
    soft, hard = resource.getrlimit(resource.RLIMIT_NOFILE)
    wanted = most if hard == resource.RLIM_INFINITY else min(most, hard)
    if soft != resource.RLIM_INFINITY and soft < wanted:
        resource.setrlimit(resource.RLIMIT_NOFILE, (wanted, hard))


def check_free(number: int) -> None:
    """See that so many descriptors are free at this moment.

    Raises:
        OSError: they are not.
    """
    found: list[int] = []
    try:
        while len(found) < number:
            found.append(os.open(os.devnull, os.O_RDONLY | os.O_CLOEXEC))
    finally:
        for fd in found:
            os.close(fd)


def shortage_of(error: OSError) -> str:
    """Say to a person what there is none of; of another error what it says itself."""
    match error.errno:
        case errno.EMFILE:
            soft, _ = resource.getrlimit(resource.RLIMIT_NOFILE)
            return f"no file descriptor is free there (ulimit -n is {soft})"
        case errno.ENFILE:
            return "no file descriptor is free on the whole machine (fs.file-max)"
        case _:
            return error.strerror or str(error)


_OF_NUMBER = {
    errno.EMFILE: "file descriptors",
    errno.ENFILE: "open files of this machine: sysctl fs.file-max",
    errno.ENOSPC: "room on a disk, or in /dev/shm or /tmp: see df",
    errno.ENOMEM: "memory: see free, or the container's limit",
    errno.EAGAIN: "processes and threads: ulimit -u, or the container's limit",
}

_OF_WORDS = {
    **{os.strerror(number): number for number in _OF_NUMBER},
    "MemoryError": errno.ENOMEM,
    "can't allocate memory": errno.ENOMEM,
    "can't start new thread": errno.EAGAIN,
}
"""In a ``RuntimeError`` of torch or of Python, and in what a loader process has raised."""

_WORDS = re.compile("|".join(sorted(map(re.escape, _OF_WORDS), key=len, reverse=True)))


def shortage(error: BaseException) -> str | None:
    """Say what the machine was short of, and which limit that is; None: it is another error."""
    for one in causes(error):
        number = _number(one)
        if number == errno.EMFILE:
            most, _ = resource.getrlimit(resource.RLIMIT_NOFILE)
            return f"short of file descriptors: ulimit -n is {most}"
        if number is not None:
            return f"short of {_OF_NUMBER[number]}"
    return None


def causes(error: BaseException | None) -> Iterator[BaseException]:
    """Yield an error, and what it was raised from or in the handling of: the first comes last."""
    seen: set[int] = set()
    while error is not None and id(error) not in seen:
        seen.add(id(error))
        yield error
        error = error.__cause__ or (None if error.__suppress_context__ else error.__context__)


def _number(error: BaseException) -> int | None:
    if isinstance(error, MemoryError):
        return errno.ENOMEM
    if isinstance(error, OSError) and error.errno is not None:
        return error.errno if error.errno in _OF_NUMBER else None
    if isinstance(error, OSError | RuntimeError) and (found := _WORDS.search(str(error))):
        return _OF_WORDS[found[0]]
    return None
