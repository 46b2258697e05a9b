"""The core of one job as its driver holds it: what it knows, and what it answers to what comes.

Owns the state between two calls of the core, and when the core is to be asked though nothing comes.
An event that the core cannot take is answered by nothing at all, and the job is as it was.  Carries
nothing out, and decides nothing.
"""

from __future__ import annotations

from collections.abc import Callable, Container, Iterable, Sequence
from dataclasses import dataclass, replace
from operator import attrgetter, is_not

from pliant.core.commands import Command, EndJob, Reform
from pliant.core.events import (
    Event,
    Exited,
    ExitKind,
    NodeJoined,
    Prepared,
    Progressed,
    Running,
    Switched,
    Ticked,
    WorkerEvent,
)
from pliant.core.heartbeats import interval_s
from pliant.core.job import controller, mere_answers, mere_signs
from pliant.core.job.state import Job, JobSettings, Ready, age
from pliant.core.membership.transitions import AT_REST
from pliant.core.policy.decide import Policy
from pliant.core.printable import in_one_line
from pliant.core.tenancy import Demand
from pliant.core.values import Register, ReplicaId
from pliant.machine.clock import TICK_S

_seen_of = attrgetter("sizing.policy", "nodes.apart", "stragglers.slow", "nodes.silent")
"""What people see of a job, and of which no command tells (``job_changes``)."""


@dataclass(frozen=True, slots=True)
class Answered:
    """An event that the core has answered, while nothing of the answer is carried out yet."""

    event: Event | None
    """None: it was none that can be."""

    ready: Ready
    now_s: float
    stale: int
    """What the job has not heard as it came too late, in all."""

    states: tuple[Job, Job] | None = None
    """Before and after, if more is to be logged of it than the event: of a thousand answers each
    would keep a table of a thousand alive."""

    @property
    def is_mere_sign(self) -> bool:
        """Whether it says that somebody lives, and nothing came of it."""
        ready = self.ready
        is_silent = not (ready.commands or ready.notes or ready.register or ready.decision)
        return is_silent and isinstance(self.event, Progressed | Running)


class HeldCore:
    """The core of one job."""

    def __init__(self, settings: JobSettings, refuse: Callable[[str, str], None]) -> None:
        """``refuse`` takes whose an event is that cannot be, and why it cannot."""
        self.state: Job
        self._settings = settings
        self._refuse = refuse
        self._due_s = 0.0
        self._looked_s: float | None = None
        self._dead: set[ReplicaId] = set()
        """Who has died together with others, and of whom no more is heard yet."""

    @property
    def policy(self) -> Policy:
        """What counts now: what someone has set, or what the job was started with."""
        return self.state.sizing.policy or self._settings.policy

    @property
    def is_calm(self) -> bool:
        """Whether no change of the members is under way."""
        return self.state.membership.phase in AT_REST

    @property
    def demand(self) -> Demand:
        """What the outside must know of the job now."""
        return controller.demand(self.state, settings=self._settings)

    def has_named(self, replica: ReplicaId) -> bool:
        """Whether a replica of this name was ever started: what all of them leave has a bound."""
        return age(replica) <= self.state.named

    @property
    def signs_every_s(self) -> float:
        """How far apart the signs of life of an agent, and of each of its replicas, are to be."""
        return interval_s(len(self.state.replicas), self._settings.timeouts.heartbeat_s)

    @property
    def living(self) -> Container[ReplicaId]:
        """Return the replicas whose end is not known, whether it was told by itself or not."""
        names = self.state.replicas
        return names.keys() - self._dead if self._dead else names

    def died_together(self, events: Sequence[Event], *, least: int = 2) -> tuple[ReplicaId, ...]:
        """Return whom these tell to be killed and of nothing else before that; each once.

        ``least``: so many have died together; fewer are heard one by one.
        """
        spoken, dead = set[ReplicaId](), list[ReplicaId]()
        for event in events:
            if isinstance(event, Exited):
                if event.kind is ExitKind.SIGNAL and event.replica not in spoken | self._dead:
                    dead.append(event.replica)
            elif isinstance(event, WorkerEvent) and not isinstance(event, Progressed):
                spoken.add(event.replica)
        if len(dead) >= least:
            self._dead |= set(dead)
        return tuple(dead)

    def begin(self, *, now_s: float, register: Register | None, is_asked: bool) -> Ready:
        """Begin with what is recorded; see ``controller.begin``."""
        self.state, ready = controller.begin(
            now_s=now_s, settings=self._settings, register=register, is_asked=is_asked
        )
        self.forget_due()
        return ready

    def forget_due(self) -> None:
        """Look anew when something is due."""
        self._looked_s = None

    def due_s(self, now_s: float) -> float:
        """Return when the core is to be told the time if nothing else comes, or a little before.

        That is a look at every replica.  A sign of life only puts off what is due, so after those
        it is looked again only now and then.
        """
        if self._looked_s is None or now_s >= self._looked_s + TICK_S:
            self._due_s, self._looked_s = controller.next_deadline_s(self.state), now_s
        return self._due_s

    def answers(
        self, events: Iterable[Event], now_s: float, *, is_all: bool = True
    ) -> list[Answered]:
        """Return what the core says to these events, and then to time; the job's end is last.

        Unless this ``is_all`` that was said by then, time is for the next call.
        """
        found: list[Answered] = []
        left = [*events, Ticked()] if is_all else list(events)
        while left:
            if isinstance(left[0], Ticked) and now_s < self.due_s(now_s):
                break
            together = self._hear_together(left, now_s)
            found += together or [self._step(left[0], now_s)]
            del left[: max(len(together), 1)]
            if not found[-1].is_mere_sign:
                self.forget_due()
            if any(isinstance(command, EndJob) for command in found[-1].ready.commands):
                break
        return found

    def _hear_together(self, events: Sequence[Event], now_s: float) -> list[Answered]:
        """Hear the first of these that ask for nothing: mere answers, or signs of life."""
        before, states = self.state, None
        if isinstance(events[0], Prepared | Switched):
            self.state, number = mere_answers.hear_together(
                before, events, now_s=now_s, settings=self._settings
            )
        elif isinstance(events[0], Progressed):
            self.state, number = mere_signs.hear_together(
                before, events, now_s=now_s, settings=self._settings
            )
            states = (before, self.state)
        else:
            return []
        unsaid = Ready(incarnation=self.state.membership.incarnation)
        stale = _stale(self.state)
        return [Answered(event, unsaid, now_s, stale, states) for event in events[:number]]

    def _step(self, event: Event, now_s: float) -> Answered:
        before = self.state
        if isinstance(event, Exited):
            self._dead.discard(event.replica)
        try:
            self.state, ready = controller.step(before, event, now_s=now_s, settings=self._settings)
        except Exception as error:  # the core is pure: the job is as it was
            if not isinstance(event, WorkerEvent | NodeJoined | Running | Exited):
                raise
            self._refuse("agent", in_one_line(f"{type(event).__name__} cannot be: {error!r:.300}"))
            unsaid = Ready(incarnation=before.membership.incarnation)
            return Answered(None, unsaid, now_s, _stale(before))
        is_seen = isinstance(event, Progressed | Running | Ticked) or any(
            map(is_not, _seen_of(before), _seen_of(self.state))
        )
        states = (before, self.state) if is_seen else None
        return Answered(event, ready, now_s, _stale(self.state), states)


def _stale(job: Job) -> int:
    return job.history.stale + job.membership.stale


def newest_reform(answers: Sequence[Answered]) -> Reform | None:
    """Return the last Reform of what is carried out at once."""
    commands = (command for one in answers for command in one.ready.commands)
    return next((one for one in reversed(list(commands)) if isinstance(one, Reform)), None)


def left_to_tell(
    command: Command, newest: Reform | None, living: Container[ReplicaId]
) -> Command | None:
    """Return a command without those who get a newer Reform at once; None if that is everybody.

    Whoever hears it abandons what came before, so they would build a group for nothing; and who is
    not among the ``living`` any more by then hears nothing: of 200 that die at once each but the
    last would be told of all deaths before its own.
    """
    if newest is None or command is newest or not isinstance(command, Reform):
        return command
    there = frozenset(newest.to)
    others = tuple(name for name in command.to if name not in there and name in living)
    return replace(command, to=others) if others else None
