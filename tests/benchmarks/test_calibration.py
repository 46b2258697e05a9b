"""What is read off a calibration run is what a person would read off its log."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest
from benchmarks.calibration import Calibration, calibration_of, read, write

BEGAN_AT = 1000.0


def order(kind: str, mono: float, generation: int, *members: str) -> dict[str, Any]:
    order = {"generation": generation, "members": [{"replica": one} for one in members]}
    return {"kind": kind, "mono": mono, "at": BEGAN_AT + mono, "order": order}


def commits(generation: int, first: int, *monos: float) -> list[dict[str, Any]]:
    return [
        {
            "kind": "commit",
            "mono": mono,
            "at": BEGAN_AT + mono,
            "step": step,
            "generation": generation,
            "samples": 16,
        }
        for step, mono in enumerate(monos, first)
    ]


def start(name: str, mono: float) -> dict[str, Any]:
    return {"kind": "start_replica", "replica": name, "mono": mono, "at": BEGAN_AT + mono}


LOG = [
    start("r1", 3.0),
    order("switch", 4.0, 1, "r1"),
    *commits(1, 0, 6.0, 8.0, 10.0),
    start("r2", 10.5),
    order("switch", 11.5, 2, "r1", "r2"),
    *commits(2, 3, 13.25, 14.25, 15.25),  # a step of 1 s, and a pause of 2.25 s
    order("switch", 15.5, 3, "r1"),
    *commits(3, 6, 17.75, 19.75),  # a step of 2 s, and a pause of 0.5 s
]


def test_steps_pauses_and_starts_are_means_of_what_was_logged() -> None:
    found = calibration_of(LOG, began_at=BEGAN_AT, num_slots=8, devices=2)

    assert found == Calibration(
        step_s={1: 2.0, 2: 1.0},
        num_slots=8,
        samples=16,
        launch_s=3.0,
        start_s=1.0,
        join_pause_s=2.25,
        leave_pause_s=0.5,
        joins=1,
        leaves=1,
    )


@pytest.mark.parametrize(("log", "devices"), [(LOG, 3), (LOG[:8], 2)])
def test_what_did_not_happen_is_not_made_up(log: list[dict[str, Any]], devices: int) -> None:
    with pytest.raises(ValueError, match="make it longer"):
        calibration_of(log, began_at=BEGAN_AT, num_slots=8, devices=devices)


def test_it_is_read_as_it_was_written(tmp_path: Path) -> None:
    found = calibration_of(LOG, began_at=BEGAN_AT, num_slots=8, devices=2)

    write(found, tmp_path / "calibration.json")

    assert read(tmp_path / "calibration.json") == found
