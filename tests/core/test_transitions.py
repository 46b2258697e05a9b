"""Tables of transitions are followed, and what breaks one is told with its story."""

from __future__ import annotations

from enum import StrEnum
from typing import Any

import pytest
from tests.core.tables import reached

from pliant.core.errors import TransitionError
from pliant.core.job.transitions import JOB_PHASES, REPLICAS
from pliant.core.membership.transitions import MEMBERS, PHASES
from pliant.core.transitions import Machine


class Door(StrEnum):
    OPEN = "open"
    SHUT = "shut"
    GONE = "gone"


DOOR = Machine(
    name="door",
    initial=Door.SHUT,
    rows={
        Door.OPEN: {"pushed": frozenset({Door.SHUT})},
        Door.SHUT: {"pulled": frozenset({Door.OPEN, Door.SHUT}), "burnt": frozenset({Door.GONE})},
        Door.GONE: {},
    },
)


def test_a_table_says_what_may_follow() -> None:
    assert DOOR.follow(Door.SHUT, "pulled", Door.OPEN) is Door.OPEN
    assert DOOR.follow(Door.SHUT, "pulled", Door.SHUT) is Door.SHUT
    assert DOOR.hears(Door.SHUT, "burnt")
    assert not DOOR.hears(Door.GONE, "pulled")
    assert DOOR.terminal == {Door.GONE}


@pytest.mark.parametrize(
    ("state", "cause", "after"),
    [
        (Door.GONE, "pulled", Door.OPEN),
        (Door.OPEN, "pushed", Door.GONE),
        (Door.OPEN, "burnt", Door.GONE),
    ],
)
def test_what_the_table_does_not_name_is_an_error(state: Door, cause: str, after: Door) -> None:
    with pytest.raises(TransitionError, match=f"door {state}"):
        DOOR.follow(state, cause, after)


def test_the_error_tells_what_went_before() -> None:
    with pytest.raises(TransitionError, match="oldest first: pulled; pushed") as raised:
        DOOR.follow(Door.SHUT, "sold", Door.GONE, history=("pulled", "pushed"))

    assert raised.value.history == ("pulled", "pushed")


@pytest.mark.parametrize("machine", [PHASES, MEMBERS, JOB_PHASES, REPLICAS])
def test_every_state_has_a_row_and_is_reached_and_one_is_the_last(machine: Machine[Any]) -> None:
    states: type[StrEnum] = type(machine.initial)

    assert set(machine.rows) == set(states) == reached(machine)
    assert len(machine.terminal) == 1
