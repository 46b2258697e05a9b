"""Nodes that were found apart are left alone ever longer, and forgotten once they meet."""

from __future__ import annotations

import time
from dataclasses import replace

from hypothesis import given
from hypothesis import strategies as st

from pliant.core.events import NodeLost, Scaled, Ticked
from pliant.core.job import controller
from pliant.core.job.node_pauses import (
    APART_FIRST_S,
    APART_LONGEST_S,
    ASIDE_LONGEST_S,
    DUE,
    Apartness,
    AsideNodes,
    again_at_s,
    found_apart,
    lasting,
    met,
    pair,
    passed,
    pauses,
    set_aside,
    without,
)
from pliant.core.job.state import JobSettings, Replica
from pliant.core.policy.decide import Policy
from pliant.core.table import Table
from pliant.core.values import NodeId, ReplicaId

N1, N2, N3 = (NodeId(f"n{number}") for number in (1, 2, 3))
NOTHING: Apartness = Table()


def test_each_time_in_a_row_doubles_the_pause() -> None:
    known, ends = NOTHING, []
    for _ in range(7):
        known = found_apart(known, [pair(N2, N1), pair(N1, N2)], 1000.0)
        ends.append(known[N1, N2].again_at_s - 1000.0)

    assert ends == [APART_FIRST_S, 60.0, 120.0, 240.0, 480.0, APART_LONGEST_S, APART_LONGEST_S]
    assert pauses(known, 1000.0) == [((N1, N2), 7, APART_LONGEST_S)]


def test_only_company_that_is_not_reached_counts() -> None:
    known = found_apart(NOTHING, [pair(N1, N2)], 10.0)

    assert again_at_s(known, {N1}) == {N2: 10.0 + APART_FIRST_S}
    assert again_at_s(known, {N2, N3}) == {N1: 10.0 + APART_FIRST_S}
    assert again_at_s(known, {N3}) == {}


def test_of_several_it_is_apart_from_the_last_says_when_a_node_may_be_tried() -> None:
    known = found_apart(found_apart(NOTHING, [pair(N1, N2)], 10.0), [pair(N1, N3)], 20.0)

    assert again_at_s(known, {N2, N3})[N1] == 20.0 + APART_FIRST_S
    assert again_at_s(passed(known, 10.0 + APART_FIRST_S), {N2}) == {N1: DUE}


def test_what_is_due_says_no_more_since_when() -> None:
    known = found_apart(found_apart(NOTHING, [pair(N1, N2)], 10.0), [pair(N1, N3)], 20.0)

    later = passed(known, 10.0 + APART_FIRST_S)

    assert (later[N1, N2].again_at_s, later[N1, N2].times) == (DUE, 1)
    assert later[N1, N3] == known[N1, N3]
    assert pauses(later, 45.0)[0] == ((N1, N2), 1, None)
    assert found_apart(later, [pair(N1, N2)], 70.0)[N1, N2].again_at_s == 70.0 + 2 * APART_FIRST_S


@given(st.lists(st.frozensets(st.sampled_from([N1, N2, N3]), min_size=2, max_size=2)))
def test_who_meets_and_who_goes_is_forgotten(drawn: list[frozenset[NodeId]]) -> None:
    known = found_apart(NOTHING, [pair(*both) for both in drawn], 0.0)

    assert set(known) == {pair(*both) for both in drawn}
    assert set(met(known, frozenset({N1, N2}))) == set(known) - {(N1, N2)}
    assert met(known, frozenset({N1})) == known
    assert not any(N3 in one for one in without(known, N3))


def test_the_job_looks_again_when_one_may_be_tried() -> None:
    settings = JobSettings()
    job, _ = controller.begin(now_s=0.0, settings=settings)
    job = replace(job, nodes=replace(job.nodes, apart=found_apart(NOTHING, [pair(N1, N2)], 10.0)))

    assert controller.next_deadline_s(job) == 10.0 + APART_FIRST_S

    job, _ = controller.step(job, Ticked(), now_s=10.0 + APART_FIRST_S, settings=settings)

    assert job.nodes.apart[N1, N2].again_at_s == DUE
    assert controller.next_deadline_s(job) == settings.start_s


def test_a_node_that_is_lost_may_come_back_with_another_network() -> None:
    settings = JobSettings()
    job, _ = controller.begin(now_s=0.0, settings=settings)
    job = replace(
        job, nodes=replace(job.nodes, apart=found_apart(NOTHING, [pair(N1, N2), pair(N2, N3)], 0.0))
    )

    job, _ = controller.step(job, NodeLost(node=N1), now_s=1.0, settings=settings)

    assert set(job.nodes.apart) == {(N2, N3)}


def test_a_thousand_nodes_of_which_two_are_apart_are_not_looked_at_pair_by_pair() -> None:
    nodes = [NodeId(f"n{number}") for number in range(1000)]
    names = [ReplicaId(f"r{number + 1}") for number in range(1000)]
    settings = JobSettings(policy=Policy(max_replicas=1000))
    job, _ = controller.begin(now_s=0.0, settings=settings)
    replicas = {name: Replica(node=node) for name, node in zip(names, nodes, strict=True)}
    job = replace(
        job,
        nodes=replace(
            job.nodes,
            devices=Table(dict.fromkeys(nodes, 1)),
            apart=found_apart(NOTHING, [pair(N1, N2)], 0.0),
        ),
        replicas=Table(replicas),
    )
    began_s = time.thread_time()

    for _ in range(10):
        job, _ = controller.step(job, Scaled(target=1000), now_s=1.0, settings=settings)

    assert time.thread_time() - began_s < 2.0  # pair by pair 6 s


N1, N2 = NodeId("n1"), NodeId("n2")


def test_the_pause_doubles_up_to_its_longest() -> None:
    known, now_s, pauses = AsideNodes(), 100.0, list[float]()
    for _ in range(9):
        known = set_aside(known, N1, "expired", now_s)
        pauses.append(known[N1].again_at_s - now_s)
        now_s = known[N1].again_at_s

    assert pauses == [1, 2, 4, 8, 16, 32, ASIDE_LONGEST_S, ASIDE_LONGEST_S, ASIDE_LONGEST_S]
    assert known[N1].since_s == 100.0


def test_what_fails_at_one_moment_counts_once() -> None:
    known = set_aside(AsideNodes(), N1, "expired", 100.0)

    assert set_aside(known, N1, "expired", 100.5) is known


def test_what_is_due_is_so_until_it_is_set_aside_again() -> None:
    known = passed(set_aside(AsideNodes(), N1, "expired", 100.0), 101.0)

    assert known[N1].again_at_s == DUE
    assert set_aside(known, N1, "expired", 101.0)[N1].again_at_s == 103.0


def test_it_lasts_where_no_node_with_room_can_start_any() -> None:
    known = set_aside(AsideNodes(), N1, "expired", 100.0)

    assert lasting(known, [N1], 100.0) is known[N1]
    assert lasting(known, [N1], 99.0) is None
    assert lasting(known, [N1, N2], 100.0) is None
    assert lasting(known, [], 100.0) is None
