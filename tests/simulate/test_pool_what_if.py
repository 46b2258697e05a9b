"""What a pool would have answered by other rules is certain up to the first other answer."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest
from tests.simulate.recorded_pool import SCENE, a_pool

from pliant.core.allocation import Asked, DevicesSet, Grant, Shrink
from pliant.core.errors import ConfigError
from pliant.simulate.pool_replay import PoolTurn, pool_replayed
from pliant.simulate.pool_what_if import PoolAnswer, asked_of_pool, rules_of


@pytest.fixture
def log(tmp_path: Path) -> Path:
    return a_pool(tmp_path / "events.jsonl")


def asked(log: Path, **fields: Any) -> PoolAnswer:
    return asked_of_pool(pool_replayed(log), rules_of(fields))


def test_the_same_rules_answer_the_same(log: Path) -> None:
    found = asked(log, devices=4, quota={"vision": 2}, restInSeconds=60)

    assert (found.same, found.step, found.why) == (len(SCENE), None, "")


def test_fewer_devices_are_shared_out_from_the_first_claim_on(log: Path) -> None:
    found = asked(log, devices=3)

    assert found.same == 1
    assert isinstance(found.step, PoolTurn)
    assert isinstance(found.step.event, Asked)
    assert [action.to for action in found.actions if isinstance(action, Grant)] == [3]
    assert "grant: to was 4, now 3" in found.why


def test_more_devices_than_there_ever_were_are_handed_out(log: Path) -> None:
    found = asked(log, devices=8)

    assert [action.to for action in found.actions if isinstance(action, Grant)] == [8]


def test_without_its_quota_a_team_takes_nothing_back(log: Path) -> None:
    found = asked(log, quota={"vision": 0})

    assert found.same == 2
    assert not any(isinstance(action, Shrink) for action in found.actions)
    assert "shrink(" in found.why
    assert "was recorded" in found.why


def test_what_people_set_meanwhile_is_asked_about_too(tmp_path: Path) -> None:
    scene = [*SCENE[:2], (5.0, DevicesSet(count=2)), *SCENE[2:3]]
    log = a_pool(tmp_path / "events.jsonl", scene)

    found = asked(log, devices=4)

    assert found.same == 2
    assert isinstance(found.step, PoolTurn)
    assert isinstance(found.step.event, DevicesSet)
    assert found.actions == ()


def test_where_the_log_has_a_gap_it_stops(log: Path) -> None:
    text = log.read_text().replace('"kind":"released"', "}", 1)
    log.write_text(text)

    found = asked(log, minGain=0.05)

    assert found.same == 3
    assert found.why == "this line is no record"


@pytest.mark.parametrize(
    ("fields", "sentence"),
    [
        (
            {"spares": 1},
            "--policy spares is no rule of a pool; there are devices, minGain, restInSeconds,"
            " patienceInSeconds, quota.TEAM, borrowLimit.TEAM",
        ),
        ({"devices": -1}, "--policy devices=-1 is no number of devices from 0 to 100000"),
        ({"quota": {"a": "x"}}, "--policy quota.a=x is no number of devices from 0 to 100000"),
        ({"restInSeconds": "x"}, "--policy restInSeconds=x is no number of 0 or more"),
        ({"minGain": 0}, "min_gain must be above 0, got 0.0"),
    ],
)
def test_what_is_no_rule_is_refused(fields: dict[str, Any], sentence: str, log: Path) -> None:
    with pytest.raises(ConfigError) as told:
        asked(log, **fields)

    assert str(told.value) == sentence


def test_further_devices_of_a_pool_of_kinds_would_be_of_none(tmp_path: Path) -> None:
    from dataclasses import replace

    from tests.simulate.recorded_pool import BEGINNING

    two = replace(BEGINNING, kinds=("a", "a", "b", "b"))
    log = a_pool(tmp_path / "events.jsonl", SCENE[:2], two)

    with pytest.raises(ConfigError, match="of which kind more would be is not said"):
        asked(log, devices=5)


def test_a_log_without_a_beginning_cannot_be_asked(log: Path) -> None:
    lines = [line for line in log.read_text().splitlines() if "pool_began" not in line]
    log.write_text("\n".join(lines) + "\n")

    with pytest.raises(ConfigError, match="it does not say how a pool began"):
        asked(log, devices=3)
