"""What one host of a host group says to another is in bounds, or is not read at all."""

from __future__ import annotations

import json
from typing import Any

import pytest
from pydantic import ValidationError

from pliant.core.events import ExitKind
from pliant.core.text import MOST_S
from pliant.core.values import Incarnation, ReplicaId
from pliant.wire.bounds import MOST, MOST_DEVICES
from pliant.wire.host_records import (
    RECORDS,
    KillPart,
    LinkRecord,
    PartEnded,
    PartLeaving,
    PartReaped,
    PartSilent,
    PartStarted,
    StartPart,
    TunnelOpened,
    TunnelRead,
)

R1 = ReplicaId("r1")

READ: list[LinkRecord] = [
    PartLeaving(notice_s=0.0),
    PartLeaving(notice_s=MOST_S),
    StartPart(replica=R1, places=(2, 3), incarnation=Incarnation(1)),
    KillPart(replica=R1, is_asked=True),
    PartStarted(replica=R1, place=2, pid=MOST, device=None),
    PartReaped(replica=R1, place=2, returncode=-9),
    PartEnded(replica=R1, place=2, kind=ExitKind.SIGNAL, detail="", worker=None),
    PartSilent(replica=R1, place=2, looks=3),
    TunnelOpened(stream=1, replica=R1, socket="store"),
    TunnelRead(stream=1, count=0),
]


def as_said(record: LinkRecord) -> dict[str, Any]:
    values: dict[str, Any] = json.loads(RECORDS.dump_json(record))
    return values


@pytest.mark.parametrize("record", READ, ids=lambda record: type(record).__name__)
def test_what_is_in_bounds_is_read_as_it_was_said(record: LinkRecord) -> None:
    assert RECORDS.validate_json(RECORDS.dump_json(record)) == record


@pytest.mark.parametrize(
    ("type_", "field", "value"),
    [
        ("leaving", "notice_s", -1.0),
        ("leaving", "notice_s", MOST_S * 2),
        ("leaving", "notice_s", float("nan")),
        ("leaving", "notice_s", float("inf")),
        ("start", "replica", "../r1"),
        ("start", "replica", "r1\n"),
        ("start", "places", [-1]),
        ("start", "places", [0] * (MOST_DEVICES + 1)),
        ("start", "incarnation", -1),
        ("started", "pid", MOST + 1),
        ("started", "place", MOST_DEVICES),
        ("started", "device", -1),
        ("reaped", "returncode", -MOST - 1),
        ("ended", "worker", -1),
        ("silent", "looks", -1),
        ("tunnel", "stream", -1),
        ("read", "count", MOST + 1),
    ],
)
def test_what_is_out_of_bounds_is_not_read(type_: str, field: str, value: Any) -> None:
    said = next(values for values in map(as_said, READ) if values["type"] == type_)
    assert field in said

    with pytest.raises(ValidationError):
        RECORDS.validate_json(json.dumps(said | {field: value}))
