"""What is asked without the token is not even read, and nobody may send without end."""

from __future__ import annotations

import asyncio
import os
import threading
from collections.abc import AsyncIterator, Callable, Iterator
from pathlib import Path

import httpx
import pytest
from fastapi import FastAPI, Request
from starlette.types import Message, Receive, Scope, Send

from pliant.http import app as app_of_all
from pliant.http.app import MAX_BODY_BYTES, Bearer, add_events, new_app, new_router
from pliant.observe.log import Record


def answer(method: str, path: str, *, token: str, num_bytes: int = 0) -> tuple[int, int]:
    """Ask an app behind a ``Bearer``; return the status code and the bytes that it has read."""
    read = 0
    app = FastAPI()

    @app.post("/v1/length")
    @app.post("/length")
    async def length(request: Request) -> int:
        return len(await request.body())

    async def counted(scope: Scope, receive: Receive, send: Send) -> None:
        async def receiving() -> Message:
            nonlocal read
            message = await receive()
            read += len(message.get("body", b""))
            return message

        await Bearer(app, token="secret", whose="the job")(scope, receiving, send)

    async def asked() -> int:
        transport = httpx.ASGITransport(counted)
        async with httpx.AsyncClient(transport=transport, base_url="http://job") as client:

            async def body() -> AsyncIterator[bytes]:
                for _ in range(num_bytes // 1024):
                    yield bytes(1024)

            headers = {"Authorization": f"Bearer {token}"}
            reply = await client.request(method, path, content=body(), headers=headers)
            return reply.status_code

    return asyncio.run(asked()), read


@pytest.mark.parametrize("token", ["", "Secret", "secret2"])
def test_without_the_token_nothing_is_read(token: str) -> None:
    assert answer("POST", "/v1/length", token=token, num_bytes=1 << 20) == (401, 0)
    assert answer("POST", "/v1/unknown", token=token, num_bytes=1 << 20) == (401, 0)


def test_a_body_has_an_end() -> None:
    assert answer("POST", "/v1/length", token="secret", num_bytes=1024) == (200, 1024)

    code, read = answer("POST", "/v1/length", token="secret", num_bytes=64 << 20)

    assert code == 413
    assert read <= MAX_BODY_BYTES + 1024


def test_what_is_not_below_v1_needs_no_token() -> None:
    assert answer("POST", "/length", token="", num_bytes=1024) == (200, 1024)


def test_a_log_that_never_answers_does_not_keep_a_server_from_ending(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    asked, never = threading.Event(), threading.Event()

    def stuck(path: Path, after: int) -> Iterator[tuple[int, Record]]:
        asked.set()
        never.wait()
        yield from ()

    monkeypatch.setattr(app_of_all, "follow", stuck)
    app, router = new_app("pliant job", None, token=None, whose="the job"), new_router()
    add_events(router, tmp_path / "events.jsonl")
    app.include_router(router)

    async def ask_and_end() -> None:
        transport = httpx.ASGITransport(app)
        async with httpx.AsyncClient(transport=transport, base_url="http://job") as client:
            asking = asyncio.create_task(client.get("/v1/events"))
            while not asked.is_set():
                await asyncio.sleep(0.01)
            asking.cancel()
            await asyncio.gather(asking, return_exceptions=True)

    before = threading.enumerate()
    asyncio.run(ask_and_end())
    awaited = [one for one in threading.enumerate() if one not in before and not one.daemon]
    never.set()

    assert awaited == [], "the process would wait for them"


@pytest.mark.parametrize("put", [Path.mkdir, os.mkfifo])
def test_a_log_that_cannot_be_read_is_answered_with_a_sentence(
    tmp_path: Path, put: Callable[[Path], None]
) -> None:
    put(tmp_path / "events.jsonl")
    app, router = new_app("pliant job", None, token=None, whose="the job"), new_router()
    add_events(router, tmp_path / "events.jsonl")
    app.include_router(router)

    async def asked() -> httpx.Response:
        transport = httpx.ASGITransport(app)
        async with httpx.AsyncClient(transport=transport, base_url="http://job") as client:
            return await client.get("/v1/events")

    reply = asyncio.run(asked())

    assert reply.status_code == 503
    assert reply.json() == {"detail": "the event log cannot be read: it is no regular file"}
