"""Which hosts become one node: each at most once, nobody before their time, and in the end all."""

from __future__ import annotations

import itertools
import math
import random

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from pliant.core.host_groups import (
    FIRST_PAUSE_S,
    MOST_PAUSE_S,
    MOST_SETTLE_S,
    SETTLE_S,
    STEADY_S,
    GroupRule,
    LoneHost,
    NodeHosts,
    Pair,
    PairTry,
    failed,
    host_groups,
    next_look_s,
    opened,
    without,
)
from pliant.core.placement import PlacementRule
from pliant.core.values import NodeId

TWO = GroupRule(hosts=2, workers=2)
RACKS = GroupRule(hosts=2, workers=2, label="rack")
A, B, C, D = map(NodeId, "abcd")


def host(name: str, devices: int = 1, rack: str | None = None, since_s: float = 0.0) -> LoneHost:
    labels = () if rack is None else (("rack", rack),)
    return LoneHost(node=NodeId(name), devices=devices, since_s=since_s, labels=labels)


def hosts_of(made: tuple[NodeHosts, ...]) -> list[tuple[str, ...]]:
    return [joint.hosts for joint in made]


def pair(one: NodeId, other: NodeId) -> Pair:
    return frozenset((one, other))


HOSTS = st.lists(
    st.tuples(st.integers(0, 6), st.sampled_from([None, "x", "y"])), min_size=0, max_size=8
).map(lambda given: [host(f"n{number}", *one) for number, one in enumerate(given)])


@st.composite
def _tries(draw: st.DrawFn) -> dict[Pair, PairTry]:
    names = [NodeId(f"n{number}") for number in range(8)]
    pairs = draw(st.sets(st.sampled_from(list(itertools.combinations(names, 2))), max_size=16))
    return {
        pair(*one): PairTry(
            draw(st.integers(0, 9)),
            draw(st.sampled_from([-math.inf, 5.0, 10.0])),
            is_open=draw(st.booleans()),
            awaits=draw(st.sampled_from([None, *one])),
        )
        for one in sorted(pairs)
    }


RULES = st.builds(
    lambda hosts, each, label: GroupRule(hosts=hosts, workers=hosts * each, label=label),
    st.integers(2, 4),
    st.integers(1, 2),
    st.sampled_from([None, "rack"]),
)


@settings(max_examples=100)
@given(lone=HOSTS, tries=_tries(), rule=RULES, order=st.randoms(use_true_random=False))
def test_each_host_is_in_one_node_of_so_many_and_nobody_is_left_who_could_be(
    lone: list[LoneHost], tries: dict[Pair, PairTry], rule: GroupRule, order: random.Random
) -> None:
    now_s = 7.0

    made = host_groups(lone, tries, rule, now_s=now_s)

    taken = [node for joint in made for node in joint.hosts]
    devices = {one.node: one.devices for one in lone}
    assert len(taken) == len(set(taken))
    assert {len(joint.hosts) for joint in made} <= {rule.hosts}
    assert all(rule.room(devices[node]) > 0 for node in taken)
    assert not any(_are_apart(joint.hosts, tries, now_s) for joint in made)
    left = [one.node for one in lone if one.node not in taken and rule.room(one.devices) > 0]
    sets = itertools.combinations(left, rule.hosts)
    assert all(_are_apart(one, tries, now_s) for one in sets)
    shuffled = order.sample(lone, len(lone))
    assert host_groups(shuffled, tries, rule, now_s=now_s) == made


def _are_apart(hosts: tuple[NodeId, ...], tries: dict[Pair, PairTry], now_s: float) -> bool:
    known = (tries.get(pair(*one)) for one in itertools.combinations(hosts, 2))
    return any(one is not None and now_s < one.until_s for one in known)


@settings(max_examples=100)
@given(
    count=st.integers(2, 9),
    rule=RULES,
    cut=st.sets(st.tuples(st.integers(0, 8), st.integers(0, 8)), max_size=20),
    mended_s=st.floats(0, 2000),
    seed=st.integers(0, 99),
)
def test_whoever_does_not_reach_whom_all_are_joined_once_they_do(
    count: int, rule: GroupRule, cut: set[tuple[int, int]], mended_s: float, seed: int
) -> None:
    """A cut goes one way, from the later one.  Reports come once or twice, of both or of one."""
    draw = random.Random(seed)
    lone = {NodeId(f"n{number}"): host(f"n{number}", rule.workers) for number in range(count)}
    barred = {(NodeId(f"n{one}"), NodeId(f"n{other}")) for one, other in cut}
    tries: dict[Pair, PairTry] = {}
    now_s, looked_s, last_s = 0.0, -math.inf, dict[Pair, float]()
    while len(lone) >= rule.hosts:
        now_s = next_look_s(lone.values(), tries, looked_s=looked_s)
        assert now_s < mended_s + 2 * MOST_PAUSE_S + MOST_SETTLE_S, "they wait for ever"
        looked_s = now_s
        for joint in host_groups(lone.values(), tries, rule, now_s=now_s):
            for one in itertools.combinations(joint.hosts, 2):
                assert now_s >= last_s.get(pair(*one), -math.inf) + FIRST_PAUSE_S
            tries = opened(tries, joint)
            ways = itertools.combinations(joint.hosts, 2)
            missed = [(one, other) for one, other in ways if (other, one) in barred]
            if now_s >= mended_s or not missed:
                tries = opened(tries, joint, joined_s=now_s)
                for node in joint.hosts:
                    del lone[node]
                continue
            said = [(one, [other]) for each in missed for one, other in (each, each[::-1])]
            for node, others in draw.sample(said, draw.randint(1, len(said))) * 2:
                tries = failed(tries, node, others, now_s=now_s)
            for node in joint.hosts:
                lone[node] = host(node, rule.workers, since_s=now_s)
            last_s |= {pair(*each): now_s for each in missed}
    assert len(lone) < rule.hosts


def test_two_parts_that_failed_are_tried_the_other_way_round() -> None:
    """A firewall lets connections from b to c through, and none from c to b."""
    lone, rule = [host("a"), host("b"), host("c")], GroupRule(hosts=3, workers=3)
    (joint,) = host_groups(lone, {}, rule, now_s=1.0)
    assert joint.hosts == (A, B, C)

    tries = failed(opened({}, joint), B, [C], now_s=1.0)
    tries = failed(tries, C, [B], now_s=1.0)

    assert host_groups(lone, tries, rule, now_s=FIRST_PAUSE_S) == ()
    (joint,) = host_groups(lone, tries, rule, now_s=1.0 + FIRST_PAUSE_S)
    assert joint.hosts == (A, C, B)


def test_hosts_of_one_rack_are_one_node_first() -> None:
    lone = [host("a", rack="x"), host("b", rack="y"), host("c", rack="x"), host("d", rack="y")]

    assert hosts_of(host_groups(lone, {}, RACKS, now_s=1.0)) == [("a", "c"), ("b", "d")]
    assert hosts_of(host_groups(lone, {}, TWO, now_s=1.0)) == [("a", "b"), ("c", "d")]


def test_a_host_without_room_for_its_part_is_left_out() -> None:
    rule = GroupRule(hosts=2, workers=8)
    lone = [host("a", 4), host("b", 3), host("c", 7), host("d", 9)]

    assert hosts_of(host_groups(lone, {}, rule, now_s=1.0)) == [("a", "c")]


def test_who_is_left_in_its_rack_is_joined_over_racks() -> None:
    lone = [host("a", rack="x"), host("b", rack="x"), host("c", rack="x"), host("d")]

    assert hosts_of(host_groups(lone, {}, RACKS, now_s=1.0)) == [("a", "b"), ("c", "d")]


def test_who_can_be_joined_with_one_only_chooses_first() -> None:
    tries = {pair(A, C): PairTry(1, 9.0), pair(A, D): PairTry(1, 9.0), pair(B, D): PairTry(1, 9.0)}
    lone = [host(name) for name in "dcba"]

    assert hosts_of(host_groups(lone, tries, TWO, now_s=1.0)) == [("a", "b"), ("c", "d")]


def test_no_two_of_a_node_are_apart_its_parts_neither() -> None:
    lone, tries = [host(name) for name in "abcd"], {pair(B, C): PairTry(1, 9.0)}

    (made,) = host_groups(lone, tries, GroupRule(hosts=3, workers=3), now_s=1.0)

    assert not {B, C} <= set(made.hosts)


def test_a_pair_that_is_apart_keeps_no_group_of_others_from_being_made() -> None:
    tries = {pair(B, C): PairTry(1, 9.0), pair(B, D): PairTry(1, 9.0)}
    lone = [host(name) for name in "abcd"]

    (made,) = host_groups(lone, tries, GroupRule(hosts=3, workers=3), now_s=1.0)

    assert set(made.hosts) == {A, C, D}


def test_two_that_failed_try_it_the_other_way_round() -> None:
    lone, joint = [host("a"), host("b")], NodeHosts(A, (B,))
    tries = failed(opened({}, joint), A, [B], now_s=0.0)

    assert host_groups(lone, tries, TWO, now_s=FIRST_PAUSE_S - 0.1) == ()
    (again,) = host_groups(lone, tries, TWO, now_s=FIRST_PAUSE_S)
    assert again == NodeHosts(B, (A,))
    tries = failed(opened(tries, again), A, [B], now_s=5.0)
    assert host_groups(lone, tries, TWO, now_s=15.0) == (joint,)


def test_the_pause_of_two_doubles_and_has_an_end() -> None:
    tries: dict[Pair, PairTry] = {}
    pauses = []

    for _ in range(9):
        tries = failed(opened(tries, NodeHosts(A, (B,))), A, [B], now_s=100.0)
        pauses.append(tries[pair(A, B)].until_s - 100.0)

    assert pauses == [5.0, 10.0, 20.0, 40.0, 80.0, 160.0, MOST_PAUSE_S, MOST_PAUSE_S, MOST_PAUSE_S]


def test_of_one_attempt_one_report_counts() -> None:
    """Both tell of it, late, and again when they have a new connection."""
    once = failed(opened({}, NodeHosts(A, (B,))), A, [B], now_s=0.0)

    assert failed(once, B, [A], now_s=3.0) == once
    assert failed(once, A, [B], now_s=1000.0) == once


def test_what_a_coordinator_before_has_tried_counts_as_well() -> None:
    tries = failed({}, B, [A, B], now_s=1.0)

    assert tries == {pair(A, B): PairTry(1, 6.0)}
    assert failed(tries, A, [B], now_s=2.0) == tries


def test_two_that_part_again_and_again_are_left_alone_for_longer_each_time() -> None:
    joint, tries = NodeHosts(A, (B,)), dict[Pair, PairTry]()
    pauses = []

    for lived_s in (1.0, 1.0, STEADY_S, 1.0):
        tries = opened(opened(tries, joint), joint, joined_s=0.0)
        tries = failed(tries, B, [A], now_s=lived_s)
        pauses.append(tries[pair(A, B)].until_s - lived_s)

    assert pauses == [5.0, 10.0, 5.0, 10.0]


def test_of_who_is_gone_nothing_is_known() -> None:
    tries = failed({}, A, [B, C], now_s=0.0)

    assert list(without(tries, B)) == [pair(A, C)]


def test_hosts_that_come_together_are_looked_at_together() -> None:
    def looked_at(*came: float, looked_s: float = -math.inf) -> float:
        lone = [host(f"n{number}", since_s=at_s) for number, at_s in enumerate(came)]
        return next_look_s(lone, {}, looked_s=looked_s)

    assert looked_at() == math.inf
    assert looked_at(3.0) == 3.0 + SETTLE_S
    assert looked_at(3.0, 3.8) == 3.8 + SETTLE_S
    assert looked_at(*(number / 2 for number in range(30))) == MOST_SETTLE_S
    assert looked_at(3.0, looked_s=4.0) == math.inf
    assert looked_at(3.0, 500.0, 500.5, looked_s=4.0) == 500.5 + SETTLE_S


def test_two_that_failed_are_looked_at_when_their_time_comes() -> None:
    tries = failed({}, A, [B], now_s=0.0) | {pair(A, C): PairTry(1, 2.0)}
    lone = [host("a"), host("b")]

    assert next_look_s(lone, tries, looked_s=1.0) == FIRST_PAUSE_S
    assert next_look_s(lone, tries, looked_s=FIRST_PAUSE_S) == math.inf


def test_a_thousand_hosts_are_joined_at_once() -> None:
    lone = [host(f"n{number:04}", rack=f"{number % 7}") for number in range(1001)]

    made = host_groups(lone, {}, GroupRule(hosts=4, workers=4, label="rack"), now_s=1.0)

    assert len(made) == 250


def test_a_search_that_would_not_end_is_given_up() -> None:
    """Of nine hosts on each of eleven switches those of one switch do not reach each other."""
    lone = [host(f"n{number:02}") for number in range(99)]
    tries = {
        pair(one.node, other.node): PairTry(1, 9.0)
        for (i, one), (j, other) in itertools.combinations(enumerate(lone), 2)
        if i % 11 == j % 11
    }

    assert host_groups(lone, tries, GroupRule(hosts=12, workers=12), now_s=1.0) == ()


@pytest.mark.parametrize(
    ("placement", "label"),
    [("free", None), ("spread", None), ("pack", None), ("spread:rack", "rack")],
)
def test_what_replicas_are_placed_by_says_what_is_near(placement: str, label: str | None) -> None:
    rule = GroupRule.of(PlacementRule.of(placement), hosts=2, workers=8)

    assert rule == GroupRule(hosts=2, workers=8, label=label)


def test_hosts_of_two_increments_are_never_one() -> None:
    """The outside takes one increment: a replica that spans two would be lost with either."""
    lone = [
        LoneHost(node=NodeId(name), devices=1, since_s=0.0, labels=(("increment", increment),))
        for name, increment in [("a", "base"), ("b", "x1"), ("c", "base"), ("d", "x2")]
    ]

    found = host_groups(lone, {}, GroupRule(hosts=2, workers=2), now_s=9.0)

    assert found == (NodeHosts(NodeId("a"), (NodeId("c"),)),)
