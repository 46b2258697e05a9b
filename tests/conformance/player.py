"""Plays a scenario file: events in column 0, what a coordinator answered indented below them.

Owns the order of events and the time.  Whose coordinator answers is a ``Driver``'s to say: the same
file is played by each, and the answers must be the same.  A file reads like this::

    policy min=1 max=4 start=2
    waits heartbeat_s=10
    at 0 node n1 devices=4
      start r1 on n1
    at 1 spare r1 r2
      prepare 1 r1*,r2* origin=r1
    at 2 exit r1 signal SIGKILL     # a comment
      ...
    until 12 r2                     # ticks every second, and r2 gives signs of life
    at 13 restart                   # another coordinator takes over, with what the register tells
    at 13 node n1 devices=4 runs=r2
      roll-call r2
    at 14 old broken 1 r2           # the one before it is still there, and hears this
      conflict: another coordinator has taken over

A policy names fields of ``ElasticPolicy`` (``min``, ``max``, ``start`` for short); ``at 9 set`` and
the same words set another while the job runs.  What is held back is shown as ``wait until``;
``explain`` on a line of its own shows the reason of the last decision.

In an order ``*`` marks a joiner from its Switch on, ``-r3`` a leaver.  A restored checkpoint is
written ``name@committed/lineage``.  ``pytest --rewrite`` refreshes the answers; a person reads the
difference.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator
from dataclasses import dataclass, field, replace
from typing import Protocol

from tests.conformance.notation import options_of, parse, policy_of, render

from pliant.core.errors import ConfigError, ConflictError
from pliant.core.events import Event, Progressed, Registered, Ticked
from pliant.core.job.state import JobSettings, Ready
from pliant.core.membership.state import Timeouts
from pliant.core.values import NO_GENERATION, Incarnation, ReplicaId


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

    def hear(self, event: Event, *, now_s: float, age: int) -> Answer:
        """Let the coordinator that ``age`` others have followed hear an event.

        Raises:
            ConflictError: it wants to write, and another has taken over.
        """

    def explain(self) -> str:
        """Return the reason of the newest coordinator's last decision; empty before the first."""


MakeDriver = Callable[[JobSettings], Driver]


def play(text: str, make: MakeDriver) -> str:
    """Return the scenario with the answers that the driver's coordinators give to its events."""
    player = _Player(make)
    out: list[str] = []
    for line in text.splitlines():
        if line.startswith("  "):
            continue
        out.append(line)
        out += [f"  {answer}" for answer in player.obey(line.partition("#")[0].split())]
    return "\n".join(out) + "\n"


@dataclass(slots=True)
class _Player:
    make: MakeDriver
    settings: JobSettings = field(default_factory=JobSettings)
    now_s: float = 0.0
    driver: Driver | None = None

    def obey(self, words: list[str]) -> list[str]:
        """Let happen what one line says; return what is answered."""
        match words:
            case []:
                pass
            case ["policy", *options] if self.driver is None:
                self.settings = replace(self.settings, policy=policy_of(options_of(options)))
            case ["budget", number] if self.driver is None:
                self.settings = replace(self.settings, restart_budget=int(number))
            case ["waits", *options] if self.driver is None:
                waits = {name: float(value) for name, value in options_of(options).items()}
                self.settings = replace(self.settings, timeouts=Timeouts(**waits))
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

    def _happen(self, words: list[str]) -> Iterator[str]:
        is_new = self.driver is None
        if self.driver is None:
            self.driver = self.make(self.settings)
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
            yield from self._hear(self.driver, event, age)

    def _wait(self, until_s: float, alive: list[ReplicaId]) -> Iterator[str]:
        """Let time pass as a driver does, a tick every second, with signs of life of these."""
        assert self.driver is not None, "nothing has begun that time could pass for"
        while self.now_s < until_s:
            self.now_s = min(self.now_s + 1.0, until_s)
            for name in alive:
                life = Progressed(replica=name, generation=NO_GENERATION, committed=0, calls=0)
                yield from self._hear(self.driver, life)
            yield from self._hear(self.driver, Ticked())

    def _hear(self, driver: Driver, event: Event, age: int = 0) -> list[str]:
        try:
            answer = driver.hear(event, now_s=self.now_s, age=age)
        except ConflictError as conflict:
            return [f"conflict: {conflict}"]
        return render(answer.ready) + ["stale"] * answer.is_stale
