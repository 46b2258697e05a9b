"""Ledgers are kept short, and the audit of the whole run finds what it would have found."""

from __future__ import annotations

import fcntl
import json
from collections.abc import Callable, Iterator
from dataclasses import replace
from pathlib import Path

import pytest
from tests.machine.nfs import lock_as_on_nfs
from tests.observe.test_audit import PLAN, Line, commit_line, slot_lines, spare, steps

from pliant.core.step import order
from pliant.engine.data.ledger import Ledger
from pliant.machine import run_files
from pliant.observe.audit import Audit, audit_run
from pliant.observe.condensing import condense, ledger_bytes
from pliant.observe.ledgers import LedgerFile, read_condensed

DRAWS = [at % 29 for at in range(37)]


def run(out: Path, plan: Line | None = None, **ledgers: list[Line]) -> Path:
    """Write the log and the ledgers of a run; a part is called ``r1__000001``."""
    (out / run_files.LEDGER).mkdir(parents=True)
    (out / run_files.EVENTS).write_text(json.dumps(plan or spare()) + "\n")
    for name, lines in ledgers.items():
        path = out / run_files.LEDGER / f"{name.replace('__', '.')}.jsonl"
        path.write_text("".join(json.dumps(line) + "\n" for line in lines))
    return out


def left(out: Path) -> list[str]:
    return sorted(path.stem for path in (out / run_files.LEDGER).iterdir())


def same(before: Audit, after: Audit) -> bool:
    return replace(after, condensed_steps=0) == before


def test_what_was_audited_goes_and_the_audit_stays_as_it_was(tmp_path: Path) -> None:
    unused = [{**line, "unused": True} for line in slot_lines(3)]
    dead = [*steps(*range(3)), *unused, commit_line(3), *slot_lines(4, slots=range(2))]
    out = run(
        tmp_path,
        r1=[*steps(*range(3)), *slot_lines(3, slots=range(0)), commit_line(3)],
        r2=dead,
        r3=[*steps(*range(4, 9), generation=2)],
        r3__000001=[*steps(*range(9, 23), generation=2)],
    )
    before = audit_run(out)
    assert before.exactly_once

    assert condense(out, kept_steps=9)
    once = audit_run(out)
    condense(out, kept_steps=2)
    twice = audit_run(out)

    assert same(before, once)
    assert same(before, twice)
    assert (once.condensed_steps, twice.condensed_steps) == (14, 21)
    assert (before.unused_samples, before.uncommitted, before.duplicates) == (8, 2, 12)
    assert left(out) == ["r3.000001"]
    assert not condense(out, kept_steps=2)


def test_a_restore_into_what_was_condensed_is_audited_like_any_other(tmp_path: Path) -> None:
    first = steps(*range(16))
    second = steps(*range(6, 16), lineage=2, generation=3)
    out = run(tmp_path, r1=first)
    condense(out, kept_steps=4)
    (out / run_files.LEDGER / "r2.jsonl").write_text("".join(json.dumps(x) + "\n" for x in second))
    whole = run(tmp_path / "whole", r1=first, r2=second)

    audit = audit_run(out)

    assert same(audit_run(whole), audit)
    assert (audit.superseded, audit.committed_steps) == (10, 16)
    assert condense(out, kept_steps=2)
    assert same(audit_run(whole), audit_run(out))


@pytest.mark.parametrize(
    ("lines", "problem"),
    [
        (
            [*steps(0), *slot_lines(1, slots=range(3)), commit_line(1), *steps(*range(2, 9))],
            "step 1 was committed in generation 1, but nobody recorded its micro-batch 3",
        ),
        (steps(0, 1, *range(3, 9)), "step 2 was never committed although a later one was"),
    ],
)
def test_what_was_wrong_stays_wrong_when_its_lines_are_gone(
    tmp_path: Path, lines: list[Line], problem: str
) -> None:
    out = run(tmp_path, r1=lines, r2=steps(9))

    assert condense(out, kept_steps=1)

    assert left(out) == ["r2"]
    assert problem in audit_run(out).problems


def test_a_gap_after_what_was_condensed_is_found(tmp_path: Path) -> None:
    out = run(tmp_path, r1=steps(*range(8)))
    condense(out, kept_steps=2)
    (out / run_files.LEDGER / "r1.jsonl").write_text(
        "".join(json.dumps(line) + "\n" for line in steps(7, 8))
    )

    assert audit_run(out).problems[0] == "step 6 was never committed although a later one was"


@pytest.mark.parametrize("flock", [fcntl.flock, lock_as_on_nfs])
def test_the_part_that_somebody_writes_to_stays(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, flock: Callable[[int, int], None]
) -> None:
    monkeypatch.setattr(fcntl, "flock", flock)
    monkeypatch.setattr("pliant.engine.data.ledger.PART_BYTES", 1000)
    out = run(tmp_path)
    ledger = Ledger(out / run_files.LEDGER / "r1.jsonl")
    for line in steps(*range(30)):
        if "commit" in line:
            ledger.commit(lineage=1, step=line["step"], generation=1, digest=line["digest"])
        else:
            ledger.slot(**line, is_used=True)
    before, size = audit_run(out), ledger_bytes(out)

    assert condense(out, kept_steps=1)

    assert len(left(out)) <= 2
    assert ledger_bytes(out) < size / 4
    ledger.commit(lineage=1, step=29, generation=1, digest="d29")
    ledger.close()
    assert same(before, audit_run(out))
    assert before.exactly_once


def test_a_part_that_cannot_be_opened_keeps_no_other(tmp_path: Path) -> None:
    out = run(tmp_path, r1=steps(*range(8)), r2=steps(*range(8)), r3=steps(*range(8, 16)))
    ledgers = out / run_files.LEDGER
    elsewhere = (ledgers / "r1.jsonl").rename(tmp_path / "elsewhere")
    (ledgers / "r1.jsonl").symlink_to(elsewhere)

    with pytest.raises(OSError, match=r"r1\.jsonl"):
        condense(out, kept_steps=4)

    assert left(out) == ["r1", "r3"]


def test_ledgers_that_are_not_in_order_are_condensed_within_bounds(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    lines = steps(*range(12))
    lines[3], lines[30] = lines[30], lines[3]
    out = run(tmp_path, r1=lines, r2=steps(*range(12, 20)))
    before = audit_run(out)
    assert before.exactly_once

    monkeypatch.setattr("pliant.observe.condensing.MOST_WHOLE_BYTES", 100)
    assert not condense(out, kept_steps=2)
    monkeypatch.undo()
    assert condense(out, kept_steps=2)

    assert left(out) == ["r2"]
    assert same(before, audit_run(out))


def test_a_part_with_a_new_step_above_an_old_one_stays(tmp_path: Path) -> None:
    out = run(tmp_path, r1=[*steps(*range(12)), slot_lines(2)[0]], r2=steps(12))
    before = audit_run(out)

    assert not condense(out, kept_steps=5)

    assert left(out) == ["r1", "r2"]
    after = audit_run(out)
    assert before.exactly_once
    assert after.exactly_once
    assert (before.duplicates, after.duplicates) == (1, 0)  # what comes late counts for nothing


def test_commits_are_looked_for_once(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    out = run(tmp_path, r1=steps(*range(5)), r2=steps(*range(5, 9)))
    looked_at, commits = [], LedgerFile.commits

    def look(ledger: LedgerFile) -> Iterator[Line]:
        looked_at.append(ledger.replica)
        return commits(ledger)

    monkeypatch.setattr(LedgerFile, "commits", look)

    assert condense(out, kept_steps=2)
    assert looked_at == ["r1", "r2"]


def test_of_a_sampler_whole_epochs_go(tmp_path: Path) -> None:
    plan = replace(PLAN, sampler="Weighted", num_draws=37, first_draws=order.digest(DRAWS))
    identity = spare()["identity"] + [
        ["sampler", "Weighted"],
        ["num_draws", "37"],
        ["first_draws", plan.first_draws],
    ]
    lines = []
    for step in range(13):
        for slot in range(4):
            drawn = [DRAWS[at] for at in plan.slot_positions(step, slot)]
            lines.append({**slot_lines(0)[slot], "step": step, "ids": drawn})
        draws = order.digest([DRAWS[at] for at in plan.positions(step)])
        lines.append({**commit_line(step), "draws": draws})
    out = run(tmp_path, {**spare(), "identity": identity}, r1=lines[:40], r2=lines[40:])
    before = audit_run(out)
    assert before.exactly_once

    assert condense(out, kept_steps=1)

    condensed = read_condensed(out)
    assert condensed is not None
    assert condensed.until == 10
    assert left(out) == ["r2"]
    assert same(before, audit_run(out))


def test_the_audit_goes_on_in_an_epoch_that_no_memory_could_hold(tmp_path: Path) -> None:
    plan = replace(PLAN, num_samples=10**15)
    out = run(tmp_path, spare(plan=plan), r1=steps(*range(9), plan=plan), r2=steps(9, plan=plan))
    before = audit_run(out)

    assert condense(out, kept_steps=1)

    assert left(out) == ["r2"]
    assert same(before, audit_run(out))


def test_a_snapshot_that_cannot_be_read_certifies_nothing(tmp_path: Path) -> None:
    out = run(tmp_path, r1=steps(*range(12)))
    (out / run_files.CONDENSED).write_text("{")

    assert "cannot be read" in audit_run(out).problems[0]


def test_without_a_plan_nothing_goes(tmp_path: Path) -> None:
    out = run(tmp_path, {"v": 1, "kind": "note"}, r1=steps(*range(12)))

    assert not condense(out, kept_steps=1)
    assert left(out) == ["r1"]
