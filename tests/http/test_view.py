"""The view of a run over HTTP, and the stream that says when it has changed."""

from __future__ import annotations

import asyncio
import json
from pathlib import Path

import httpx
import pytest
from fastapi import FastAPI
from tests.observe.test_view import RECORDED

from pliant.http import view as view_over_http
from pliant.http.app import new_app, new_router
from pliant.http.server import answering, open_socket, url_of
from pliant.http.view import add_view
from pliant.observe.view import LogView

pytestmark = pytest.mark.timeout(30)


def served(log: Path) -> FastAPI:
    app, people = new_app("test", None, token=None, whose="the run"), new_router()
    add_view(people, LogView(log))
    app.include_router(people)
    return app


@pytest.fixture
def log(tmp_path: Path) -> Path:
    path = tmp_path / "events.jsonl"
    path.write_bytes(RECORDED.read_bytes())
    return path


def test_a_view_is_what_was_asked_for(log: Path) -> None:
    async def play() -> None:
        transport = httpx.ASGITransport(served(log))
        async with httpx.AsyncClient(transport=transport, base_url="http://run") as client:
            whole = (await client.get("/v1/view")).json()
            middle = (whole["from"] + whole["to"]) / 2
            part = await client.get("/v1/view", params={"from": middle, "points": 5})

            assert whole["headline"]["step"] == 91
            assert len(part.json()["steps"]["at"]) <= 5
            assert part.json()["from"] == pytest.approx(middle)
            for wrong in ({"points": 1}, {"points": 10**6}, {"from": "x"}, {"to": "inf"}):
                assert (await client.get("/v1/view", params=wrong)).status_code == 422

    asyncio.run(play())


def test_a_stream_says_each_change_and_ends_with_the_job(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(view_over_http, "LOOK_S", 0.01)
    path, lines = tmp_path / "events.jsonl", RECORDED.read_bytes().splitlines(keepends=True)
    path.write_bytes(b"".join(lines[:60]))

    async def play() -> list[dict[str, object]]:
        sock = open_socket("127.0.0.1", 0)
        said = []
        async with (
            answering(served(path), sock),
            httpx.AsyncClient(base_url=url_of(sock), trust_env=False) as client,
            client.stream("GET", "/v1/changes") as stream,
        ):
            assert stream.headers["Content-Type"].startswith("text/event-stream")
            async for line in stream.aiter_lines():
                if line.startswith("data: "):
                    said.append(json.loads(line.removeprefix("data: ")))
                    with path.open("ab") as file:
                        file.write(b"".join(lines[60:]))
        return said

    first, last = asyncio.run(play())

    assert first["state"] == "training"
    assert (last["state"], last["is_over"]) == ("suspended", True)
    assert isinstance(first["seq"], int)
    assert isinstance(last["seq"], int)
    assert first["seq"] < last["seq"]


def test_who_comes_last_is_told_to_ask_again_and_again(
    log: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(view_over_http, "MOST_STREAMS", 0)

    async def play() -> None:
        transport = httpx.ASGITransport(served(log))
        async with httpx.AsyncClient(transport=transport, base_url="http://run") as client:
            assert (await client.get("/v1/changes")).status_code == 503

    asyncio.run(play())
