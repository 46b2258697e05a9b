"""What Prometheus is told of a pool is what its status says at that moment."""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable
from typing import Any

import pytest
from prometheus_client import generate_latest

from pliant.http.app import registry_of
from pliant.observe.log import Record
from pliant.pool.pool_metrics import COUNTED, MOST_TEAMS, STATES, PoolCollector


def device(kind: str = "", claim: str | None = None, **more: bool) -> dict[str, Any]:
    marks = {f"is_{mark}": more.get(mark, False) for mark in ("cordoned", "drained", "blocked")}
    return {"kind": kind or None, "claim": claim, **marks}


def team(name: str, share: int, quota: int | None = None) -> dict[str, Any]:
    return {"team": name, "share": share, "quota": quota}


def board(**more: Any) -> dict[str, Any]:
    return {"devices": [], "claims": [], "teams": [], "usable": 0, "failure": "", **more}


def page(now: dict[str, Any] | Callable[[], dict[str, Any]], *records: Record) -> dict[str, float]:
    """Return what is served of a status, by name and labels."""
    counts = Counter(str(record["kind"]) for record in records)
    read = now if callable(now) else lambda: now
    return lines(generate_latest(registry_of(PoolCollector(read, counts, lambda: 1000.0))))


def lines(served: bytes) -> dict[str, float]:
    said = [line.rpartition(" ") for line in served.decode().splitlines() if line[0] != "#"]
    return {name.removeprefix("pliant_pool_"): float(value) for name, _, value in said}


def devices_in(found: dict[str, float], kind: str = "") -> dict[str, float]:
    head = f'devices{{kind="{kind}",state="'
    return {k[len(head) : -2]: v for k, v in found.items() if k.startswith(head) and v}


def test_each_device_counts_once_by_the_first_that_is_true_of_it() -> None:
    found = page(
        board(
            devices=[
                device(claim="gpt", drained=True),
                device(claim="gpt"),
                device(),
                device(cordoned=True),
                device(cordoned=True, drained=True),
                device(blocked=True, cordoned=True),
            ],
            usable=3,
        )
    )

    assert devices_in(found) == {
        "in_use": 2,
        "idle": 1,
        "cordoned": 1,
        "drained": 1,
        "blocked": 1,
    }
    assert found["usable_devices"] == 3


def test_devices_are_counted_kind_by_kind() -> None:
    found = page(board(devices=[device("cuda", "gpt"), device("cuda"), device("cpu")]))

    assert devices_in(found, "cuda") == {"in_use": 1, "idle": 1}
    assert devices_in(found, "cpu") == {"idle": 1}
    assert found['devices{kind="cpu",state="in_use"}'] == 0


def test_every_state_of_a_claim_has_its_number_and_no_claim_its_name() -> None:
    states = ("running", "running", "waiting")
    claims = [{"name": "ada/gpt", "state": state, "since": 940.0} for state in states]
    found = page(board(claims=claims))

    assert {state: found[f'claims{{state="{state}"}}'] for state in STATES} == {
        **dict.fromkeys(STATES, 0),
        "running": 2,
        "waiting": 1,
    }
    assert not [name for name in found if "gpt" in name]


def test_teams_have_their_shares_and_those_with_a_quota_that_too() -> None:
    found = page(board(teams=[team("vision", 3, 5), team("speech", 2), team("rest", 0, 0)]))

    assert {name: value for name, value in found.items() if name.startswith("team_")} == {
        'team_share{team="vision"}': 3,
        'team_share{team="speech"}': 2,
        'team_share{team="rest"}': 0,
        'team_quota{team="vision"}': 5,
        'team_quota{team="rest"}': 0,
    }


def test_of_many_teams_the_busiest_are_named_and_the_others_are_one() -> None:
    found = page(board(teams=[team(f"t{number}", number) for number in range(MOST_TEAMS + 3)]))

    shares = {name: value for name, value in found.items() if name.startswith("team_share")}
    assert len(shares) == MOST_TEAMS + 1
    assert shares['team_share{team="(others)"}'] == 0 + 1 + 2
    assert f'team_share{{team="t{MOST_TEAMS + 2}"}}' in shares


@pytest.mark.parametrize(("failure", "value"), [("", 0), ("no space left", 1)])
def test_a_state_that_cannot_be_written_is_told(failure: str, value: int) -> None:
    assert page(board(failure=failure))["failing"] == value


def test_what_happens_is_counted_by_its_kind() -> None:
    kinds = [kind for at, kind in enumerate(COUNTED) for _ in range(at + 1)]
    found = page(board(), *({"kind": kind} for kind in [*kinds, "commit", "asked"]))

    assert {name: found[f"{name}_total"] for name in COUNTED.values()} == {
        "grants": 1,
        "shrinks": 2,
        "suspensions": 3,
        "refusals": 4,
        "ended_devices": 5,
        "kept_devices": 6,
    }


def test_the_numbers_are_those_of_the_moment() -> None:
    boards = iter([board(usable=1), board(usable=2)])
    registry = registry_of(PoolCollector(lambda: next(boards), {}, lambda: 1000.0))

    assert lines(generate_latest(registry))["usable_devices"] == 1
    assert lines(generate_latest(registry))["usable_devices"] == 2
