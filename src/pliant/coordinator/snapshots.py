"""The snapshots of a coordinator's log, and its parts: when one is written, when the next begins.

Owns that a snapshot holds all that stands before its position, and that a part is closed only
after a snapshot: what is removed later is in it, or in what each part says of those before.  What
another coordinator writes into the same log is taken in first, unless it is a newer one: then
this one is about to end, and leaves the log alone.

    the part has grown enough --> snapshot (another thread) --> cut: the next part begins
"""

from __future__ import annotations

import asyncio
import logging

from pliant.machine.event_loop import aside
from pliant.observe import parts
from pliant.observe.history import History, read_history, snapshot_of, write_snapshot
from pliant.observe.log import EventLog, Record
from pliant.observe.parts import PART_BYTES
from pliant.observe.reading import record_of

_log = logging.getLogger(__name__)


class Snapshots:
    """Those of one log."""

    def __init__(self, log: EventLog) -> None:
        self._log = log
        self._due_at = PART_BYTES
        self._written = 0
        """Bytes that this coordinator had written when the history was last known to be whole."""

        self._is_over = False
        self._writing: asyncio.Task[bool] | None = None

    async def read(self) -> History:
        """Return what the log says by now, before anything else is written to it."""
        self._written = self._log.written
        history = await aside(read_history, self._log.path)
        self._log.carried = history.carried.records
        number, offset = parts.place(max(history.snapshot_at, parts.position(self._log.number, 0)))
        self._due_at = PART_BYTES + offset * (number == self._log.number)
        return history

    def write_if_due(self, history: History) -> None:
        """Write a snapshot, on another thread, if the part has grown enough; then begin another."""
        if self._writing is not None:
            if self._writing.done():
                is_written, self._writing = self._writing.result(), None
                if is_written and self._log.cut():
                    self._due_at = PART_BYTES
            return
        size = self._log.size()
        if size < self._due_at:
            return
        self._due_at = size + PART_BYTES
        try:
            if not self._is_whole(history):
                return
            history.position = history.snapshot_at = parts.position(self._log.number, size)
            self._written = self._log.written
            data = snapshot_of(history, self._log.path)
        except OSError as error:  # no descriptor is free: the job goes on
            _warn(error, self._log)
            return
        self._writing = asyncio.create_task(aside(_write, data, self._log))

    def _is_whole(self, history: History) -> bool:
        """Take in what others have written; False if that cannot be, or is not for us to do."""
        if parts.grown(self._log.path, history.position) == self._log.written - self._written:
            return True
        mine = self._log.incarnation
        if mine is None or self._is_over:
            return False
        others: list[Record] = []
        sign = f'"incarnation":{mine},'.encode()
        for _, line in parts.lines(self._log.path, history.position):
            record = None if sign in line else record_of(line)
            if record is None or record.get("incarnation") == mine:
                continue
            number = record.get("incarnation")
            if isinstance(number, int) and number > mine:
                self._is_over = True
                return False
            others.append(record)
        for record in others:
            history.add(record)
        return True


def _write(data: bytes, log: EventLog) -> bool:
    try:
        write_snapshot(data, log.path)
    except OSError as error:  # a restart takes longer
        _warn(error, log)
        return False
    return True


def _warn(error: OSError, log: EventLog) -> None:
    _log.warning("no snapshot of %s could be written: %s", log.path, error)
