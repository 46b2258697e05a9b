"""The files of a run are read by who has the token, and as they are."""

from __future__ import annotations

import asyncio
from pathlib import Path

import pytest
from fastapi import HTTPException
from tests.coordinator.test_app import World, play

from pliant.coordinator import run_files_face
from pliant.coordinator.run_files_face import audit_aside
from pliant.http.client import NEXT
from pliant.observe.log import EventLog


def test_what_a_worker_printed_is_answered_piece_by_piece_as_it_is(tmp_path: Path) -> None:
    hostile = b"\x1b[2J<script>\xff\n"
    (tmp_path / "logs").mkdir()
    (tmp_path / "logs" / "r1.log").write_bytes(hostile)
    (tmp_path / "secret").write_text("no")

    async def scene(world: World) -> None:
        async with world.people() as people, world.people(token=None) as stranger:
            assert (await stranger.get("/v1/logs/r1")).status_code == 401
            assert (await people.get("/v1/logs")).json() == {"workers": ["r1"]}
            for name in ("r2", "..%2Fsecret", "r1.log", "%00"):
                assert (await people.get(f"/v1/logs/{name}")).status_code == 404
            first = await people.get("/v1/logs/r1")
            with (tmp_path / "logs" / "r1.log").open("ab") as log:
                log.write(b"more\n")
            second = await people.get(f"/v1/logs/r1?after={first.headers[NEXT]}")

        assert (first.content, second.content) == (hostile, b"more\n")
        assert first.headers["Content-Type"] == "application/octet-stream"

    play(tmp_path, scene)


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


def test_one_audit_is_made_at_a_time(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Each is a process, and may take minutes of a job with long ledgers."""
    may_end = asyncio.Event()

    async def audited(out: Path) -> dict[str, object]:
        await may_end.wait()
        return {"out": str(out)}

    monkeypatch.setattr(run_files_face, "audit_aside", audited)

    async def scene(world: World) -> None:
        async with world.people() as people:
            first, second = (asyncio.create_task(people.get("/v1/audit")) for _ in range(2))
            (refused,), (waiting,) = await asyncio.wait(
                {first, second}, return_when=asyncio.FIRST_COMPLETED
            )
            may_end.set()

            assert (await waiting).json() == {"out": str(tmp_path)}
            told = (await refused).json()["detail"]
            assert told == "the job is being audited for somebody else; ask again"

    play(tmp_path, scene)
