"""What a request that cannot be read is answered with.

Owns that one answer: 422, and for each mistake where it is and what is wrong.  It does not repeat
what was sent, which FastAPI would do: a NaN in it is no JSON, and made the answer an error of ours.
"""

from __future__ import annotations

from fastapi import FastAPI, Request, status
from fastapi.exceptions import RequestValidationError
from fastapi.responses import JSONResponse


def say_mistakes(app: FastAPI) -> None:
    """Let ``app`` answer unreadable requests like this."""

    @app.exception_handler(RequestValidationError)
    async def refuse(_: Request, error: RequestValidationError) -> JSONResponse:
        mistakes = [{key: one[key] for key in ("loc", "msg", "type")} for one in error.errors()]
        return JSONResponse({"detail": mistakes}, status.HTTP_422_UNPROCESSABLE_CONTENT)
