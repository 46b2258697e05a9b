"""``pliant logs``: what a replica printed, so far or as it comes.

Owns reading the output files of a run while others write and rotate them.  Knows nothing of who
writes them.
"""

from __future__ import annotations

import json
import sys
import threading
from collections.abc import Callable, Iterator
from pathlib import Path

from pliant.core.errors import ConfigError
from pliant.core.exits import EXIT_OK
from pliant.core.printable import line_left
from pliant.machine import run_files
from pliant.machine.jobs import running_jobs

POLL_S = 0.2
"""Between two looks at a file that is followed, in seconds."""

FORK_SERVER = "forkserver"
"""Its file lies beside the replicas'; shown only by name."""


def show(out: Path, replica: str | None, records: Path, *, follow: bool, as_json: bool) -> int:
    """Print one replica's output; with ``follow`` until its job has ended."""
    path, run = _file_of(out, replica), out.resolve()

    def is_over() -> bool:
        return not any(job.out.resolve() == run for job in running_jobs(records))

    for text in _followed(path, is_over) if follow else _written(path):
        said = json.dumps({"replica": path.stem, "line": text}) if as_json else line_left(text)
        sys.stdout.write(said + "\n")
        sys.stdout.flush()
    return EXIT_OK


def _file_of(out: Path, replica: str | None) -> Path:
    directory = out / run_files.LOGS
    files = (path for path in directory.glob("*.log") if path.is_file())
    names = sorted((path.stem for path in files), key=lambda n: (len(n), n))
    if not names:
        raise ConfigError(f"no replica has printed anything yet (looked in {directory})")
    if replica is not None and replica not in names:
        raise ConfigError(f"there is no output of {replica}; there is of {', '.join(names)}")
    replicas = [name for name in names if name != FORK_SERVER]
    if replica is None and len(replicas) != 1:
        raise ConfigError(f"say whose output: {', '.join(replicas or names)}")
    return directory / f"{replica or replicas[0]}.log"


def _written(path: Path) -> Iterator[str]:
    """Yield the lines of the rotated files, oldest first, then of the current one."""
    rotated = sorted(
        (old for old in path.parent.glob(path.name + ".*") if old.suffix[1:].isdigit()),
        key=lambda old: -int(old.suffix[1:]),
    )
    for file in (*rotated, path):
        yield from file.read_text(errors="replace").splitlines()


def _followed(path: Path, is_over: Callable[[], bool]) -> Iterator[str]:
    """Yield what is there, then what comes; a rotated file is read to its end first."""
    yield from _written(path)
    offset, inode, rest = path.stat().st_size, path.stat().st_ino, b""
    pause = threading.Event()
    while True:
        over = is_over()  # asked before reading, so that the last lines are not missed
        data = b""
        if path.exists() and path.stat().st_ino != inode:
            old = path.with_name(path.name + ".1")
            data = _tail(old, offset) if old.exists() else b""
            offset, inode = 0, path.stat().st_ino
        fresh = _tail(path, offset)
        offset += len(fresh)
        *lines, rest = (rest + data + fresh).split(b"\n")
        yield from (text.decode(errors="replace") for text in lines)
        if over:
            return
        pause.wait(POLL_S)


def _tail(path: Path, offset: int) -> bytes:
    try:
        with path.open("rb") as file:
            file.seek(offset)
            return file.read()
    except FileNotFoundError:
        return b""
