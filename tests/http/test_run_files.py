"""What lies in the directory of a run, over HTTP."""

from __future__ import annotations

import asyncio
from pathlib import Path

import pytest
from fastapi import HTTPException

from pliant.http.run_files import audit_aside
from pliant.observe.log import EventLog


def test_an_audit_is_what_the_command_prints(tmp_path: Path) -> None:
    EventLog(tmp_path / "events.jsonl", job="j").close()

    found = asyncio.run(audit_aside(tmp_path))

    assert found["committed_steps"] == 0
    assert found["samples_exactly_once"] in (True, False)
    assert found["goodput"]["committed_steps"] == 0


def test_of_a_run_that_is_gone_it_is_said_that_there_is_nothing_to_audit(tmp_path: Path) -> None:
    with pytest.raises(HTTPException) as caught:
        asyncio.run(audit_aside(tmp_path))

    assert caught.value.status_code == 409
    assert caught.value.detail.startswith("it cannot be audited: ")


def test_an_audit_for_which_no_process_can_be_started_is_refused_in_a_sentence(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    async def refuse(*_: object, **__: object) -> None:
        raise OSError(24, "Too many open files")

    monkeypatch.setattr(asyncio, "create_subprocess_exec", refuse)

    with pytest.raises(HTTPException) as caught:
        asyncio.run(audit_aside(tmp_path))

    assert caught.value.status_code == 409
    assert caught.value.detail == (
        "it cannot be audited here ([Errno 24] Too many open files); run pliant audit on the "
        "job's host"
    )
