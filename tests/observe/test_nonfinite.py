"""How often a loss or gradient was nan or inf is told in every view."""

from __future__ import annotations

import json
from typing import Any

from pliant.coordinator.metrics import registry_of
from pliant.observe import nonfinite
from pliant.observe.status import board_of

BAD = {"nonfinite": "the loss is nan", "loss": "nan"}


def commit(step: int, **more: Any) -> dict[str, Any]:
    return {"kind": "commit", "step": step, "generation": 1, "mono": float(step), **more}


RECORDS = [
    commit(0, loss=1.0),
    commit(1, **BAD, skipped=True),
    {"kind": "note", "replica": "r1", "text": "hello"},
    commit(2, **BAD, skipped=False),
]


def test_the_newest_is_named_and_all_are_counted() -> None:
    found = board_of(RECORDS).nonfinite

    assert found == {"step": 2, "what": "the loss is nan", "steps": 2, "skipped": 1}
    assert nonfinite.line(found) == "the loss is nan at step 2; 2 steps like it so far, 1 skipped"
    assert board_of(RECORDS[:1]).nonfinite is None


def test_status_has_it_and_stays_strict_json() -> None:
    status = board_of(RECORDS).as_json()

    assert status["nonfinite"]["steps"] == 2
    assert status["loss"] is None
    json.dumps(status, allow_nan=False)


def test_the_metrics_count_them() -> None:
    registry = registry_of(lambda: board_of(RECORDS), {})

    assert registry.get_sample_value("pliant_nonfinite_steps_total") == 2.0
    assert registry.get_sample_value("pliant_skipped_steps_total") == 1.0
