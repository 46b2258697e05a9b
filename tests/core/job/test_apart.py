"""Nodes that were found apart are left alone ever longer, and forgotten once they meet."""

from __future__ import annotations

import time
from dataclasses import replace

from hypothesis import given
from hypothesis import strategies as st

from pliant.core.events import NodeLost, Scaled, Ticked
from pliant.core.job import controller
from pliant.core.job.apart import (
    DUE,
    FIRST_S,
    LONGEST_S,
    Apartness,
    again_at_s,
    found,
    met,
    pair,
    passed,
    pauses,
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
        known = found(known, [pair(N2, N1), pair(N1, N2)], 1000.0)
        ends.append(known[N1, N2].again_at_s - 1000.0)

    assert ends == [FIRST_S, 60.0, 120.0, 240.0, 480.0, LONGEST_S, LONGEST_S]
    assert pauses(known, 1000.0) == [((N1, N2), 7, LONGEST_S)]


def test_only_company_that_is_not_reached_counts() -> None:
    known = found(NOTHING, [pair(N1, N2)], 10.0)

    assert again_at_s(known, {N1}) == {N2: 10.0 + FIRST_S}
    assert again_at_s(known, {N2, N3}) == {N1: 10.0 + FIRST_S}
    assert again_at_s(known, {N3}) == {}


def test_of_several_it_is_apart_from_the_last_says_when_a_node_may_be_tried() -> None:
    known = found(found(NOTHING, [pair(N1, N2)], 10.0), [pair(N1, N3)], 20.0)

    assert again_at_s(known, {N2, N3})[N1] == 20.0 + FIRST_S
    assert again_at_s(passed(known, 10.0 + FIRST_S), {N2}) == {N1: DUE}


def test_what_is_due_says_no_more_since_when() -> None:
    known = found(found(NOTHING, [pair(N1, N2)], 10.0), [pair(N1, N3)], 20.0)

    later = passed(known, 10.0 + FIRST_S)

    assert (later[N1, N2].again_at_s, later[N1, N2].times) == (DUE, 1)
    assert later[N1, N3] == known[N1, N3]
    assert pauses(later, 45.0)[0] == ((N1, N2), 1, None)
    assert found(later, [pair(N1, N2)], 70.0)[N1, N2].again_at_s == 70.0 + 2 * FIRST_S


@given(st.lists(st.frozensets(st.sampled_from([N1, N2, N3]), min_size=2, max_size=2)))
def test_who_meets_and_who_goes_is_forgotten(drawn: list[frozenset[NodeId]]) -> None:
    known = found(NOTHING, [pair(*both) for both in drawn], 0.0)

    assert set(known) == {pair(*both) for both in drawn}
    assert set(met(known, frozenset({N1, N2}))) == set(known) - {(N1, N2)}
    assert met(known, frozenset({N1})) == known
    assert not any(N3 in one for one in without(known, N3))


def test_the_job_looks_again_when_one_may_be_tried() -> None:
    settings = JobSettings()
    job, _ = controller.begin(now_s=0.0, settings=settings)
    job = replace(job, nodes=replace(job.nodes, apart=found(NOTHING, [pair(N1, N2)], 10.0)))

    assert controller.next_deadline_s(job) == 10.0 + FIRST_S

    job, _ = controller.step(job, Ticked(), now_s=10.0 + FIRST_S, settings=settings)

    assert job.nodes.apart[N1, N2].again_at_s == DUE
    assert controller.next_deadline_s(job) == settings.start_s


def test_a_node_that_is_lost_may_come_back_with_another_network() -> None:
    settings = JobSettings()
    job, _ = controller.begin(now_s=0.0, settings=settings)
    job = replace(
        job, nodes=replace(job.nodes, apart=found(NOTHING, [pair(N1, N2), pair(N2, N3)], 0.0))
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
            apart=found(NOTHING, [pair(N1, N2)], 0.0),
        ),
        replicas=Table(replicas),
    )
    began_s = time.thread_time()

    for _ in range(10):
        job, _ = controller.step(job, Scaled(target=1000), now_s=1.0, settings=settings)

    assert time.thread_time() - began_s < 2.0  # pair by pair 6 s
