"""The view of a pool: who had which device when, as its log says."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from pliant.observe.pool_view import PoolView
from pliant.observe.view import MOST_BYTES


def shown(path: Path, *records: dict[str, Any]) -> dict[str, Any]:
    lines = (json.dumps({"v": 1, "mono": 1.0, "job": "p", **record}) + "\n" for record in records)
    path.write_text("".join(lines))
    found: dict[str, Any] = json.loads(PoolView(path).as_json(None, None, 100))
    return found


STARTED = {"kind": "pool_started", "at": 1.0, "devices": 3, "names": []}


def test_a_device_has_an_owner_from_the_grant_until_it_is_free(tmp_path: Path) -> None:
    found = shown(
        tmp_path / "events.jsonl",
        STARTED,
        {"kind": "grant", "at": 2.0, "name": "ada", "devices": [0, 1], "to": 2},
        {"kind": "shrink", "at": 3.0, "name": "ada", "devices": [1], "to": 1},
        {"kind": "released", "at": 4.0, "name": "ada", "devices": [1, 2]},
        {"kind": "grant", "at": 5.0, "name": "bob", "devices": [1], "to": 1},
        {"kind": "released", "at": 6.0, "name": "ada", "devices": [1]},
        {"kind": "pool_stopped", "at": 9.0, "keeping": []},
    )

    assert found["lanes"] == [
        {"device": 0, "spans": [["ada", 2.0, None]]},
        {"device": 1, "spans": [["ada", 2.0, 4.0], ["bob", 5.0, None]]},
    ]
    assert (found["from"], found["to"], found["ended"]) == (1.0, 9.0, 9.0)
    assert [move["text"] for move in found["moves"]][1:3] == [
        "ada gets devices 0, 1 and has 2",
        "ada is to shrink to 1 without device 1 within no time",
    ]


def test_a_pool_that_was_started_anew_knows_who_says_that_he_is_there(tmp_path: Path) -> None:
    found = shown(
        tmp_path / "events.jsonl",
        STARTED,
        {"kind": "grant", "at": 2.0, "name": "ada", "devices": [0]},
        {"kind": "grant", "at": 2.0, "name": "bob", "devices": [1]},
        {**STARTED, "at": 5.0, "follows": True},
        {"kind": "recovered", "at": 6.0, "claim": {"name": "ada"}, "devices": [0]},
    )

    assert found["lanes"] == [
        {"device": 0, "spans": [["ada", 2.0, 5.0], ["ada", 6.0, None]]},
        {"device": 1, "spans": [["bob", 2.0, 5.0]]},
    ]
    assert found["ended"] is None


VALUES: st.SearchStrategy[Any] = st.sampled_from(["ada", 3, None, [0, 1, "x", -1], {}, "y" * 4000])


@given(
    records=st.lists(
        st.fixed_dictionaries(
            {
                "kind": st.sampled_from(
                    ["pool_started", "grant", "released", "recovered", "asked"]
                ),
                "at": st.floats(0, 1e9),
            },
            optional=dict.fromkeys(["name", "devices", "claim", "reason", "names"], VALUES),
        ),
        max_size=20,
    )
)
def test_damaged_logs_of_pools_have_a_view_as_well(
    records: list[dict[str, Any]], tmp_path_factory: pytest.TempPathFactory
) -> None:
    path = tmp_path_factory.mktemp("pool") / "events.jsonl"

    shown(path, *records)


def test_the_view_of_a_busy_pool_is_small(tmp_path: Path) -> None:
    records: list[dict[str, Any]] = [STARTED]
    for at in range(4000):
        name, device = f"a-claim-with-a-long-name-{at}", at % 300
        reason = "because " * 30
        records += [
            {"kind": "grant", "at": at, "name": name, "devices": [device], "reason": reason},
            {"kind": "released", "at": at + 0.5, "name": name, "devices": [device]},
        ]

    found = shown(tmp_path / "events.jsonl", *records)

    assert 50_000 < len(json.dumps(found, separators=(",", ":"))) <= MOST_BYTES
    assert found["left_out"]["spans"] > 0
