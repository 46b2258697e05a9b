"""The pool's HTTP face answers whatever it is asked, and forgets nothing over it."""

from __future__ import annotations

import asyncio
import json
import os
from pathlib import Path
from types import SimpleNamespace
from typing import cast

import httpx
from fastapi import Request
from tests.http.routes import ask_anything
from tests.pool.test_driver import World
from tests.scene import in_a_loop

from pliant.core.tenancy import BURST, REST_S, Demand
from pliant.http.login import Logins
from pliant.http.server import Server, open_socket, url_of
from pliant.machine.interfaces import Credentials
from pliant.pool.app import create_app
from pliant.pool.auth import ForbiddenError, SharedGate
from pliant.wire.offers import Report

TOKEN = "secret"
HEADERS = {"Content-Type": "application/json", "Authorization": f"Bearer {TOKEN}"}


@in_a_loop
async def test_nothing_that_is_asked_ends_in_a_500(*, tmp_path: Path) -> None:
    """Names, teams, classes and numbers of all kinds; what was taken is read by the next life."""
    world = World(tmp_path)
    app = create_app(world.driver, token=TOKEN, events_path=tmp_path / "events.jsonl")
    sock = open_socket("127.0.0.1", 0)
    url, server = url_of(sock), Server(app, sock)
    await world.driver.begin()
    await server.start()
    driving = asyncio.create_task(world.driver.run())
    with httpx.Client(base_url=url, headers=HEADERS, trust_env=False) as people:
        await asyncio.to_thread(ask_anything, app, people, without=("stop", "changes"))
        half = {"name": "a", "quota": 1, "reclaim": {"by": ["\ud800"]}}
        refused = await asyncio.to_thread(people.put, "/v1/teams/a", content=json.dumps(half))
    assert refused.status_code == 422
    assert "half a character" in refused.json()["detail"]
    assert not driving.done()
    world.driver.stop()
    await driving
    await server.stop()
    assert world.state.read() is not None


@in_a_loop
async def test_a_browser_that_a_code_let_in_sees_who_has_what(*, tmp_path: Path) -> None:
    world, logins = World(tmp_path), Logins()
    app = create_app(
        world.driver, token=TOKEN, events_path=tmp_path / "events.jsonl", logins=logins
    )
    url = "http://127.0.0.1:7000"
    transport = httpx.ASGITransport(app)
    async with httpx.AsyncClient(transport=transport, base_url=url, headers={"Origin": url}) as one:
        strange = await one.get("/v1/view")
        await one.post("/login", headers={"X-Pliant-Code": logins.new_code()})
        view = await one.get("/v1/view")
        status = await one.get("/v1/status")

    assert strange.status_code == 401
    assert view.json()["lanes"] == []
    assert status.json()["in_use"] == 0


def test_who_changes_too_often_waits(tmp_path: Path) -> None:
    """What says nothing new costs nothing; each change does."""
    world = World(tmp_path)
    usher = SharedGate(world.driver, owner_uid=0)
    peer = Credentials(pid=os.getpid(), uid=77, gid=77)
    request = cast(Request, SimpleNamespace(state=SimpleNamespace(peer=peer)))
    said: list[str] = []

    def ask(number: int) -> None:
        report = Report(wanted=Demand(min_replicas=1, ask_replicas=number), pid=1)
        try:
            usher.report_of(request, f"77/{number}", report)
        except ForbiddenError as error:
            said.append(str(error))

    for number in range(1, BURST + 2):
        ask(number)

    assert said == ["77 changes its claims too often; again in 2.0 s"]
    for _ in range(int(2 * REST_S)):
        world.time.pass_(0.5)
        world.driver.claims.allocator.clock.now_s()  # else it looks like sleep
    ask(1)
    assert len(said) == 1
