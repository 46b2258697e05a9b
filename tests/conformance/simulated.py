"""A job that is simulated replica by replica, told what a scenario file says.

The simulator's replicas take no time here, but for steps, which end when the file needs it: what
they say to what they are told lies ready, and is said when the file has it.  What the file has and
none of them says the coordinator is told as it stands, and it is written down in ``told``.
"""

from __future__ import annotations

from dataclasses import replace

from tests.conformance.controlled_job import ControlledJob, ReplicaTimes

from pliant.core.commands import EndReplica
from pliant.core.events import (
    Broken,
    Event,
    Exited,
    ExitKind,
    Finished,
    Prepared,
    Progressed,
    Spare,
    Switched,
    WorkerEvent,
)
from pliant.core.job.state import JobSettings, Ready
from pliant.core.values import Incarnation, ReplicaId
from pliant.simulate.replay_player import Answer, CoreAlone
from pliant.simulate.replay_wording import line_of
from pliant.simulate.simulated_pool import EventQueue

AT_ONCE = ReplicaTimes(start_s=0.0, prepare_s=0.0, step_s=1e9, num_steps=1 << 40)
"""Nothing takes time but steps, which do not end by themselves."""


class PatientCoordinator(CoreAlone):
    """Keeps what replicas say, and hears it when the file says it."""

    def __init__(self, settings: JobSettings) -> None:
        super().__init__(settings)
        self.said: list[WorkerEvent | Exited] = []
        """By simulated replicas, and not by the file yet."""

        self.now: Event | None = None
        """What the file says now."""

        self.answer = Answer(Ready(incarnation=Incarnation(0)))

    def hear_event(self, event: Event, *, now_s: float, age: int) -> Answer:
        """Keep what a replica says; answer what the file says."""
        if event is not self.now:
            assert isinstance(event, WorkerEvent | Exited)
            is_news = isinstance(event, Progressed) or event not in self.said
            assert is_news, f"said twice: {line_of(event)}"
            self.said.append(event)
            return Answer(Ready(incarnation=self.incarnation))
        self.answer = super().hear_event(event, now_s=now_s, age=age)
        return self.answer


class AudibleJob(ControlledJob):
    """A simulated job in which the dead say nothing."""

    def hear_event(self, event: Event) -> None:
        """Tell the coordinator something, and obey."""
        if isinstance(event, WorkerEvent) and event is not self.listener.now:
            assert event.replica in self.running, f"it is dead: {line_of(event)}"
        super().hear_event(event)

    @property
    def listener(self) -> PatientCoordinator:
        """Its coordinator."""
        assert isinstance(self.coordinator, PatientCoordinator)
        return self.coordinator


class SimulatedReplicas:
    """The coordinators of one job, one after the other, and replicas that only take time."""

    def __init__(self, settings: JobSettings) -> None:
        self.told: list[str] = []
        """What no simulated replica has said."""

        self._coordinator = PatientCoordinator(settings)
        self._job = AudibleJob(EventQueue(), settings, AT_ONCE)
        self._job.coordinator = self._coordinator
        self._to_end: set[ReplicaId] = set()

    def begin(self, *, now_s: float) -> None:
        """Let a coordinator begin; those before it live on."""
        self._coordinator.begin(now_s=now_s)

    @property
    def incarnation(self) -> Incarnation:
        """Return the incarnation of the newest coordinator."""
        return self._coordinator.incarnation

    def explain(self) -> str:
        """Return the reason of the newest coordinator's last decision; empty before the first."""
        return self._coordinator.explain()

    def hear_event(self, event: Event, *, now_s: float, age: int) -> Answer:
        """Let it happen, and let the coordinator hear of it."""
        self._job.now_s = now_s
        if age:
            self.told.append(f"old {line_of(event)}")
        elif isinstance(event, WorkerEvent | Exited) and not self._comes_to_say(event):
            self.told.append(line_of(event))
        self._coordinator.now = event
        if age or self._job.exit_code is not None:
            return self._coordinator.hear_event(event, now_s=now_s, age=age)
        self._job.hear_event(event)
        self._let_all_answer()
        commands = self._coordinator.answer.ready.commands
        self._to_end.update(one.replica for one in commands if isinstance(one, EndReplica))
        return self._coordinator.answer

    def _comes_to_say(self, event: WorkerEvent | Exited) -> bool:
        """Whether a simulated replica says this, once the file has let it come so far."""
        job = self._job
        if self._is_said(event):
            return True
        match event:
            case Exited(replica=replica, kind=ExitKind.SIGNAL) if replica not in self._to_end:
                job.kill(replica)
                self._let_all_answer()
            case Switched(step=committed):
                self._end_step(committed)
            case Finished(committed=committed):
                job.times = replace(job.times, num_steps=committed)
                self._end_step(committed)
            case _:
                pass
        return self._is_said(event)

    def _is_said(self, event: WorkerEvent | Exited) -> bool:
        for one in self._coordinator.said:
            if _heading(one) == _heading(event):
                self._coordinator.said.remove(one)
                return True
        return False

    def _let_all_answer(self) -> None:
        """Let all happen that takes no time."""
        while self._job.queue.next_s <= self._job.now_s:
            self._job.queue.pop()()

    def _end_step(self, committed: int) -> None:
        """Let the step end that is under way, if one is; so many are committed then."""
        if (timer := self._job._step) is not None:
            self._job.committed = committed - 1
            end, timer[2] = timer[2], None
            end()
            self._let_all_answer()


def _heading(event: Event) -> object:
    """Return of an event what a simulated replica knows: it has no script, and knows no causes."""
    match event:
        case Spare() | Finished():
            return type(event), event.replica
        case Exited():
            return Exited, event.replica, event.kind
        case Prepared() | Switched() | Broken():
            return type(event), event.replica, event.generation
        case _:
            return event
