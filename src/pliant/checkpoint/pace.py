"""What saving costs the training: by how much steps are longer while a save is under way.

Owns that measurement.  Must not know what is saved.
"""

from __future__ import annotations

from collections import deque
from dataclasses import dataclass, field
from statistics import median

STEPS = 32
"""How many steps in peace tell how long one takes."""


@dataclass(slots=True)
class StepPace:
    """How long steps take in peace, and by how much those of a save are longer."""

    quiet: deque[float] = field(default_factory=lambda: deque(maxlen=STEPS))
    slower_s: float = 0.0
    _last_s: float | None = None
    _was_saving: bool = False

    def step(self, now_s: float, *, is_saving: bool) -> None:
        """Take note that a step has ended."""
        last_s, self._last_s = self._last_s, now_s
        was_saving, self._was_saving = self._was_saving, is_saving
        if last_s is None:
            return
        if not (is_saving or was_saving):
            self.quiet.append(now_s - last_s)
        elif self.quiet:
            self.slower_s += max(0.0, now_s - last_s - median(self.quiet))
