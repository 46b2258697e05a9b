"""Whoever comes last waits for nobody: what holds it up is the exchange, the rest is waiting."""

from __future__ import annotations

from hypothesis import given
from hypothesis import strategies as st

from pliant.core.step.times import PARTS, MemberTimes, parts_us

TIMES = st.lists(st.builds(MemberTimes, *[st.integers(0, 10**9)] * 3), min_size=1, max_size=9)


def test_the_others_wait_for_a_slow_one() -> None:
    quick, slow = MemberTimes(10, 100, 330), MemberTimes(10, 400, 30)

    parts = dict(zip(PARTS, parts_us([quick, slow, quick]), strict=True))

    assert parts == {"data": 10, "compute": 200, "exchange": 30, "waiting": 200}


def test_one_alone_waits_for_nobody() -> None:
    assert parts_us([MemberTimes(5, 6, 7)]) == (5, 6, 7, 0)


@given(members=TIMES)
def test_the_parts_are_the_mean_time_of_the_members(members: list[MemberTimes]) -> None:
    parts = parts_us(members)

    assert min(parts) >= 0
    assert abs(sum(parts) - sum(map(sum, members)) / len(members)) < len(parts)
