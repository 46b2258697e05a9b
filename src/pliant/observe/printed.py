"""What workers printed, as it lies in the directory of a run, piece by piece.

Owns reading files while others write and rotate them: none of it is left out, and none comes twice.
Knows nothing of who writes them, and of how it is shown.

    r1.log.2, r1.log.1    rotated, the oldest first
    r1.log                grows
"""

from __future__ import annotations

import os
import zlib
from collections.abc import Callable, Iterable, Iterator, Sequence
from contextlib import ExitStack, contextmanager, suppress
from dataclasses import dataclass
from pathlib import Path
from typing import BinaryIO

from pliant.core.errors import ConfigError
from pliant.core.text import in_words, order_of, replica_of
from pliant.machine import run_files
from pliant.machine.files import open_to_read

PIECE_BYTES = 1 << 20

HEAD_BYTES = 256
"""By so many bytes at its beginning a file is told from another with its inode."""

MAX_OFFSET = 1 << 40
"""No file of output has a position beyond, which every file system knows."""

FORK_SERVER = "forkserver"
"""Its file lies beside the replicas'; shown only by name."""


@dataclass(frozen=True, slots=True)
class PrintedUntil:
    """A place in what a worker has printed: in which file, and how far; at first the beginning."""

    inode: int = 0
    offset: int = 0

    head: int | None = None
    """Checksum of what the file begins with, as far as it was read: another file may have the inode
    by now.  None: not known."""

    def __str__(self) -> str:
        known = (self.inode, self.offset, self.head)
        return "-".join(str(part) for part in known if part is not None)

    @classmethod
    def of(cls, text: str) -> PrintedUntil:
        """Return what ``str`` made this text of; the beginning if it is another text."""
        parts = text[:60].split("-")
        if len(parts) not in (2, 3) or not (text.isascii() and all(map(str.isdecimal, parts))):
            return cls()
        inode, offset, *head = map(int, parts)
        return cls(inode, min(offset, MAX_OFFSET), *head)

    def is_in(self, file: BinaryIO) -> bool:
        """Whether this is a place in an open file; reads its beginning."""
        if os.fstat(file.fileno()).st_ino != self.inode:
            return False
        return self.head is None or _head(file, self.offset) == self.head


def _head(file: BinaryIO, offset: int) -> int:
    """Return the checksum of what a file begins with, up to a place in it."""
    file.seek(0)
    return zlib.crc32(file.read(min(offset, HEAD_BYTES)))


def chosen(
    names: list[str], asked: str | None, where: object, hosts_of: Callable[[str], Sequence[str]]
) -> str:
    """Return whose output is asked for, a worker's or that of all workers of a replica: that of the
    only replica if none is named.

    ``hosts_of``: on which hosts a worker or a replica runs now; none: it does not.

    Raises:
        ConfigError: there is nothing of it, or it is not clear whose is meant.
    """
    replicas = [*dict.fromkeys(map(replica_of, names))]
    if asked is not None and asked in {*names, *replicas}:
        return asked
    if asked is not None and (hosts := hosts_of(asked)):
        raise ConfigError(f"nothing that {asked} printed is here yet; it runs on {in_words(hosts)}")
    if not names:
        raise ConfigError(f"no replica has printed anything yet (looked in {where})")
    if asked is not None:
        there = ", ".join(workers_of(names, replica_of(asked)) or replicas)
        raise ConfigError(f"there is no output of {asked}; there is of {there}")
    own = [name for name in replicas if name != FORK_SERVER]
    if len(own) != 1:
        several = [name for name in names if name not in replicas]
        one = f"; {several[0]} is one worker of {replica_of(several[0])}" if several else ""
        raise ConfigError(f"say whose output: {', '.join(own or names)}{one}")
    return own[0]


def workers_of(names: Iterable[str], asked: str) -> list[str]:
    """Return whose output is shown if it is asked for that of a worker, or of a whole replica."""
    return [name for name in names if asked in (name, replica_of(name))]


def printers(out: Path) -> list[str]:
    """Return who has printed something, in order."""
    files = (path for path in (out / run_files.LOGS).glob("*.log") if path.is_file())
    return sorted((path.stem for path in files), key=order_of)


def printed_after(
    out: Path, worker: str, after: PrintedUntil, most_bytes: int = PIECE_BYTES
) -> tuple[bytes, PrintedUntil]:
    """Return what comes after a place, so much at most, and the place behind it."""
    data = b""
    with _opened(out / run_files.LOGS / f"{worker}.log", after) as files:
        for inode, file in files:
            file.seek(after.offset if after.is_in(file) else 0)
            data += file.read(most_bytes - len(data))
            offset = file.tell()
            after = PrintedUntil(inode, offset, _head(file, offset))
            if len(data) >= most_bytes:
                break
    return data, after


@contextmanager
def _opened(path: Path, since: PrintedUntil) -> Iterator[list[tuple[int, BinaryIO]]]:
    """Open the file that was read last, and all newer ones, the oldest first.

    The newest is opened first: what is rotated meanwhile is met again, under an older name.
    """
    found: dict[int, BinaryIO] = {}
    numbers = [old.suffix[1:] for old in path.parent.glob(path.name + ".*")]
    rotated = sorted(int(number) for number in numbers if number.isdecimal())
    with ExitStack() as stack:
        for name in (path.name, *(f"{path.name}.{number}" for number in rotated)):
            with suppress(FileNotFoundError):
                file = stack.enter_context(open_to_read(path.with_name(name)))
                inode = os.fstat(file.fileno()).st_ino
                found.setdefault(inode, file)
                if since.is_in(file):
                    break
        yield list(reversed(found.items()))
