"""The page: one HTML, some modules of our own, uPlot; no build step, nothing from elsewhere.

Owns which files are served, under which policy, and how they become one file that needs no server.
Knows nothing of what the page asks for.
"""

from __future__ import annotations

from functools import cache
from pathlib import Path

from fastapi import FastAPI, HTTPException, Request, Response, status

from pliant.http.login import Logins

STATIC = Path(__file__).with_name("static")

MODULES = (
    "dom.js",
    "api.js",
    "charts.js",
    "logs.js",
    "replay.js",
    "job.js",
    "pool.js",
    "runs.js",
    "main.js",
)
"""Ours, each behind those that it imports."""

VENDORED = ("vendor/uPlot.iife.min.js", "vendor/uPlot.min.css")

FILES = {Path(name).name: STATIC / name for name in (*MODULES, *VENDORED, "style.css")}
KINDS = {".js": "text/javascript", ".css": "text/css"}

POLICY = (
    "default-src 'none'; script-src 'self'; style-src 'self'; connect-src 'self'; img-src data:;"
    " base-uri 'none'; form-action 'none'; frame-ancestors 'none'"
)
HEADERS = {
    "Content-Security-Policy": POLICY,
    "Cross-Origin-Opener-Policy": "same-origin",
    "Cross-Origin-Resource-Policy": "same-origin",
    "X-Content-Type-Options": "nosniff",
    "Referrer-Policy": "no-referrer",
    "Cache-Control": "no-cache",
}


def add_page(app: FastAPI, mode: str, logins: Logins) -> None:
    """Serve the page at ``/``: of one ``job``, of a ``pool``, or of all ``runs``.

    It holds nothing of them, so whoever names this machine may read it.
    """

    @app.get("/", include_in_schema=False)
    async def read_page(request: Request) -> Response:
        if (why_not := logins.why_not(request.scope, is_followed=True)) is not None:
            raise HTTPException(status.HTTP_403_FORBIDDEN, why_not)
        return Response(html(mode), media_type="text/html", headers=HEADERS)

    @app.get("/page/{name}", include_in_schema=False)
    async def read_file(request: Request, name: str) -> Response:
        why_not = logins.why_not(request.scope)
        if why_not is not None or name not in FILES:
            sentence = why_not or f"the page has no file {name}"
            code = status.HTTP_403_FORBIDDEN if why_not else status.HTTP_404_NOT_FOUND
            raise HTTPException(code, sentence)
        kind = KINDS[FILES[name].suffix]
        return Response(_text_of(FILES[name]), media_type=kind, headers=HEADERS)


def html(mode: str) -> str:
    """Return the page of a kind."""
    return _text_of(STATIC / "index.html").replace('data-mode=""', f'data-mode="{mode}"')


@cache
def _text_of(path: Path) -> str:
    return path.read_text(encoding="utf-8")
