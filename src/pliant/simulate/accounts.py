"""Where the time of the devices went: every device-second is in exactly one account.

Owns the accounts of a whole cluster, and what is told of one job at its end.
"""

from __future__ import annotations

from dataclasses import dataclass, field

ACCOUNTS = ("useful", "lost", "paused", "starting", "unused", "idle")
"""Training that counts; training that was lost with the state; stopped by a change; processes
that start; held and not training; nobody's."""


class Accounts:
    """Device-seconds by account; changed in place."""

    __slots__ = ("spent",)

    def __init__(self) -> None:
        self.spent = dict.fromkeys(ACCOUNTS, 0.0)


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
    """From when on how many devices trained."""
