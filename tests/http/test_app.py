"""What is asked without the token is not even read, and nobody may send without end."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator

import httpx
import pytest
from fastapi import FastAPI, Request
from starlette.types import Message, Receive, Scope, Send

from pliant.http.app import MAX_BODY_BYTES, Bearer


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
