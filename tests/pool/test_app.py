"""The pool's HTTP face answers whatever it is asked, and forgets nothing over it."""

from __future__ import annotations

import asyncio
import json
from pathlib import Path

import httpx
from tests.http.routes import ask_anything
from tests.pool.test_driver import World

from pliant.http.server import Server, open_socket, url_of
from pliant.pool.app import create_app

TOKEN = "secret"
HEADERS = {"Content-Type": "application/json", "Authorization": f"Bearer {TOKEN}"}


def test_nothing_that_is_asked_ends_in_a_500(tmp_path: Path) -> None:
    """Names, teams, classes and numbers of all kinds; what was taken is read by the next life."""

    async def scene() -> None:
        world = World(tmp_path)
        app = create_app(world.driver, token=TOKEN, events_path=tmp_path / "events.jsonl")
        sock = open_socket("127.0.0.1", 0)
        url, server = url_of(sock), Server(app, sock)
        await world.driver.begin()
        await server.start()
        driving = asyncio.create_task(world.driver.run())
        with httpx.Client(base_url=url, headers=HEADERS, trust_env=False) as people:
            await asyncio.to_thread(ask_anything, app, people, without=("stop",))
            half = {"name": "a", "quota": 1, "reclaim": {"by": ["\ud800"]}}
            refused = await asyncio.to_thread(people.put, "/v1/teams/a", content=json.dumps(half))
        assert refused.status_code == 422
        assert "half a character" in refused.json()["detail"]
        assert not driving.done()
        world.driver.stop()
        await driving
        await server.stop()
        assert world.state.read() is not None

    asyncio.run(scene())
