"""An elastic job in a simulated cluster: its size is its policy's, its devices are its pool's.

Owns what stands between the two in a live job: replicas that start, join, leave and are lost, and
the time that takes.  Decides nothing: what is asked for and what an offer means is
``core.tenancy``'s, how many replicas there should be ``core.policy``'s, by the measurements that
``core.policy.costs`` makes of what was simulated.
"""

from __future__ import annotations

from dataclasses import replace
from itertools import chain

from pliant.core.allocation import Action, Asked, Claim, Grant, kinds
from pliant.core.policy import costs, hysteresis
from pliant.core.policy.decide import Decision, Policy, PolicyView, consider
from pliant.core.policy.hysteresis import Pace
from pliant.core.tenancy import (
    Admission,
    Tenancy,
    demand_of,
    end_life,
    first_demand,
    follow_offer,
    in_devices,
    next_demand,
    occupy,
)
from pliant.simulate.accounts import JobRecord
from pliant.simulate.resize_costs import ResizeCosts
from pliant.simulate.simulated_pool import SimulatedPool, Timer, call_off
from pliant.simulate.training_run import TrainingRun, left_of_step, part_of_step, speed
from pliant.spec.workload import WorkloadJob

POOL = "simulated"
"""The one life of the pool that there is."""

Placed = tuple[int, ...]
"""A replica, by the devices of its workers."""


class ElasticRun(TrainingRun):
    """Has as many replicas as its policy wants of what it is offered; each has all its workers."""

    def __init__(
        self,
        job: WorkloadJob,
        resize: ResizeCosts,
        pool: SimulatedPool,
        record: JobRecord,
        policy: Policy,
    ) -> None:
        super().__init__(job, resize, pool, record)
        self.policy = policy
        self.decision: Decision | None = None
        self._demand = replace(
            first_demand(policy),
            team=job.team,
            priority=job.priority,
            device_kind=job.device_kind,
            can_suspend=resize.can_suspend,
        )
        self._tenancy = Tenancy(min_replicas=self.claim().min_replicas)
        self._pace = Pace()
        self._measured = costs.Costs()
        self._training: list[Placed] = []
        """Replicas that train and stay, oldest first."""

        self._starting: dict[Placed, float] = {}
        """Those that start, with when each is ready; spares stay here."""

        self._leaving: dict[Placed, float] = {}
        """Those that leave, with the end of the step after which they do."""

        self._has_state = False
        self._returned: set[int] = set()
        """Given back, and the core has not heard it yet."""

        self._join_at_s: float | None = None
        """End of the step after which those who are ready join; None: nobody waits for that."""

        self._alarm: Timer | None = None
        self._look_at_s = 0.0
        """When the policy looks again though nothing happens; in the past: it does not."""

        self._revision = 0
        self._size_since_s = 0.0

    # --- the pool ------------------------------------------------------------------

    def claim(self) -> Claim:
        """Return what it asks for."""
        wanted = in_devices(self._demand, self.job.workers)
        return Claim.of(self.job.name, wanted, since=self.job.arrival_s)

    def follow(self, action: Action) -> None:
        """Follow what the pool offers now, whatever has changed."""
        self.account()
        if isinstance(action, Grant):
            self._returned.difference_update(action.devices)
        self._take_offer()
        self._act()

    def lose(self, devices: set[int]) -> None:
        """Go on with those who are left, or go back to the last checkpoint."""
        self.account()
        gone = self.held & devices
        everybody = (*self._training, *self._leaving, *self._starting)
        hit = {one for one in everybody if not gone.isdisjoint(one)}
        trained = hit.difference(self._starting)
        for one in hit:
            self._starting.pop(one, None)
            self._leaving.pop(one, None)
        self._training = [one for one in self._training if one not in hit]
        self._send_back(gone)
        if trained:
            self._pace = hysteresis.lost(self._pace, self.pool.now_s)
            self._go_on_after_loss()
        self._take_offer()
        self._act()

    def _go_on_after_loss(self) -> None:
        left = len(self._training) + len(self._leaving)
        if not (left and self.costs.keeps_steps):
            self.lose_state()
        elif self.rate and self.costs.redoes_step:
            self.lose_step(self._in_step_s(self.num_training // self.job.workers))
        if left:
            self.pause(self.costs.loss_pause_s if self.costs.keeps_steps else self.restart_s)
        else:
            self._has_state = False
            self.record.preemptions += 1
        self._measured = costs.interrupted(self._measured)
        self._resized()

    def _take_offer(self) -> None:
        """Take what the core's standing says, as an offer does."""
        standing = kinds.standing_of(self.pool.core, self.job.name)
        if standing is None:
            return
        own = set(standing.devices)
        self._returned &= own
        self.held = own - self._returned
        devices = frozenset(self.held.difference(standing.drain))
        suspend, self._revision = standing.is_suspended, self._revision + 1
        self._tenancy = follow_offer(
            self._tenancy,
            pool=POOL,
            revision=self._revision,
            devices=devices,
            replicas=0 if suspend else min(standing.replicas, len(devices)),
            suspend=suspend,
        )

    # --- the policy ------------------------------------------------------------------

    def _act(self) -> None:
        """Bring the replicas to what offer and policy say; the accounts are up to now."""
        if self._tenancy.admission is Admission.SUSPENDING:
            self._suspend_soon()
        elif self._tenancy.admission is Admission.RUNNING:
            self.begin()
            self._leave_unwanted()
            self._follow_policy()
            self._join_ready()
        self._settle()

    def _follow_policy(self) -> None:
        now_s, tenancy, workers = self.pool.now_s, self._tenancy, self.job.workers
        taken = sum(not tenancy.unwanted.isdisjoint(one) for one in self._leaving)
        live = len(self._training) + len(self._starting)
        spares = self.decision.spare_replicas if self.decision else 0
        view = PolicyView(
            num_replicas=max(0, live - spares),
            leaving=len(self._leaving) - taken,
            taken=taken,
            devices=self.pool.devices // workers,
            num_slots=self.job.num_slots if self._has_state else None,
            offered=tenancy.room // workers,
            is_urgent=not self._has_state,
            pace=self._pace,
            costs=self._measured,
        )
        decision, self._pace = consider(view, self.policy, now_s=now_s)
        self.decision = decision
        wanted = decision.target_replicas + decision.spare_replicas
        if wanted < live:
            self._send_away(live - wanted)
        elif wanted > live:
            self._start(wanted - live)
        self._look_at_s = decision.earliest_s if decision.is_waiting else 0.0
        if self._has_state:
            self._ask(decision)

    def _ask(self, decision: Decision) -> None:
        """Ask for what the job can use, if that has changed."""
        wanted = demand_of(
            self.policy,
            ask_replicas=decision.ask_replicas,
            num_slots=self.job.num_slots,
            can_suspend=self.costs.can_suspend,
        )
        wanted = next_demand(wanted, self._demand, self.policy)
        if wanted != self._demand:
            self._demand = wanted
            self.pool.tell(Asked(claim=self.claim()))

    def _wake(self) -> None:
        """Look at what time has brought."""
        self.account()
        self._join_ready()
        self._let_leave()
        self._act()

    # --- replicas ------------------------------------------------------------------------

    def _start(self, count: int) -> None:
        """Start replicas on devices that nothing uses."""
        in_use = self._tenancy.used.union(*self._starting)
        free, workers = sorted(self._tenancy.usable - in_use), self.job.workers
        count = min(count, len(free) // workers)
        if not count:
            return
        new = [tuple(free[at * workers : (at + 1) * workers]) for at in range(count)]
        delay_s = self.first_start_s
        if self._has_state and not self.costs.joins_beside:
            delay_s = 0.0  # the restart of all is what they wait for
        elif self._has_state:
            delay_s = self.start_s
        self._starting.update(dict.fromkeys(new, self.pool.now_s + delay_s))

    def _join_ready(self) -> None:
        """Take in those that are ready, at the end of a step; the first of all wait for each other.

        While too few train, no step ends that could be waited for.  Spares wait for a loss.
        """
        now_s = self.pool.now_s
        ready = [one for one, at_s in self._starting.items() if at_s <= now_s]
        is_early = not self._has_state and len(ready) < len(self._starting)
        if self.policy.spares and self.decision is not None:
            ready = ready[: max(0, self.decision.target_replicas - len(self._training))]
        if not ready or is_early:
            self._join_at_s = None
            return
        if not self._has_state and len(ready) < self.policy.min_replicas:
            return
        before = len(self._training) + len(self._leaving)
        if before >= self.policy.min_replicas and self._has_state:
            if self._join_at_s is None and (in_step_s := self._in_step_s(before)):
                self._join_at_s = now_s + left_of_step(in_step_s, self._step_s(before))
            if now_s < (self._join_at_s or 0.0):
                return
        for one in ready:
            del self._starting[one]
        self._training += ready
        if not self._has_state:
            self._has_state = True
            self._resized(is_change=False)
            return
        pause_s = self.restart_s
        if self.costs.joins_beside:
            per_gb = self.costs.join_pause_s_per_gb * self.job.state_gb
            pause_s = self.costs.join_pause_s + per_gb
            for _ in ready:
                self._measured = costs.started(self._measured, self.start_s)
        self._change(before, pause_s)

    def _leave_unwanted(self) -> None:
        """Leave the devices that are taken back in particular."""
        unwanted = self._tenancy.unwanted
        if not unwanted:
            return
        for one in [one for one in self._starting if not unwanted.isdisjoint(one)]:
            del self._starting[one]
        self._leave([one for one in self._training if not unwanted.isdisjoint(one)])

    def _send_away(self, count: int) -> None:
        """Let so many go: those that start first, then spares, then the newest that train."""
        now_s, newest = self.pool.now_s, list(self._starting)[::-1]
        for one in sorted(newest, key=lambda one: self._starting[one] <= now_s)[:count]:
            del self._starting[one]
            count -= 1
        if count > 0:
            self._leave(self._training[-count:])

    def _leave(self, replicas: list[Placed]) -> None:
        """Let these leave at the end of the step."""
        if not replicas:
            return
        size = len(self._training) + len(self._leaving)
        left_s = left_of_step(self._in_step_s(size), self._step_s(size))
        gone, at_s = set(replicas), self.pool.now_s + left_s
        self._training = [one for one in self._training if one not in gone]
        self._leaving.update(dict.fromkeys(replicas, at_s))

    def _let_leave(self) -> None:
        """Let those go whose step has ended."""
        now_s = self.pool.now_s
        before = len(self._training) + len(self._leaving)
        left = [one for one, at_s in self._leaving.items() if at_s <= now_s]
        if not left:
            return
        for one in left:
            del self._leaving[one]
        if self._tenancy.admission is Admission.SUSPENDING:
            if not self._leaving:
                self._suspended()
        elif self._has_state:
            self._change(before, self.costs.leave_pause_s)

    def _suspend_soon(self) -> None:
        """Save and stop at the end of the step."""
        self._starting.clear()
        self._leave(list(self._training))
        if not self._leaving:
            self._suspended()

    def _suspended(self) -> None:
        """Give everything back; it goes on from its checkpoint when its turn comes again."""
        self.keep()
        self._training.clear()
        self._leaving.clear()
        self._has_state = False
        self._tenancy = end_life(self._tenancy)
        self._pace = hysteresis.restarted(now_s=self.pool.now_s)
        self._measured = costs.Costs()
        self.record.preemptions += 1
        self._resized(is_change=False)

    def _change(self, before: int, pause_s: float) -> None:
        """Switch to another size: all pause."""
        if not self.costs.joins_beside:
            pause_s = self.restart_s
            self.keep()  # a change that is known of is saved for
        self.pause(pause_s)
        after = len(self._training) + len(self._leaving)
        self._measured = self._learnt(before, after, pause_s)
        self._resized()

    def _resized(self, *, is_change: bool = True) -> None:
        self.record.resizes += is_change
        self._size_since_s = self.pool.now_s
        self._join_at_s = None

    def _settle(self) -> None:
        """Give back what is not used any more, and see how fast it is now."""
        used = frozenset(chain(*self._training, *self._starting, *self._leaving))
        self._tenancy = occupy(self._tenancy, used)
        self._send_back(self.held.difference(self._tenancy.holds))
        training = len(self._training) + len(self._leaving)
        is_enough = self._has_state and training >= self.policy.min_replicas
        size, now_s = training * self.job.workers, self.pool.now_s
        starting = sum(at_s > now_s for at_s in self._starting.values())
        self.num_starting = starting * self.job.workers
        self.num_training, self.rate = size, speed(self.job, size) if is_enough else 0.0
        self.plan_end()
        self._plan_look()

    def _plan_look(self) -> None:
        """Come back at the next moment that is known."""
        call_off(self._alarm)
        now_s = self.pool.now_s
        changes = (*self._starting.values(), *self._leaving.values())
        moments = (*changes, self._join_at_s or 0.0, self._look_at_s)
        next_s = min((at_s for at_s in moments if at_s > now_s), default=None)
        self._alarm = None if next_s is None else self.pool.queue.at(next_s, self._wake)

    def finish(self) -> None:
        """End the job, with all that was planned for it."""
        call_off(self._alarm)
        super().finish()

    def _send_back(self, devices: set[int]) -> None:
        if devices:
            self._returned |= devices
            self.give_back(devices)

    # --- what the job measures of itself ---------------------------------------------------

    def _step_s(self, size: int) -> float:
        rate = speed(self.job, size * self.job.workers)
        return self.job.step_s / rate if rate else 0.0

    def _in_step_s(self, size: int) -> float:
        """Return for how long they train at the step that is under way.

        Steps begin anew with each change, after its pause.
        """
        begun_s = max(self._size_since_s, self.pause_until_s)
        return part_of_step(self.pool.now_s - begun_s, self._step_s(size))

    def _learnt(self, before: int, after: int, pause_s: float) -> costs.Costs:
        """Return what commits before and after a change of size would have told the core.

        It is told of so few that a simulation of months stays quick.
        """
        known, now_s, step_s = self._measured, self.pool.now_s, self._step_s(before)
        is_ripe = known.step_time_s(before) is not None
        if is_ripe and len(known.pause_s) >= costs.KEPT:
            return known
        if not is_ripe:
            steps = costs.RIPE if now_s - self._size_since_s >= costs.RIPE * step_s else 0
            for step in range(steps + 1):
                at_s = now_s - (steps - step) * step_s
                known = costs.committed(known, size=before, num_steps=1, now_s=at_s)
        known = costs.crossed(replace(known, size=before, committed_at=now_s))
        at_s = now_s + pause_s + self._step_s(after)
        return costs.interrupted(costs.committed(known, size=after, num_steps=1, now_s=at_s))
