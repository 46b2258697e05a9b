"""What every served app has: a token, readable refusals, a sign of life, numbers, pages of its log.

Owns these, once.  The bearer's token (RFC 6750), or the session of a browser (``http.login``), is
checked before anything else of a request is read.  Knows nothing of what else is served.
"""

from __future__ import annotations

import hmac
import json
from collections import Counter
from collections.abc import Callable, Coroutine
from itertools import islice
from pathlib import Path
from typing import Annotated, Any

from fastapi import APIRouter, FastAPI, HTTPException, Query, Request, Response, status
from fastapi.exceptions import RequestValidationError
from fastapi.responses import JSONResponse
from fastapi.routing import APIRoute
from prometheus_client import CONTENT_TYPE_LATEST, CollectorRegistry, generate_latest
from prometheus_client.registry import Collector
from pydantic import BaseModel, ConfigDict
from starlette.datastructures import Headers
from starlette.types import ASGIApp, Message, Receive, Scope, Send

from pliant.core.text import printable_values
from pliant.http.login import Logins
from pliant.machine.event_loop import aside
from pliant.observe.reading import follow

MAX_BODY_BYTES = 1 << 20
"""Longest body of a request; the longest that anybody sends has a few kilobytes."""

MAX_IN_FLIGHT = 64
"""Requests that are answered at once; one more is told to come again."""

MAX_IN_FLIGHT_OF_USER = 16
"""The same, where the kernel says whose request it is."""

MAX_EVENTS = 1000
"""Records in one answer of ``/v1/events``; ask again with the last ``next``."""

MAX_EVENT_BYTES = 4 << 20
"""Bytes of the log in one answer, but for one record that is longer by itself."""

MAX_OFFSET = (1 << 63) - 1
"""No file has a position beyond."""


class RequestBody(BaseModel):
    """What a request may say: nothing that is not known, and nothing converted."""

    model_config = ConfigDict(extra="forbid", strict=True)


class EventPage(BaseModel):
    """Records of the event log."""

    records: list[dict[str, Any]]
    next: int
    """Pass as ``after`` to get what comes later."""


class Bearer:
    """Lets requests below ``/v1`` pass only with a token; ``whose`` it is, is told who has none.

    Without a token the kernel has chosen who could connect; then no user keeps others from asking.
    """

    def __init__(
        self, app: ASGIApp, *, token: str | None, whose: str, logins: Logins | None = None
    ) -> None:
        self._app = app
        self._token = token
        self._whose = whose
        self._logins = logins
        self._in_flight: Counter[int | None] = Counter()

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        """Answer a request that does not show the token; hand on what does."""
        if scope["type"] != "http" or not scope["path"].startswith("/v1/"):
            await self._app(scope, receive, send)
        elif (refusal := self._refusal(scope)) is not None:
            await refusal(scope, receive, send)
        else:
            await self._admitted(scope, receive, send)

    def _refusal(self, scope: Scope) -> JSONResponse | None:
        headers = Headers(scope=scope)
        if self._token is None or shows_token(headers, self._token):
            return None
        if self._logins is None or not self._logins.knows(headers):
            return JSONResponse(
                {"detail": f"{self._whose}'s token is missing or wrong"},
                status.HTTP_401_UNAUTHORIZED,
                headers={"WWW-Authenticate": "Bearer"},
            )
        why_not = self._logins.why_not(scope)
        return None if why_not is None else JSONResponse({"detail": why_not}, 403)

    async def _admitted(self, scope: Scope, receive: Receive, send: Send) -> None:
        peer = scope.get("state", {}).get("peer")
        uid, most = (None, MAX_IN_FLIGHT) if peer is None else (peer.uid, MAX_IN_FLIGHT_OF_USER)
        if self._in_flight[uid] >= most:
            refusal = JSONResponse(
                {"detail": f"{most} requests are being answered; ask again in a second"},
                status.HTTP_503_SERVICE_UNAVAILABLE,
                headers={"Retry-After": "1"},
            )
            await refusal(scope, receive, send)
            return
        self._in_flight[uid] += 1
        try:
            await self._app(scope, _limited(receive), send)
        finally:
            self._in_flight[uid] -= 1


def shows_token(headers: Headers, token: str) -> bool:
    """Whether a request shows the token, as a bearer or in ``X-Pliant-Token``.

    What stands between may have a use of its own for Authorization, as Kubernetes' API server has.
    """
    shown = headers.get("x-pliant-token")
    said = headers.get("authorization", "") if shown is None else f"Bearer {shown}"
    return hmac.compare_digest(said.encode(), f"Bearer {token}".encode())


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


def new_app(
    title: str,
    description: str | None,
    *,
    token: str | None,
    whose: str,
    logins: Logins | None = None,
) -> FastAPI:
    """Return an app whose paths below ``/v1`` are for who knows the token, and for browsers that
    are logged in; no token: for all.
    """
    app = FastAPI(title=title, version="1", description=description or "")
    app.add_middleware(Bearer, token=token, whose=whose, logins=logins)

    @app.exception_handler(RequestValidationError)
    async def refuse(_: Request, error: RequestValidationError) -> JSONResponse:
        # Without what was sent, which FastAPI would repeat: a NaN in it is no JSON.
        mistakes = [{key: one[key] for key in ("loc", "msg", "type")} for one in error.errors()]
        return JSONResponse(
            {"detail": printable_values(mistakes)}, status.HTTP_422_UNPROCESSABLE_CONTENT
        )

    @app.exception_handler(HTTPException)
    async def say(_: Request, error: HTTPException) -> JSONResponse:
        # What was asked may stand in the sentence, and be no text that can be sent.
        detail = {"detail": printable_values(error.detail)}
        return JSONResponse(detail, error.status_code, headers=error.headers)

    @app.get("/healthz", tags=["machines"])
    async def healthz() -> dict[str, str]:
        """Say that it answers."""
        return {"status": "ok"}

    return app


class TextRoute(APIRoute):
    """Refuses what is no text: half a character could be neither answered nor written down."""

    def get_route_handler(self) -> Callable[[Request], Coroutine[Any, Any, Response]]:
        """Return what answers a request once its body was looked at."""
        handle = super().get_route_handler()

        async def checked(request: Request) -> Response:
            if not _is_text(await request.body()):
                sentence = "the body holds half a character (a lone surrogate), which is no text"
                raise HTTPException(status.HTTP_422_UNPROCESSABLE_CONTENT, sentence)
            return await handle(request)

        return checked


def _is_text(body: bytes) -> bool:
    """Whether every text in a JSON body can be written; what is no JSON is refused later."""
    if b"\\u" not in body:
        return True
    try:
        json.dumps(json.loads(body), ensure_ascii=False).encode()
    except UnicodeEncodeError:
        return False
    except (ValueError, RecursionError):
        return True
    return True


def new_router() -> APIRouter:
    """Return the routes for who knows the token."""
    return APIRouter(prefix="/v1", route_class=TextRoute)


def registry_of(collector: Collector) -> CollectorRegistry:
    """Return a registry of its own, so that two jobs of one process do not meet."""
    registry = CollectorRegistry(auto_describe=False)
    registry.register(collector)
    return registry


def add_metrics(app: FastAPI, collector: Collector) -> None:
    """Serve the numbers of a collector."""
    registry = registry_of(collector)

    @app.get("/metrics", response_class=Response, tags=["machines"])
    async def metrics() -> Response:
        """Return the numbers for Prometheus."""
        return Response(generate_latest(registry), media_type=CONTENT_TYPE_LATEST)


def add_events(router: APIRouter, path: Path) -> None:
    """Serve the pages of an event log."""

    @router.get("/events", response_model=EventPage)
    async def events(
        after: Annotated[int, Query(ge=0, le=MAX_OFFSET)] = 0,
        most: Annotated[int, Query(ge=1, le=MAX_EVENTS)] = MAX_EVENTS,
    ) -> Response:
        """Return records of the event log after a position."""
        try:
            page = await aside(_page, path, after, most)
        except OSError as error:
            sentence = f"the event log cannot be read: {error.strerror}"
            raise HTTPException(status.HTTP_503_SERVICE_UNAVAILABLE, sentence) from error
        return Response(page, media_type="application/json")


def _page(path: Path, after: int, most: int) -> str:
    """Return one page of a log as JSON: to make up to 4 MB of it is nothing for the event loop."""
    records, end = [], after
    for offset, record in islice(follow(path, after), most):
        records.append(record)
        end = offset
        if end - after > MAX_EVENT_BYTES:
            break
    return EventPage(records=records, next=end).model_dump_json()
