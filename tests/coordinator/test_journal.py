"""A coordinator leaves snapshots of what it has taken in, and of nothing else."""

from __future__ import annotations

import asyncio
import os
import resource
import threading
from collections.abc import Callable
from pathlib import Path

import pytest

from pliant.coordinator import journal
from pliant.coordinator.journal import LATE, STATE_BYTES, InputLog, Snapshots, write_unlogged_order
from pliant.core.job.state import Job, JobSettings
from pliant.core.membership.state import Membership
from pliant.core.membership.transitions import Phase
from pliant.core.values import (
    FIRST_LINEAGE,
    Generation,
    Incarnation,
    Lineage,
    Order,
    Register,
    ReplicaId,
    Restore,
    Seat,
)
from pliant.observe import parts
from pliant.observe.audit_plan import first_step_of
from pliant.observe.goodput import goodput_of
from pliant.observe.history import SUFFIX, History, read_history, snapshotted
from pliant.observe.log import EventLog, Record
from pliant.observe.reading import every, left
from pliant.observe.timeline import Timeline

EVERY = 2000


@pytest.fixture(autouse=True)
def _soon(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(journal, "PART_BYTES", EVERY)


def lead(
    path: Path, steps: int, beside: Callable[[], None] = lambda: None, *, incarnation: int = 0
) -> History:
    """Be a coordinator that logs so many commits, and return what it knows at its end."""

    async def main() -> History:
        log = EventLog(path, job="j")
        kept = Snapshots(log)
        history = await kept.read()
        log.subscribe(history.add)
        if incarnation:
            log.speak_for(incarnation)
        beside()
        for step in range(steps):
            log.write("commit", step=step, generation=1, loss=1.0, samples=1)
            kept.write_if_due(history)
            if kept._writing is not None:
                await kept._writing
        log.close()
        return history

    return asyncio.run(main())


def test_the_next_coordinator_reads_from_the_snapshot_on(tmp_path: Path) -> None:
    path = tmp_path / "events.jsonl"
    history = lead(path, 100)
    assert path.with_suffix(SUFFIX).exists()

    found = read_history(path)

    assert found.snapshot_at > 0
    assert found.board == history.board
    assert found.position == parts.position(parts.growing(path), path.stat().st_size)


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


def test_a_part_is_closed_once_there_is_a_snapshot_of_it(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """A long run has a bound on its disk, and nothing that is shown of it is missing."""
    monkeypatch.setattr(parts, "KEPT_PARTS", 2)
    path = tmp_path / "events.jsonl"

    history = lead(path, 300)

    assert len(parts.closed(path)) <= 3
    assert parts.closed(path)[0] > 3
    assert sum(each.stat().st_size for each in tmp_path.glob("*.jsonl")) < 6 * EVERY
    found = read_history(path)
    assert found.board == history.board
    assert found.board.timeline.num_commits == 300


def test_without_its_snapshot_of_a_cut_log_is_told_what_is_left(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(parts, "KEPT_PARTS", 2)
    path = tmp_path / "events.jsonl"
    lead(path, 300)
    path.with_suffix(SUFFIX).unlink()

    found = read_history(path)

    assert found.board.committed == 300
    assert 0 < found.board.timeline.num_commits < 300
    assert goodput_of(left(path)).is_partial


def test_what_an_older_coordinator_still_writes_is_taken_in(tmp_path: Path) -> None:
    """Its commits are the workers' own; and a log with two writers is cut as any other."""
    path = tmp_path / "events.jsonl"

    def write_late() -> None:
        other = EventLog(path, job="j")
        other.speak_for(1)
        other.write("commit", step=-1, generation=0, loss=7.0, samples=1)
        other.close()

    lead(path, 100, write_late, incarnation=2)

    assert sum(record["kind"] == "commit" for record in every(path)) == 101
    assert parts.closed(path)
    assert read_history(path).snapshot_at > parts.position(1, 0)


def test_an_older_coordinator_leaves_the_log_of_a_newer_one_alone(tmp_path: Path) -> None:
    path = tmp_path / "events.jsonl"

    def take_over() -> None:
        other = EventLog(path, job="j")
        other.speak_for(2)
        other.write("coordinator_started", url="elsewhere")
        other.close()

    lead(path, 100, take_over, incarnation=1)

    assert not path.with_suffix(SUFFIX).exists()
    assert not parts.closed(path)


def test_a_second_life_goes_on_with_the_first_ones(tmp_path: Path) -> None:
    path = tmp_path / "events.jsonl"
    lead(path, 100)
    first = read_history(path).snapshot_at

    lead(path, 100)

    assert read_history(path).snapshot_at > first


def test_without_a_free_descriptor_at_the_end_of_a_part_the_job_goes_on(
    tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    """Without the list of the parts the next one would be the first, and take its place."""
    path = tmp_path / "events.jsonl"

    async def main() -> None:
        log = EventLog(path, job="j")
        kept = Snapshots(log)
        history = await kept.read()
        log.subscribe(history.add)
        limit, most = resource.getrlimit(resource.RLIMIT_NOFILE)
        for step in range(100):
            log.write("commit", step=step, generation=1, loss=1.0, samples=1)
            is_short = log.size() >= EVERY and not caplog.text
            if is_short:
                free = os.dup(log._fd)
                os.close(free)
                resource.setrlimit(resource.RLIMIT_NOFILE, (free, most))
            try:
                kept.write_if_due(history)
            finally:
                resource.setrlimit(resource.RLIMIT_NOFILE, (limit, most))
            if kept._writing is not None:
                await kept._writing
        log.close()

    asyncio.run(main())

    assert "Too many open files" in caplog.text
    assert parts.closed(path)[:1] == [0]
    assert [record["step"] for record in every(path) if "step" in record] == list(range(100))


def test_storage_that_never_answers_does_not_hold_up_the_end(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    answers, ended = threading.Event(), threading.Event()
    monkeypatch.setattr(journal, "write_snapshot", lambda *_: answers.wait())

    async def main() -> None:
        log = EventLog(tmp_path / "events.jsonl", job="j")
        kept = Snapshots(log)
        history = await kept.read()
        while kept._writing is None:
            log.write("note", text="nothing")
            kept.write_if_due(history)
        await asyncio.sleep(0)
        log.close()

    def live() -> None:
        asyncio.run(main())
        ended.set()

    threading.Thread(target=live, daemon=True).start()
    try:
        assert ended.wait(20)
    finally:
        answers.set()


def test_who_looks_at_a_run_that_is_over_reads_little(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(journal, "LAST_BYTES", 1000)
    path = tmp_path / "events.jsonl"

    async def main() -> int:
        log = EventLog(path, job="j")
        kept = Snapshots(log)
        history = await kept.read()
        log.subscribe(history.add)
        for step in range(100):
            log.write("commit", step=step, generation=1)
        await kept.write_last(history)
        ended_at = log.size()
        log.write("job_ended", exit_code=0, reason="done")
        log.close()
        return ended_at

    ended_at = asyncio.run(main())

    assert snapshotted(path).position == ended_at
    assert read_history(path).board.committed == 100
    assert read_history(path).board.exit_code == 0


def test_storage_that_never_answers_does_not_hold_up_the_last_snapshot(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    answers = threading.Event()
    monkeypatch.setattr(journal, "write_snapshot", lambda *_: answers.wait())
    monkeypatch.setattr(journal, "LAST_BYTES", 0)
    monkeypatch.setattr(journal, "LAST_S", 0.05)

    async def main() -> None:
        log = EventLog(tmp_path / "events.jsonl", job="j")
        kept = Snapshots(log)
        await kept.write_last(await kept.read())
        log.close()

    try:
        asyncio.run(asyncio.wait_for(main(), 20))
    finally:
        answers.set()


def test_a_disk_that_takes_no_snapshot_ends_nothing(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    def fail(*_: object) -> None:
        raise OSError(28, "No space left on device")

    monkeypatch.setattr(journal, "write_snapshot", fail)

    assert lead(tmp_path / "events.jsonl", 100).board.committed == 100
    assert "no snapshot" in caplog.text


def job_in(phase: Phase) -> Job:
    return Job(membership=Membership(incarnation=Incarnation(1), phase=phase))


def test_the_state_is_logged_between_changes_or_once_the_log_has_grown_much(tmp_path: Path) -> None:
    log = EventLog(tmp_path / "events.jsonl", job="j")
    records: list[Record] = []
    log.subscribe(records.append)
    inputs = InputLog(log, JobSettings())

    for phase, grown, is_written in (
        (Phase.STEADY, STATE_BYTES - 1, False),
        (Phase.SWITCHING, STATE_BYTES, False),
        (Phase.STEADY, STATE_BYTES, True),
        (Phase.PREPARING, LATE * STATE_BYTES, True),
    ):
        records.clear()
        log.written = inputs._state_at + grown
        inputs.write_state_if_due(job_in(phase))
        assert [record["kind"] for record in records] == ["core_state"] * is_written

    log.close()


def order(number: int, *names: str, restore: Restore | None = None) -> Order:
    seats = tuple(Seat(replica=ReplicaId(name), endpoint=f"{name}:1") for name in names)
    return Order(generation=Generation(number), members=seats, restore=restore)


def register(newest: Order, *leavers: str) -> Register:
    return Register(
        incarnation=Incarnation(1),
        number=newest.generation,
        lineage=FIRST_LINEAGE,
        newest=newest,
        leavers=tuple(map(ReplicaId, leavers)),
    )


def knowing(number: int, *names: str) -> Timeline:
    return Timeline(members={number: names}, generation=number)


@pytest.mark.parametrize(
    ("known", "recorded", "kinds"),
    [
        (Timeline(), register(order(1, "r1", "r2")), ["switch"]),
        (knowing(1, "r1", "r2"), register(order(2, "r1")), ["reform"]),
        (knowing(1, "r1", "r2"), register(order(2, "r1"), "r2"), ["switch"]),
        (knowing(1, "r1"), register(order(2, "r1", "r2")), ["switch"]),
        (knowing(2, "r1"), register(order(2, "r1")), []),
        (Timeline(), None, []),
    ],
)
def test_an_order_that_is_only_in_the_register_is_logged(
    known: Timeline, recorded: Register | None, kinds: list[str], tmp_path: Path
) -> None:
    records: list[Record] = []
    log = EventLog(tmp_path / "events.jsonl", job="j")
    log.subscribe(records.append)

    write_unlogged_order(log, recorded, known)

    assert [record["kind"] for record in records] == kinds
    log.close()


def test_an_audit_finds_where_a_run_began_whose_first_order_was_not_logged(tmp_path: Path) -> None:
    """It took all steps before for missing."""
    restore = Restore(lineage=Lineage(1), checkpoint="step-9", committed=9)
    records: list[Record] = []
    log = EventLog(tmp_path / "events.jsonl", job="j")
    log.subscribe(records.append)

    write_unlogged_order(log, register(order(1, "r1", restore=restore)), Timeline())
    log.write("reform", to=["r1"], order=order(2, "r1"))

    assert first_step_of(records) == 9
    log.close()


@pytest.mark.parametrize(("meanwhile", "first_step"), [("spare", 9), ("commit", 0)])
def test_an_audit_begins_where_a_coordinator_without_files_has_restored(
    meanwhile: str, first_step: int, tmp_path: Path
) -> None:
    """Nobody follows the last order any more; or those who do have told of all before."""
    records: list[Record] = []
    log = EventLog(tmp_path / "events.jsonl", job="j")
    log.subscribe(records.append)
    restore = Restore(lineage=Lineage(2), checkpoint="step-9", committed=9)

    write_unlogged_order(log, register(order(1, "r1")), Timeline())
    log.write(meanwhile, replica="r1")
    log.write("switch", to=["r2"], order=order(2, "r2", restore=restore))

    assert first_step_of(records) == first_step
    log.close()
