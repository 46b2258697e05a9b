"""The time that the drivers of the cores go by.

Owns that being stopped (SIGSTOP, a laptop that sleeps) does not look like the silence of others.
"""

from __future__ import annotations

import time
from collections.abc import Callable

TICK_S = 0.1
"""Longest sleep of a driver, in seconds; the clock notices a stopped process by its length."""

PAUSE_S = 1.0
"""A longer gap between two turns means that this process was stopped, not that others were
silent: the time of the gap is not counted, in seconds."""


class Clock:
    """Monotonic seconds that stand still while this process is stopped."""

    def __init__(self, monotonic: Callable[[], float] = time.monotonic) -> None:
        self.has_slept = False
        """Whether this process was stopped since someone last took note of it."""
        self._monotonic = monotonic
        self._last_s = monotonic()
        self._paused_s = 0.0

    def now_s(self) -> float:
        """Return the time; must be asked at least every ``PAUSE_S`` to be exact."""
        now_s = self._monotonic()
        gap_s = now_s - self._last_s
        if gap_s > PAUSE_S:
            self._paused_s += gap_s - TICK_S
            self.has_slept = True
        self._last_s = now_s
        return now_s - self._paused_s
