"""A coordinator leaves snapshots of what it has taken in, and of nothing else."""

from __future__ import annotations

import asyncio
from collections.abc import Callable
from pathlib import Path

import pytest

from pliant.coordinator import snapshots
from pliant.coordinator.snapshots import Snapshots
from pliant.observe.history import SUFFIX, History, read_history
from pliant.observe.log import EventLog

EVERY = 2000


@pytest.fixture(autouse=True)
def _soon(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(snapshots, "EVERY_BYTES", EVERY)


def lead(path: Path, steps: int, beside: Callable[[], None] = lambda: None) -> History:
    """Be a coordinator that logs so many commits, and return what it knows at its end."""

    async def main() -> History:
        log = EventLog(path, job="j")
        kept = Snapshots(log)
        history = await kept.read()
        log.subscribe(history.add)
        beside()
        for step in range(steps):
            log.write("commit", step=step, generation=1, loss=1.0, samples=1)
            kept.write_if_due(history)
            await asyncio.sleep(0)
        await asyncio.get_running_loop().shutdown_default_executor()
        log.close()
        return history

    return asyncio.run(main())


def test_the_next_coordinator_reads_from_the_snapshot_on(tmp_path: Path) -> None:
    path = tmp_path / "events.jsonl"
    history = lead(path, 100)
    assert path.with_suffix(SUFFIX).exists()

    found = read_history(path)

    assert 0 < found.snapshot_at <= path.stat().st_size
    assert found.board == history.board
    assert found.offset == path.stat().st_size


def test_a_short_log_needs_none(tmp_path: Path) -> None:
    lead(tmp_path / "events.jsonl", 3)

    assert [path.name for path in tmp_path.iterdir()] == ["events.jsonl"]


def test_who_is_not_alone_at_a_log_leaves_none(tmp_path: Path) -> None:
    path = tmp_path / "events.jsonl"

    def follow() -> None:
        other = EventLog(path, job="j")
        other.write("coordinator_started", url="elsewhere")
        other.close()

    lead(path, 100, follow)

    assert not path.with_suffix(SUFFIX).exists()
    assert read_history(path).board.about["url"] == "elsewhere"


def test_a_second_life_goes_on_with_the_first_ones(tmp_path: Path) -> None:
    path = tmp_path / "events.jsonl"
    lead(path, 100)
    first = read_history(path).snapshot_at

    lead(path, 100)

    assert read_history(path).snapshot_at > first


def test_a_disk_that_takes_no_snapshot_ends_nothing(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    def fail(*_: object) -> None:
        raise OSError(28, "No space left on device")

    monkeypatch.setattr(snapshots, "write_snapshot", fail)

    assert lead(tmp_path / "events.jsonl", 100).board.committed == 100
    assert "no snapshot" in caplog.text
