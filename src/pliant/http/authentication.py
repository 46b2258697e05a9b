"""Who may ask: the bearer of a token (RFC 6750).

Owns the check of the header, before anything else of a request is read, and how much may be sent.
Knows nothing of what is asked.
"""

from __future__ import annotations

import hmac

from fastapi import HTTPException, status
from fastapi.responses import JSONResponse
from starlette.datastructures import Headers
from starlette.types import ASGIApp, Message, Receive, Scope, Send

MAX_BODY_BYTES = 1 << 20
"""Longest body of a request; the longest that anybody sends has a few kilobytes."""


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
