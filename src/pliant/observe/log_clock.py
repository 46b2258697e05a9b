"""One clock for a whole log: the monotonic one of its machine, carried on where that begins anew.

Owns when it began anew, with a reboot or on another machine, and how long it was until then: by the
wall clock, which alone outlives both.  Elsewhere a wall clock that is set changes nothing.

    mono    100 ... 900 | 5 ... 60          job_started, coordinator_started, pool_started
    clock   100 ... 900 | 1500 ... 1555     600 s later by the wall clock
"""

from __future__ import annotations

from dataclasses import dataclass

from pliant.observe.log import CONTINUED, Record, number
from pliant.observe.reading import carried_by

STARTS = frozenset({"job_started", "coordinator_started", "pool_started"})
"""Kinds with which a process begins to write; they say on which boot."""


@dataclass(slots=True)
class LogClock:
    """Eats records in file order; tells when each was."""

    boot: str = ""
    """Of the newest start; empty: it did not say."""

    ahead_s: float = 0.0
    """What this clock is ahead of the machine's."""

    newest_s: float | None = None
    """The newest moment by this clock, and by the wall clock."""

    newest_at: float = 0.0

    def add(self, record: Record) -> bool:
        """Take in the next record; return whether its machine's clock has begun anew."""
        mono = number(record.get("mono"))
        if mono is None:
            return False
        if record.get("kind") == CONTINUED and not self.boot:
            self.boot = next(filter(None, map(_boot_of, reversed(carried_by(record)))), "")
        at = number(record.get("at")) or self.newest_at
        is_new = record.get("kind") in STARTS and self._begins_anew(record, mono)
        if is_new and self.newest_s is not None:
            self.ahead_s = self.newest_s + max(0.0, at - self.newest_at) - mono
        now_s = mono + self.ahead_s
        if self.newest_s is None or now_s >= self.newest_s:
            self.newest_s, self.newest_at = now_s, at
        return is_new

    def moment_s(self, record: Record) -> float:
        """Return when a record was that was taken in; one that does not say it: as the newest."""
        mono = number(record.get("mono"))
        return (self.newest_s or 0.0) if mono is None else mono + self.ahead_s

    def _begins_anew(self, record: Record, mono: float) -> bool:
        before, self.boot = self.boot, _boot_of(record)
        is_earlier = self.newest_s is not None and mono + self.ahead_s < self.newest_s
        return is_earlier or (bool(before) and self.boot != before)


def _boot_of(record: Record) -> str:
    machine = str(record.get("machine") or "")  # the boot, and the namespace of its processes
    return str(record.get("boot") or machine.partition(" ")[0])
