"""The day of a shared pool that ``pliant demo --dashboard`` shows."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pytest

from pliant.observe.pool_view import PoolView
from pliant.run.pool_day import DAY_S, NUM_DEVICES, PoolDay

BEGAN = 1_790_000_000.0


@pytest.fixture(scope="module")
def day(tmp_path_factory: pytest.TempPathFactory) -> PoolDay:
    return PoolDay(tmp_path_factory.mktemp("day") / "events.jsonl", BEGAN)


def claims_at(day: PoolDay, hour: float) -> dict[str, dict[str, Any]]:
    return {one["name"]: one for one in day.status(BEGAN + 3600 * hour)["claims"]}


def test_an_urgent_claim_takes_what_the_quotas_of_others_do_not_keep(day: PoolDay) -> None:
    before, then, late = claims_at(day, 15.2), claims_at(day, 15.4), claims_at(day, 23.9)

    assert "incident" not in before
    assert len(then["incident"]["devices"]) == 6
    assert then["finetune-9"]["state"] == "suspended"
    assert "8 cannot be preempted" in then["finetune-8"]["reason"]
    assert then["pretrain"]["devices"] == list(range(8))
    assert len(late["pretrain"]["devices"]) == NUM_DEVICES


def test_the_log_and_the_status_say_the_same_at_each_moment(day: PoolDay) -> None:
    for minute in range(1, 24 * 60, 7):
        at = BEGAN + 60.0 * minute
        view = json.loads(PoolView(day.log).as_json(None, at, 400))
        owners = {
            lane["device"]: claim
            for lane in view["lanes"]
            for claim, since, until in lane["spans"]
            if since <= at and (until is None or until > at)
        }
        status = day.status(at)
        told = {one["device"]: one["claim"] for one in status["devices"] if one["claim"]}
        assert owners == told
        assert status["in_use"] + status["free"] == NUM_DEVICES


def test_it_is_the_same_day_each_time_and_has_an_end(day: PoolDay, tmp_path: Path) -> None:
    again = PoolDay(tmp_path / "events.jsonl", BEGAN)

    assert again.log.read_bytes() == day.log.read_bytes()
    assert json.loads(PoolView(day.log).as_json(None, None, 400))["ended"] == BEGAN + DAY_S
