"""A job that is simulated replica by replica, and the quick way of simulating it beside it."""

from __future__ import annotations

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from tests.simulate.worlds import changes, cluster, job, simulated

from pliant.core.events import NodeJoined, Offered
from pliant.core.job.state import JobSettings
from pliant.core.membership.state import Timeouts
from pliant.core.policy.decide import Policy
from pliant.simulate.controlled_job import NODE, ControlledJob, ReplicaTimes
from pliant.simulate.event_queue import EventQueue
from pliant.simulate.resize_costs import IN_PLACE

DEVICES = 8
QUIET = Timeouts(heartbeat_s=1e6)  # simulated replicas say nothing between two steps


def controlled(
    policy: Policy, times: ReplicaTimes, offers: list[tuple[float, int]], until_s: float
) -> ControlledJob:
    one = ControlledJob(EventQueue(), JobSettings(policy=policy, timeouts=QUIET), times)
    for at_s, replicas in offers:
        one.run(at_s)
        one.hear_event(Offered(replicas=replicas))
        if at_s == 0.0:
            one.hear_event(NodeJoined(node=NODE, devices=DEVICES))
    one.run(until_s)
    return one


def test_a_job_runs_from_its_first_replica_to_its_exit_code() -> None:
    times = ReplicaTimes(step_s=8.0, num_slots=8, num_steps=100)

    one = controlled(Policy(max_replicas=8), times, [(0.0, 8)], 1000.0)

    assert (one.exit_code, one.committed) == (0, 100)
    assert [size for _, size in one.sizes] == [8, 0]
    assert one.now_s == pytest.approx(1000.0)
    assert one.sizes[-1][0] == pytest.approx(10.1 + 100.0)


def test_offers_are_followed_at_the_boundary_and_a_killed_replica_is_replaced() -> None:
    times = ReplicaTimes(step_s=8.0, num_slots=8, num_steps=1000, loss_pause_s=0.5)

    one = controlled(Policy(max_replicas=8), times, [(0.0, 8), (50.0, 4), (100.0, 8)], 150.0)
    one.kill(sorted(one.running)[0])
    one.run(200.0)

    # of those that start together the first to be ready does not wait for the others
    assert [size for _, size in one.sizes] == [8, 4, 5, 8, 7, 8]


def test_below_its_minimum_it_holds_the_state_and_does_not_train() -> None:
    times = ReplicaTimes(num_steps=10_000)
    policy = Policy(min_replicas=4, max_replicas=8)

    one = controlled(policy, times, [(0.0, 8), (50.0, 8)], 60.0)
    for name in sorted(one.running)[:6]:
        one.kill(name)
    held = one.committed
    one.run(62.0)

    assert one.committed == held


POLICIES = [
    Policy(min_replicas=2, max_replicas=8),
    Policy(min_replicas=2, max_replicas=8, scaling_timeout_s=20.0),
    Policy(min_replicas=2, max_replicas=8, min_stability_period_s=60.0),
    Policy(min_replicas=2, max_replicas=8, replica_increment_step=3),
    Policy(min_replicas=2, max_replicas=8, max_scale_events_per_hour=2),
]


@settings(max_examples=15, deadline=None)
@given(
    policy=st.sampled_from(POLICIES),
    levels=st.lists(st.integers(2, DEVICES), min_size=1, max_size=6),
    first=st.integers(2, DEVICES),
)
def test_the_quick_way_heads_for_the_sizes_that_the_whole_controller_heads_for(
    policy: Policy, levels: list[int], first: int
) -> None:
    """What a cluster of thousands of jobs is simulated with must do what one job really does."""
    offers = [(0.0, first), *((100.0 * n, level) for n, level in enumerate(levels, 1))]
    until_s = 100.0 * (len(levels) + 2)
    times = ReplicaTimes(
        start_s=10.0, step_s=16.0, num_slots=64, num_steps=10_000_000,
        join_pause_s=0.7, leave_pause_s=0.073,
    )  # fmt: skip

    whole = controlled(policy, times, offers, until_s)
    load = [(at_s, DEVICES - level) for at_s, level in offers]
    quick = simulated(
        [job("gpt", 1e6, 8, min_devices=2, max_devices=8, num_slots=64, start_s=10.0, step_s=2.0)],
        cluster(DEVICES, inference=[{"name": "others", "load": "x"}]),
        IN_PLACE,
        policy=policy,
        load={"others": changes(*load)},
        until_s=until_s,
    )

    assert seen(quick.records[0].sizes, until_s) == seen(whole.sizes, until_s)


def seen(sizes: list[tuple[float, int]], until_s: float) -> list[int]:
    """Return the size before each change: of several that start at once, the whole controller takes
    the first that is ready a boundary before the others."""
    return [
        next((size for at_s, size in reversed(sizes) if at_s <= moment), 0)
        for moment in range(95, int(until_s), 100)
    ]
