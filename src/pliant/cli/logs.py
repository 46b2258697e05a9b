"""``pliant logs``: what a replica printed, so far or as it comes.

Owns who is asked for it, the files of a run here or the coordinator of a job elsewhere, and how it
is shown: as plain text, one line each, whatever was printed; where a replica has several workers,
that of each behind its name.
"""

from __future__ import annotations

import json
import sys
import threading
from collections.abc import Callable, Iterable, Iterator
from dataclasses import dataclass, field
from functools import partial
from pathlib import Path

from pliant.cli.terminal import say_aside
from pliant.core.errors import ConfigError
from pliant.core.exits import EXIT_OK
from pliant.core.printable import line_left, printable
from pliant.http.client import Caller
from pliant.machine import run_files
from pliant.machine.registry import Handle, running_jobs
from pliant.machine.rotating_file import KEPT_FILES, MAX_FILE_BYTES
from pliant.observe import joined_hosts
from pliant.observe.history import read_history
from pliant.observe.printed import PrintedUntil, chosen, printed_after, printers, workers_of
from pliant.observe.runs import goes_on

POLL_S = 0.2
"""Between two looks at what is followed, in seconds."""

MOST_AT_ONCE = MAX_FILE_BYTES * (KEPT_FILES + 1)
"""All that is kept of a worker, in bytes: more than that was printed while it was shown."""

MAX_LINE_BYTES = 1 << 20
"""A longer line is shown in pieces, in bytes: a bar of progress may never end its line."""

Read = Callable[[str, PrintedUntil], tuple[bytes, PrintedUntil]]
"""Returns what a worker printed after a place, and the place behind it."""


def show(out: Path, asked: str | None, records: Path, *, follow: bool, as_json: bool) -> int:
    """Print what a replica or a worker printed; with ``follow`` until its job has ended."""
    run = out.resolve()

    def is_over() -> bool:
        return not follow or all(job.out.resolve() != run for job in running_jobs(records))

    name = chosen(printers(out), asked, out / run_files.LOGS, partial(_hosts_of, out))
    lines = printed(lambda: workers_of(printers(out), name), partial(printed_after, out), is_over)
    return _show(name, lines, as_json=as_json)


def show_distant(job: Handle, asked: str | None, *, follow: bool, as_json: bool) -> int:
    """Print what a replica or a worker of a job elsewhere printed; with ``follow`` until that is
    gone.
    """
    caller = Caller(job)

    def names() -> list[str]:
        found: list[str] = caller.ask("GET", "/v1/logs")["workers"]
        return found

    def hosts_of(name: str) -> list[str]:
        return joined_hosts.hosts_of(caller.ask("GET", "/v1/status"), name)

    def is_over() -> bool:
        return not follow or caller.ask("GET", "/v1/status")["exit_code"] is not None

    def read(worker: str, after: PrintedUntil) -> tuple[bytes, PrintedUntil]:
        data, place = caller.read(f"/v1/logs/{worker}?after={after}")
        return data, PrintedUntil.of(place)

    name = chosen(names(), asked, f"the run at {job.name}", hosts_of)
    try:
        lines = printed(lambda: workers_of(names(), name), read, is_over)
        return _show(name, lines, as_json=as_json)
    except ConfigError as error:
        if not follow:
            raise
        say_aside(str(error))  # its coordinator is gone; whether the job has ended it cannot say
        return EXIT_OK


def _hosts_of(out: Path, name: str) -> list[str]:
    """Return where a replica of a run here runs, or one of its workers; none: it does not."""
    board = read_history(run_files.event_log(out)).board
    return joined_hosts.hosts_of(board.as_json(), name) if goes_on(out, board) else []


def _show(name: str, lines: Iterable[tuple[str, str]], *, as_json: bool) -> int:
    for worker, text in lines:
        whose = "" if worker == name else f"{printable(worker)} | "
        said = json.dumps({"replica": worker, "line": text}) if as_json else whose + line_left(text)
        sys.stdout.write(said + "\n")
        sys.stdout.flush()
    return EXIT_OK


@dataclass(slots=True)
class _ShownSoFar:
    """How far one worker's output was read."""

    place: PrintedUntil = field(default_factory=PrintedUntil)
    rest: bytes = b""
    """Of a line whose end has not come."""

    def new(self, read: Callable[[PrintedUntil], tuple[bytes, PrintedUntil]]) -> Iterator[str]:
        """Yield the lines that have come, and pieces of one that is too long."""
        data, taken = b"\n", 0
        while data and taken < MOST_AT_ONCE:
            data, self.place = read(self.place)
            taken += len(data)
            *lines, self.rest = (self.rest + data).split(b"\n")
            if len(self.rest) > MAX_LINE_BYTES:
                lines, self.rest = [*lines, self.rest], b""
            yield from (text.decode(errors="replace") for text in lines)


def printed(
    workers: Callable[[], Iterable[str]], read: Read, is_over: Callable[[], bool]
) -> Iterator[tuple[str, str]]:
    """Yield each line that is there, and that comes until it is over, once, behind its worker.

    Whoever prints faster than this is shown does not keep it from coming to its end.
    """
    readers: dict[str, _ShownSoFar] = {}
    pause = threading.Event()
    while True:
        over = is_over()  # asked before reading, so that the last lines are not missed
        for worker in workers():
            reader = readers.setdefault(worker, _ShownSoFar())
            yield from ((worker, text) for text in reader.new(partial(read, worker)))
            if over and reader.rest:
                yield worker, reader.rest.decode(errors="replace")
        if over:
            return
        pause.wait(POLL_S)
