"""A log whose process goes on where the log cannot be written.

Owns that records are lost on a full disk and nothing else is, and that the log says how many.
"""

from __future__ import annotations

from pliant.observe.log import EventLog


class Journal(EventLog):
    """One that leaves out what cannot be written, and says so once it can be again.

    A full disk costs records and not the process, which keeps elsewhere what it must not forget.
    Who follows the log hears of every record.
    """

    _lost = 0

    def _append(self, line: bytes) -> None:
        try:
            if self._lost:
                super()._append(self._line(self._record("records_lost", {"number": self._lost})))
                self._lost = 0
            super()._append(line)
        except OSError:
            self._lost += 1
