"""A run that goes on is audited as far as all of its members have told what they did."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

from tests.observe.test_audit import commit_line, slot_lines, spare, steps
from tests.observe.test_condensing import run

from pliant.observe.audit import audit_run


def order(generation: int, *members: str) -> dict[str, Any]:
    seats = [{"replica": name} for name in members]
    return {"v": 1, "kind": "switch", "order": {"generation": generation, "members": seats}}


def entered(generation: int, replica: str, step: int) -> dict[str, Any]:
    told = {"replica": replica, "generation": generation, "step": step}
    return {"v": 1, "kind": "switched", **told}


def halves(*numbers: int) -> tuple[list[dict[str, Any]], list[dict[str, Any]]]:
    """Return the ledgers of two replicas that computed these steps together."""
    mine, theirs = (
        [line for step in numbers for line in (*slot_lines(step, slots=slots), commit_line(step))]
        for slots in (range(2), range(2, 4))
    )
    return mine, theirs


def test_what_a_member_has_not_told_yet_is_no_problem_while_the_run_goes_on(
    tmp_path: Path,
) -> None:
    """It is on a host that does not see the directory of the run, and says so once a second."""
    mine, theirs = halves(*range(10))
    out = run(tmp_path, r1=mine, r2=theirs[: 3 * 7])  # as far as step 6
    log = [spare(), order(1, "r1", "r2"), *(entered(1, name, 0) for name in ("r1", "r2"))]
    (out / "events.jsonl").write_text("".join(f"{json.dumps(one)}\n" for one in log))

    assert not audit_run(out).exactly_once
    audit = audit_run(out, is_growing=True)

    assert audit.exactly_once, audit.problems
    assert audit.committed_steps == 7


def test_who_is_about_to_join_is_not_waited_for(tmp_path: Path) -> None:
    out = run(tmp_path, r1=steps(*range(5)))
    log = [spare(), order(1, "r1"), entered(1, "r1", 0), order(2, "r1", "r2"), entered(2, "r2", 6)]
    (out / "events.jsonl").write_text("".join(f"{json.dumps(one)}\n" for one in log))

    assert audit_run(out, is_growing=True).committed_steps == 5


def test_a_fault_before_that_is_still_one(tmp_path: Path) -> None:
    mine, theirs = halves(*range(10))
    out = run(tmp_path, r1=mine, r2=theirs[:6] + theirs[8 : 3 * 7])
    log = [spare(), order(1, "r1", "r2"), *(entered(1, name, 0) for name in ("r1", "r2"))]
    (out / "events.jsonl").write_text("".join(f"{json.dumps(one)}\n" for one in log))

    assert not audit_run(out, is_growing=True).exactly_once
