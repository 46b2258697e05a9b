"""The job has as many replicas as were wished for, within what is allowed and what there is."""

from __future__ import annotations

from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from pliant.core.errors import ConfigError
from pliant.core.policy import Decision, ElasticPolicy, View, decide, objection, require_slots

counts = st.integers(1, 9)
maybe = st.none() | counts


@st.composite
def policies(draw: st.DrawFn) -> ElasticPolicy:
    low, start, high = sorted((draw(counts), draw(counts), draw(counts)))
    return ElasticPolicy(
        min_replicas=low,
        max_replicas=draw(st.sampled_from([None, high])),
        start_replicas=draw(st.sampled_from([None, start])),
    )


views = st.builds(
    View,
    num_replicas=st.integers(0, 9),
    devices=st.integers(0, 9),
    wished=st.none() | st.integers(0, 12),
    num_slots=maybe,
    offered=st.none() | st.integers(0, 9),
    reclaimed=st.integers(0, 3),
)


def choose(policy: ElasticPolicy | None = None, **view: Any) -> Decision:
    seen = View(**{"num_replicas": 2, "devices": 8, **view})
    return decide(seen, policy or ElasticPolicy(), now_s=5.0)


@given(view=views, policy=policies())
def test_the_target_keeps_every_bound(view: View, policy: ElasticPolicy) -> None:
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
    view: View, policy: ElasticPolicy
) -> None:
    wished = view.wished
    room = min(n for n in (view.devices, view.offered) if n is not None) - view.reclaimed
    if wished is not None and wished <= room and objection(wished, view, policy) is None:
        assert decide(view, policy, now_s=0.0).target_replicas == wished


def test_without_a_wish_every_device_is_used() -> None:
    assert choose(devices=4) == Decision(
        ask_replicas=4,
        target_replicas=4,
        reason="grow from 2 to 4 replicas: there are 4 devices",
        earliest_s=5.0,
    )


def test_the_start_size_counts_until_someone_wishes_otherwise() -> None:
    policy = ElasticPolicy(max_replicas=4, start_replicas=2)

    assert choose(policy).reason == "stay at 2 replicas: 2 asked for"
    assert choose(policy, wished=3).reason == "grow from 2 to 3 replicas: 3 asked for"


def test_a_default_maximum_is_lowered_to_the_slots_of_a_step() -> None:
    decision = choose(devices=8, num_slots=6)

    assert decision.target_replicas == 6
    assert decision.reason == "grow from 2 to 6 replicas: a step has 6 slots"


def test_a_wish_above_the_maximum_is_cut() -> None:
    decision = choose(ElasticPolicy(max_replicas=4), wished=6)

    assert decision.target_replicas == 4
    assert decision.reason == "grow from 2 to 4 replicas: 6 asked for, but max_replicas=4"


def test_a_wish_below_the_minimum_is_raised() -> None:
    decision = choose(ElasticPolicy(min_replicas=2), wished=1)

    assert decision.target_replicas == 2
    assert decision.reason == "stay at 2 replicas: 1 asked for, but min_replicas=2"


def test_the_reason_says_how_busy_an_uneven_size_keeps_its_replicas() -> None:
    decision = choose(wished=3, num_slots=8)

    assert decision.reason == "grow from 2 to 3 replicas: 3 asked for; 8 slots keep them 89% busy"


def test_more_is_asked_for_than_there_is_room() -> None:
    decision = choose(ElasticPolicy(max_replicas=6), offered=3)

    assert (decision.ask_replicas, decision.target_replicas) == (6, 3)
    assert decision.reason == "grow from 2 to 3 replicas: 6 wanted, room for 3"


def test_a_reclaim_goes_below_the_minimum() -> None:
    decision = choose(ElasticPolicy(min_replicas=2, max_replicas=2), devices=2, reclaimed=1)

    assert decision.target_replicas == 1
    assert decision.reason == (
        "shrink from 2 to 1 replica: 2 wanted, room for 1 after 1 reclaimed, "
        "too few to train (min_replicas=2)"
    )


def test_a_job_without_devices_waits_for_the_minimum() -> None:
    decision = choose(num_replicas=0, devices=0)

    assert (decision.ask_replicas, decision.target_replicas) == (1, 0)


@pytest.mark.parametrize(
    ("fields", "sentence"),
    [
        ({"min_replicas": 0}, "min_replicas must be a positive integer, got 0"),
        ({"min_replicas": None}, "min_replicas must be a positive integer, got None"),
        ({"max_replicas": 2.5}, "max_replicas must be a positive integer, got 2.5"),
        ({"start_replicas": True}, "start_replicas must be a positive integer, got True"),
        ({"min_replicas": 3, "max_replicas": 2}, "min_replicas=3 is above max_replicas=2"),
        ({"min_replicas": 3, "start_replicas": 2}, "start_replicas=2 is below min_replicas=3"),
        ({"max_replicas": 3, "start_replicas": 4}, "start_replicas=4 is above max_replicas=3"),
    ],
)
def test_contradicting_bounds_are_refused(fields: dict[str, Any], sentence: str) -> None:
    with pytest.raises(ConfigError) as caught:
        ElasticPolicy(**fields)

    assert str(caught.value) == sentence


@pytest.mark.parametrize("name", ["min_replicas", "max_replicas", "start_replicas"])
def test_a_bound_above_the_slots_of_a_step_is_refused(name: str) -> None:
    policy = ElasticPolicy(**{name: 5})

    require_slots(policy, 5)
    with pytest.raises(ConfigError) as caught:
        require_slots(policy, 4)

    assert str(caught.value) == (
        f"{name}=5 is above the 4 slots of a step, and each replica needs one; "
        f"lower {name} to 4, or make micro_batch_size smaller"
    )


@pytest.mark.parametrize(
    ("wished", "sentence"),
    [
        (1, "1 replica would be below min_replicas=2"),
        (7, "7 replicas would be above max_replicas=6"),
        (5, "5 replicas cannot share the 4 slots of a step"),
        (3, None),
    ],
)
def test_a_wish_outside_the_bounds_is_refused_with_the_reason(
    wished: int, sentence: str | None
) -> None:
    view = View(num_replicas=3, devices=8, num_slots=4)

    assert objection(wished, view, ElasticPolicy(min_replicas=2, max_replicas=6)) == sentence
