"""``pliant logs``: what a replica printed, so far or as it comes.

Owns reading the output files of a run while others write and rotate them.  Knows nothing of who
writes them.

    r1.log.2, r1.log.1    rotated, the oldest first
    r1.log                grows
"""

from __future__ import annotations

import json
import os
import sys
import threading
from collections.abc import Callable, Iterator
from contextlib import ExitStack, contextmanager, suppress
from pathlib import Path
from typing import BinaryIO

from pliant.core.errors import ConfigError
from pliant.core.exits import EXIT_OK
from pliant.core.printable import line_left
from pliant.core.worker_names import order_of
from pliant.machine import run_files
from pliant.machine.files import open_to_read
from pliant.machine.jobs import running_jobs

POLL_S = 0.2
"""Between two looks at a file that is followed, in seconds."""

FORK_SERVER = "forkserver"
"""Its file lies beside the replicas'; shown only by name."""


def show(out: Path, replica: str | None, records: Path, *, follow: bool, as_json: bool) -> int:
    """Print one replica's output; with ``follow`` until its job has ended."""
    path, run = _file_of(out, replica), out.resolve()

    def is_over() -> bool:
        return not follow or all(job.out.resolve() != run for job in running_jobs(records))

    for text in printed(path, is_over):
        said = json.dumps({"replica": path.stem, "line": text}) if as_json else line_left(text)
        sys.stdout.write(said + "\n")
        sys.stdout.flush()
    return EXIT_OK


def _file_of(out: Path, replica: str | None) -> Path:
    directory = out / run_files.LOGS
    files = (path for path in directory.glob("*.log") if path.is_file())
    names = sorted((path.stem for path in files), key=order_of)
    if not names:
        raise ConfigError(f"no replica has printed anything yet (looked in {directory})")
    if replica is not None and replica not in names:
        raise ConfigError(f"there is no output of {replica}; there is of {', '.join(names)}")
    replicas = [name for name in names if name != FORK_SERVER]
    if replica is None and len(replicas) != 1:
        raise ConfigError(f"say whose output: {', '.join(replicas or names)}")
    return directory / f"{replica or replicas[0]}.log"


def printed(path: Path, is_over: Callable[[], bool]) -> Iterator[str]:
    """Yield each line that is there, and that comes until it is over, once."""
    inode, offset, rest = 0, 0, b""
    pause = threading.Event()
    while True:
        over = is_over()  # asked before reading, so that the last lines are not missed
        with _opened(path, inode) as files:
            for found, file in files:
                file.seek(offset if found == inode else 0)
                *lines, rest = (rest + file.read()).split(b"\n")
                inode, offset = found, file.tell()
                yield from (text.decode(errors="replace") for text in lines)
        if over:
            yield from [rest.decode(errors="replace")] if rest else []
            return
        pause.wait(POLL_S)


@contextmanager
def _opened(path: Path, since: int) -> Iterator[list[tuple[int, BinaryIO]]]:
    """Open the file that was read last, by its inode, and all newer ones, the oldest first.

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
                if inode == since:
                    break
        yield list(reversed(found.items()))
