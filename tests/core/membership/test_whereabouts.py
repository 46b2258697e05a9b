"""A replica waits while none of its workers keeps it; one that keeps it is named."""

from __future__ import annotations

import pytest

from pliant.core.membership.whereabouts import EACH_OTHER, Whereabouts, held_up_by, waits

M, R, S, E = Whereabouts.MEMBERS, Whereabouts.REPLICA, Whereabouts.SCRIPT, Whereabouts.ENGINE


@pytest.mark.parametrize(
    ("workers", "is_waiting", "by"),
    [
        ((M,), True, None),
        ((M, M, M), True, None),
        ((M, R), True, None),
        ((R, M), True, None),
        ((M, E), True, None),
        ((M, S), False, None),
        ((R, S), False, 1),
        ((S, R, R), False, 0),
        ((M, R, S), False, 2),
        ((R, E), False, None),
        ((R, R), False, EACH_OTHER),
        ((S, S), False, None),
        ((E, E), False, None),
    ],
)
def test_where_the_workers_are_says_who_waits_for_whom(
    workers: tuple[Whereabouts, ...], is_waiting: bool, by: int | None
) -> None:
    assert (waits(workers), held_up_by(workers)) == (is_waiting, by)
