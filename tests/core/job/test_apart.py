"""Nodes that were found apart are left alone ever longer, and forgotten once they meet."""

from __future__ import annotations

from dataclasses import replace

from hypothesis import given
from hypothesis import strategies as st

from pliant.core.events import NodeLost, Ticked
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
from pliant.core.job.state import JobSettings
from pliant.core.table import Table
from pliant.core.values import NodeId

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

    assert again_at_s(known, N2, {N1}) == again_at_s(known, N1, {N2, N3}) == 10.0 + FIRST_S
    assert again_at_s(known, N2, {N2, N3}) is None
    assert again_at_s(known, N3, {N1, N2}) is None


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
    assert set(met(known, [N1, N2, N2])) == set(known) - {(N1, N2)}
    assert met(known, [N1, N1]) == known
    assert not any(N3 in one for one in without(known, N3))


def test_the_job_looks_again_when_one_may_be_tried() -> None:
    settings = JobSettings()
    job, _ = controller.begin(now_s=0.0, settings=settings)
    job = replace(job, apart=found(NOTHING, [pair(N1, N2)], 10.0))

    assert controller.next_deadline_s(job) == 10.0 + FIRST_S

    job, _ = controller.step(job, Ticked(), now_s=10.0 + FIRST_S, settings=settings)

    assert job.apart[N1, N2].again_at_s == DUE
    assert controller.next_deadline_s(job) == settings.start_s


def test_a_node_that_is_lost_may_come_back_with_another_network() -> None:
    settings = JobSettings()
    job, _ = controller.begin(now_s=0.0, settings=settings)
    job = replace(job, apart=found(NOTHING, [pair(N1, N2), pair(N2, N3)], 0.0))

    job, _ = controller.step(job, NodeLost(node=N1), now_s=1.0, settings=settings)

    assert set(job.apart) == {(N2, N3)}
