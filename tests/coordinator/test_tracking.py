"""Each value of a step reaches a tracker once, whatever becomes of job, coordinator and tracker."""

from __future__ import annotations

import json
from collections.abc import Mapping
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import pytest
from tests.observe.story import eventful

from pliant.coordinator import tracking as module
from pliant.coordinator.trackers import check_place
from pliant.coordinator.tracking import tracking
from pliant.core.errors import ConfigError
from pliant.machine import run_files
from pliant.observe.status import Board, board_of


@dataclass
class Kept:
    """A tracker in memory, which fails as often as it is told to."""

    rows: list[tuple[int, str, float]] = field(default_factory=list)
    notes: list[tuple[int, str, str]] = field(default_factory=list)
    waiting: list[tuple[int, str, float]] = field(default_factory=list)
    failures: int = 0
    ends: list[str] = field(default_factory=list)

    def begin(self, job: str, known_as: str, last: Mapping[str, int]) -> tuple[str, dict[str, int]]:
        self.waiting.clear()
        return known_as or f"run of {job}", dict(last)

    def log(self, step: int, values: Mapping[str, float]) -> None:
        self.waiting += [(step, name, value) for name, value in values.items()]

    def note(self, step: int, name: str, text: str) -> None:
        self.notes.append((step, name, text))

    def flush(self) -> None:
        if self.failures:
            self.failures -= 1
            raise OSError("the server is away")
        self.rows += self.waiting
        self.waiting.clear()

    def close(self, state: str, final: Mapping[str, str]) -> None:
        self.ends.append(state)


@pytest.fixture
def kept(monkeypatch: pytest.MonkeyPatch) -> Kept:
    found = Kept()
    monkeypatch.setattr(module, "tracker_of", lambda _: found)
    monkeypatch.setattr(module, "LOOK_S", 0.01)
    return found


def log(out: Path, *rows: dict[str, Any]) -> None:
    with (out / run_files.METRICS).open("a") as file:
        file.writelines(json.dumps(row) + "\n" for row in rows)


def life(out: Path, board: Board | None = None) -> None:
    """Be a coordinator for a moment."""
    known = board or Board()
    with tracking(["mlflow:there"], out, "gpt", lambda: known):
        pass


def test_several_calls_in_a_step_and_nan_arrive_and_a_damaged_line_does_not(
    tmp_path: Path, kept: Kept
) -> None:
    log(tmp_path, {"step": 0, "loss": 2.0}, {"step": 0, "lr": 0.1}, {"step": 1, "loss": "inf"})
    with (tmp_path / run_files.METRICS).open("a") as file:
        file.write("{torn\n")

    life(tmp_path)

    assert kept.rows == [(0, "loss", 2.0), (0, "lr", 0.1), (1, "loss", float("inf"))]
    assert kept.ends == ["starting"]


def test_steps_that_are_done_again_after_a_restore_are_passed_on_once(
    tmp_path: Path, kept: Kept
) -> None:
    log(tmp_path, *({"step": step, "loss": 1.0} for step in range(4)))
    life(tmp_path)
    log(tmp_path, *({"step": step, "loss": 1.0} for step in range(2, 6)))  # from a checkpoint
    life(tmp_path)

    assert [step for step, _, _ in kept.rows] == [0, 1, 2, 3, 4, 5]


def test_a_tracker_that_is_away_gets_everything_later(tmp_path: Path, kept: Kept) -> None:
    kept.failures = 1
    log(tmp_path, {"step": 0, "loss": 1.0})
    life(tmp_path)
    log(tmp_path, {"step": 1, "loss": 0.5})
    life(tmp_path)

    assert kept.rows == [(0, "loss", 1.0), (1, "loss", 0.5)]


def test_resizes_are_told_once_each(tmp_path: Path, kept: Kept) -> None:
    board = board_of(eventful().records)

    life(tmp_path, board)
    life(tmp_path, board)

    assert [name for _, name, _ in kept.notes] == ["2.join", "3.drain", "4.loss", "5.join"]
    assert kept.notes[0][2].endswith("grow from 2 to 4 replicas: 4 asked for; 4 replicas")
    assert [(name, size) for _, name, size in kept.rows] == [
        ("pliant/replicas", size) for size in (4.0, 3.0, 2.0, 3.0)
    ]


@pytest.mark.parametrize("place", ["tensorboard", "tensorboard:", "aim:there"])
def test_what_names_no_tracker_is_refused(place: str) -> None:
    with pytest.raises(ConfigError, match="must be one of tensorboard:PLACE"):
        check_place(place)
