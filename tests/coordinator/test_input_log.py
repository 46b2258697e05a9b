"""What the core knows is logged between changes, and amid them only if the log grows and grows."""

from __future__ import annotations

from pathlib import Path

from pliant.coordinator.input_log import LATE, STATE_BYTES, InputLog
from pliant.core.job.state import Job, JobSettings
from pliant.core.membership.state import Membership
from pliant.core.membership.transitions import Phase
from pliant.core.values import Incarnation
from pliant.observe.log import EventLog, Record


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
