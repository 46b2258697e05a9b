"""What every served app has: a token, readable refusals, a sign of life, pages of its log.

Owns these, once.  Knows nothing of what else is served.
"""

from __future__ import annotations

from pathlib import Path
from typing import Annotated, Any

from fastapi import APIRouter, FastAPI, Query
from pydantic import BaseModel, ConfigDict

from pliant.http.authentication import Bearer
from pliant.http.mistakes import say_mistakes
from pliant.observe.log import follow

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


def new_app(title: str, description: str | None, *, token: str, whose: str) -> FastAPI:
    """Return an app whose paths below ``/v1`` are for who knows the token."""
    app = FastAPI(title=title, version="1", description=description or "")
    app.add_middleware(Bearer, token=token, whose=whose)
    say_mistakes(app)

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
        records: list[dict[str, Any]] = []
        position = after
        for position, record in follow(path, after):  # noqa: B007  # used below
            records.append(record)
            if len(records) == MAX_EVENTS:
                break
        return EventPage(records=records, next=position)
