"""A browser is let in by a code, once; and only a page of this server may ask with its cookie."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any

import pytest
from starlette.datastructures import Headers
from starlette.testclient import TestClient

from pliant.http.app import new_app, new_router
from pliant.http.login import CODE_S, MOST, SESSION_S, Logins, add_login

TOKEN = "secret"
AS_BEARER = {"Authorization": f"Bearer {TOKEN}"}
HOST = "127.0.0.1:7000"
OWN = {"Origin": f"http://{HOST}"}


class World:
    """An app with a login, and the clock of its codes."""

    def __init__(self) -> None:
        self.now_s = 0.0
        self.logins = Logins({"Gpu1"}, lambda: self.now_s)
        app = new_app("test", None, token=TOKEN, whose="the job", logins=self.logins)
        people = new_router()
        add_login(app, people, self.logins)
        people.add_api_route("/thing", lambda: {"is": "there"}, methods=["GET", "POST"])
        app.include_router(people)
        self.client = TestClient(app, base_url=f"http://{HOST}")

    def code(self) -> str:
        code: str = self.client.post("/v1/login", headers=AS_BEARER).json()["code"]
        return code

    def log_in(self, code: str, **headers: str) -> Any:
        return self.client.post("/login", headers={"X-Pliant-Code": code, **OWN, **headers})


@pytest.fixture
def world() -> Iterator[World]:
    world = World()
    with world.client:
        yield world


def test_a_code_becomes_a_cookie_that_no_script_reads(world: World) -> None:
    answer = world.log_in(world.code())

    assert answer.status_code == 200
    cookie = answer.headers["Set-Cookie"]
    assert {"HttpOnly", "SameSite=strict", "Path=/"} <= set(cookie.split("; "))
    assert "Secure" not in cookie
    assert world.client.get("/v1/thing").status_code == 200
    assert world.client.post("/v1/thing", headers=OWN).status_code == 200


def test_over_tls_the_cookie_stays_there(world: World) -> None:
    with TestClient(world.client.app, base_url=f"https://{HOST}") as client:
        headers = {"X-Pliant-Code": world.code(), "Origin": f"https://{HOST}"}
        answer = client.post("/login", headers=headers)

    assert "Secure" in answer.headers["Set-Cookie"].split("; ")


def test_a_code_is_good_once_and_not_for_long(world: World) -> None:
    first, second = world.code(), world.code()

    assert world.log_in(first).status_code == 200
    assert world.log_in(first).status_code == 401
    world.now_s = CODE_S
    assert world.log_in(second).status_code == 401
    assert "pliant dashboard" in world.log_in(second).json()["detail"]


@pytest.mark.parametrize("code", ["", "x", "\xe9", "a" * 10_000])
def test_another_code_is_none(world: World, code: str) -> None:
    world.code()

    headers: Any = {"X-Pliant-Code": code.encode("latin-1"), b"Origin": b"http://127.0.0.1:7000"}
    assert world.client.post("/login", headers=headers).status_code == 401


def test_a_session_ends(world: World) -> None:
    world.log_in(world.code())
    world.now_s = SESSION_S

    assert world.client.get("/v1/thing").status_code == 401


def test_only_who_is_in_gets_a_code(world: World) -> None:
    assert world.client.post("/v1/login").status_code == 401

    world.log_in(world.code())

    assert world.client.post("/v1/login", headers=OWN).status_code == 200


@pytest.mark.parametrize(
    ("headers", "method", "code"),
    [
        ({}, "GET", 200),
        ({"Sec-Fetch-Site": "none"}, "GET", 200),
        ({"Sec-Fetch-Site": "same-origin", **OWN}, "POST", 200),
        ({"Host": "localhost:7000", "Origin": "http://localhost:7000"}, "POST", 200),
        ({"Host": "gpu1:7000", "Origin": "http://gpu1:7000"}, "POST", 200),
        ({"Host": "[::1]:7000", "Origin": "http://[::1]:7000"}, "POST", 200),
        ({}, "POST", 403),
        ({"Origin": "null"}, "POST", 403),
        ({"Origin": "http://127.0.0.1:7001"}, "POST", 403),
        ({"Origin": "http://evil.example"}, "GET", 403),
        ({"Sec-Fetch-Site": "same-site"}, "GET", 403),
        ({"Sec-Fetch-Site": "cross-site"}, "GET", 403),
        ({"Host": "evil.example:7000"}, "GET", 403),
        ({"Host": "127.0.0.1.evil.example"}, "GET", 403),
        ({"Host": ""}, "GET", 403),
        ({"Host": "evil.example", "Origin": "http://evil.example"}, "POST", 403),
    ],
)
def test_a_cookie_counts_only_from_a_page_of_this_server(
    world: World, headers: dict[str, str], method: str, code: int
) -> None:
    world.log_in(world.code())
    cookie = {
        "Cookie": "; ".join(f"{name}={value}" for name, value in world.client.cookies.items())
    }

    answer = world.client.request(method, "/v1/thing", headers=headers | cookie)

    assert answer.status_code == code, answer.text


def test_nobody_logs_in_from_another_page(world: World) -> None:
    for headers in ({"Origin": "http://evil.example"}, {"Host": "evil.example"}):
        assert world.log_in(world.code(), **headers).status_code == 403


def test_who_shows_the_token_is_no_browser(world: World) -> None:
    headers = {**AS_BEARER, "Host": "gateway.example", "Origin": "http://elsewhere.example"}

    assert world.client.post("/v1/thing", headers=headers).status_code == 200


def test_another_cookie_is_none_and_breaks_nothing(world: World) -> None:
    name = world.logins.cookie
    for cookie in (f"{name}=", f"{name}=x", "pliant=x", "a b c;;=", f"{name}"):
        answer = world.client.get("/v1/thing", headers={"Cookie": cookie})
        assert answer.status_code == 401


def test_codes_and_sessions_do_not_pile_up() -> None:
    logins = Logins()
    codes = [logins.new_code() for _ in range(MOST + 1)]

    assert logins.session_for(codes[0]) is None
    session = logins.session_for(codes[-1])
    assert logins.knows(Headers({"cookie": f"{logins.cookie}={session}"}))
