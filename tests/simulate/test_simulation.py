"""What a simulated cluster does is what its pool and its policies decide."""

from __future__ import annotations

import math
from dataclasses import replace
from typing import Any

import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st
from tests.simulate.worlds import changes, cluster, job, simulated

from pliant.core.errors import ConfigError
from pliant.core.policy import costs
from pliant.core.policy.decide import Policy
from pliant.simulate import report
from pliant.simulate.accounts import JobRecord
from pliant.simulate.measures import measured
from pliant.simulate.resize_costs import IN_PLACE, PREEMPT, RESTART, STATIC, ResizeCosts
from pliant.simulate.simulation import SimulatedWorld, Simulation
from pliant.simulate.training_run import TrainingRun
from pliant.spec.cluster import ClusterSpec
from pliant.spec.workload import WorkloadJob

FREE = ResizeCosts(name="free", keeps_steps=True, joins_beside=True, restart_s=0.0)
"""A way of resizing that costs nothing, so that times can be reckoned."""


def elastic(name: str, work_s: float, devices: int, low: int, high: int, **more: Any) -> Any:
    fields: dict[str, Any] = {"start_s": 0.0, "step_s": 1.0, **more}
    return job(name, work_s, devices, min_devices=low, max_devices=high, **fields)


def test_an_elastic_job_takes_all_and_makes_room_for_another() -> None:
    world = [
        elastic("pre", 1000.0, 8, 2, 8),
        job("tune", 100.0, 4, arrival_s=100.0, start_s=0.0),
    ]

    run = simulated(world, cluster(8), FREE)
    pre, tune = run.records

    assert pre.sizes[:3] == [(0.0, 8), (101.0, 4), (201.0, 8)]
    assert tune.began_s == 101.0
    assert tune.ended_s == 201.0
    assert pre.ended_s == pytest.approx(1050.0)
    assert (pre.resizes, pre.interventions) == (2, 0)


def test_a_static_job_keeps_what_it_has_and_others_wait() -> None:
    world = [
        elastic("pre", 1000.0, 8, 2, 8),
        elastic("tune", 100.0, 4, 1, 4, arrival_s=100.0),
    ]

    run = simulated(world, cluster(8), STATIC)
    pre, tune = run.records

    assert (pre.ended_s, tune.began_s) == (1000.0, 1000.0)
    assert measured(run).queue_p99_s == 900.0


def test_full_preemption_stops_the_whole_job_and_a_person_sees_to_it() -> None:
    world = [
        job("pre", 1000.0, 8, start_s=0.0),
        job("tune", 100.0, 4, arrival_s=100.0, start_s=0.0, priority="urgent"),
    ]

    pre, tune = simulated(world, cluster(8), PREEMPT).records

    assert (tune.began_s, tune.ended_s) == (101.0, 201.0)
    assert (pre.preemptions, pre.interventions) == (1, 1)
    assert pre.ended_s == pytest.approx(201.0 + 30.0 + 1000.0 - 101.0)


def test_a_whole_job_stops_at_the_end_of_the_step_that_is_under_way() -> None:
    world = [
        job("pre", 1000.0, 8, start_s=0.0, step_s=80.0),
        job("tune", 100.0, 4, arrival_s=100.0, start_s=0.0, priority="urgent"),
    ]
    starts = [job("late", 1000.0, 8, start_s=300.0), world[1]]

    (_, tune), (_, other) = (
        simulated(jobs, cluster(8), PREEMPT).records for jobs in (world, starts)
    )

    assert tune.began_s == 160.0
    assert other.began_s == 100.0  # it had not begun to train


def test_who_has_not_begun_is_in_no_queue_time_and_is_told_of() -> None:
    world = [job("long", 9000.0, 4), job("next", 60.0, 4, arrival_s=10.0)]

    found = measured(simulated(world, cluster(4), STATIC, until_s=5000.0))

    assert (found.jobs, found.unfinished, found.waiting, found.queue_mean_s) == (2, 2, 1, 0.0)


def test_a_restart_stops_everybody_for_each_change() -> None:
    world = [
        elastic("pre", 1000.0, 8, 2, 8),
        job("tune", 100.0, 4, arrival_s=100.0, start_s=0.0),
    ]

    run = simulated(world, cluster(8), RESTART)

    assert run.records[0].stopped_s == pytest.approx(60.0)
    assert run.pool.accounts.spent["paused"] == pytest.approx(30.0 * 4 + 30.0 * 8)
    assert run.pool.accounts.spent["lost"] == 0.0


def test_a_lost_node_costs_a_restart_the_steps_since_its_checkpoint() -> None:
    spec = cluster(4, nodes=[{"name": "spot", "count": 4, "capacity": "x"}])
    trace = {"spot": changes((0.0, 4), (1000.0, 3), (5000.0, 4))}
    world = [elastic("gpt", 4000.0, 4, 1, 4)]

    restarted = simulated(world, spec, RESTART, capacity=trace)
    in_place = simulated(world, spec, IN_PLACE, capacity=trace)

    assert restarted.records[0].lost_device_s == 4 * 400.0  # 1000 s, a checkpoint every 600 s
    assert in_place.records[0].lost_device_s == 0.0
    assert in_place.records[0].stopped_s < 2.0
    assert restarted.records[0].stopped_s >= 60.0 + 400.0  # what was thrown away is no progress


def test_a_loss_costs_the_step_in_which_it_comes_and_a_join_waits_for_the_end_of_one() -> None:
    spec = cluster(4, nodes=[{"name": "spot", "count": 4, "capacity": "x"}])
    trace = {"spot": changes((0.0, 4), (1000.0, 3), (2000.0, 4))}
    ends: dict[float, JobRecord] = {}
    for step_s in (1.0, 600.0):
        world = [elastic("gpt", 4000.0, 4, 1, 4, step_s=step_s)]
        run = simulated(world, spec, replace(IN_PLACE, loss_pause_s=0.0), capacity=trace)
        ends[step_s] = run.records[0]

    assert ends[1.0].lost_device_s == 0.0
    assert ends[600.0].lost_device_s == 4 * 400.0
    assert run.pool.accounts.spent["lost"] == 4 * 400.0
    assert [at_s for at_s, _ in ends[1.0].sizes[:2]] == [0.0, 1000.0]
    assert ends[600.0].sizes[2] == (1000.0 + 2 * 800.0, 4)
    assert (ends[600.0].ended_s or 0.0) > (ends[1.0].ended_s or math.inf) + 400.0


def test_a_job_that_loses_all_goes_back_to_its_checkpoint_and_waits() -> None:
    spec = cluster(2, nodes=[{"name": "spot", "count": 2, "capacity": "x"}])
    trace = {"spot": changes((0.0, 2), (1000.0, 0), (2000.0, 2))}

    (one,) = simulated([elastic("gpt", 2000.0, 2, 1, 2)], spec, IN_PLACE, capacity=trace).records

    assert one.lost_device_s == 2 * 400.0
    assert one.ended_s == pytest.approx(2000.0 + 30.0 + 1400.0)


@pytest.mark.parametrize("way", [STATIC, PREEMPT, RESTART, IN_PLACE], ids=lambda way: way.name)
@pytest.mark.parametrize("left", [0, 2])
def test_a_job_whose_nodes_do_not_come_back_has_not_finished(way: ResizeCosts, left: int) -> None:
    spec = cluster(4, nodes=[{"name": "spot", "count": 4, "capacity": "x"}])
    trace = {"spot": changes((0.0, 4), (50.0, left))}

    run = simulated([job("gpt", 1000.0, 4)], spec, way, capacity=trace)

    assert (measured(run).unfinished, measured(run).waiting) == (1, 0)
    assert math.isfinite(run.pool.now_s)


@pytest.mark.parametrize("way", [STATIC, PREEMPT], ids=lambda way: way.name)
def test_a_lost_node_stops_a_job_of_one_size_once(way: ResizeCosts) -> None:
    spec = cluster(4, nodes=[{"name": "spot", "count": 4, "capacity": "x"}])
    trace = {"spot": changes((0.0, 4), (50.0, 3), (500.0, 4))}

    (one,) = simulated([job("gpt", 1000.0, 4)], spec, way, capacity=trace).records

    assert one.ended_s is not None
    assert (one.preemptions, one.interventions) == (1, 1)


def test_with_notice_a_node_is_left_and_nothing_is_lost() -> None:
    nodes = [{"name": "spot", "count": 4, "capacity": "x", "noticeInSeconds": 120}]
    trace = {"spot": changes((0.0, 4), (1000.0, 3))}

    run = simulated([elastic("gpt", 2000.0, 4, 1, 4)], cluster(4, nodes=nodes), RESTART,
                    capacity=trace)  # fmt: skip

    assert run.records[0].lost_device_s == 0.0
    assert run.records[0].sizes[1] == (1001.0, 3)


def test_a_leave_on_notice_stops_those_who_stay_for_its_pause() -> None:
    nodes = [{"name": "spot", "count": 4, "capacity": "x", "noticeInSeconds": 120}]
    trace = {"spot": changes((0.0, 4), (1000.0, 3))}
    slow = replace(IN_PLACE, leave_pause_s=7.0)

    run = simulated([elastic("gpt", 2000.0, 4, 1, 4)], cluster(4, nodes=nodes), slow,
                    capacity=trace)  # fmt: skip

    assert run.pool.accounts.spent["paused"] == pytest.approx(3 * 7.0)


def test_a_restart_that_is_known_of_saves_what_was_done() -> None:
    spec = cluster(8, nodes=[{"name": "spot", "count": 8, "capacity": "x"}])
    world = [elastic("pre", 4000.0, 8, 2, 8), job("tune", 5000.0, 1, arrival_s=500.0)]

    run = simulated(world, spec, RESTART, capacity={"spot": changes((0.0, 8), (590.0, 6))})

    # it stopped at 501 s with its checkpoint, and trained again from 531 s on
    assert run.records[0].lost_device_s == pytest.approx(7 * (590.0 - 531.0))


def test_a_node_that_comes_back_within_its_notice_is_not_lost() -> None:
    nodes = [{"name": "spot", "count": 4, "capacity": "x", "noticeInSeconds": 120}]
    trace = {"spot": changes((0.0, 4), (1000.0, 3), (1060.0, 4))}

    run = simulated([elastic("gpt", 2000.0, 4, 1, 4)], cluster(4, nodes=nodes), FREE,
                    capacity=trace)  # fmt: skip

    assert [size for _, size in run.records[0].sizes] == [4, 3, 4, 0]


def test_work_is_counted_at_the_size_that_a_job_asks_for() -> None:
    half = elastic("gpt", 1000.0, 2, 1, 4, curve=((2, 2.0), (4, 3.0)))

    run = simulated([half], cluster(4), FREE)
    cut = simulated([half], cluster(4), FREE, until_s=300.0)

    found = measured(run)
    assert found.useful_h * 3600 == pytest.approx(4 * 2000 / 3)
    assert found.work_h * 3600 == pytest.approx(2000.0)
    assert measured(cut).work_h * 3600 == pytest.approx(2 * 450.0)


def test_a_target_that_is_lost_with_the_state_is_reached_again() -> None:
    spec = cluster(1, nodes=[{"name": "spot", "count": 1, "capacity": "x"}])
    trace = {"spot": changes((0.0, 1), (550.0, 0), (1000.0, 1))}
    world = [job("gpt", 1000.0, start_s=0.0, target_s=500.0)]

    (one,) = simulated(world, spec, STATIC, capacity=trace).records

    assert one.target_at_s == pytest.approx(1500.0)


def test_a_policy_that_waits_takes_arrivals_together() -> None:
    world = [
        elastic("gpt", 5000.0, 4, 1, 4),
        job("a", 100.0, 1, arrival_s=10.0, start_s=0.0),
        job("b", 120.0, 1, arrival_s=10.0, start_s=0.0),
    ]

    at_once = simulated(world, cluster(4), FREE).records[0]
    waited = simulated(world, cluster(4), FREE, policy=Policy(scaling_timeout_s=30.0)).records[0]

    assert at_once.resizes == 3
    assert waited.resizes == 2


def test_a_job_that_can_never_run_is_refused_with_its_line() -> None:
    jobs = [replace(job("big", 10.0, 9), line=3)]

    with pytest.raises(
        ConfigError, match=r"^jobs.csv line 3: big can never run: it needs at least"
    ):
        simulated(jobs, cluster(8), source="jobs.csv")


def test_a_price_is_paid_while_a_node_is_there() -> None:
    nodes = [
        {"name": "base", "count": 1, "devices": 2, "pricePerDeviceHour": 3.0},
        {"name": "spot", "count": 2, "pricePerDeviceHour": 1.0, "capacity": "x"},
    ]
    trace = {"spot": changes((0.0, 2), (1800.0, 0))}

    run = simulated([job("one", 3590.0)], cluster(4, nodes=nodes), capacity=trace)

    assert measured(run).cost == pytest.approx(2 * 3.0 + 2 * 0.5)


@pytest.mark.parametrize("jobs", [1, 2, 3, 4])
def test_a_stuck_simulation_ends_however_many_events_a_moment_has(jobs: int) -> None:
    nodes = [
        {"name": "gone", "count": 4, "kind": "x", "capacity": "a"},
        {"name": "there", "count": 8, "kind": "y", "capacity": "b"},
    ]
    often = [(60.0 * minute, minute % 2 * 4) for minute in range(100_000)]
    world = [job(f"j{number}", 1000.0, 4, device_kind="x") for number in range(jobs)]

    run = simulated(
        world,
        cluster(12, nodes=nodes),
        STATIC,
        capacity={"gone": changes((0.0, 4), (50.0, 0)), "there": changes(*often)},
    )

    assert measured(run).unfinished == jobs


def test_a_job_that_trains_at_night_only_is_not_stuck() -> None:
    nodes = [{"name": "spot", "count": 8, "capacity": "x", "noticeInSeconds": 30}]
    nights = [(43_200.0 * half, 8 * (half % 2)) for half in range(2 * 400)]
    world = [job("gpt", 100 * 86400.0, 6)]

    run = simulated(world, cluster(8, nodes=nodes), PREEMPT, capacity={"spot": changes(*nights)})

    assert run.records[0].ended_s


def test_a_job_that_arrives_after_months_is_not_stuck(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("pliant.simulate.simulation.LOOKS", 1)
    world = [job("gpt", 60.0, arrival_s=50 * 86400.0, start_s=600.0)]

    run = simulated(world, cluster(2))

    assert run.records[0].ended_s


@pytest.mark.parametrize("way", [IN_PLACE, PREEMPT])
def test_a_node_that_goes_again_has_the_whole_of_its_new_notice(way: ResizeCosts) -> None:
    node = {"name": "spot", "count": 1, "capacity": "x", "noticeInSeconds": 120}
    trace = {"spot": changes((0.0, 1), (50.0, 0), (100.0, 1), (161.0, 0))}
    world = [job("gpt", 1000.0, arrival_s=100.0, start_s=0.0, step_s=60.0)]

    run = simulated(world, cluster(1, nodes=[node]), way, capacity=trace, until_s=1000.0)

    (record,) = run.records
    assert (record.sizes, record.lost_device_s) == ([(100.0, 1), (220.0, 0)], 0.0)


def test_what_a_start_takes_is_measured_as_the_workload_says(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    taken, started = set(), costs.started

    def note(known: costs.Costs, start_s: float) -> costs.Costs:
        taken.add(start_s)
        return started(known, start_s)

    monkeypatch.setattr(costs, "started", note)
    spec = cluster(4, nodes=[{"name": "spot", "count": 4, "capacity": "x"}])
    trace = {"spot": changes((0.0, 2), (2000.0, 4))}

    simulated([elastic("gpt", 9000.0, 4, 1, 4, start_s=600.0)], spec, capacity=trace)

    assert taken == {600.0}


def test_a_warm_spare_takes_the_place_of_a_lost_replica_at_once() -> None:
    nodes = [{"name": "spot", "count": 1, "capacity": "x"}, {"name": "base", "count": 4}]
    trace = {"spot": changes((0.0, 1), (1000.0, 0))}
    world = [elastic("gpt", 4000.0, 4, 1, 4, start_s=100.0)]

    warm, cold = (
        simulated(world, cluster(5, nodes=nodes), policy=Policy(spares=n), capacity=trace)
        for n in (1, 0)
    )

    assert [size for _, size in warm.records[0].sizes] == [0, 4, 0]
    assert [size for _, size in cold.records[0].sizes] == [0, 4, 3, 4, 0]
    assert warm.pool.accounts.spent["unused"] == pytest.approx(900.0)
    assert cold.pool.accounts.spent["unused"] < 1.0


def test_who_trains_does_not_make_room_for_a_spare() -> None:
    world = [elastic("gpt", 1000.0, 4, 1, 4)]

    run = simulated(world, cluster(4), policy=Policy(spares=2))

    assert [size for _, size in run.records[0].sizes] == [4, 0]


@pytest.mark.parametrize("way", [IN_PLACE, RESTART])
def test_replicas_of_several_workers_do_what_those_of_one_do(way: ResizeCosts) -> None:
    trace = {"spot": changes((0.0, 4), (100.0, 2), (300.0, 3), (500.0, 4))}
    nodes = {"name": "spot", "count": 4, "capacity": "x"}
    one = elastic("gpt", 1000.0, 4, 1, 4, num_slots=16)
    two = elastic("gpt", 1000.0, 8, 2, 8, num_slots=16, workers=2)

    narrow = simulated([one], cluster(4, nodes=[nodes]), way, capacity=trace)
    wide = simulated([two], cluster(8, nodes=[{**nodes, "devices": 2}]), way, capacity=trace)

    (slim,), (broad,) = narrow.records, wide.records
    assert broad.sizes == [(at_s, 2 * size) for at_s, size in slim.sizes]
    assert (broad.ended_s, broad.resizes) == (slim.ended_s, slim.resizes)
    assert len(slim.sizes) > 3


def test_a_replica_goes_with_any_of_its_devices_and_the_others_are_used_again() -> None:
    nodes = [
        {"name": "spot", "count": 1, "capacity": "x"},
        {"name": "base", "devices": 3, "count": 1},
    ]
    trace = {"spot": changes((0.0, 1), (100.0, 0))}
    world = [elastic("gpt", 1000.0, 4, 2, 4, workers=2)]

    run = simulated(world, cluster(4, nodes=nodes), capacity=trace)

    assert [size for _, size in run.records[0].sizes] == [4, 2, 0]


def test_a_replica_that_no_node_is_wide_enough_for_is_refused() -> None:
    world = [job("gpt", 10.0, 4, workers=4, line=7)]
    nodes = [{"name": "a", "count": 8, "devices": 2}]

    with pytest.raises(ConfigError) as told:
        simulated(world, cluster(16, nodes=nodes))

    assert str(told.value) == (
        "the workload line 7: gpt can never run: a replica has 4 workers, all on one node, and no"
        " node has more than 2 devices"
    )


# --- what holds whatever happens ---------------------------------------------------------

WAYS = [IN_PLACE, RESTART, PREEMPT, STATIC, FREE]


@st.composite
def worlds(draw: st.DrawFn) -> tuple[SimulatedWorld, ResizeCosts]:
    devices, wide = draw(st.integers(2, 12)), draw(st.sampled_from([1, 1, 2]))
    times = st.integers(0, 4000).map(float)
    jobs = []
    for number in range(draw(st.integers(1, 8))):
        size = draw(st.integers(1, devices))
        low = draw(st.integers(1, size))
        high = draw(st.integers(size, devices))
        jobs.append(
            WorkloadJob(
                name=f"j{number}",
                arrival_s=draw(times),
                work_s=float(draw(st.integers(1, 3000))),
                devices=size * wide,
                min_devices=low * wide,
                max_devices=high * wide,
                workers=draw(st.sampled_from([1, wide])),
                num_slots=draw(st.sampled_from([None, high * wide, 2 * high * wide])),
                priority=draw(st.sampled_from(["low", "normal", "normal", "urgent"])),
                step_s=draw(st.sampled_from([0.5, 5.0])),
                start_s=draw(st.sampled_from([None, 0.0, 60.0])),
            )
        )
    trace = sorted(draw(st.lists(st.tuples(times, st.integers(0, devices)), max_size=6)))
    nodes: dict[str, Any] = {"name": "all", "count": devices, "devices": wide}
    capacity = {}
    if trace:
        nodes |= {"capacity": "x", "noticeInSeconds": draw(st.sampled_from([0, 30]))}
        capacity = {"all": changes((0.0, devices), *trace, (5000.0, devices))}
    policy = Policy(
        scaling_timeout_s=draw(st.sampled_from([0.0, 20.0])),
        min_stability_period_s=draw(st.sampled_from([0.0, 100.0])),
        spares=draw(st.sampled_from([0, 0, 1])),
    )
    world = SimulatedWorld(
        cluster=ClusterSpec.model_validate({"nodes": [nodes]}),
        jobs=sorted(jobs, key=lambda one: one.arrival_s),
        capacity=capacity,
        policy=policy,
    )
    return world, draw(st.sampled_from(WAYS))


class Watched(Simulation):
    """Looks after every event whether everything adds up."""

    def check(self) -> None:
        pool = self.pool
        held = [device for run in pool.claimants.values() for device in run.held]
        assert len(held) == len(set(held)), "a device is held twice"
        assert len(held) == pool.held, "the core counts others than the claimants do"
        assert pool.held <= pool.devices - pool.gone.bit_count()
        for run in pool.claimants.values():
            if isinstance(run, TrainingRun):
                assert run.num_training + run.num_starting <= len(run.held)
                assert not run.rate or run.num_training

    def run_watched(self) -> None:
        self._begin()
        while not self._is_over() and self.pool.advance(40_000.0):
            self.check()
        for claimant in self.pool.claimants.values():
            claimant.account()


@settings(max_examples=150, deadline=None, suppress_health_check=[HealthCheck.too_slow])
@given(worlds())
def test_no_device_is_held_twice_and_every_second_is_in_one_account(
    case: tuple[SimulatedWorld, ResizeCosts],
) -> None:
    run = Watched(*case)

    run.run_watched()

    spent = run.pool.accounts.spent
    there = sum(group.there_device_s for group in run.groups)
    assert math.fsum(spent.values()) == pytest.approx(there, abs=1e-3)
    assert all(seconds >= -1e-6 for seconds in spent.values()), spent
    jobs = {one.name: one for one in run.world.jobs}
    ended = [one for one in run.records if one.ended_s is not None]
    assert len(ended) == len(jobs), "all nodes come back, and everybody has its turn"
    for one in ended:
        assert one.began_s is not None
        assert one.ended_s is not None
        assert one.arrival_s <= one.began_s <= one.ended_s
    if not run.costs.is_elastic:  # then work and device-seconds are the same thing
        done = sum(one.work_s * one.devices for one in ended)
        assert spent["useful"] == pytest.approx(done, abs=1e-3)


@settings(max_examples=20, deadline=None, suppress_health_check=[HealthCheck.too_slow])
@given(worlds())
def test_the_same_world_gives_the_same_bytes(case: tuple[SimulatedWorld, ResizeCosts]) -> None:
    texts = set()
    for _ in range(2):
        run = Simulation(*case)
        run.run()
        texts.add(report.as_json([measured(run)]) + report.jobs_csv(run.records))

    assert len(texts) == 1
