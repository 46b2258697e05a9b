"""The job has as many replicas as were requested for, within what is allowed and what there is."""

from __future__ import annotations

from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from pliant.core.errors import ConfigError
from pliant.core.policy.decide import (
    Decision,
    Policy,
    PolicyBackoff,
    PolicyView,
    decide,
    objection,
    require_slots,
)
from pliant.core.policy.hysteresis import Pace

counts = st.integers(1, 9)
maybe = st.none() | counts


@st.composite
def policies(draw: st.DrawFn) -> Policy:
    low, start, high = sorted((draw(counts), draw(counts), draw(counts)))
    return Policy(
        min_replicas=low,
        max_replicas=draw(st.sampled_from([None, high])),
        start_replicas=draw(st.sampled_from([None, start])),
    )


views = st.builds(
    PolicyView,
    num_replicas=st.integers(0, 9),
    devices=st.integers(0, 9),
    apart=st.integers(0, 2),
    requested=st.none() | st.integers(0, 12),
    num_slots=maybe,
    offered=st.none() | st.integers(0, 9),
    reclaimed=st.integers(0, 3),
    leaving=st.integers(0, 3),
    taken=st.integers(0, 3),
)


def choose(policy: Policy | None = None, **view: Any) -> Decision:
    seen = PolicyView(**{"num_replicas": 2, "devices": 8, **view})
    return decide(seen, policy or Policy(), now_s=5.0)


@given(view=views, policy=policies())
def test_the_target_keeps_every_bound(view: PolicyView, policy: Policy) -> None:
    decision = decide(view, policy, now_s=7.5)

    target = decision.target_replicas
    room = min(n for n in (view.devices, view.offered) if n is not None) - view.reclaimed
    upper = [n for n in (policy.max_replicas, view.num_slots, max(room, 0)) if n is not None]
    assert 0 <= target <= min(upper)
    assert target <= decision.ask_replicas
    if target < policy.min_replicas:
        assert target in (max(room, 0), view.num_slots)
    assert decision.earliest_s == 7.5
    assert "\n" not in decision.reason


@given(view=views, policy=policies())
def test_a_size_that_raises_no_objection_is_what_one_gets_where_there_is_room(
    view: PolicyView, policy: Policy
) -> None:
    requested = view.requested
    room = min(n for n in (view.devices, view.offered) if n is not None) - view.reclaimed
    if requested is not None and requested <= room and objection(requested, view, policy) is None:
        assert decide(view, policy, now_s=0.0).target_replicas == requested


def test_without_a_wish_every_device_is_used() -> None:
    assert choose(devices=4) == Decision(
        ask_replicas=4,
        target_replicas=4,
        possible_replicas=4,
        settled_replicas=4,
        is_voluntary=True,
        reason="grow from 2 to 4 replicas: there are 4 devices",
        would_change="more devices, or pliant scale N",
        earliest_s=5.0,
    )


def test_the_start_size_counts_until_someone_wishes_otherwise() -> None:
    policy = Policy(max_replicas=4, start_replicas=2)

    assert choose(policy).reason == "stay at 2 replicas, as requested"
    assert choose(policy, requested=3).reason == "grow from 2 to 3 replicas, as requested"


def test_a_default_maximum_is_lowered_to_the_slots_of_a_step() -> None:
    decision = choose(devices=8, num_slots=6)

    assert decision.target_replicas == 6
    assert decision.reason == "grow from 2 to 6 replicas: a step has only 6 micro-batches"


def test_a_wish_above_the_maximum_is_cut() -> None:
    decision = choose(Policy(max_replicas=4), requested=6)

    assert decision.target_replicas == 4
    assert decision.reason == "grow from 2 to 4 replicas: 6 requested, but maxReplicas=4"


def test_a_wish_below_the_minimum_is_raised() -> None:
    decision = choose(Policy(min_replicas=2), requested=1)

    assert decision.target_replicas == 2
    assert decision.reason == "stay at 2 replicas: 1 requested, but minReplicas=2"


def test_the_reason_says_how_busy_an_uneven_size_keeps_its_replicas() -> None:
    decision = choose(requested=3, num_slots=8)

    assert decision.reason == (
        "grow from 2 to 3 replicas, as requested; 8 micro-batches do not divide evenly by 3: "
        "replicas idle 11% of each step"
    )


def test_a_size_falls_until_those_have_left_who_are_too_many() -> None:
    policy = Policy(max_replicas=8)

    assert choose(policy, leaving=4, offered=2).reason == (
        "shrink from 6 to 2 replicas: 8 wanted, room for 2"
    )
    assert choose(policy, num_replicas=4, leaving=4, offered=2).reason == (
        "shrink from 8 to 2 replicas: 8 wanted, room for 2"
    )
    assert choose(policy, leaving=4, offered=3).reason == (
        "grow from 2 to 3 replicas: 8 wanted, room for 3"
    )


def test_a_device_taken_back_makes_the_size_fall_unless_another_takes_its_place() -> None:
    policy, pace = Policy(max_replicas=8), Pace(settled=4)

    assert choose(policy, num_replicas=3, taken=1, offered=3, pace=pace).reason == (
        "shrink from 4 to 3 replicas: 8 wanted, room for 3"
    )
    for num_replicas in (3, 4):  # before and after the replacement is started
        decision = choose(policy, num_replicas=num_replicas, taken=1, offered=4, pace=pace)
        assert decision.reason == "stay at 4 replicas: 8 wanted, room for 4"


def test_more_is_asked_for_than_there_is_room() -> None:
    decision = choose(Policy(max_replicas=6), offered=3)

    assert (decision.ask_replicas, decision.target_replicas) == (6, 3)
    assert decision.reason == "grow from 2 to 3 replicas: 6 wanted, room for 3"


def test_the_reason_names_devices_that_those_who_train_do_not_reach() -> None:
    beside = ", and 2 more on nodes that do not reach those who train"

    assert choose(Policy(max_replicas=4), devices=2, apart=2).reason == (
        f"stay at 2 replicas: 4 wanted, room for 2{beside}"
    )
    assert choose(devices=3, apart=2).reason == (
        f"grow from 2 to 3 replicas: there are 3 devices{beside}"
    )


def test_a_reclaim_goes_below_the_minimum() -> None:
    decision = choose(Policy(min_replicas=2, max_replicas=2), devices=2, reclaimed=1)

    assert decision.target_replicas == 1
    assert decision.reason == (
        "shrink from 2 to 1 replica: 2 wanted, room for 1 after 1 reclaimed, "
        "too few to train (minReplicas=2)"
    )


def test_a_job_without_devices_waits_for_the_minimum() -> None:
    decision = choose(num_replicas=0, devices=0)

    assert (decision.ask_replicas, decision.target_replicas) == (1, 0)


@pytest.mark.parametrize(
    ("fields", "sentence"),
    [
        ({"min_replicas": 3, "max_replicas": 2}, "minReplicas 3 is greater than maxReplicas 2"),
        ({"min_replicas": 3, "start_replicas": 2}, "startReplicas 2 is less than minReplicas 3"),
        ({"max_replicas": 3, "start_replicas": 4}, "startReplicas 4 is greater than maxReplicas 3"),
        (
            {"replica_increment_step": 2, "replica_discrete_values": (1, 2)},
            "replicaIncrementStep 2 and replicaDiscreteValues 1, 2 exclude each other; "
            "give one of them",
        ),
        ({"replica_discrete_values": (1, 4, 2)}, "replicaDiscreteValues 1, 4, 2 must ascend"),
        (
            {"replica_discrete_values": (2, 4)},
            "minReplicas 1 is not the smallest of replicaDiscreteValues 2, 4",
        ),
        (
            {"replica_discrete_values": (1, 8), "max_replicas": 4},
            "replicaDiscreteValues 8 is greater than maxReplicas 4",
        ),
        (
            {"min_replicas": 2, "replica_discrete_values": (1, 4)},
            "replicaDiscreteValues 1 is less than minReplicas 2",
        ),
        (
            {"replica_discrete_values": (1, 4), "start_replicas": 3},
            "startReplicas 3 is none of replicaDiscreteValues 1, 4",
        ),
        (
            {"min_replicas": 2, "replica_increment_step": 4, "start_replicas": 4},
            "startReplicas 4 is none of the sizes from minReplicas 2 in steps of 4",
        ),
        (
            {"replace_slow_after_s": 300.0},
            "replaceSlowAfterInSeconds needs spares, of which one takes the place of a slow "
            "replica; give spares=1 as well",
        ),
        (
            {"graceful_shutdown_timeout_s": 0.0},
            "gracefulShutdownTimeoutInSeconds must be more than 0",
        ),
    ],
)
def test_contradicting_bounds_are_refused(fields: dict[str, Any], sentence: str) -> None:
    with pytest.raises(ConfigError) as caught:
        Policy(**fields)

    assert str(caught.value) == sentence


@pytest.mark.parametrize(
    ("fields", "sentence"),
    [
        (
            {"initial_s": 60.0, "max_s": 30.0},
            "backoff.initialInSeconds 60 is greater than backoff.maxInSeconds 30",
        ),
        (
            {"max_s": 600.0, "reset_after_s": 60.0},
            "backoff.maxInSeconds 600 is greater than backoff.resetAfterInSeconds 60, after which "
            "nothing waits any more",
        ),
    ],
)
def test_a_backoff_that_contradicts_itself_is_refused(
    fields: dict[str, Any], sentence: str
) -> None:
    with pytest.raises(ConfigError) as caught:
        PolicyBackoff(**fields)

    assert str(caught.value) == sentence


@pytest.mark.parametrize("name", ["min_replicas", "max_replicas", "start_replicas"])
def test_a_bound_above_the_slots_of_a_step_is_refused(name: str) -> None:
    bound: dict[str, Any] = {name: 5}
    policy = Policy(**bound)

    require_slots(policy, 5)
    with pytest.raises(ConfigError) as caught:
        require_slots(policy, 4)

    field = name.removesuffix("_replicas") + "Replicas"
    assert str(caught.value) == (
        f"{field}=5 is above the 4 micro-batches of a step, and each replica needs one; "
        f"lower {field} to 4, or make micro_batch_size smaller"
    )


def test_a_size_above_the_slots_of_a_step_is_refused() -> None:
    with pytest.raises(ConfigError, match="replicaDiscreteValues=8 is above the 4 micro-batches"):
        require_slots(Policy(replica_discrete_values=(1, 4, 8)), 4)


@pytest.mark.parametrize(
    ("fields", "sizes", "has_gaps"),
    [
        ({"min_replicas": 2, "max_replicas": 4}, (2, 3, 4), False),
        ({"min_replicas": 2, "replica_increment_step": 3}, (2, 5, 8), True),
        ({"replica_discrete_values": (1, 4, 9)}, (1, 4), True),
        ({"min_replicas": 9}, (), False),
    ],
)
def test_the_sizes_are_those_that_a_policy_allows(
    fields: dict[str, Any], sizes: tuple[int, ...], has_gaps: bool
) -> None:
    policy = Policy(**fields)

    assert policy.sizes(8) == sizes
    assert policy.largest(8) == max(sizes, default=None)
    assert [size for size in range(9) if policy.fitted(size)] == list(sizes)
    assert policy.has_gaps == has_gaps


@pytest.mark.parametrize(
    ("requested", "sentence"),
    [
        (1, "1 replica would be below minReplicas=2"),
        (7, "7 replicas would be above maxReplicas=6"),
        (5, "a step has only 4 micro-batches, too few for 5 replicas"),
        (3, None),
    ],
)
def test_a_wish_outside_the_bounds_is_refused_with_the_reason(
    requested: int, sentence: str | None
) -> None:
    view = PolicyView(num_replicas=3, devices=8, num_slots=4)

    assert objection(requested, view, Policy(min_replicas=2, max_replicas=6)) == sentence


@pytest.mark.parametrize(("num_slots", "target"), [(None, 4), (32, 16), (3, 3)])
def test_on_cores_a_few_begin_until_the_script_has_said_how_many_slots_there_are(
    num_slots: int | None, target: int
) -> None:
    seen: dict[str, Any] = {"num_replicas": 0, "is_urgent": True, "core_replicas": 16}

    assert choose(devices=16, num_slots=num_slots, **seen).target_replicas == target


@pytest.mark.parametrize(("cores", "is_advised"), [(None, True), (8, True), (2, False)])
def test_smaller_micro_batches_are_no_advice_where_every_core_is_in_use(
    cores: int | None, is_advised: bool
) -> None:
    """Four replicas on two cores are no faster than two."""
    decision = choose(Policy(max_replicas=4), num_slots=2, devices=4, core_replicas=cores)

    assert ("smaller micro_batch_size" in decision.would_change) is is_advised
