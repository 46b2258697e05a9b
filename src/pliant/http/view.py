"""The view of a run over HTTP: all of it when asked, and a sign when it has changed.

Owns the two routes.  Knows nothing of what a view holds (``observe.view``).
"""

from __future__ import annotations

import asyncio
import json
from collections.abc import AsyncIterator
from typing import Annotated

from fastapi import APIRouter, HTTPException, Query, Response, status
from fastapi.responses import StreamingResponse

from pliant.http.connections import ANSWER_S
from pliant.machine.event_loop import aside
from pliant.observe.view import MOST_POINTS, POINTS, View

LOOK_S = 0.5
"""Between two looks whether something has changed, in seconds."""

STREAM_S = ANSWER_S - 15.0
"""A stream ends by itself before the server ends it, and a browser asks for the next one."""

LATEST = 1e11
"""No log has a moment beyond, in seconds of the epoch."""

MOST_STREAMS = 16
"""At once; who gets none asks for the view every few seconds."""


def add_view(people: APIRouter, view: View) -> None:
    """Serve a view."""
    streams: set[object] = set()

    @people.get("/view")
    async def read_view(
        since: Annotated[float | None, Query(ge=0, le=LATEST, alias="from")] = None,
        until: Annotated[float | None, Query(ge=0, le=LATEST, alias="to")] = None,
        points: Annotated[int, Query(ge=2, le=MOST_POINTS)] = POINTS,
    ) -> Response:
        """Return what the page shows of some time (seconds of the epoch), in 200 kB at most."""
        try:
            data = await aside(view.as_json, since, until, points)
        except OSError as error:
            raise _unreadable(error) from error
        return Response(data, media_type="application/json")

    @people.get("/changes", response_class=StreamingResponse)
    async def follow_changes() -> StreamingResponse:
        """Say each time that the view has changed, as server-sent events, for most of a minute."""
        if len(streams) >= MOST_STREAMS:
            sentence = f"{MOST_STREAMS} pages follow this run already; ask for its view instead"
            raise HTTPException(status.HTTP_503_SERVICE_UNAVAILABLE, sentence)
        headers = {"Cache-Control": "no-store"}
        return StreamingResponse(
            _changes(view, streams), media_type="text/event-stream", headers=headers
        )


async def _changes(view: View, streams: set[object]) -> AsyncIterator[str]:
    mine, said = object(), ""
    streams.add(mine)
    loop = asyncio.get_running_loop()
    until_s = loop.time() + STREAM_S
    try:
        yield "retry: 1000\n\n"
        while loop.time() < until_s:
            headline = await aside(view.headline)
            if (now := json.dumps(headline)) != said:
                said = now
                yield f"data: {now}\n\n"
            if headline["is_over"]:
                return  # a job that has ended does not wait for who looks at it
            await asyncio.sleep(LOOK_S)
    except OSError:
        return  # the view says why
    finally:
        streams.discard(mine)


def _unreadable(error: OSError) -> HTTPException:
    sentence = f"the event log cannot be read: {error.strerror}"
    return HTTPException(status.HTTP_503_SERVICE_UNAVAILABLE, sentence)
