"""Where the time of the devices went: every device-second is in exactly one account.

Owns the accounts of a whole cluster, and what is told of one job at its end.
"""

from __future__ import annotations

from dataclasses import dataclass, field

ACCOUNTS = ("useful", "lost", "paused", "starting", "unused", "serving", "idle")
"""Training that counts; training that was lost with the state; stopped by a change; processes
that start; held and not training; held by inference; nobody's."""

BINS = 512


class Accounts:
    """Device-seconds by account, and who held how many when; changed in place."""

    __slots__ = ("bins", "since_s", "spent", "width_s")

    def __init__(self) -> None:
        self.spent = dict.fromkeys(ACCOUNTS, 0.0)
        self.since_s = 0.0
        self.width_s = 60.0
        self.bins: list[list[float]] = []
        """For each stretch of ``width_s``: device-seconds there, held, and held by inference."""

    def note_levels(self, now_s: float, *, there: int, held: int, serving: int) -> None:
        """Take note of what has been so since the last call."""
        passed_s = now_s - self.since_s
        if passed_s <= 0.0:
            return
        self.spent["idle"] += (there - held) * passed_s
        at_s = self.since_s
        self.since_s = now_s
        while now_s > self.width_s * BINS:
            self._coarsen()
        bins, width_s = self.bins, self.width_s
        at = int(at_s / width_s)
        while at_s < now_s:
            until_s = min(now_s, (at + 1) * width_s)
            while len(bins) <= at:
                bins.append([0.0, 0.0, 0.0])
            each, part_s = bins[at], until_s - at_s
            each[0] += there * part_s
            each[1] += held * part_s
            each[2] += serving * part_s
            at_s, at = until_s, at + 1

    def _coarsen(self) -> None:
        """Make each two stretches one."""
        self.width_s *= 2
        bins = self.bins
        if len(bins) % 2:
            bins.append([0.0, 0.0, 0.0])
        self.bins = [
            [a + b for a, b in zip(bins[at], bins[at + 1], strict=True)]
            for at in range(0, len(bins), 2)
        ]


@dataclass(slots=True, kw_only=True)
class JobRecord:
    """What became of one job; moments are simulated seconds, None: not yet."""

    name: str
    arrival_s: float
    is_elastic: bool
    devices: int
    work_s: float
    began_s: float | None = None
    ended_s: float | None = None
    target_at_s: float | None = None
    deadline_s: float | None = None
    held_device_s: float = 0.0
    lost_device_s: float = 0.0
    """Training that was lost with the state, and done again."""

    stopped_s: float = 0.0
    """Between its beginning and its end, when it made no progress, or some that was lost."""

    resizes: int = 0
    preemptions: int = 0
    """How often all was taken from it."""

    interventions: int = 0
    """How often a person had to see to it."""

    sizes: list[tuple[float, int]] = field(default_factory=list)
    """From when on how many devices trained; only if sizes are recorded."""
