"""The ledgers of a job are condensed when they have grown, and not all the time."""

from __future__ import annotations

import asyncio
from pathlib import Path

import pytest
from tests.observe.test_audit import steps
from tests.observe.test_condensing import left, run

from pliant.coordinator import ledger_keeper
from pliant.coordinator.ledger_keeper import LOOK_S, LedgerKeeper
from pliant.core.values import ReplicaId
from pliant.observe import condensing
from pliant.wire.messages import LedgerGrown


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

    monkeypatch.setattr(ledger_keeper, "LEDGER_BYTES", 1000)
    looked(out, 0.0, LOOK_S / 2)
    assert left(out) == ["r1", "r2", "r3"]
    looked(out, 0.0, LOOK_S + 1)
    assert left(out) == ["r3"]


def test_a_directory_that_cannot_be_written_ends_no_job(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    def fail(out: Path) -> bool:
        raise OSError(28, "No space left on device")

    monkeypatch.setattr(ledger_keeper, "condense", fail)
    monkeypatch.setattr(ledger_keeper, "LEDGER_BYTES", 10)

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
