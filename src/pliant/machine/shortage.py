"""What a machine is short of for a moment, as an error tells it: descriptors, room, memory.

Owns which errors these are, in a library's own words too, and the limit that each is of.  Must not
know what becomes of who meets one.
"""

from __future__ import annotations

import errno
import os
import re
import resource
from collections.abc import Iterator

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
    for one in _causes(error):
        number = _number(one)
        if number == errno.EMFILE:
            most, _ = resource.getrlimit(resource.RLIMIT_NOFILE)
            return f"short of file descriptors: ulimit -n is {most}"
        if number is not None:
            return f"short of {_OF_NUMBER[number]}"
    return None


def _causes(error: BaseException | None) -> Iterator[BaseException]:
    """Yield an error, and what it was raised from or in the handling of."""
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
