"""What replicas print elsewhere lies beside what those of the coordinator's node print."""

from __future__ import annotations

from pathlib import Path

import pytest

from pliant.coordinator.output_keeper import OutputKeeper
from pliant.core.values import ReplicaId
from pliant.wire.messages import OutputGrown


def grown(offset: int, text: str, worker: int | None = None) -> OutputGrown:
    return OutputGrown(replica=ReplicaId("r2"), worker=worker, offset=offset, text=text)


def test_what_is_told_again_is_written_once_and_what_is_left_out_is_named(tmp_path: Path) -> None:
    keeper = OutputKeeper(tmp_path)
    for told in (
        grown(0, "one\n"),
        grown(0, "one\n"),
        grown(0, "one\ntwo\n"),
        grown(0, "\u00e9\n", worker=1),
        grown(100, "last\n"),
    ):
        keeper.append(told)

    said = (tmp_path / "logs" / "r2.log").read_text()
    assert said == "one\ntwo\n(pliant: 92 letters left out; its node has them)\nlast\n"
    assert (tmp_path / "logs" / "r2.1.log").read_text() == "\u00e9\n"


def test_another_coordinator_goes_on_where_it_is_told(tmp_path: Path) -> None:
    OutputKeeper(tmp_path).append(grown(0, "one\n"))

    OutputKeeper(tmp_path).append(grown(4, "two\n"))

    assert (tmp_path / "logs" / "r2.log").read_text() == "one\ntwo\n"


def test_what_cannot_be_written_ends_no_job(
    tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    (tmp_path / "logs").touch()

    OutputKeeper(tmp_path).append(grown(0, "one\n"))

    assert "what r2 printed could not be written" in caplog.text
