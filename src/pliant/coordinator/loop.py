"""The loop of one job: receive, step, persist, send, log.

``JobDriver`` runs it; this module has its parts.  One turn:

    receive   ``Inbox.take_events`` waits for an event or a deadline, and takes all that is there.
    step      ``CoreHolder.answers`` gives the events to the core, one after the other, and then the
              time.  The core is pure: an event that it cannot take leaves the job as it was.
    persist   ``GroupCommit.to`` writes the register once for all of them.  Nothing is sent before
              the write is confirmed (R1, R2).
    send      ``Outbox`` sends the commands.
    log       ``journal`` writes the events and what came of them.  Each record has its own moment.

Many events at once:

    - A thousand agents answer one order.  All answers but the last ask for nothing, so they are
      heard together (``core.job.batched``).
    - A Reform that is still being written is overtaken by deaths that come meanwhile, three times
      at most: the survivors of many deaths hear of one generation.
    - Replicas that die at one moment are told to the core as one event (``DiedTogether``).
    - While answers of many are awaited the log is held back (``journal.hold_back_of_many``).

Whoever asks (a person, over HTTP) gets an answer, if only that there is none.  Silence of agents is
looked at once a turn, and only after all that has come by then was heard: an agent is not silent
because its message waits in a queue.

This module decides nothing: ``core`` does.  It knows nothing of HTTP, sockets or the log.
"""

from __future__ import annotations

import asyncio
from collections import deque
from collections.abc import Callable, Container, Iterable, Sequence
from dataclasses import dataclass, field
from operator import attrgetter, is_not

from pliant.coordinator.nodes import JobNodes
from pliant.coordinator.register import HeldRegister
from pliant.core.commands import EndJob, Reform
from pliant.core.events import (
    DiedTogether,
    Event,
    Exited,
    ExitKind,
    NodeJoined,
    NodeLost,
    NodeSilent,
    Prepared,
    Progressed,
    Running,
    Switched,
    Ticked,
    WorkerEvent,
)
from pliant.core.heartbeats import interval_s
from pliant.core.job import batched, controller
from pliant.core.job.state import Job, JobSettings, Ready, age
from pliant.core.membership.transitions import AT_REST
from pliant.core.policy.decide import Policy
from pliant.core.tenancy import Demand
from pliant.core.text import in_one_line
from pliant.core.values import Register, ReplicaId
from pliant.machine.clock import TICK_S
from pliant.machine.event_loop import within

MOST_AT_ONCE = 256
"""Events that are taken together, if so many are there."""

LOOKS = 3
"""Turns of the event loop until what had come before the first of them is read and queued."""


@dataclass(frozen=True, slots=True)
class Incoming:
    """An event and, if someone waits for it, where the core's answer goes."""

    event: Event
    future: asyncio.Future[Ready | None] | None = None

    @property
    def is_asked(self) -> bool:
        """Whether somebody waits for the answer."""
        return self.future is not None

    def answer(self, ready: Ready | None) -> None:
        """Tell who asked; the first answer counts, and None says that there is none."""
        if self.future is not None and not self.future.done():
            self.future.set_result(ready)


class Inbox:
    """The one queue of a job."""

    def __init__(self) -> None:
        self._queue: asyncio.Queue[Incoming] = asyncio.Queue()
        self._later: deque[Incoming] = deque()
        self._is_closed = False

    def put(self, event: Event) -> None:
        """Queue an event."""
        self._queue.put_nowait(Incoming(event))

    async def ask(self, event: Event) -> Ready | None:
        """Queue an event and return what the core says to it; None if it says nothing any more."""
        if self._is_closed:
            return None
        asked = Incoming(event, asyncio.get_running_loop().create_future())
        self._queue.put_nowait(asked)
        return await asked.future if asked.future is not None else None

    async def take_events(self, limit_s: float) -> Sequence[Incoming]:
        """Wait for an event, for so long at most, and return all that are there by then."""
        first = self._later.popleft() if self._later else await within(self._queue.get(), limit_s)
        return [] if first is None else [first, *self.taken(MOST_AT_ONCE - 1)]

    def taken(self, most: int = MOST_AT_ONCE) -> list[Incoming]:
        """Return what is there, of much so many."""
        found = [self._later.popleft() for _ in range(min(most, len(self._later)))]
        number = min(most - len(found), self._queue.qsize())
        return found + [self._queue.get_nowait() for _ in range(number)]

    def put_back(self, taken: Iterable[Incoming]) -> None:
        """Have these taken again, before all that is there."""
        self._later.extendleft(reversed(list(taken)))

    async def has_more(self) -> bool:
        """Look at what every connection has, and say whether there is an event."""
        for _ in range(LOOKS):
            if self._later or not self._queue.empty():
                return True
            await asyncio.sleep(0)
        return not self._queue.empty()

    def close(self) -> None:
        """Answer nothing to whoever still waits, or asks later."""
        self._is_closed = True
        while left := self.taken():
            for one in left:
                one.answer(None)


_seen_of = attrgetter("sizing.policy", "nodes.apart", "stragglers.slow", "nodes.silent")
"""What people see of a job, and of which no command tells (``journal``)."""


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


class CoreHolder:
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
            self.state, number = batched.hear_answers(
                before, events, now_s=now_s, settings=self._settings
            )
        elif isinstance(events[0], Progressed):
            self.state, number = batched.hear_heartbeats(
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


MOST_OVERTAKEN = 3
"""How often a Reform may be overtaken by one that comes of what was heard while it was written."""


def newest_reform(answers: Sequence[Answered]) -> Reform | None:
    """Return the last Reform of what is carried out at once."""
    commands = (command for one in answers for command in one.ready.commands)
    return next((one for one in reversed(list(commands)) if isinstance(one, Reform)), None)


@dataclass(slots=True)
class Turn:
    """What is heard together; whoever asks is answered, if only that there is no answer."""

    taken: list[Incoming] = field(default_factory=list)
    answers: list[Answered] = field(default_factory=list)
    """To ``taken``, one by one; the end of the job is the last."""

    later: list[Incoming] = field(default_factory=list)
    """What waits until the Reform is sent that comes of it."""

    @property
    def is_asked(self) -> bool:
        """Whether somebody waits for an answer."""
        return any(one.is_asked for one in self.taken)

    def answer_all(self) -> None:
        """Tell who asked what the core has said."""
        for one, answered in zip(self.taken, self.answers, strict=False):
            one.answer(answered.ready)


@dataclass(frozen=True, slots=True, kw_only=True)
class GroupCommit:
    """Asks the core of one job."""

    core: CoreHolder
    register: HeldRegister
    nodes: JobNodes
    inbox: Inbox
    now_s: Callable[[], float]

    async def to(self, batch: Sequence[Incoming], heard: Turn) -> None:
        """Have the core answer these, and what comes while a Reform is recorded.

        Raises:
            ConflictError: another coordinator has taken over.
            PermanentError: the register cannot be written.
        """
        for looks_left in range(MOST_OVERTAKEN, -1, -1):
            said, least = [one.event for one in (*heard.later, *batch)], 1 if heard.later else 2
            dead = self.core.died_together(said, least=least)
            if len(dead) >= least:
                heard.later += batch
                batch = [Incoming(DiedTogether(replicas=dead))]
            elif heard.later:  # nothing overtakes what was said before it
                heard.later += batch
                return
            heard.taken += batch
            found = await self._recorded(batch, is_all=not heard.later)
            heard.answers += found
            heard.taken += [Incoming(Ticked())] * (len(heard.answers) - len(heard.taken))
            has_ended = len(heard.taken) > len(heard.answers)
            if has_ended or not looks_left or newest_reform(found) is None:
                return
            if not await self.inbox.has_more():
                return
            batch = self.inbox.taken()

    async def _recorded(self, batch: Sequence[Incoming], *, is_all: bool) -> list[Answered]:
        """Return what the core says, once the register has it.

        With one write for all: it takes milliseconds, and a thousand agents may join at once.
        Unless this ``is_all`` that was said by now, nobody is silent yet, or late.
        """
        now_s, events = self.now_s(), [one.event for one in batch]
        lost = self.nodes.forget_silent(now_s) if is_all else []
        if lost:
            events.append(NodeLost(node=lost[0], others=tuple(lost[1:])))
        silent = self.nodes.fallen_silent(now_s) if is_all else []
        if silent:
            events.append(NodeSilent(node=silent[0], others=tuple(silent[1:])))
        answers = self.core.answers(events, now_s, is_all=is_all)
        written = [one.ready.register for one in answers if one.ready.register is not None]
        if written:
            await self.register.write(written[-1])
        return answers
