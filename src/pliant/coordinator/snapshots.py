"""The snapshots of a coordinator's log: when one is written, and that it is of what this one knows.

Owns that a snapshot holds all that stands before its position.  While another coordinator writes
into the same log, this one has not taken in everything: it writes no snapshot.
"""

from __future__ import annotations

import asyncio
import logging
from functools import partial

from pliant.observe.history import EVERY_BYTES, History, read_history, snapshot_of, write_snapshot
from pliant.observe.log import EventLog

_log = logging.getLogger(__name__)


class Snapshots:
    """Those of one log."""

    def __init__(self, log: EventLog) -> None:
        self._log = log
        self._due_at = EVERY_BYTES
        self._foreign: int | None = None
        """Bytes in the log that this coordinator did not write, and has read; None: unknown."""

        self._writing: asyncio.Future[None] | None = None

    async def read(self) -> History:
        """Return what the log says by now, before anything else is written to it."""
        before = self._log.size()
        history = await asyncio.to_thread(read_history, self._log.path)
        if self._log.size() == before:
            self._foreign = before - self._log.written
        self._due_at = history.snapshot_at + EVERY_BYTES
        return history

    def write_if_due(self, history: History) -> None:
        """Write a snapshot, on another thread, if the log has grown enough since the last."""
        is_writing = self._writing is not None and not self._writing.done()
        if self._foreign is None or is_writing:
            return
        size = self._foreign + self._log.written
        if size < self._due_at or size != self._log.size():
            return
        self._due_at = size + EVERY_BYTES
        history.offset = history.snapshot_at = size
        write = partial(_write, snapshot_of(history, self._log.path), self._log)
        self._writing = asyncio.get_running_loop().run_in_executor(None, write)


def _write(data: bytes, log: EventLog) -> None:
    try:
        write_snapshot(data, log.path)
    except OSError as error:  # a restart takes longer
        _log.warning("no snapshot of %s could be written: %s", log.path, error)
