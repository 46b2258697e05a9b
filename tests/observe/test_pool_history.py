"""The story of a pool is told once, in order, in the words of its decisions."""

from __future__ import annotations

from typing import Any

import pytest

from pliant.observe.pool_history import moves_of


def asked(name: str, low: int, high: int, **more: Any) -> dict[str, Any]:
    claim = {"name": name, "min_replicas": low, "ask_replicas": high, "priority": "urgent"}
    return {"kind": "asked", "at": 1.0, "claim": {"team": "default", **claim, **more}}


def gone(name: str) -> dict[str, Any]:
    return {"kind": "gone", "at": 2.0, "name": name, "reason": "it has ended"}


def told(*records: dict[str, Any]) -> list[tuple[str, str]]:
    return [(move.claim, move.what) for move in moves_of(records)]


def test_a_claim_that_asks_for_the_same_again_is_told_once() -> None:
    assert told(asked("job", 2, 2), asked("job", 2, 2, num_slots=8), asked("job", 2, 4)) == [
        ("job", "asks for 2 (urgent)"),
        ("job", "asks for 2 to 4 (urgent)"),
    ]


@pytest.mark.parametrize(
    ("keeping", "said"),
    [
        ([], "the pool stopped"),
        (["mine"], "the pool stopped; mine keeps what it has"),
        (["ada", "mine"], "the pool stopped; ada, mine keep what they have"),
    ],
)
def test_who_keeps_devices_when_the_pool_stops_is_named(keeping: list[str], said: str) -> None:
    assert told({"kind": "pool_stopped", "at": 1.0, "keeping": keeping}) == [("", said)]


def test_the_next_claim_of_a_name_is_told_as_well() -> None:
    assert told(asked("job", 2, 2), asked("other", 2, 2), gone("job"), asked("job", 2, 2)) == [
        ("job", "asks for 2 (urgent)"),
        ("other", "asks for 2 (urgent)"),
        ("job", "is gone"),
        ("job", "asks for 2 (urgent)"),
    ]


def started(*names: str) -> dict[str, Any]:
    return {"kind": "pool_started", "at": 0.0, "devices": 4, "names": [*names]}


def test_devices_are_called_by_the_names_that_their_pool_gave_them() -> None:
    granted = {"kind": "grant", "at": 1.0, "name": "job", "devices": [1, 2], "to": 2}
    kept = {"kind": "not_ended", "at": 1.0, "name": "job", "device": 1}

    assert told(started(), granted, kept)[1:] == [
        ("job", "gets devices 1, 2 and has 2"),
        ("job", "has not left device 1"),
    ]
    assert told(started("cuda:0", "cuda:1", "cuda:2"), granted, kept)[1:] == [
        ("job", "gets cuda:1, cuda:2 and has 2"),
        ("job", "has not left cuda:1"),
    ]
    assert told(started("cuda:0"), granted | {"devices": [0, 7, "x", []]})[1:] == [
        ("job", "gets cuda:0, 7 and has 2"),
    ]
