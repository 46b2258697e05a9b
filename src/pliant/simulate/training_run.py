"""One job that trains on simulated devices: what it has done, and when it will be done.

Owns the arithmetic of progress: speed by size, pauses, checkpoints, what is lost with the state,
and in which account each device-second goes.  Knows nothing of who decides how many devices it has.
"""

from __future__ import annotations

import math
from bisect import bisect_right

from pliant.core.allocation import Asked, Claim, Withdrawn
from pliant.core.policy.costs import share
from pliant.simulate.accounts import JobRecord
from pliant.simulate.resize_costs import START_S, ResizeCosts
from pliant.simulate.simulated_pool import Claimant, SimulatedPool, Timer, call_off
from pliant.spec.workload import WorkloadJob

LEAST_S = 1e-5
"""What differs by less is taken for one moment."""


def speed(job: WorkloadJob, size: int) -> float:
    """Return how fast a job is at a size, in units of its speed on ``devices``."""
    if size < 1:
        return 0.0
    if not job.curve:
        before, now = job.devices // job.workers, size // job.workers
        return share(before, job.num_slots) / share(now, job.num_slots)
    return _on_curve(job, size) / _on_curve(job, job.devices)


def _on_curve(job: WorkloadJob, size: int) -> float:
    """Return the speed between two measured sizes; beyond the largest nothing is gained."""
    points = job.curve
    at = bisect_right(points, size, key=lambda point: point[0])
    if at == 0:
        return points[0][1] * size / points[0][0]
    if at == len(points):
        return points[-1][1]
    (low, slow), (high, fast) = points[at - 1], points[at]
    return slow + (fast - slow) * (size - low) / (high - low)


def part_of_step(passed_s: float, step_s: float) -> float:
    """Return for how long the step lasts that is under way, so long after the first of them began.

    At the end of a step, and before the first, it is 0.
    """
    if passed_s <= 0.0 or step_s <= LEAST_S:
        return 0.0
    part_s = math.fmod(passed_s, step_s)
    return part_s if LEAST_S < part_s < step_s - LEAST_S else 0.0


def left_of_step(part_s: float, step_s: float) -> float:
    """Return how long it lasts from there to the end of a step."""
    return max(LEAST_S, step_s - part_s)


class TrainingRun(Claimant):
    """What jobs of one size and elastic ones have in common."""

    def __init__(
        self, job: WorkloadJob, costs: ResizeCosts, pool: SimulatedPool, record: JobRecord
    ) -> None:
        super().__init__(job.name, pool)
        self.job = job
        self.costs = costs
        self.record = record
        self.num_training = 0
        """Devices that train; they are stopped while ``rate`` is 0 or a pause lasts."""

        self.num_starting = 0
        self.rate = 0.0
        self.done_s = 0.0
        self.pause_until_s = 0.0
        self._unkept_s = 0.0
        self._unkept_work_s = 0.0
        self._unkept_device_s = 0.0
        """Since the last checkpoint: time, work, device-seconds."""

        self._end: Timer | None = None

    def arrive(self) -> None:
        """Ask for devices."""
        self.pool.claimants[self.name] = self
        self._since_s = self.pool.now_s
        self.pool.tell(Asked(claim=self.claim()))

    def claim(self) -> Claim:
        """Return what it asks for."""
        raise NotImplementedError

    @property
    def start_s(self) -> float:
        """From starting a process until it can train."""
        return START_S if self.job.start_s is None else self.job.start_s

    @property
    def first_start_s(self) -> float:
        """From now until processes that are started train, where none does yet."""
        return self.restart_s if self.done_s else self.start_s

    @property
    def restart_s(self) -> float:
        """How long a change takes that is not made in place."""
        return self.costs.restart_s if self.job.restart_s is None else self.job.restart_s

    def account(self) -> None:
        """Bring accounts and progress up to now."""
        now_s = self.pool.now_s
        passed_s = now_s - self._since_s
        if passed_s <= 0.0:
            return
        spent, training, held = self.pool.accounts.spent, self.num_training, len(self.held)
        trained_s = 0.0
        if training and self.rate:
            paused_s = min(max(self.pause_until_s - self._since_s, 0.0), passed_s)
            trained_s = passed_s - paused_s
            spent["paused"] += training * paused_s
            self._progress(trained_s, now_s)
        elif training:
            spent["unused"] += training * passed_s
        spent["starting"] += self.num_starting * passed_s
        spent["unused"] += (held - training - self.num_starting) * passed_s
        self.record.held_device_s += held * passed_s
        if self.record.began_s is not None:
            self.record.stopped_s += passed_s - trained_s
        self._since_s = now_s

    def _progress(self, trained_s: float, now_s: float) -> None:
        """Train for so long, up to now."""
        if trained_s <= 0.0:
            return
        size, rate, every_s = self.num_training, self.rate, self.costs.checkpoint_every_s
        self.pool.accounts.spent["useful"] += size * trained_s
        self.done_s += rate * trained_s
        total_s = self._unkept_s + trained_s
        if total_s >= every_s:
            self._unkept_s = total_s % every_s
            self._unkept_work_s = rate * self._unkept_s
            self._unkept_device_s = size * self._unkept_s
        else:
            self._unkept_s = total_s
            self._unkept_work_s += rate * trained_s
            self._unkept_device_s += size * trained_s
        target_s, record = self.job.target_s, self.record
        if target_s is not None and record.target_at_s is None and self.done_s >= target_s:
            record.target_at_s = now_s - (self.done_s - target_s) / rate

    def keep(self) -> None:
        """Make a checkpoint of what is done."""
        self._unkept_s = self._unkept_work_s = self._unkept_device_s = 0.0

    def lose_state(self) -> None:
        """Go back to the last checkpoint."""
        self._lose(self._unkept_device_s, self._unkept_work_s, self._unkept_s)
        self.keep()

    def lose_step(self, since_s: float) -> None:
        """Go back by so long, within which size and speed were as now; what was before is kept."""
        device_s, work_s = self.num_training * since_s, self.rate * since_s
        self._lose(device_s, work_s, since_s)
        self._unkept_s = max(0.0, self._unkept_s - since_s)
        self._unkept_work_s = max(0.0, self._unkept_work_s - work_s)
        self._unkept_device_s = max(0.0, self._unkept_device_s - device_s)

    def _lose(self, device_s: float, work_s: float, trained_s: float) -> None:
        spent = self.pool.accounts.spent
        spent["useful"] -= device_s
        spent["lost"] += device_s
        self.record.lost_device_s += device_s
        self.record.stopped_s += trained_s
        self.done_s = max(0.0, self.done_s - work_s)
        if self.job.target_s is not None and self.done_s < self.job.target_s - LEAST_S:
            self.record.target_at_s = None  # the model that had reached it is gone

    def begin(self) -> None:
        """Take note that it has its first devices."""
        if self.record.began_s is None:
            self.record.began_s = self.pool.now_s

    def pause(self, for_s: float) -> None:
        """Let nobody train for so long."""
        self.pause_until_s = max(self.pause_until_s, self.pool.now_s + for_s)

    def plan_end(self) -> None:
        """Look anew when it will be done; the accounts are up to now."""
        call_off(self._end)
        self._end = None
        size = self.num_training if self.rate else 0
        if not self.record.sizes or self.record.sizes[-1][1] != size:
            self.record.sizes.append((self.pool.now_s, size))
        if self.rate:
            left_s = max(0.0, self.job.work_s - self.done_s) / self.rate
            at_s = max(self.pool.now_s, self.pause_until_s) + left_s
            self._end = self.pool.queue.at(at_s, self.finish)

    def finish(self) -> None:
        """End the job: all is done."""
        self.account()
        self.done_s = self.job.work_s
        self.record.ended_s = self.pool.now_s
        if self.job.target_s is not None and self.record.target_at_s is None:
            self.record.target_at_s = self.pool.now_s
        self.num_training = self.num_starting = 0
        self.rate = 0.0
        self.plan_end()
        self.pool.claimants.pop(self.name, None)
        self.pool.tell(Withdrawn(name=self.name))
        self.give_back(set(self.held))
