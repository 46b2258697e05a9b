"""How a browser is let in: a code that is good once becomes a cookie.

Owns the codes and the sessions of one server, and what a request of a browser must look like: it
names this machine (Host: a page elsewhere that takes another name for it is none of ours) and comes
from a page of this server (Origin).  Who shows the token is no browser, and none of this is asked.

    pliant dashboard, with the token:  POST /v1/login -> {code}   -->  http://HOST:PORT/#CODE
    the page of that address:          POST /login, X-Pliant-Code -->  Set-Cookie

Knows nothing of what the page shows.
"""

from __future__ import annotations

import hmac
import ipaddress
import secrets
import time
from collections.abc import Callable, Collection
from http.cookies import CookieError, SimpleCookie

from fastapi import APIRouter, FastAPI, HTTPException, Request, Response, status
from pydantic import BaseModel
from starlette.datastructures import Headers
from starlette.types import Scope

CODE_S = 300.0
"""For how long a code is good, in seconds."""

SESSION_S = 12 * 3600.0
"""For how long a browser stays in, in seconds."""

MOST = 32
"""Codes, and sessions, at once; the oldest are forgotten."""

SAFE = frozenset({"GET", "HEAD"})
"""Methods that change nothing."""


class Code(BaseModel):
    """What lets one browser in, once."""

    code: str
    valid_s: float = CODE_S


class Logins:
    """The codes and sessions of one server; ``names`` are of this machine, beside its addresses."""

    def __init__(
        self, names: Collection[str] = (), now_s: Callable[[], float] = time.monotonic
    ) -> None:
        self._names = {"localhost", *(name.lower() for name in names)}
        self._now_s = now_s
        self._codes: dict[str, float] = {}
        self._sessions: dict[str, float] = {}
        self.cookie = f"pliant-{secrets.token_hex(4)}"
        """Its name: cookies of all ports of a host are sent to each of them."""

    def new_code(self) -> str:
        """Return a code that is good once."""
        return self._new(self._codes, CODE_S)

    def session_for(self, code: str) -> str | None:
        """Take a code; return a new session, or None if it is not good (any more)."""
        if self._found(self._codes, code) is None:
            return None
        del self._codes[code]
        return self._new(self._sessions, SESSION_S)

    def knows(self, headers: Headers) -> bool:
        """Whether a request shows a session."""
        return self._found(self._sessions, self._shown(headers)) is not None

    def why_not(self, scope: Scope, *, is_followed: bool = False) -> str | None:
        """Say why a request is not one of a page of this server; None: it is.

        ``is_followed``: a link that leads here from elsewhere may ask for it.
        """
        headers = Headers(scope=scope)
        host = headers.get("host", "")
        if not self._is_here(host):
            return f"{host or 'the request'} does not name this machine; use its address"
        origin, site = headers.get("origin"), headers.get("sec-fetch-site", "same-origin")
        is_ours = origin is None or origin.partition("://")[2] == host
        if not is_ours or (site not in ("same-origin", "none") and not is_followed):
            return "the request comes from a page of another place"
        if origin is None and scope["method"] not in SAFE:
            return "the request does not say which page it comes from"
        return None

    def _is_here(self, host: str) -> bool:
        name = host.rsplit(":", 1)[0] if not host.endswith("]") else host
        if name.lower() in self._names:
            return True
        try:
            ipaddress.ip_address(name.removeprefix("[").removesuffix("]"))
        except ValueError:
            return False
        return True  # no other name can be made to mean it

    def _shown(self, headers: Headers) -> str:
        try:
            morsel = SimpleCookie(headers.get("cookie", "")).get(self.cookie)
        except CookieError:
            return ""
        return morsel.value if morsel else ""

    def _new(self, known: dict[str, float], good_s: float) -> str:
        while len(known) >= MOST:
            del known[next(iter(known))]
        secret = secrets.token_urlsafe(24)
        known[secret] = self._now_s() + good_s
        return secret

    def _found(self, known: dict[str, float], shown: str) -> str | None:
        for secret in [one for one, until_s in known.items() if until_s <= self._now_s()]:
            del known[secret]
        same = [one for one in known if hmac.compare_digest(one.encode(), shown.encode())]
        return next(iter(same), None)


def add_login(app: FastAPI, people: APIRouter, logins: Logins) -> None:
    """Let those in who have a code, and give one to who is in."""

    @people.post("/login")
    async def new_code() -> Code:
        """Return a code that lets a browser in, once."""
        return Code(code=logins.new_code())

    @app.post("/login", include_in_schema=False)
    async def log_in(request: Request, response: Response) -> dict[str, str]:
        # The code is no body: of a stranger none is read, and no form of another page can send it.
        if (why_not := logins.why_not(request.scope)) is not None:
            raise HTTPException(status.HTTP_403_FORBIDDEN, why_not)
        session = logins.session_for(request.headers.get("x-pliant-code", ""))
        if session is None:
            sentence = "this link was used already, or is too old; ask pliant dashboard for another"
            raise HTTPException(status.HTTP_401_UNAUTHORIZED, sentence)
        response.set_cookie(
            logins.cookie,
            session,
            max_age=int(SESSION_S),
            httponly=True,
            samesite="strict",
            secure=request.url.scheme == "https",
        )
        return {"reason": "logged in"}
