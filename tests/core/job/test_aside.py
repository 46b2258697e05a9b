"""A node on which a start met a cause of its host is tried again later and later."""

from __future__ import annotations

from pliant.core.job.aside import DUE, LONGEST_S, AsideNodes, lasting, passed, set_aside
from pliant.core.values import NodeId

N1, N2 = NodeId("n1"), NodeId("n2")


def test_the_pause_doubles_up_to_its_longest() -> None:
    known, now_s, pauses = AsideNodes(), 100.0, list[float]()
    for _ in range(9):
        known = set_aside(known, N1, "expired", now_s)
        pauses.append(known[N1].again_at_s - now_s)
        now_s = known[N1].again_at_s

    assert pauses == [1, 2, 4, 8, 16, 32, LONGEST_S, LONGEST_S, LONGEST_S]
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
