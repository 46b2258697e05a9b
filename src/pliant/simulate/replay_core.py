"""The core alone, as scenario files are played: a register in memory, nobody to carry out commands.

Owns the order in which a coordinator asks and writes.  Decides nothing.
"""

from __future__ import annotations

from dataclasses import dataclass

from pliant.core.commands import Publish
from pliant.core.errors import ConflictError
from pliant.core.events import Event
from pliant.core.job.controller import begin, step
from pliant.core.job.recording import record
from pliant.core.job.state import Job, JobSettings
from pliant.core.values import Incarnation, Register
from pliant.simulate.replay_player import Answer


@dataclass(slots=True)
class _Coordinator:
    """One life of a coordinator, as a driver knows it."""

    job: Job
    register: Register
    """What it wrote last, and must still find there when it writes again."""


class CoreAlone:
    """Takes the steps of the controller that a coordinator would take."""

    def __init__(self, settings: JobSettings) -> None:
        self._settings = settings
        self._register: Register | None = None
        self._coordinators: list[_Coordinator] = []

    def begin(self, *, now_s: float) -> None:
        """Let a coordinator begin, with what the register tells; those before it live on."""
        job, _ = begin(now_s=now_s, settings=self._settings, register=self._register)
        self._register = record(job)
        self._coordinators.append(_Coordinator(job, self._register))

    def find_register(self, register: Register) -> None:
        """Let this be what the coordinator finds that begins next."""
        self._register = register

    def go_on(self, job: Job) -> None:
        """Let a coordinator that knows this hear what comes next."""
        self._register = record(job)
        self._coordinators.append(_Coordinator(job, self._register))

    @property
    def job(self) -> Job:
        """Return what the newest coordinator knows."""
        return self._coordinators[-1].job

    @property
    def incarnation(self) -> Incarnation:
        """Return the incarnation of the newest coordinator."""
        return self._coordinators[-1].register.incarnation

    def hear_event(self, event: Event, *, now_s: float, age: int) -> Answer:
        """Let the coordinator that ``age`` others have followed hear an event."""
        coordinator = self._coordinators[-1 - age]
        before = coordinator.job
        coordinator.job, ready = step(before, event, now_s=now_s, settings=self._settings)
        asks = ready.register is not None or any(isinstance(c, Publish) for c in ready.commands)
        if asks and coordinator.register != self._register:
            raise ConflictError("another coordinator has taken over")
        if ready.register is not None:
            self._register = coordinator.register = ready.register
        stale = coordinator.job.history.stale + coordinator.job.membership.stale
        return Answer(ready, is_stale=stale > before.history.stale + before.membership.stale)

    def explain(self) -> str:
        """Return the reason of the newest coordinator's last decision; empty before the first."""
        decision = self._coordinators[-1].job.sizing.decision
        return "" if decision is None else decision.reason
