"""A job that is simulated replica by replica, and the quick way of simulating it beside it."""

from __future__ import annotations

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from tests.conformance.controlled_job import NODE, ControlledJob, ReplicaTimes
from tests.simulate.worlds import changes, cluster, job, simulated

from pliant.core.events import DrainRequested, NodeJoined, Offered
from pliant.core.job.state import JobSettings
from pliant.core.membership.state import Timeouts
from pliant.core.policy.costs import share
from pliant.core.policy.decide import Policy
from pliant.simulate.resize_costs import IN_PLACE
from pliant.simulate.simulated_pool import EventQueue
from pliant.simulate.training_run import TrainingRun

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


@pytest.mark.parametrize(
    "policy",
    [
        Policy(min_replicas=4, max_replicas=8, replica_increment_step=4),
        Policy(min_replicas=4, max_replicas=8, replica_discrete_values=(4, 8)),
    ],
)
def test_the_first_to_be_ready_waits_where_only_some_sizes_are_allowed(policy: Policy) -> None:
    times = ReplicaTimes(step_s=8.0, num_slots=8, num_steps=1000, loss_pause_s=0.5)

    one = controlled(policy, times, [(0.0, 8), (50.0, 4), (100.0, 8)], 150.0)
    one.kill(sorted(one.running)[0])
    one.run(200.0)

    # survivors of a loss go on with whatever is left
    assert [size for _, size in one.sizes] == [8, 4, 8, 7, 8]


def test_a_leaver_that_is_killed_in_a_step_holds_nobody_up() -> None:
    times = ReplicaTimes(step_s=80.0, num_slots=8, num_steps=10_000, loss_pause_s=0.5)

    one = controlled(Policy(max_replicas=8), times, [(0.0, 4)], 105.0)
    last = sorted(one.running)[-1]
    one.hear_event(DrainRequested(replica=last, notice_s=1000.0))
    one.run(106.0)  # the others have prepared to go on without it, from the next boundary on
    one.kill(last)
    one.run(200.0)

    assert [size for _, size in one.sizes] == [4, 3]
    assert one.sizes[-1][0] == pytest.approx(106.0 + QUIET.grace_s + 0.5)


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
    Policy(min_replicas=2, max_replicas=8, spares=1),
    Policy(min_replicas=2, max_replicas=5, spares=2),
]


@settings(max_examples=15, deadline=None)
@given(
    policy=st.sampled_from(POLICIES),
    levels=st.lists(st.integers(2, DEVICES), min_size=1, max_size=6),
    first=st.integers(2, DEVICES),
    longer=st.sampled_from([1, 8]),
)
def test_the_quick_way_heads_for_the_sizes_that_the_whole_controller_heads_for(
    policy: Policy, levels: list[int], first: int, longer: int
) -> None:
    """What a cluster of thousands of jobs is simulated with must do what one job really does."""
    each_s = 100.0 * longer
    offers = [(0.0, first), *((each_s * n, level) for n, level in enumerate(levels, 1))]
    until_s = each_s * (len(levels) + 2)
    times = ReplicaTimes(
        start_s=10.0, step_s=16.0 * longer, num_slots=64, num_steps=10_000_000,
        join_pause_s=0.7, leave_pause_s=0.073,
    )  # fmt: skip

    whole = controlled(policy, times, offers, until_s)
    nodes = [{"name": "spot", "count": DEVICES, "capacity": "x", "noticeInSeconds": 30}]
    quick = simulated(
        [
            job(
                "gpt",
                1e6,
                policy.max_replicas or 8,
                min_devices=2,
                max_devices=policy.max_replicas,
                num_slots=64,
                start_s=10.0,
                step_s=16.0 * longer * share(policy.max_replicas or 8, 64),
            )
        ],
        cluster(DEVICES, nodes=nodes),
        IN_PLACE,
        policy=policy,
        capacity={"spot": changes(*offers)},
        until_s=until_s,
    )

    assert seen(quick.records[0].sizes, each_s, until_s) == seen(whole.sizes, each_s, until_s)


def test_a_join_waits_for_the_end_of_a_long_step_and_a_loss_repeats_it() -> None:
    times = ReplicaTimes(start_s=10.0, step_s=1280.0, num_slots=64, loss_pause_s=0.53)
    policy = Policy(max_replicas=3)

    whole = controlled(policy, times, [(0.0, 2), (1000.0, 3)], 2000.0)
    whole.kill(sorted(whole.running)[0])
    whole.hear_event(Offered(replicas=2))
    whole.run(5000.0)
    nodes = [{"name": "spot", "count": 3, "capacity": "x"}]
    trace = {"spot": changes((0.0, 2), (1000.0, 3), (2000.0, 2))}
    long = job("gpt", 1e6, 2, min_devices=1, max_devices=3, num_slots=64, step_s=640.0)
    quick = simulated([long], cluster(3, nodes=nodes), policy=policy, capacity=trace,
                      until_s=5000.0)  # fmt: skip

    moments = [at_s for at_s, _ in whole.sizes]
    assert [size for _, size in whole.sizes] == [2, 3, 2]
    assert moments == pytest.approx([10.1, 10.1 + 2 * 640.0, 2000.0], abs=1.0)
    trained = quick.records[0].sizes[1:]
    assert [size for _, size in trained] == [2, 3, 2]
    assert [at_s for at_s, _ in trained] == pytest.approx(moments, abs=1.0)
    run = quick.pool.claimants["gpt"]
    assert isinstance(run, TrainingRun)
    assert int(run.done_s / 640.0) == whole.committed


def seen(sizes: list[tuple[float, int]], each_s: float, until_s: float) -> list[int]:
    """Return the size before each change: of several that start at once, the whole controller takes
    the first that is ready a boundary before the others."""
    return [
        next((size for at_s, size in reversed(sizes) if at_s <= moment), 0)
        for moment in range(int(0.95 * each_s), int(until_s), int(each_s))
    ]
