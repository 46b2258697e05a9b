"""The bodies that pools and claimants exchange keep their shape, and what is none is refused."""

from __future__ import annotations

import json
import math
from typing import Any

import pytest
from pydantic import ValidationError

from pliant.core.tenancy import Demand
from pliant.wire.offers import Report

REPORT = (
    '{"wanted":{"kind":"fixed","team":"a","priority":"high","device_kind":"","min_replicas":2,'
    '"ask_replicas":3,"sizes":[2,3],"num_slots":8,"can_suspend":true,"notice_s":4.5},"pool":"p","revision":3,'
    '"holds":[1,2],"url":"","token":"","pid":7,"is_running":false,"is_suspended":false}'
)


def test_a_report_has_this_shape() -> None:
    demand = Demand(
        kind="fixed",
        team="a",
        priority="high",
        min_replicas=2,
        ask_replicas=3,
        sizes=(2, 3),
        num_slots=8,
        can_suspend=True,
        notice_s=4.5,
    )
    report = Report(wanted=demand, pool="p", revision=3, holds=(1, 2), pid=7)

    assert json.loads(REPORT) == report.model_dump(mode="json")
    assert report.model_dump_json() == REPORT
    assert Report.model_validate_json(REPORT) == report


@pytest.mark.parametrize(
    ("wanted", "where"),
    [
        ({"min_replicas": 0}, "min_replicas"),
        ({"ask_replicas": -1}, "ask_replicas"),
        ({"num_slots": 0}, "num_slots"),
        ({"num_slots": 10_000_001}, "num_slots"),
        ({"notice_s": -0.1}, "notice_s"),
        ({"notice_s": math.inf}, "notice_s"),  # was written as null, and then not read again
        ({"notice_s": math.nan}, "notice_s"),
        ({"ask_replicas": 1 << 70}, "ask_replicas"),
        ({"kind": "rubber"}, "kind"),
        ({"sizes": ["many"]}, "sizes"),
        ({"sizes": [1] * 4097}, "sizes"),
        ({"team": "a" * 64}, "team"),
        ({"priority": "a" * 64}, "priority"),
        ({"device_kind": "a" * 17}, "device_kind"),
        ({"more": 1}, "more"),
    ],
)
def test_a_demand_beyond_its_bounds_is_refused(wanted: dict[str, Any], where: str) -> None:
    with pytest.raises(ValidationError) as caught:
        Report.model_validate({"wanted": wanted, "pid": 7})

    assert caught.value.errors()[0]["loc"][:2] == ("wanted", where)


@pytest.mark.parametrize(
    "said", [{"pool": "a" * 65}, {"holds": [-1]}, {"wanted": {"sizes": [1 << 70]}}]
)
def test_what_else_a_report_says_has_bounds_as_well(said: dict[str, Any]) -> None:
    with pytest.raises(ValidationError):
        Report.model_validate({"wanted": {}, "pid": 7, **said})
