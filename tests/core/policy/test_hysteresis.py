"""The policy takes its time for what it does of its own accord, and none for anything else.

A job without processes: capacity, wishes, losses and time go up and down, and each decision is
carried out at once.
"""

from __future__ import annotations

import re
from dataclasses import dataclass, field, replace
from typing import Any

from hypothesis import given
from hypothesis import strategies as st

from pliant.core.policy import costs, hysteresis
from pliant.core.policy.costs import Costs
from pliant.core.policy.decide import Decision, Policy, PolicyBackoff, PolicyView, consider
from pliant.core.policy.hysteresis import Pace

SLOTS = 12
LOOKS = 20
"""After so many looks without any news nothing may be held back any more."""


@dataclass
class Toy:
    """A job that follows its policy instantly; ``step_s`` is what a step takes at each size."""

    policy: Policy
    view: PolicyView
    now_s: float = 1000.0
    size: int = 0
    voluntary: list[float] = field(default_factory=list)
    decision: Decision = field(init=False)
    step_s: dict[int, float] = field(default_factory=dict)

    def __post_init__(self) -> None:
        self.look(is_urgent=True)

    def look(self, *, is_urgent: bool = False) -> Decision:
        view = replace(self.view, num_replicas=self.size, is_urgent=is_urgent)
        self.decision, pace = consider(view, self.policy, now_s=self.now_s)
        self.check(self.decision)
        self.size = self.decision.target_replicas
        self.view = replace(self.view, pace=pace)
        if self.decision.is_voluntary:
            self.voluntary.append(self.now_s)
        return self.decision

    def check(self, decision: Decision) -> None:
        policy, view, target = self.policy, self.view, decision.target_replicas
        room = self.room
        assert 0 <= target <= min(policy.max_replicas or 99, view.num_slots or 99, room)
        assert target >= min(policy.min_replicas, room)
        assert target + decision.spare_replicas <= room
        is_kept = view.pace.lost_at is not None
        if target >= policy.min_replicas and not is_kept:
            assert target in policy.sizes(target)
        assert decision.is_waiting == (decision.earliest_s > self.now_s)
        for sentence in (decision.reason, decision.would_change):
            assert "\n" not in sentence
            assert ". " not in sentence
        assert re.search(rf"\b{target} replica", decision.reason)

    @property
    def room(self) -> int:
        offered = 99 if self.view.offered is None else self.view.offered
        return max(0, min(self.view.devices, offered) - self.view.reclaimed)

    def settle(self) -> None:
        """Let time pass until nothing is held back."""
        for _ in range(LOOKS):
            if not self.decision.is_waiting:
                return
            before = self.decision.earliest_s
            self.now_s = max(self.now_s, before)
            self.look()
            assert not self.decision.is_waiting or self.decision.earliest_s > before
        raise AssertionError(f"still {self.decision}")

    def offer(self, replicas: int, *, at_s: float | None = None) -> Decision:
        self.now_s = self.now_s if at_s is None else at_s
        self.view = replace(self.view, offered=replicas)
        return self.look()


def toy(replicas: int = 2, **fields: Any) -> Toy:
    """Return a job that has settled at this size, with room for no more."""
    view = PolicyView(num_replicas=0, devices=99, num_slots=SLOTS, offered=replicas)
    return Toy(Policy(**fields), view)


seconds = st.sampled_from([0.0, 1.0, 10.0, 300.0])


@st.composite
def policies(draw: st.DrawFn) -> Policy:
    low = draw(st.integers(1, 3))
    shape: dict[str, Any] = draw(
        st.sampled_from(
            [
                {},
                {"replica_increment_step": 2},
                {"replica_increment_step": 3},
                {"replica_discrete_values": (low, low + 2, low + 6)},
            ]
        )
    )
    return Policy(
        min_replicas=low,
        max_replicas=draw(st.sampled_from([None, 9, 12])),
        scaling_timeout_s=draw(seconds),
        faulty_scale_down_timeout_s=draw(seconds),
        min_stability_period_s=draw(seconds),
        scale_up_snooze_time_s=draw(seconds),
        backoff=draw(
            st.sampled_from(
                [None, PolicyBackoff(), PolicyBackoff(initial_s=0.0), PolicyBackoff(factor=1)]
            )
        ),
        max_scale_events_per_hour=draw(st.sampled_from([None, 1, 3])),
        min_marginal_efficiency=draw(st.sampled_from([0.0, 0.3, 1.0])),
        amortization=draw(st.booleans()),
        spares=draw(st.integers(0, 2)),
        **shape,
    )


news = st.one_of(
    st.tuples(st.just("devices"), st.integers(0, 14)),
    st.tuples(st.just("offered"), st.integers(0, 14)),
    st.tuples(st.just("reclaimed"), st.integers(0, 3)),
    st.tuples(st.just("lost"), st.integers(1, 3)),
    st.tuples(st.just("wish"), st.integers(1, 9)),
    st.tuples(st.just("wait"), st.sampled_from([1, 5, 60, 1000, 5000])),
    st.tuples(st.just("restart"), st.just(0)),
    st.tuples(st.just("measured"), st.integers(1, 12)),
)


def happen(job: Toy, kind: str, number: int) -> None:
    """Let one thing happen, and check what must never wait."""
    job.now_s += 0.5
    match kind:
        case "wait":
            job.now_s += number
        case "lost":
            pace = hysteresis.lost(job.view.pace, job.now_s)
            devices = max(0, job.view.devices - number)
            job.view = replace(job.view, devices=devices, pace=pace)
        case "restart":
            changes = len(job.view.pace.changed_at)
            pace = hysteresis.restarted(now_s=job.now_s, num_changes=changes, backoff_level=2)
            job.view = replace(job.view, pace=pace)
        case "wish" if job.policy.fitted(number) is not None:
            job.view = replace(job.view, requested=number)
            target = job.look(is_urgent=True).target_replicas
            fits = job.policy.largest(min(number, job.room, SLOTS))
            assert target == (min(job.room, number) if fits is None else fits), "at once"
            return
        case "measured":
            known = job.view.costs
            for _ in range(costs.RIPE):
                known = costs.committed(known, size=number, num_steps=1, now_s=job.now_s)
                job.now_s += 0.5
            known = costs.started(
                costs.committed(
                    costs.crossed(known), size=number, num_steps=1, now_s=job.now_s + 1
                ),
                2.0,
            )
            job.view = replace(job.view, costs=known)
        case "devices":
            job.view = replace(job.view, devices=number)
        case "offered":
            job.view = replace(job.view, offered=number)
        case "reclaimed":
            job.view = replace(job.view, reclaimed=number)
        case _:
            pass
    job.look()


@given(policy=policies(), story=st.lists(news, max_size=25))
def test_whatever_happens_bounds_are_kept_and_every_wait_ends(
    policy: Policy, story: list[tuple[str, int]]
) -> None:
    job = Toy(policy, PolicyView(num_replicas=0, devices=8, num_slots=SLOTS))

    for kind, number in story:
        happen(job, kind, number)

    for earlier, later in zip(job.voluntary, job.voluntary[1:], strict=False):
        assert later - earlier >= policy.min_stability_period_s
    if (limit := policy.max_scale_events_per_hour) is not None:
        for earlier, later in zip(job.voluntary, job.voluntary[limit:], strict=False):
            assert later - earlier >= hysteresis.HOUR_S
    job.settle()
    size = job.size
    for wait_s in (0.0, 1.0, 1e4, 1e6):
        job.now_s += wait_s
        assert job.look().target_replicas == size, "without news nothing changes"
        assert not job.decision.is_waiting


@given(policy=policies(), curve=st.dictionaries(st.integers(1, 12), st.floats(0.1, 5.0)))
def test_a_job_that_measures_its_sizes_settles_whatever_they_are_worth(
    policy: Policy, curve: dict[int, float]
) -> None:
    job = Toy(policy, PolicyView(num_replicas=0, devices=12, num_slots=SLOTS))

    sizes = [job.size]
    for _ in range(40):
        known, clock_s = replace(job.view.costs, size=0), job.now_s
        for _ in range(costs.RIPE + 1):
            clock_s += curve.get(job.size, 1.0)
            known = costs.committed(known, size=job.size, num_steps=1, now_s=clock_s)
        job.now_s = clock_s
        job.view = replace(job.view, costs=known)
        job.look()
        job.settle()
        sizes.append(job.size)

    assert len(set(sizes[-20:])) == 1, sizes


def test_without_any_setting_growth_is_at_once() -> None:
    job = toy(2)

    assert job.offer(6).target_replicas == 6
    assert job.decision.is_voluntary


def test_arrivals_within_the_scaling_timeout_are_taken_together() -> None:
    job = toy(2, scaling_timeout_s=30.0)

    assert job.offer(3, at_s=2000.0).reason == (
        "stay at 2 replicas: 3 possible, but more may come within 30 s of the first "
        "(scalingTimeoutInSeconds)"
    )
    assert job.decision.would_change == ("time alone, when it looks again; or pliant scale 3")
    assert job.offer(5, at_s=2020.0).earliest_s == 2030.0
    assert job.offer(6, at_s=2030.0).target_replicas == 6


def test_capacity_that_leaves_within_the_scaling_timeout_was_never_there() -> None:
    job = toy(2, scaling_timeout_s=30.0)
    job.offer(6, at_s=2000.0)
    job.offer(2, at_s=2010.0)

    assert job.offer(6, at_s=2029.0).earliest_s == 2059.0


def test_two_changes_are_a_stability_period_apart() -> None:
    job = toy(2, min_stability_period_s=60.0)
    job.offer(4, at_s=2000.0)

    assert job.size == 4
    assert job.offer(6, at_s=2010.0).reason == (
        "stay at 4 replicas: 6 possible, but the last change is not 60 s ago "
        "(minStabilityPeriodInSeconds)"
    )
    assert job.offer(3, at_s=2020.0).target_replicas == 3, "what is taken is gone at once"
    assert job.offer(6, at_s=2060.0).target_replicas == 6


def test_changes_in_a_row_wait_ever_longer_until_one_comes_late() -> None:
    backoff = PolicyBackoff(initial_s=10.0, factor=3.0, max_s=60.0, reset_after_s=100.0)
    job = toy(2, backoff=backoff)

    waits = []
    for _ in range(5):
        job.offer(2)
        asked_s = job.now_s
        job.offer(6)
        job.settle()
        waits.append(job.now_s - asked_s)
    assert waits == [0.0, 10.0, 30.0, 60.0, 60.0]
    job.offer(2)
    assert job.offer(6, at_s=job.now_s + 100.0).target_replicas == 6
    job.offer(2)
    assert job.offer(6).reason == (
        "stay at 2 replicas: 6 possible, but after 1 change in a row the next waits 10 s (backoff)"
    )


def test_the_budget_of_an_hour_is_kept_in_every_hour() -> None:
    job = toy(2, max_scale_events_per_hour=2)
    for at_s in (2000.0, 2100.0):
        job.offer(6, at_s=at_s)
        job.offer(2)

    assert job.offer(6, at_s=2200.0).reason == (
        "stay at 2 replicas: 6 possible, but 2 changes were made within 3600 s "
        "(maxScaleEventsPerHour)"
    )
    assert job.decision.earliest_s == 5600.0


def test_after_a_restart_growth_waits_and_losses_do_not() -> None:
    job = toy(4, scale_up_snooze_time_s=60.0)
    job.now_s = 2000.0
    job.view = replace(job.view, pace=hysteresis.restarted(now_s=2000.0))

    assert job.offer(3, at_s=2001.0).target_replicas == 3
    assert job.offer(4, at_s=2002.0).earliest_s == 2060.0
    assert job.decision.reason == (
        "stay at 3 replicas: 4 possible, but the restart is not 60 s ago "
        "(scaleUpSnoozeTimeInSeconds)"
    )


def test_a_replacement_within_the_time_for_it_comes_at_once_and_survivors_are_kept() -> None:
    job = toy(
        8,
        replica_discrete_values=(1, 4, 8),
        faulty_scale_down_timeout_s=30.0,
        scaling_timeout_s=500.0,
    )
    job.view = replace(job.view, offered=None, devices=8)

    job.now_s = 2000.0
    job.view = replace(job.view, devices=7, pace=hysteresis.lost(job.view.pace, 2000.0))
    assert job.look().reason == (
        "shrink from 8 to 7 replicas: 7 of 8 are left, and a replacement may come within 30 s of "
        "the loss (faultyScaleDownTimeoutInSeconds); 12 micro-batches do not divide "
        "evenly by 7: replicas idle 14% of each step"
    )
    job.view = replace(job.view, devices=8)
    job.now_s = 2020.0
    assert job.look().target_replicas == 8

    job.view = replace(job.view, devices=7, pace=hysteresis.lost(job.view.pace, 2020.0))
    job.look()
    job.settle()
    assert (job.now_s, job.size) == (2050.0, 4)
    job.view = replace(job.view, devices=8)
    assert job.look().target_replicas == 4, "now it is growth like any other"


def test_without_that_time_a_loss_leaves_an_allowed_size_at_once() -> None:
    job = toy(8, replica_discrete_values=(1, 4, 8))

    assert job.offer(7).target_replicas == 4
    assert job.decision.reason == (
        "shrink from 8 to 4 replicas: 8 wanted, room for 7, of which 4 is the largest of "
        "replicaDiscreteValues 1, 4, 8"
    )
    assert job.decision.would_change == ("room for 8 replicas: a larger offer, or more devices")


def test_the_way_down_to_an_allowed_size_is_no_choice_of_the_policy() -> None:
    job = toy(4, replica_discrete_values=(1, 4, 8), min_stability_period_s=600.0)
    job.offer(8, at_s=2000.0)

    assert job.offer(7, at_s=2001.0).target_replicas == 4
    assert not job.decision.is_voluntary


def test_the_smallest_size_is_never_waited_for() -> None:
    job = toy(4, min_replicas=4, scaling_timeout_s=60.0, min_stability_period_s=600.0)
    job.offer(2)

    assert job.decision.reason == (
        "shrink from 4 to 2 replicas: 12 wanted, room for 2, too few to train (minReplicas=4)"
    )
    assert job.offer(4).target_replicas == 4


def test_growth_that_would_not_pay_waits_until_capacity_has_stayed() -> None:
    known = Costs()
    for second in range(8):
        known = costs.committed(known, size=2, num_steps=1, now_s=float(second))
    known = costs.started(costs.committed(costs.crossed(known), size=2, num_steps=1, now_s=9.0), 4)
    job = toy(2)
    job.view = replace(job.view, costs=known)
    for at_s in (2000.0, 2100.0, 2200.0):  # three visits of 3 s
        job.offer(4, at_s=at_s)
        job.offer(2, at_s=at_s + 3.0)

    assert job.offer(4, at_s=2300.0).reason == (
        "stay at 2 replicas: 4 possible, but a start takes 4 s and a change 1 s, and room "
        "for 4 stayed for 3 s of late: it must have been there for 6 s (amortization)"
    )
    job.settle()
    assert (job.now_s, job.size) == (2306.0, 4)
    job.policy = replace(job.policy, amortization=False)
    job.offer(2)
    assert job.offer(4).target_replicas == 4


def test_of_capacity_that_comes_and_goes_the_part_that_stays_is_used() -> None:
    job = toy(2)
    job.view = replace(job.view, costs=costs.started(Costs(), 60.0))
    job.offer(4, at_s=2000.0)
    for at_s in (2100.0, 2200.0, 2300.0):
        job.offer(6, at_s=at_s)
        job.offer(4, at_s=at_s + 5.0)

    assert job.offer(6, at_s=2400.0).target_replicas == 4
    assert job.decision.earliest_s == 2460.0


def test_what_comes_and_goes_at_the_top_says_nothing_about_the_capacity_below() -> None:
    job = toy(2)
    job.view = replace(job.view, costs=costs.started(Costs(), 60.0))
    job.offer(4, at_s=2000.0)
    for at_s in (2100.0, 2200.0, 2300.0):
        job.offer(6, at_s=at_s)
        job.offer(4, at_s=at_s + 5.0)
    job.offer(2, at_s=2400.0)  # room for 4 had stayed for 400 s

    assert job.offer(6, at_s=2500.0).target_replicas == 4
    job.settle()
    assert (job.now_s, job.size) == (2560.0, 6)


def test_a_size_stays_no_longer_than_a_smaller_one_did() -> None:
    job = toy(2)
    job.view = replace(job.view, costs=costs.started(Costs(), 60.0))
    job.offer(6, at_s=2000.0)
    job.offer(2, at_s=2900.0)  # room for 6 has stayed for 900 s, but long ago
    for at_s in (3000.0, 3100.0, 3200.0, 3300.0, 3400.0):
        job.offer(3, at_s=at_s)
        job.offer(2, at_s=at_s + 5.0)

    assert job.offer(6, at_s=3500.0).target_replicas == 2
    assert job.decision.earliest_s == 3560.0


def test_how_long_each_level_stayed_is_told_apart_and_forgotten_after_a_while() -> None:
    pace = Pace()
    for capacity, now_s in ((2, 0.0), (4, 10.0), (6, 15.0), (3, 20.0)):
        pace = hysteresis.watched(pace, capacity, now_s)
    assert pace.falls == (((3, 10.0), (4, 5.0)),)

    assert hysteresis.watched(pace, 0, 50.0).falls[-1] == ((0, 50.0), (2, 40.0))
    for flip in range(100):
        pace = hysteresis.watched(pace, 3 + flip % 2, 60.0 + flip)
    assert len(pace.falls) == hysteresis.FALLS


def test_a_replica_that_adds_nothing_is_taken_unless_that_is_not_wanted() -> None:
    assert toy(8).size == 8
    picky = toy(8, min_marginal_efficiency=0.1)
    assert picky.size == 6
    assert picky.decision.reason == (
        "grow from 0 to 6 replicas: each replica above 6 would add 0% of one of them, below "
        "minMarginalEfficiency=0.1"
    )


def test_a_replica_that_turns_out_to_add_too_little_is_given_back() -> None:
    job = toy(4, min_marginal_efficiency=0.5, min_stability_period_s=60.0)
    known, clock_s = Costs(), 0.0
    for size, step_s in ((2, 1.0), (4, 0.9)):
        known = replace(known, size=0)
        for _ in range(costs.RIPE + 1):
            clock_s += step_s
            known = costs.committed(known, size=size, num_steps=1, now_s=clock_s)
    job.view = replace(job.view, costs=known)

    assert job.look().target_replicas == 3
    assert job.decision.reason == (
        "shrink from 4 to 3 replicas: each replica above 3 would add -78% of one of them, below "
        "minMarginalEfficiency=0.5"
    )
    job.view = replace(job.view, requested=4)
    assert job.look(is_urgent=True).target_replicas == 4, "who asks for it gets it"


def test_giving_back_waits_like_any_voluntary_change() -> None:
    job = toy(2, min_marginal_efficiency=0.5, min_stability_period_s=60.0)
    job.offer(4, at_s=2000.0)
    known = Costs()
    for size, step_s in ((2, 1.0), (4, 0.9)):
        known = replace(known, size=0)
        for _ in range(costs.RIPE + 1):
            now_s = known.committed_at + step_s
            known = costs.committed(known, size=size, num_steps=1, now_s=now_s)
    job.view, job.now_s = replace(job.view, costs=known), 2010.0

    assert job.look().reason == (
        "stay at 4 replicas: 3 would do, but the last change is not 60 s ago "
        "(minStabilityPeriodInSeconds)"
    )
    job.settle()
    assert (job.now_s, job.size) == (2060.0, 3)


def test_spares_are_what_the_maximum_leaves() -> None:
    job = toy(6, max_replicas=4, spares=1)
    assert (job.size, job.decision.spare_replicas, job.decision.ask_replicas) == (4, 1, 5)

    job.offer(4)
    assert (job.size, job.decision.spare_replicas) == (4, 0), "training goes first"


def test_without_a_maximum_room_is_left_for_spares() -> None:
    job = Toy(Policy(spares=2), PolicyView(num_replicas=0, devices=6, num_slots=SLOTS))

    assert (job.size, job.decision.spare_replicas) == (4, 2)
    assert job.decision.reason == "grow from 0 to 4 replicas: there are 6 devices, spares=2"


def test_who_trains_does_not_make_room_for_a_spare_unless_that_is_asked_for() -> None:
    job = Toy(Policy(spares=2), PolicyView(num_replicas=0, devices=8, num_slots=SLOTS))

    job.view = replace(job.view, devices=7)
    assert (job.look().target_replicas, job.decision.spare_replicas) == (6, 1)

    job.policy = Policy(spares=3)
    assert job.look(is_urgent=True).target_replicas == 4
    assert job.decision.spare_replicas == 3


def test_what_a_restart_forgets_is_taken_for_the_worst() -> None:
    pace = hysteresis.restarted(now_s=50.0, num_changes=3, backoff_level=2)

    assert pace == Pace(restarted_at=50.0, changed_at=(50.0, 50.0, 50.0), backoff_level=2)
