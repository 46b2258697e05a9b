"""One job in every detail: the whole controller of the core, and simulated replicas that obey it.

Owns the replicas: each command is answered after the time that a cost model gives, and steps are
committed one by one.  It decides nothing, and is a driver of ``core.job.controller`` as the
coordinator is.  A cluster of many jobs is simulated without single replicas (``elastic_run``); a
test holds that one to this one.

    StartReplica --start_s--> Spare      Prepare --prepare_s--> Prepared
    Switch --boundary, then a pause--> Switched      Reform --pause--> Switched
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass

from tests.support.player import CoreAlone

from pliant.core import commands, events
from pliant.core.events import ExitKind
from pliant.core.job import controller
from pliant.core.job.state import JobSettings
from pliant.core.policy.costs import share
from pliant.core.values import NodeId, Order, ReplicaId
from pliant.simulate.simulated_pool import EventQueue, Timer, call_off


@dataclass(frozen=True, slots=True, kw_only=True)
class ReplicaTimes:
    """How long replicas take, in seconds."""

    start_s: float = 10.0
    prepare_s: float = 0.1
    join_pause_s: float = 0.0
    leave_pause_s: float = 0.0
    loss_pause_s: float = 0.0
    step_s: float = 1.0
    """Of one replica alone; several share its slots."""

    num_slots: int = 64
    num_steps: int = 1000


class ControlledJob:
    """One job on one node, from its first replica to its exit code."""

    def __init__(self, queue: EventQueue, settings: JobSettings, times: ReplicaTimes) -> None:
        self.queue = queue
        self.times = times
        self.now_s = 0.0
        self.coordinator = CoreAlone(settings)
        self.coordinator.begin(now_s=0.0)
        self.exit_code: int | None = None
        self.committed = 0
        self.sizes: list[tuple[float, int]] = []
        """From when on how many replicas train."""

        self.running: set[ReplicaId] = set()
        self._entered: Order | None = None
        self._ordered: Order | None = None
        self._step: Timer | None = None
        self._finished = False

    def run(self, until_s: float) -> None:
        """Let time pass."""
        while self.exit_code is None:
            due_s = controller.next_deadline_s(self.coordinator.job)
            if min(due_s, self.queue.next_s) > until_s:
                break
            if due_s < self.queue.next_s:
                self.now_s = max(self.now_s, due_s)
                self.hear_event(events.Ticked())
            else:
                self.now_s = max(self.now_s, self.queue.next_s)
                self.queue.pop()()
        self.now_s = max(self.now_s, until_s)

    def hear_event(self, event: events.Event) -> None:
        """Tell the coordinator something, and obey."""
        if self.exit_code is None:
            answer = self.coordinator.hear_event(event, now_s=self.now_s, age=0)
            for command in answer.ready.commands:
                self._obey(command)

    def _in(self, seconds: float, call: Callable[[], None]) -> Timer:
        return self.queue.at(self.now_s + seconds, call)

    # --- commands ------------------------------------------------------------------

    def _obey(self, command: commands.Command) -> None:
        match command:
            case commands.StartReplica(replica=name):
                self.running.add(name)
                self._in(self.times.start_s, lambda: self._report_spare(name))
            case commands.Prepare(to=to, order=order):
                self._in(self.times.prepare_s, lambda: self._prepared(to, order))
            case commands.Switch(order=order):
                self._ordered = order
                if self._step is None:  # nobody trains yet, or they are held
                    self._in(0.0, self._cross)
            case commands.Reform(order=order):
                self._stop_steps()
                self._ordered = None
                self._in(self.times.loss_pause_s, lambda: self._enter(order))
            case commands.Release(to=to):
                kind = ExitKind.FINISHED if self._finished else ExitKind.LEFT
                self._let_go(to, kind)
            case commands.Dismiss(to=to):
                self._let_go(to, ExitKind.LEFT)
            case commands.EndReplica(replica=name):
                self._let_go((name,), ExitKind.SIGNAL)
            case commands.Stop():
                self._finished = True
            case commands.EndJob(exit_code=exit_code):
                self.exit_code = exit_code
                self._stop_steps()
                self._train(0)
            case _:
                pass  # of checkpoints and of coordinators before: there are none

    def _report_spare(self, name: ReplicaId) -> None:
        if name in self.running:
            self.hear_event(
                events.Spare(
                    replica=name,
                    calls=0,
                    num_slots=self.times.num_slots,
                    layout="simulated",
                    endpoint=f"{name}:1",
                )
            )

    def _prepared(self, to: tuple[ReplicaId, ...], order: Order) -> None:
        for name in to:
            if name in self.running:
                self.hear_event(events.Prepared(replica=name, generation=order.generation))

    def _let_go(self, names: tuple[ReplicaId, ...], kind: ExitKind) -> None:
        for name in names:
            self._in(0.0, lambda name=name: self._exit(name, kind))  # type: ignore[misc]

    def _exit(self, name: ReplicaId, kind: ExitKind) -> None:
        if name not in self.running:
            return
        self.running.discard(name)
        if kind is ExitKind.SIGNAL and self._step is not None:
            self._break_step_of(name)
        self.hear_event(events.Exited(replica=name, kind=kind))

    def _break_step_of(self, name: ReplicaId) -> None:
        """Let those notice a death who are in a step with the dead: a leaver's, too."""
        order = self._entered
        if order is None or name not in order.replicas:
            return
        self._stop_steps()
        for other in order.replicas:
            if other in self.running:
                self._in(0.0, lambda other=other: self._report_broken(other, order))  # type: ignore[misc]

    def _report_broken(self, name: ReplicaId, order: Order) -> None:
        if name in self.running and self._entered is order:
            self.hear_event(
                events.Broken(replica=name, generation=order.generation, reason="a member is gone")
            )

    def kill(self, name: ReplicaId) -> None:
        """Let a replica die; the step of the others breaks."""
        self._exit(name, ExitKind.SIGNAL)

    # --- steps ---------------------------------------------------------------------

    def _cross(self) -> None:
        """Enter what was ordered, at a boundary."""
        order, before = self._ordered, self._entered
        if order is None:
            return
        self._ordered = None
        self._stop_steps()
        joins = before is None or set(order.replicas) - set(before.replicas)
        pause_s = self.times.join_pause_s if joins else self.times.leave_pause_s
        self._enter(order, pause_s=pause_s if before is not None else 0.0)

    def _enter(self, order: Order, *, pause_s: float = 0.0) -> None:
        if self._entered is not None and order.generation <= self._entered.generation:
            return  # a newer Reform has sealed it
        self._stop_steps()
        self._entered = order
        self._train(0 if order.hold else len(order.replicas))
        for name in order.replicas:
            self.hear_event(
                events.Switched(replica=name, generation=order.generation, step=self.committed)
            )
        if self._entered is order and not order.hold and self._step is None:
            self._step = self._in(pause_s + self._step_s(), self._commit)

    def _step_s(self) -> float:
        size = len(self._entered.replicas) if self._entered else 1
        return self.times.step_s * share(size, self.times.num_slots)

    def _commit(self) -> None:
        order = self._entered
        self._step = None
        if order is None:
            return
        self.committed += 1
        if self.committed >= self.times.num_steps or self._finished:
            self._finished = True
            for name in order.replicas:
                self.hear_event(events.Finished(replica=name, committed=self.committed))
            return
        self._step = self._in(self._step_s(), self._commit)
        for name in order.replicas:
            self.hear_event(
                events.Progressed(
                    replica=name,
                    generation=order.generation,
                    committed=self.committed,
                    calls=0,
                )
            )
        if self._ordered is not None:
            self._cross()

    def _stop_steps(self) -> None:
        call_off(self._step)
        self._step = None

    def _train(self, size: int) -> None:
        if not self.sizes or self.sizes[-1][1] != size:
            self.sizes.append((self.now_s, size))


NODE = NodeId("box")
"""The one node of a job that is simulated in every detail."""
