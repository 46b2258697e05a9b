"""Plays a scenario file: events in column 0, what a coordinator answered indented below them.

Owns the order of events and the time.  Whose coordinator answers is a ``Driver``'s to say: the same
file is played by each, and the answers must be the same.  ``docs/howto/replay-a-run.md`` has the
form of a file.
"""

from __future__ import annotations

import json
from collections.abc import Callable, Iterator
from dataclasses import dataclass, field, replace
from typing import Any, Protocol, runtime_checkable

from tests.support.notation import options_of, parse, policy_of, render, words_of

from pliant.core.commands import Publish
from pliant.core.errors import ConfigError, ConflictError
from pliant.core.events import Event, Progressed, Registered, Ticked
from pliant.core.job.controller import begin, step
from pliant.core.job.recording import record
from pliant.core.job.state import Job, JobSettings, Ready
from pliant.core.membership.state import Timeouts
from pliant.core.placement import PlacementRule
from pliant.core.values import NO_GENERATION, Incarnation, Register, ReplicaId
from pliant.observe.core_values import value_of


@dataclass(frozen=True, slots=True)
class Answer:
    """What a coordinator asked for when it had heard an event."""

    ready: Ready
    is_stale: bool = False
    """The event was of something that is over; it was dropped and counted."""


class Driver(Protocol):
    """One job, its coordinators and the register that they share; nothing happens unasked."""

    def begin(self, *, now_s: float) -> None:
        """Let a coordinator begin, with what the register tells; those before it live on."""

    @property
    def incarnation(self) -> Incarnation:
        """Return the incarnation of the newest coordinator."""

    def hear_event(self, event: Event, *, now_s: float, age: int) -> Answer:
        """Let the coordinator that ``age`` others have followed hear an event.

        Raises:
            ConflictError: it wants to write, and another has taken over.
        """

    def explain(self) -> str:
        """Return the reason of the newest coordinator's last decision; empty before the first."""


@runtime_checkable
class Resumable(Protocol):
    """A driver that can begin elsewhere than at the start of a job."""

    def find_register(self, register: Register) -> None:
        """Let this be what the coordinator finds that begins next."""

    def go_on(self, job: Job) -> None:
        """Let a coordinator that knows this hear what comes next."""


MakeDriver = Callable[[JobSettings], Driver]


def play(text: str, make: MakeDriver) -> str:
    """Return the scenario with the answers that the driver's coordinators give to its events."""
    player = _Player(make)
    out: list[str] = []
    for line in text.splitlines():
        if line.startswith("  "):
            continue
        out.append(line)
        out += [f"  {answer}" for answer in player.obey(words_of(line))]
    return "\n".join(out) + "\n"


@dataclass(slots=True)
class _Player:
    make: MakeDriver
    settings: JobSettings = field(default_factory=JobSettings)
    now_s: float = 0.0
    driver: Driver | None = None
    found: Register | None = None

    def obey(self, words: list[str]) -> list[str]:
        """Let happen what one line says; return what is answered."""
        match words:
            case []:
                pass
            case ["policy", *options] if self.driver is None:
                self.settings = replace(self.settings, policy=policy_of(options_of(options)))
            case ["budget", number] if self.driver is None:
                self.settings = replace(self.settings, restart_budget=int(number))
            case ["placement", rule] if self.driver is None:
                self.settings = replace(self.settings, placement=PlacementRule.of(rule))
            case ["nodes", "come"] if self.driver is None:
                self.settings = replace(self.settings, nodes_may_come=True)
            case ["waits", *options] if self.driver is None:
                waits = {name: float(value) for name, value in options_of(options).items()}
                self.settings = replace(self.settings, timeouts=Timeouts(**waits))
            case ["limits", *options] if self.driver is None:
                limits: dict[str, Any] = {k: float(v) for k, v in options_of(options).items()}
                self.settings = replace(self.settings, **limits)
            case ["register" | "state" as what, text] if self.driver is None:
                self._begin_with(what, text)
            case ["at", now, *rest]:
                self.now_s = float(now)
                return list(self._happen(rest))
            case ["until", now, *names]:
                return list(self._wait(float(now), [ReplicaId(name) for name in names]))
            case ["explain"]:
                reason = self.driver.explain() if self.driver is not None else ""
                return [reason or "nothing was decided yet"]
            case _:
                raise ConfigError(f"unknown scenario line: {' '.join(words)}")
        return []

    def _begin_with(self, what: str, text: str) -> None:
        driver = self.make(self.settings)
        if not isinstance(driver, Resumable):
            raise ConfigError(f"{type(driver).__name__} cannot begin with a {what}")
        try:
            data = json.loads(text)
            if what == "register":
                self.found = value_of(Register, data)
                return
            driver.go_on(value_of(Job, data))
        except ValueError as error:
            raise ConfigError(f"the {what} is none: {error}") from error
        self.driver = driver

    def _happen(self, words: list[str]) -> Iterator[str]:
        is_new = self.driver is None
        if self.driver is None:
            self.driver = self.make(self.settings)
            if self.found is not None and isinstance(self.driver, Resumable):
                self.driver.find_register(self.found)
        if is_new or words == ["restart"]:
            self.driver.begin(now_s=self.now_s)
        if words == ["restart"]:
            return
        age = 0
        while words[0] == "old":
            age, words = age + 1, words[1:]
        for event in parse(words):
            if isinstance(event, Registered) and not event.asked_by:  # it answers the newest
                event = replace(event, asked_by=self.driver.incarnation)
            yield from self._answered(self.driver, event, age)

    def _wait(self, until_s: float, alive: list[ReplicaId]) -> Iterator[str]:
        """Let time pass as a driver does, a tick every second, with signs of life of these."""
        if self.driver is None:
            raise ConfigError("nothing has begun that time could pass for")
        while self.now_s < until_s:
            self.now_s = min(self.now_s + 1.0, until_s)
            for name in alive:
                life = Progressed(replica=name, generation=NO_GENERATION, committed=0, calls=0)
                yield from self._answered(self.driver, life)
            yield from self._answered(self.driver, Ticked())

    def _answered(self, driver: Driver, event: Event, age: int = 0) -> list[str]:
        try:
            answer = driver.hear_event(event, now_s=self.now_s, age=age)
        except ConflictError as conflict:
            return [f"conflict: {conflict}"]
        return render(answer.ready) + ["stale"] * answer.is_stale


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
