"""What the workers of every side of ``benchmarks.checkpoint`` do, and what they note of it.

Owns the order of a turn and the clocks.  Must not know who writes checkpoints (``Saving``) or who
trains.  A checkpoint is due after every ``every`` steps, and a turn holds two of them:

    still     a step, its save; a rest until the checkpoint is durable everywhere; more steps
    moving    a step, its save; more steps while it is written; a rest until it is durable
"""

from __future__ import annotations

import time
from collections.abc import Callable
from dataclasses import dataclass, field
from pathlib import Path
from typing import Protocol

from benchmarks.turns import Player, Record

GO, RESTORE = "go", "restore"

LOOK_S = 0.002
"""Between two looks at whether a checkpoint is durable."""

DURABLE_S = 600.0


class Saving(Protocol):
    """Who writes and reads this worker's checkpoints."""

    @property
    def is_settled(self) -> bool:
        """Whether nothing is on its way."""

    def restore(self) -> float:
        """Read the newest checkpoint into the objects of the training; return the seconds."""

    def tidy(self) -> None:
        """Remove all but the newest checkpoint."""


@dataclass(slots=True)
class Saved:
    """One save as the training thread saw it."""

    committed: int
    stall_s: float
    copy_s: float = 0.0
    began_at: float = 0.0
    cpu_s: float = 0.0
    """Process time when it began, all threads."""


def peak_bytes() -> int:
    """Return the most memory that this process has held since ``forget_peak``."""
    (line,) = (
        line
        for line in Path("/proc/self/status").read_text().splitlines()
        if line.startswith("VmHWM")
    )
    return int(line.split()[1]) * 1024


def forget_peak() -> None:
    """Let the high-water mark begin again at what is held now."""
    Path("/proc/self/clear_refs").write_text("5")


@dataclass(slots=True, kw_only=True)
class Course:
    """One worker's way; ``boundary`` is called between two steps, after a save if there is one."""

    player: Player
    saving: Saving
    every: int
    normal_bytes: int = 0
    """Most memory held in a step before the first save."""

    _laps: list[tuple[float, bool]] = field(default_factory=list)
    _saves: list[Saved] = field(default_factory=list)
    _mark: float = 0.0
    _was_writing: bool = False

    def saved(self, save: Saved) -> None:
        """Take note of a save that the training thread has just been through."""
        self._saves.append(save)
        self._mark += time.perf_counter() - save.began_at  # a lap is the step alone

    def boundary(self, committed: int) -> None:
        """Note the step that has ended, and do what the turn holds for this boundary."""
        now = time.perf_counter()
        if committed == 0:
            forget_peak()
        if committed > 0:
            self._laps.append((now - self._mark, self._was_writing))
        half, offset = divmod(committed, self.every)
        if offset == 0 and half % 2 == 1:
            self.player.rest(self._until_durable())
        if offset == self.every - 1 and half % 2 == 0:
            self._rest()
        self._was_writing = not self.saving.is_settled
        self._mark = time.perf_counter()

    def _until_durable(self) -> Record:
        """Rest until the checkpoint is durable; return what the save took, from its begin."""
        deadline = time.monotonic() + DURABLE_S
        while not self.saving.is_settled:
            if time.monotonic() > deadline:
                raise TimeoutError(f"no checkpoint was durable within {DURABLE_S:g} s")
            time.sleep(LOOK_S)
        if not self._saves:
            return {}
        newest = self._saves[-1]
        return {
            "wall_s": time.perf_counter() - newest.began_at,
            "cpu_s": time.process_time() - newest.cpu_s,
        }

    def _rest(self) -> None:
        """Hand in this turn's record; restore as often as asked."""
        self._until_durable()
        if not self._saves:
            self.normal_bytes = peak_bytes()
        record: Record = {
            "laps": self._laps,
            "saves": [
                {"committed": s.committed, "stall_s": s.stall_s, "copy_s": s.copy_s}
                for s in self._saves
            ],
            "extra_bytes": peak_bytes() - self.normal_bytes,
        }
        while self.player.rest(record) == RESTORE:
            record = {"restore_s": self.saving.restore()}
        self.saving.tidy()
        forget_peak()
        self._laps, self._saves = [], []


def timed(call: Callable[[], object]) -> float:
    """Return how long a call takes."""
    began = time.perf_counter()
    call()
    return time.perf_counter() - began
