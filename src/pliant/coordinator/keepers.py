"""Files of replicas, kept in the directory of the run while the job runs.

Owns the ledgers and the printed output of replicas whose nodes do not see that directory: their
agents send what they write.  Owns when ledgers are condensed, on another thread;
``observe.condensing`` says what may go.  A coordinator that cannot write goes on, and tries again
when there is more.  What another coordinator was sent before may be written twice.
"""

from __future__ import annotations

import asyncio
import logging
import os
from pathlib import Path

from pliant.core.text import counted, worker_name
from pliant.machine import run_files
from pliant.machine.event_loop import aside
from pliant.machine.files import RotatingFile, make_private_directory, open_private
from pliant.observe import parts
from pliant.observe.condensing import condense, ledger_bytes
from pliant.wire.messages import LedgerGrown, OutputGrown

LEDGER_BYTES = 64 << 20
"""What the ledgers of a job may have: more is condensed.  What has to stay may be more: the newest
1,000 steps, or the epoch of a sampler, and the part that each replica writes to."""

LOOK_S = 30.0
"""Between two looks, in seconds; a look is one listing of a directory."""

_log = logging.getLogger(__name__)


class LedgerKeeper:
    """Keeps those of one job."""

    def __init__(self, out: Path) -> None:
        self._out = out
        self._most_bytes = LEDGER_BYTES
        self._look_at_s: float | None = None
        self._looking: asyncio.Task[None] | None = None
        self._ends: dict[Path, int] = {}
        """How far each ledger was told that is written here."""

    def look_if_due(self, now_s: float) -> None:
        """Condense the ledgers, on another thread, if they have grown enough."""
        if self._look_at_s is None:
            self._look_at_s = now_s + LOOK_S
        if now_s >= self._look_at_s and (self._looking is None or self._looking.done()):
            self._look_at_s = now_s + LOOK_S
            self._looking = asyncio.create_task(self._condense_aside())

    def append(self, grown: LedgerGrown) -> None:
        """Write what a replica wrote elsewhere, unless that was told before.

        What does not begin a file of which nothing is here was on its way to a coordinator that had
        the beginning: its agent tells all anew.
        """
        path = self._out / run_files.LEDGER / f"{worker_name(grown.replica, grown.worker)}.jsonl"
        path = parts.closed_path(path, grown.part) if grown.part else path
        data = grown.lines.encode("ascii", "replace")
        try:
            make_private_directory(path.parent)
            fd = open_private(path, os.O_WRONLY | os.O_APPEND)
            with os.fdopen(fd, "ab") as file:
                known = self._ends.get(path, file.tell())
                if not known and grown.offset and path not in self._ends:
                    return
                file.write(data[max(0, known - grown.offset) :])
            self._ends[path] = max(known, grown.offset + len(data))
        except OSError as error:  # the audit will miss it; the run does not
            self._ends.setdefault(path, 0)
            _log.warning("the ledger of %s could not be written: %s", grown.replica, error)

    async def _condense_aside(self) -> None:
        try:
            await aside(self._condense)
        except OSError as error:
            _log.warning("the ledgers could not be condensed: %s", error)

    def _condense(self) -> None:
        """Condense them; where much stays, or all, not again before there is half a bound more."""
        if ledger_bytes(self._out) <= self._most_bytes:
            return
        try:
            condense(self._out)
        finally:
            self._most_bytes = max(LEDGER_BYTES, ledger_bytes(self._out) + LEDGER_BYTES // 2)


class OutputKeeper:
    """Keeps that of one job."""

    def __init__(self, out: Path) -> None:
        self._logs = out / run_files.LOGS
        self._ends: dict[str, int] = {}
        """How far each worker's output was told."""

    def append(self, grown: OutputGrown) -> None:
        """Write what a worker printed elsewhere, unless that was told before."""
        name = worker_name(grown.replica, grown.worker)
        known, end = self._ends.get(name, grown.offset), grown.offset + len(grown.text)
        if end <= known:
            return
        text = grown.text[max(0, known - grown.offset) :]
        if (missing := grown.offset - known) > 0:
            text = f"(pliant: {counted(missing, 'letter')} left out; its node has them)\n{text}"
        try:
            file = RotatingFile(self._logs / f"{name}.log")
        except OSError as error:  # who looks for it will miss it; the run does not
            _log.warning("what %s printed could not be written: %s", name, error)
            return
        file.write(text.encode("utf-8", "replace"))
        file.close()
        self._ends[name] = end
