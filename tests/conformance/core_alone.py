"""The first driver: the core alone, with a register in memory and nobody to carry out commands."""

from __future__ import annotations

from dataclasses import dataclass

from tests.conformance.player import Answer

from pliant.core.commands import Publish
from pliant.core.errors import ConflictError
from pliant.core.events import Event
from pliant.core.job.controller import begin, step
from pliant.core.job.recording import record
from pliant.core.job.state import Job, JobSettings
from pliant.core.values import Incarnation, Register


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
        job, _ = begin(now_s=now_s, settings=self._settings, register=self._register)
        self._register = record(job)
        self._coordinators.append(_Coordinator(job, self._register))

    @property
    def incarnation(self) -> Incarnation:
        return self._coordinators[-1].register.incarnation

    def hear(self, event: Event, *, now_s: float, age: int) -> Answer:
        coordinator = self._coordinators[-1 - age]
        before = coordinator.job
        coordinator.job, ready = step(before, event, now_s=now_s, settings=self._settings)
        asks = ready.register is not None or any(isinstance(c, Publish) for c in ready.commands)
        if asks and coordinator.register != self._register:
            raise ConflictError("another coordinator has taken over")
        if ready.register is not None:
            self._register = coordinator.register = ready.register
        stale = coordinator.job.stale + coordinator.job.membership.stale
        return Answer(ready, is_stale=stale > before.stale + before.membership.stale)

    def explain(self) -> str:
        decision = self._coordinators[-1].job.decision
        return "" if decision is None else decision.reason
