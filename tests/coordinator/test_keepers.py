"""The ledgers of a job are condensed when they have grown, and not all the time."""

from __future__ import annotations

import asyncio
from pathlib import Path

import pytest
from tests.observe.test_audit import steps
from tests.observe.test_condensing import left, run

from pliant.coordinator import keepers
from pliant.coordinator.keepers import LOOK_S, LedgerKeeper, OutputKeeper
from pliant.core.values import ReplicaId
from pliant.observe import condensing
from pliant.wire.messages import LedgerGrown, OutputGrown


def looked(out: Path, *moments_s: float) -> None:
    """Let a keeper look at these moments, and do what it finds to do."""

    async def look() -> None:
        keeper = LedgerKeeper(out)
        for now_s in moments_s:
            keeper.look_if_due(now_s)
            if keeper._looking is not None:
                await keeper._looking

    asyncio.run(look())


def test_it_condenses_what_is_more_than_the_bound(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(condensing.condense, "__kwdefaults__", {"kept_steps": 5})
    out = run(tmp_path, r1=steps(*range(9)), r2=steps(*range(9, 12)), r3=steps(*range(12, 20)))

    looked(out, 0.0, LOOK_S + 1)
    assert left(out) == ["r1", "r2", "r3"]

    monkeypatch.setattr(keepers, "LEDGER_BYTES", 1000)
    looked(out, 0.0, LOOK_S / 2)
    assert left(out) == ["r1", "r2", "r3"]
    looked(out, 0.0, LOOK_S + 1)
    assert left(out) == ["r3"]


def test_a_directory_that_cannot_be_written_ends_no_job(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    def fail(out: Path) -> bool:
        raise OSError(28, "No space left on device")

    monkeypatch.setattr(keepers, "condense", fail)
    monkeypatch.setattr(keepers, "LEDGER_BYTES", 10)

    looked(run(tmp_path, r1=steps(0)), *(at * (LOOK_S + 1) for at in range(9)))

    assert caplog.text.count("the ledgers could not be condensed") == 1  # not read at each look


def test_what_replicas_write_elsewhere_is_written_once(tmp_path: Path) -> None:
    """An agent says again what no coordinator has heard; another coordinator may hear it."""

    def grown(part: int, offset: int, lines: str) -> LedgerGrown:
        return LedgerGrown(replica=ReplicaId("r2"), part=part, offset=offset, lines=lines)

    first, second = LedgerKeeper(tmp_path), LedgerKeeper(tmp_path)
    for keeper, told in (
        (first, grown(0, 0, "a\n")),
        (first, grown(0, 2, "b\n")),
        (first, grown(0, 2, "b\n")),
        (second, grown(0, 0, "a\nb\nc\n")),
        (second, grown(1, 0, "d\n")),
    ):
        keeper.append(told)

    assert (tmp_path / "ledger" / "r2.jsonl").read_text() == "a\nb\nc\n"
    assert (tmp_path / "ledger" / "r2.000001.jsonl").read_text() == "d\n"


def test_a_coordinator_without_files_does_not_begin_a_ledger_in_its_middle(tmp_path: Path) -> None:
    """An agent's connection may still hold what the coordinator before was to hear."""
    keeper = LedgerKeeper(tmp_path)

    for offset, lines in ((4, "c\n"), (0, "a\nb\nc\n"), (6, "d\n")):
        keeper.append(LedgerGrown(replica=ReplicaId("r2"), part=0, offset=offset, lines=lines))

    assert (tmp_path / "ledger" / "r2.jsonl").read_text() == "a\nb\nc\nd\n"


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
