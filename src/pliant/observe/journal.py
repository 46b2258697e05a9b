"""An event log of a process that goes on when it cannot be written for a while.

Owns that a full disk costs records and not the process.  For one that keeps elsewhere what it must
not forget, as a pool does; a coordinator lets its agents say again what it could not log.
"""

from __future__ import annotations

from typing import Any

from pliant.observe.log import EventLog, Record


class Journal(EventLog):
    """An event log that leaves out what cannot be written, and says so once it can be again."""

    _lost = 0

    def write(self, kind: str, /, **values: Any) -> Record:
        """Append one record and return it; an empty one if the storage does not take it."""
        try:
            if self._lost:
                super().write("records_lost", number=self._lost)
                self._lost = 0
            return super().write(kind, **values)
        except OSError:
            self._lost += 1
            return {}
