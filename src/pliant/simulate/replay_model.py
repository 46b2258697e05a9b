"""Workers that answer as those of a recorded run usually did, for what no record can say.

Owns the model: each answer takes the median time that it took in the record, a step at a size takes
what the core knows of it, a boundary is at the end of a step, nobody fails of its own accord.  What
comes from outside (nodes, people, offers, deaths) comes as it was recorded; what concerns a replica
that is not there is left out, and counted.  Decides nothing: what is decided is ``core.job``'s.

    log  --what comes from outside-->  core  --commands-->  workers  --answers, steps-->  core
"""

from __future__ import annotations

import heapq
import itertools
from collections import Counter
from collections.abc import Iterable, Iterator, Sequence
from dataclasses import dataclass, field, replace
from statistics import median

from pliant.core import commands, events
from pliant.core.job import controller
from pliant.core.job.state import Job, JobSettings, Ready, ReplicaState, Stage
from pliant.core.membership import state as group
from pliant.core.membership.transitions import Phase
from pliant.core.policy.costs import predicted_step_s, share
from pliant.core.values import NO_GENERATION, Order, ReplicaId
from pliant.simulate.replay import Turn

MOST_EVENTS = 1_000_000
"""After so many the model stops: a policy may resize for ever."""

TRAINING = (Phase.STEADY, Phase.PREPARING)
"""While a change is prepared, steps go on."""

OUTSIDE = (
    events.NodeJoined
    | events.NodeLeaving
    | events.NodeLost
    | events.NodeFailed
    | events.PeopleEvent
)
USUAL_S = {"start": 1.0, "prepare": 0.05, "switch": 0.05, "exit": 0.2, "step": 1.0}
"""Where the record has none to measure."""


@dataclass(slots=True)
class Measured:
    """Eats the turns of a run; knows how long its workers took for what."""

    took_s: dict[str, list[float]] = field(default_factory=dict)
    steps_s: dict[int, list[float]] = field(default_factory=dict)
    """Time of a step by number of members."""

    total_steps: int | None = None
    spare: events.Spare | None = None
    last_committed: int = 0
    _asked: dict[tuple[str, str], float] = field(default_factory=dict)
    _commit: tuple[int, float] | None = None
    _incarnation: int | None = None

    def add(self, turn: Turn) -> None:
        """Take in the next turn."""
        if turn.place.incarnation != self._incarnation:  # another clock
            self._incarnation, self._commit = turn.place.incarnation, None
            self._asked.clear()
        self._note_event(turn)
        for command in turn.ready.commands if turn.ready is not None else ():
            match command:
                case commands.StartReplica(replica=name):
                    self._asked["start", name] = turn.now_s
                case commands.Prepare(to=names):
                    self._asked.update({("prepare", name): turn.now_s for name in names})
                case commands.Reform(to=names):
                    self._asked.update({("switch", name): turn.now_s for name in names})
                case commands.EndReplica(replica=name):
                    self._asked["exit", name] = turn.now_s
                case _:
                    pass

    def usual_s(self, what: str) -> float:
        """Return how long something takes."""
        known = self.took_s.get(what)
        return median(known) if known else USUAL_S[what]

    def step_s(self, job: Job, size: int) -> float:
        """Return how long a step takes at a size."""
        if known := self.steps_s.get(size):
            return median(known)
        slots = job.reference.num_slots if job.reference is not None else None
        if any(job.costs.step_time_s(one) for one in job.costs.step_s):
            return predicted_step_s(job.costs, size, slots)
        if not self.steps_s:
            return USUAL_S["step"]
        nearest = min(self.steps_s, key=lambda one: abs(one - size))
        return median(self.steps_s[nearest]) * share(size, slots) / share(nearest, slots)

    def _note_event(self, turn: Turn) -> None:
        match turn.event:
            case events.Spare(replica=name):
                self.spare = self.spare or turn.event
                self._answered("start", name, turn.now_s)
            case events.Prepared(replica=name):
                self._answered("prepare", name, turn.now_s)
            case events.Switched(replica=name):
                self._answered("switch", name, turn.now_s)
                self._commit = None
            case events.Exited(replica=name):
                self._answered("exit", name, turn.now_s)
            case events.Finished(committed=committed):
                self.total_steps = max(self.total_steps or 0, committed)
            case _:
                pass
        if turn.after is not None:
            self._count_steps(turn.after, turn.now_s)

    def _answered(self, what: str, name: str, now_s: float) -> None:
        asked_s = self._asked.pop((what, name), None)
        if asked_s is not None:
            self.took_s.setdefault(what, []).append(now_s - asked_s)

    def _count_steps(self, job: Job, now_s: float) -> None:
        committed = job.membership.committed
        if committed <= self.last_committed:
            return
        self.last_committed = committed
        size = len(group.members(job.membership))
        if self._commit is not None and job.membership.phase is Phase.STEADY and size:
            before, since_s = self._commit
            if committed > before:
                each_s = (now_s - since_s) / (committed - before)
                self.steps_s.setdefault(size, []).append(each_s)
        self._commit = (committed, now_s)


@dataclass(frozen=True, slots=True, kw_only=True)
class Modelled:
    """One thing that the core was told in the model, and what it answered."""

    now_s: float
    event: events.Event
    ready: Ready
    job: Job
    is_from_log: bool


@dataclass(slots=True, kw_only=True)
class WorkerModel:
    """A job whose workers answer as usual."""

    job: Job
    settings: JobSettings
    now_s: float
    measured: Measured
    incarnation: int
    """Of the coordinator whose core answers."""

    left_out: Counter[str] = field(default_factory=Counter)
    """What of the record concerned nobody here, by the kind of event."""

    stopped_by: str = ""
    """Why it ends before the job does."""

    committed: int = 0
    _until_s: float = 0.0
    """Until when the record says what came from outside."""

    _queue: list[tuple[float, int, events.Event, bool]] = field(default_factory=list)
    _count: Iterator[int] = field(default_factory=itertools.count)
    _commit_at: float | None = None
    _switch_to: Order | None = None
    _is_stopping: bool = False

    def run(self, ready: Ready, later: Sequence[Turn]) -> Iterator[Modelled]:
        """Go on from the commands that nobody has answered, with what came from outside later."""
        self.committed = self.job.membership.committed
        self._until_s = self.now_s
        self._take_up()
        for turn in later:
            if turn.place.incarnation != self.incarnation:
                self.stopped_by = "another coordinator begins, which no model answers"
                break
            self._until_s = turn.now_s
            if (what := self._from_outside(turn.event)) is not None:
                self._put(turn.now_s, what, is_from_log=True)
        for command in ready.commands:  # the others are known from what the core knows
            if isinstance(command, commands.Stop | commands.Look | commands.FallThrough):
                self._obey(command)
        self._beat()
        for _ in range(MOST_EVENTS):
            if self.job.stage is Stage.ENDED:
                self.stopped_by = ""
                return
            if (told := self._next()) is None:
                return
            yield told
        self.stopped_by = f"{MOST_EVENTS} events"

    # --- time --------------------------------------------------------------------------

    def _next(self) -> Modelled | None:
        """Let happen what is next: an answer, a step, or that time has passed."""
        due_s = max(controller.next_deadline_s(self.job), self.now_s)
        commit_s = self._commit_at if self._commit_at is not None else float("inf")
        queued_s = self._queue[0][0] if self._queue else float("inf")
        now_s = min(due_s, commit_s, queued_s)
        if now_s == float("inf") or (self._is_idle() and now_s > self._until_s):
            self.stopped_by = self.stopped_by or "the record ends here"
            return None
        self.now_s = max(self.now_s, now_s)
        if queued_s <= min(due_s, commit_s):
            _, _, event, is_from_log = heapq.heappop(self._queue)
            if isinstance(event, events.Running):
                self._beat()
                return self._tell_core(events.Ticked())
            if is_from_log and not self._concerns_anybody(event):
                self.left_out[type(event).__name__] += 1
                return self._tell_core(events.Ticked())
            return self._tell_core(event, is_from_log=is_from_log)
        if commit_s <= due_s:
            return self._commit()
        return self._tell_core(events.Ticked())

    def _is_idle(self) -> bool:
        """Whether nobody trains: without a last step nothing tells when a job is done."""
        return self._commit_at is None or self.measured.total_steps is None

    def _tell_core(self, event: events.Event, *, is_from_log: bool = False) -> Modelled:
        self.job, ready = controller.step(self.job, event, now_s=self.now_s, settings=self.settings)
        for command in ready.commands:
            self._obey(command)
        if self.job.membership.phase not in TRAINING and self._switch_to is None:
            self._commit_at = None
        self._train()
        return Modelled(
            now_s=self.now_s, event=event, ready=ready, job=self.job, is_from_log=is_from_log
        )

    def _put(self, now_s: float, event: events.Event, *, is_from_log: bool = False) -> None:
        at = (max(now_s, self.now_s), next(self._count), event, is_from_log)
        heapq.heappush(self._queue, at)

    def _after(self, what: str, event: events.Event) -> None:
        self._put(self.now_s + self.measured.usual_s(what), event)

    # --- workers -------------------------------------------------------------------------

    def _take_up(self) -> None:
        """Let those answer who were asked before."""
        membership = self.job.membership
        for name, replica in self.job.replicas.items():
            if replica.state is ReplicaState.STARTING:
                self._start(name)
            elif replica.state is ReplicaState.ENDING:
                self._leave(name, is_told=replica.farewell is not None)
        if membership.attempt is not None:
            for name in sorted(membership.awaiting):
                generation = membership.attempt.generation
                self._after("prepare", events.Prepared(replica=name, generation=generation))
        elif membership.phase in (Phase.SWITCHING, Phase.REFORMING):
            self._enter(group.under_way(membership), only=membership.awaiting)
        self._train()

    def _obey(self, command: commands.Command) -> None:
        match command:
            case commands.StartReplica(replica=name):
                self._start(name)
            case commands.EndReplica(replica=name):
                self._leave(name, is_told=False)
            case commands.Prepare(to=names, order=order):
                for name in names:
                    prepared = events.Prepared(replica=name, generation=order.generation)
                    self._after("prepare", prepared)
            case commands.Switch(order=order) | commands.Reform(order=order):
                self._change_to(order, at_once=isinstance(command, commands.Reform))
            case commands.Release(to=names) | commands.Dismiss(to=names):
                for name in names:
                    self._leave(name, is_told=True)
            case commands.Look(to=names) | commands.FallThrough(to=names):
                for name in names:
                    self._after("prepare", self._spare(name))
            case commands.Stop():
                self._is_stopping = True
            case _:
                pass

    def _change_to(self, order: Order, *, at_once: bool) -> None:
        """Enter an order: at the end of the step that is under way, or give that one up."""
        if at_once:
            self._commit_at = None
        self._switch_to = order
        if self._commit_at is None:
            self._cross()

    def _start(self, name: ReplicaId) -> None:
        self._after("start", self._spare(name))

    def _spare(self, name: ReplicaId) -> events.Spare:
        like = self.job.reference or self.measured.spare
        if like is None:
            return events.Spare(replica=name, calls=0, num_slots=8, layout="", endpoint="")
        return replace(
            like,
            replica=name,
            calls=self.job.membership.calls,
            asked_by=self.job.membership.incarnation,
            looked=self.job.looks,
        )

    def _leave(self, name: ReplicaId, *, is_told: bool) -> None:
        """Let a process end, by itself or because its agent kills it."""
        is_over = self.job.stage in (Stage.FINISHING, Stage.ENDED)
        how, detail = events.ExitKind.FINISHED if is_over else events.ExitKind.LEFT, ""
        if not is_told:
            how, detail = events.ExitKind.SIGNAL, "SIGKILL"
        self._after("exit", events.Exited(replica=name, kind=how, detail=detail))

    def _enter(self, order: Order, only: Iterable[ReplicaId] | None = None) -> None:
        names = order.replicas if only is None else tuple(sorted(only))
        for name in names:
            switched = events.Switched(
                replica=name, generation=order.generation, step=self.committed
            )
            self._after("switch", switched)

    def _train(self) -> None:
        """Begin a step if all are there and none is under way."""
        membership = self.job.membership
        order = membership.recorded
        is_steady = membership.phase in TRAINING
        is_training = self.job.stage in (Stage.RUNNING, Stage.STOPPING)
        if order is None or order.hold or not is_steady or not is_training:
            return
        if self._commit_at is None and not membership.finished:
            size = max(1, len(group.members(membership)))
            self._commit_at = self.now_s + self.measured.step_s(self.job, size)

    def _commit(self) -> Modelled:
        """A step is done: all say so, cross a boundary that is due, stop, or finish."""
        self.committed += 1
        self._commit_at = None
        members = group.members(self.job.membership)
        total = self.measured.total_steps
        if self._is_stopping or (total is not None and self.committed >= total):
            for name in members:
                self._put(self.now_s, events.Finished(replica=name, committed=self.committed))
        elif self._switch_to is not None:
            self._cross()
        if not members:
            return self._tell_core(events.Ticked())
        return self._tell_core(self._life(members[0]))

    def _cross(self) -> None:
        if self._switch_to is not None:
            self._enter(self._switch_to)
            self._switch_to = None

    def _beat(self) -> None:
        """Let everybody give a sign of life, and again soon."""
        for name in self.job.membership.pulses:
            replica = self.job.replicas.get(name)
            if replica is not None and not replica.is_lost:
                self.job, _ = controller.step(
                    self.job, self._life(name), now_s=self.now_s, settings=self.settings
                )
        again_s = self.now_s + self.settings.timeouts.asleep_s / 2
        if self._is_idle() and again_s > self._until_s:
            return
        heapq.heappush(self._queue, (again_s, next(self._count), _BEAT, False))

    def _life(self, name: ReplicaId) -> events.Progressed:
        order = self.job.membership.recorded
        generation = NO_GENERATION if order is None else order.generation
        is_in = name in group.members(self.job.membership)
        return events.Progressed(
            replica=name,
            generation=generation if is_in else NO_GENERATION,
            committed=self.committed if is_in else 0,
            calls=0,
        )

    # --- the record ----------------------------------------------------------------------

    def _from_outside(self, event: events.Event | None) -> events.Event | None:
        """Return what would come whatever the core had decided; None: it is an answer."""
        if isinstance(event, events.Exited):
            is_fault = event.kind in (events.ExitKind.SIGNAL, events.ExitKind.SCRIPT)
            return event if is_fault else None
        return event if isinstance(event, OUTSIDE) else None

    def _concerns_anybody(self, event: events.Event) -> bool:
        if isinstance(event, events.Exited | events.DrainRequested | events.KillRequested):
            replica = self.job.replicas.get(event.replica)
            return replica is not None and replica.state is not ReplicaState.ENDING
        return True


_BEAT = events.Running(node="", replicas=())  # type: ignore[arg-type]  # never told to a core
