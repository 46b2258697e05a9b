"""The parts of a log: it is cut while it grows, so that a long run has room on its disk.

Owns the names of the parts, positions that stay true when a part is closed, and which parts go.
Knows nothing of what a line says.

    events.000007.jsonl   closed; the oldest ones are removed
    events.000008.jsonl   closed
    events.jsonl          part 9, which grows

A part is closed by being renamed, and only then the next one is made.  So a file that was opened
as the growing one is part 9 if, after that, part 9 is not among the closed ones.  A position is
the number of a part and an offset in it; in a log that was never cut it is the offset.
"""

from __future__ import annotations

import re
from collections.abc import Iterator
from contextlib import suppress
from pathlib import Path
from typing import BinaryIO

from pliant.machine.files import open_to_read

PART_BYTES = 16 << 20
"""Growth of a part after which it is worth the next one: what a restart has to read at most."""

KEPT_PARTS = 15
"""Closed parts that stay: with the one that grows a log has 256 MiB."""

_OFFSET_BITS = 36


def position(number: int, offset: int) -> int:
    """Return the position of an offset in a part."""
    return (number << _OFFSET_BITS) + offset


def place(position: int) -> tuple[int, int]:
    """Return the part and the offset of a position."""
    return position >> _OFFSET_BITS, position & ((1 << _OFFSET_BITS) - 1)


def closed_path(log: Path, number: int) -> Path:
    """Return what a part is called once it is closed."""
    return log.with_name(f"{log.stem}.{number:06d}{log.suffix}")


def closed(log: Path) -> list[int]:
    """Return the closed parts that there are, oldest first.

    Raises:
        OSError: it cannot be told, e.g. for want of descriptors.
    """
    name = re.compile(rf"{re.escape(log.stem)}\.(\d{{6,}}){re.escape(log.suffix)}")
    try:
        found = [name.fullmatch(each.name) for each in log.parent.iterdir()]
    except (FileNotFoundError, NotADirectoryError, PermissionError):
        return []
    return sorted(int(one[1]) for one in found if one is not None)


def growing(log: Path) -> int:
    """Return the number of the part that grows."""
    return max(closed(log), default=-1) + 1


def lines(log: Path, after: int = 0) -> Iterator[tuple[int, bytes]]:
    """Yield (position after it, line) from a position on, or from the oldest part that is left.

    Does not wait: a last line without its end comes later, unless its part is closed.
    """
    number, offset = place(after)
    while (found := _open(log, number)) is not None:
        file, is_number, is_closed = found
        number, offset = is_number, offset if is_number == number else 0
        with file:
            file.seek(offset)
            for line in file:
                if not is_closed and not line.endswith(b"\n"):
                    return
                offset += len(line)
                yield position(number, offset), line
        if not is_closed:
            return
        number, offset = number + 1, 0


def grown(log: Path, since: int) -> int:
    """Return how many bytes stand after a position."""
    number, offset = place(since)
    names = [closed_path(log, one) for one in closed(log) if one >= number]
    sizes = []
    for path in (*names, log):
        with suppress(FileNotFoundError):
            sizes.append(path.stat().st_size)
    return sum(sizes) - offset


def before(log: Path, position: int, nbytes: int) -> bytes:
    """Return what stands right before a position, in its part.

    Raises:
        FileNotFoundError: the part is gone.
    """
    number, offset = place(position)
    found = _open(log, number)
    if found is None or found[1] != number:
        raise FileNotFoundError(closed_path(log, number))
    with found[0] as file:
        start = max(offset - nbytes, 0)
        file.seek(start)
        return file.read(offset - start)


def head(log: Path, number: int) -> bytes:
    """Return the first line of a part; empty if there is none."""
    found = _open(log, number)
    if found is None:
        return b""
    file, is_number, _ = found
    with file:
        return file.readline() if is_number == number else b""


def remove(log: Path, before: int) -> None:
    """Remove the parts before one."""
    for number in closed(log):
        if number < before:
            with suppress(OSError):
                closed_path(log, number).unlink()


def _open(log: Path, number: int) -> tuple[BinaryIO, int, bool] | None:
    """Open a part, or the first after it that there is: the file, its number, is it closed."""
    while True:
        for one in closed(log):
            if one >= number:
                with suppress(FileNotFoundError):  # it was removed since
                    return open_to_read(closed_path(log, one)), one, True
        at = growing(log)
        if at < number:
            return None
        try:
            file = open_to_read(log)
        except FileNotFoundError:
            if growing(log) == at:
                return None
            continue
        if growing(log) == at:
            return file, at, False
        file.close()
