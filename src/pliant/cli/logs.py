"""``pliant logs``: what a replica printed, so far or as it comes.

Owns who is asked for it, the files of a run here or the coordinator of a job elsewhere, and how it
is shown: as plain text, one line each, whatever was printed.
"""

from __future__ import annotations

import json
import sys
import threading
from collections.abc import Callable, Iterator
from functools import partial
from pathlib import Path

from pliant.cli.terminal import say_aside
from pliant.core.errors import ConfigError
from pliant.core.exits import EXIT_OK
from pliant.core.printable import line_left
from pliant.http.client import Caller, DistantJob
from pliant.machine import run_files
from pliant.machine.jobs import running_jobs
from pliant.machine.rotating_file import KEPT_FILES, MAX_FILE_BYTES
from pliant.observe.printed import PrintedUntil, chosen, printed_after, printers

POLL_S = 0.2
"""Between two looks at what is followed, in seconds."""

MOST_AT_ONCE = MAX_FILE_BYTES * (KEPT_FILES + 1)
"""All that is kept of a worker, in bytes: more than that was printed while it was shown."""

MAX_LINE_BYTES = 1 << 20
"""A longer line is shown in pieces, in bytes: a bar of progress may never end its line."""

Read = Callable[[PrintedUntil], tuple[bytes, PrintedUntil]]
"""Returns what comes after a place, and the place behind it."""


def show(out: Path, replica: str | None, records: Path, *, follow: bool, as_json: bool) -> int:
    """Print one replica's output; with ``follow`` until its job has ended."""
    worker, run = chosen(printers(out), replica, out / run_files.LOGS), out.resolve()

    def is_over() -> bool:
        return not follow or all(job.out.resolve() != run for job in running_jobs(records))

    return _show(worker, partial(printed_after, out, worker), is_over, as_json=as_json)


def show_distant(job: DistantJob, replica: str | None, *, follow: bool, as_json: bool) -> int:
    """Print one replica's output, of a job elsewhere; with ``follow`` until that is gone."""
    caller = Caller(job)
    worker = chosen(caller.ask("GET", "/v1/logs")["workers"], replica, f"the run at {job.name}")

    def is_over() -> bool:
        return not follow or caller.ask("GET", "/v1/status")["exit_code"] is not None

    def read(after: PrintedUntil) -> tuple[bytes, PrintedUntil]:
        data, place = caller.read(f"/v1/logs/{worker}?after={after}")
        return data, PrintedUntil.of(place)

    try:
        return _show(worker, read, is_over, as_json=as_json)
    except ConfigError as error:
        if not follow:
            raise
        say_aside(str(error))  # its coordinator is gone; whether the job has ended it cannot say
        return EXIT_OK


def _show(worker: str, read: Read, is_over: Callable[[], bool], *, as_json: bool) -> int:
    for text in printed(read, is_over):
        said = json.dumps({"replica": worker, "line": text}) if as_json else line_left(text)
        sys.stdout.write(said + "\n")
        sys.stdout.flush()
    return EXIT_OK


def printed(read: Read, is_over: Callable[[], bool]) -> Iterator[str]:
    """Yield each line that is there, and that comes until it is over, once.

    Whoever prints faster than this is shown does not keep it from coming to its end.
    """
    place, rest = PrintedUntil(), b""
    pause = threading.Event()
    while True:
        over = is_over()  # asked before reading, so that the last lines are not missed
        data, taken = b"\n", 0
        while data and taken < MOST_AT_ONCE:
            data, place = read(place)
            taken += len(data)
            *lines, rest = (rest + data).split(b"\n")
            if len(rest) > MAX_LINE_BYTES:
                lines, rest = [*lines, rest], b""
            yield from (text.decode(errors="replace") for text in lines)
        if over:
            yield from [rest.decode(errors="replace")] if rest else []
            return
        pause.wait(POLL_S)
