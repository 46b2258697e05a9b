"""What every served app has: a token, readable refusals, a sign of life, pages of its log.

Owns these, once.  The bearer's token (RFC 6750) is checked before anything else of a request is
read.  Knows nothing of what else is served.
"""

from __future__ import annotations

import hmac
from itertools import islice
from pathlib import Path
from typing import Annotated, Any

from fastapi import APIRouter, FastAPI, HTTPException, Query, Request, status
from fastapi.exceptions import RequestValidationError
from fastapi.responses import JSONResponse
from pydantic import BaseModel, ConfigDict
from starlette.datastructures import Headers
from starlette.types import ASGIApp, Message, Receive, Scope, Send

from pliant.observe.log import follow

MAX_BODY_BYTES = 1 << 20
"""Longest body of a request; the longest that anybody sends has a few kilobytes."""

MAX_EVENTS = 1000
"""Records in one answer of ``/v1/events``; ask again with the last ``next``."""


class RequestBody(BaseModel):
    """What a request may say: nothing that is not known, and nothing converted."""

    model_config = ConfigDict(extra="forbid", strict=True)


class EventPage(BaseModel):
    """Records of the event log."""

    records: list[dict[str, Any]]
    next: int
    """Pass as ``after`` to get what comes later."""


class Bearer:
    """Lets requests below ``/v1`` pass only with a token; ``whose`` it is, is told who has none."""

    def __init__(self, app: ASGIApp, *, token: str, whose: str) -> None:
        self._app = app
        self._token = token
        self._whose = whose

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        """Answer a request that does not show the token; hand on what does."""
        if scope["type"] != "http" or not scope["path"].startswith("/v1/"):
            await self._app(scope, receive, send)
        elif is_token(Headers(scope=scope).get("authorization", ""), self._token):
            await self._app(scope, _limited(receive), send)
        else:
            refusal = JSONResponse(
                {"detail": f"{self._whose}'s token is missing or wrong"},
                status.HTTP_401_UNAUTHORIZED,
                headers={"WWW-Authenticate": "Bearer"},
            )
            await refusal(scope, receive, send)


def is_token(header: str, token: str) -> bool:
    """Whether an Authorization header shows the token."""
    return hmac.compare_digest(header.encode(), f"Bearer {token}".encode())


def _limited(receive: Receive) -> Receive:
    """Read no more than ``MAX_BODY_BYTES`` of a body."""
    taken = 0

    async def limited() -> Message:
        nonlocal taken
        message = await receive()
        taken += len(message.get("body", b""))
        if taken > MAX_BODY_BYTES:
            raise HTTPException(
                status.HTTP_413_CONTENT_TOO_LARGE, f"a body has at most {MAX_BODY_BYTES} bytes"
            )
        return message

    return limited


def new_app(title: str, description: str | None, *, token: str, whose: str) -> FastAPI:
    """Return an app whose paths below ``/v1`` are for who knows the token."""
    app = FastAPI(title=title, version="1", description=description or "")
    app.add_middleware(Bearer, token=token, whose=whose)

    @app.exception_handler(RequestValidationError)
    async def refuse(_: Request, error: RequestValidationError) -> JSONResponse:
        # Without what was sent, which FastAPI would repeat: a NaN in it is no JSON.
        mistakes = [{key: one[key] for key in ("loc", "msg", "type")} for one in error.errors()]
        return JSONResponse({"detail": mistakes}, status.HTTP_422_UNPROCESSABLE_CONTENT)

    @app.get("/healthz", tags=["machines"])
    async def healthz() -> dict[str, str]:
        """Say that it answers."""
        return {"status": "ok"}

    return app


def add_events(router: APIRouter, path: Path) -> None:
    """Serve the pages of an event log."""

    @router.get("/events")
    async def events(after: Annotated[int, Query(ge=0)] = 0) -> EventPage:
        """Return records of the event log after a position."""
        page = list(islice(follow(path, after), MAX_EVENTS))
        records = [record for _, record in page]
        return EventPage(records=records, next=page[-1][0] if page else after)
