"""What is said of a planned stop."""

from __future__ import annotations

from typing import Any

import pytest

from pliant.core.values import Generation
from pliant.restart.stopping import ProcessEnd, Stop, had_ended, ranked, told

STOP = Stop(
    reason="resize",
    generation=Generation(3),
    old_size=4,
    new_size=2,
    staying=("r1", "r2"),
    graceful_s=30.0,
)


def end(rank: int, kind: str, **more: Any) -> ProcessEnd:
    fields = {"code": 0, "calls": 120, "step": 0, "path": "", "cost": 0, "is_told": False, **more}
    return ProcessEnd(rank=rank, kind=kind, **fields)


@pytest.mark.parametrize(
    ("ranks", "said"), [([3], "rank 3"), ([2, 0, 1], "ranks 0-2"), ([5, 0, 1], "ranks 0-1, 5")]
)
def test_ranks_are_named_briefly(ranks: list[int], said: str) -> None:
    assert ranked(ranks) == said


def test_three_ways_to_end_are_told_apart() -> None:
    ends = [
        end(0, "acknowledged", step=120, path="/ckpt/120"),
        end(1, "exited"),
        end(2, "forced", code=-15, cost=20),
        end(3, "exited"),
    ]
    first, late = told(STOP, 120, ends)

    assert first == (
        "stopped from 4 to 2, at call 120 of elastic_event: rank 0 acknowledged step 120"
        " (/ckpt/120); ranks 1, 3 exited with code 0 by itself; rank 2 forced (SIGTERM)",
        False,
    )
    assert late == (
        "rank 2 had not acknowledged a save within 30 s: up to 20 steps may be repeated",
        True,
    )


@pytest.mark.parametrize(
    ("at", "more", "is_over"),
    [
        (121, {}, True),
        (0, {"calls": 0}, True),
        (120, {}, False),  # it saw the event, and may have saved and exited for that
        (0, {"calls": 0, "is_told": True}, False),  # its own handler of SIGTERM may have
        (121, {"code": 1}, False),
    ],
)
def test_a_script_that_had_ended_everywhere_is_not_begun_again(
    at: int, more: dict[str, Any], *, is_over: bool
) -> None:
    ends = [end(0, "exited", calls=120 if at else 0), end(1, "exited", **more)]

    assert had_ended(at, ends) == is_over
    assert not had_ended(at, [])


def test_ranks_that_ask_differently_often_are_named() -> None:
    ends = [end(0, "exited"), end(1, "exited", calls=3)]
    said = [text for text, _ in told(STOP, 120, ends)]

    assert (
        "processes have called elastic_event differently often: rank 0 120 times, rank 1 3 times"
        in said
    )


def test_nothing_is_said_where_nothing_ran() -> None:
    assert list(told(STOP, 0, [])) == []


def test_who_is_not_in_the_next_generation_is_told_that_it_leaves() -> None:
    assert STOP.event("r1")["leaving"] is False
    assert STOP.event("r9")["leaving"] is True
