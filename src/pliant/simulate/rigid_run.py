"""A job of one size: it trains with all its devices or not at all.

Its claim is a fixed one of the pool's core, which may or may not be suspended; so "static" and
"preempt" differ in that alone.
"""

from __future__ import annotations

from pliant.core.allocation import Action, Claim, Grant, Overdue, Refuse, Shrink, Suspend
from pliant.core.tenancy import Demand
from pliant.simulate.simulated_pool import Timer, call_off
from pliant.simulate.training_run import TrainingRun, left_of_step, part_of_step


class RigidRun(TrainingRun):
    """Starts when it has all, stops when one goes."""

    _start: Timer | None = None
    _stop: Timer | None = None
    _trains_since_s = 0.0

    def claim(self) -> Claim:
        """Return what it asks for."""
        job = self.job
        wanted = Demand(
            kind="fixed",
            team=job.team,
            priority=job.priority,
            device_kind=job.device_kind,
            min_replicas=job.devices,
            ask_replicas=job.devices,
            can_suspend=self.costs.can_suspend,
        )
        return Claim.of(job.name, wanted, since=job.arrival_s)

    def follow(self, action: Action) -> None:
        """Start with the whole of its minimum; stop when it is told to go, or to move."""
        match action:
            case Grant(devices=devices):
                self.account()
                self.held.update(devices)
                if len(self.held) >= self.job.devices and self._start is None and not self.rate:
                    self._begin()
            case Shrink(devices=drained):
                if self.held.intersection(drained):
                    self._stop_soon()
            case Suspend():
                self._stop_soon()
            case Overdue() | Refuse():
                pass

    def lose(self, devices: set[int]) -> None:
        """Stop at once; what was done since the last checkpoint is lost."""
        self.account()
        if self.rate:
            self.lose_state()
        self._end_processes()

    def _begin(self) -> None:
        self.num_starting = self.job.devices
        delay_s = self.first_start_s
        self.begin()
        self._start = self.pool.queue.at(self.pool.now_s + delay_s, self._started)

    def _started(self) -> None:
        self.account()
        self._start, self._trains_since_s = None, self.pool.now_s
        self.num_starting, self.num_training, self.rate = 0, self.job.devices, 1.0
        self.plan_end()

    def _stop_soon(self) -> None:
        """Save and stop at the end of the step, unless it has lost everything already."""
        if self._stop is not None or not self.held:
            return
        now_s, step_s = self.pool.now_s, self.job.step_s
        part_s = part_of_step(now_s - self._trains_since_s, step_s)
        left_s = left_of_step(part_s, step_s) if self.rate else 0.0
        self._stop = self.pool.queue.at(now_s + left_s, self._stopped)

    def _stopped(self) -> None:
        self.account()
        self.keep()
        self._end_processes()

    def _end_processes(self) -> None:
        call_off(self._start)
        call_off(self._stop)
        self._start = self._stop = None
        self.num_training = self.num_starting = 0
        self.rate = 0.0
        self.plan_end()
        self.record.preemptions += 1
        self.record.interventions += self.costs.is_by_hand
        self.give_back(set(self.held))

    def finish(self) -> None:
        """End the job; a stop on its way is not needed any more."""
        call_off(self._stop)
        super().finish()
