"""A device was given back when a claimant that has heard of it leaves it out."""

from __future__ import annotations

from typing import Any

import pytest

from pliant.core.allocation.held_devices import (
    Holding,
    gives_unasked,
    is_overtaken,
    left,
    offered,
    overdue,
    recovered,
    reported,
)

TOLD = offered(offered(Holding(), revision=4, devices=(0, 1)), revision=6, devices=(0, 1, 2))
OWNED = (0, 1, 2)


def given_back(revision: int, *holds: int) -> set[int]:
    return set(reported(TOLD, revision=revision, holds=holds, owned=OWNED).leaving)


def test_what_a_report_leaves_out_was_given_back() -> None:
    assert given_back(6, 0, 1, 2) == set()
    assert given_back(6, 0) == {1, 2}


def test_what_it_has_not_heard_of_yet_was_not() -> None:
    assert given_back(4, 0) == {1}
    assert given_back(0) == set()


def test_what_was_never_offered_was_not_given_back() -> None:
    after = reported(TOLD, revision=9, holds=OWNED, owned=(*OWNED, 3))

    assert after.leaving == set()
    assert after.followed == 6, "nobody follows what was not told"


@pytest.mark.parametrize(
    ("holds", "offered", "replicas", "is_unasked"),
    [
        ((0, 1, 2), OWNED, 3, False),
        ((0, 1), OWNED, 3, True),
        ((0, 1), OWNED, 2, False),
        ((0,), OWNED, 2, True),
        ((0, 1), (0, 1), 2, False),  # 2 is drained
        ((0,), (0, 1), 2, True),
        ((), OWNED, 0, False),  # suspended
    ],
)
def test_what_is_given_back_was_asked_for_or_not(
    holds: tuple[int, ...], offered: tuple[int, ...], replicas: int, is_unasked: bool
) -> None:
    said: dict[str, Any] = {"revision": 6, "holds": holds, "owned": OWNED}

    assert gives_unasked(TOLD, offered=offered, replicas=replicas, **said) is is_unasked
    again = reported(TOLD, **said)
    assert not gives_unasked(again, offered=offered, replicas=replicas, **said), "said already"


def test_a_report_that_comes_after_a_later_one_is_overtaken() -> None:
    after = reported(TOLD, revision=6, holds=OWNED, owned=OWNED)

    assert is_overtaken(after, revision=4)
    assert is_overtaken(after, revision=0)
    assert not is_overtaken(after, revision=6)


def test_a_device_that_was_left_and_comes_back_is_a_new_one() -> None:
    after = left(reported(TOLD, revision=6, holds=(0, 1), owned=OWNED), {2})
    assert after.leaving == set()

    again = offered(after, revision=7, devices=OWNED)

    assert again.offered_at == {0: 4, 1: 4, 2: 7}
    assert reported(again, revision=6, holds=(0, 1), owned=OWNED).leaving == set()


def test_of_an_earlier_life_only_what_it_was_not_told_of_is_not_known_to_it() -> None:
    holding = recovered((0, 1, 2), holds=(0,), leaving=(1,), revision=9)

    assert holding.leaving == {1}
    assert reported(holding, revision=0, holds=(0,), owned=OWNED).leaving == {1}
    assert reported(holding, revision=0, holds=(), owned=OWNED).leaving == {0, 1}


@pytest.mark.parametrize(
    ("drain", "excess", "free", "leaving"),
    [
        ((), 1, (), {2}),
        ((), 2, (), {2, 1}),
        ((), 1, (0,), {0}),
        ((1,), 1, (0,), {1}),
        ((1,), 2, (0,), {1, 0}),
        ((0, 1), 1, (), {0, 1}),
        ((), 0, (0,), set()),
    ],
)
def test_who_is_overdue_leaves_the_drained_then_the_unused_then_the_newest(
    drain: tuple[int, ...], excess: int, free: tuple[int, ...], leaving: set[int]
) -> None:
    after = overdue(TOLD, devices=OWNED, drain=drain, excess=excess, free=free)

    assert after.leaving == leaving


def test_what_is_being_left_already_counts_for_what_is_overdue() -> None:
    before = reported(TOLD, revision=6, holds=(0, 2), owned=OWNED)

    after = overdue(before, devices=OWNED, drain=(1,), excess=2, free=())

    assert after.leaving == {1, 2}
