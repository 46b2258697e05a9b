"""Strangers use up neither the places of a server nor its descriptors.

Real sockets against a served app: what the event loop does with them is part of the claim.
"""

from __future__ import annotations

import asyncio
import itertools
import resource
import socket
from collections.abc import Awaitable, Callable, Iterator
from contextlib import ExitStack, suppress
from pathlib import Path

import httpx
import pytest
from fastapi import APIRouter, WebSocket
from fastapi.responses import StreamingResponse
from tests.http.sockets import DEADLINE_S, Strangers

from pliant.http import app as http_app
from pliant.http import connections
from pliant.http.app import new_app
from pliant.http.connections import EndableSocket, LimitedProtocol
from pliant.http.server import Server, open_socket, url_of

HEAD = b"GET /healthz HTTP/1.1\r\nHost: x\r\n"


class World(Strangers):
    """A served app, and connections to it."""

    def __init__(self, stack: ExitStack) -> None:
        self.go_on = asyncio.Event()
        app, router = new_app("app", "", token="secret", whose="the app"), APIRouter(prefix="/v1")

        @router.get("/slow")
        async def slow() -> str:
            await self.go_on.wait()
            return "done"

        @router.get("/large")
        async def large() -> StreamingResponse:
            return StreamingResponse(bytes(1 << 20) for _ in range(64))

        @router.post("/length")
        async def length(body: list[int]) -> int:
            return len(body)

        @app.websocket("/socket")
        async def hear(socket: WebSocket) -> None:
            await socket.accept()
            await self.go_on.wait()

        app.include_router(router)
        super().__init__(stack, open_socket("127.0.0.1", 0))
        self.server = Server(app, self.sock)

    def limited(self) -> list[LimitedProtocol]:
        found = self.server._server.server_state.connections
        return [one for one in found if isinstance(one, LimitedProtocol)]

    async def until(self, is_so: Callable[[], object]) -> None:
        async with asyncio.timeout(DEADLINE_S):
            while not is_so():
                await asyncio.sleep(0.01)

    def people(self) -> httpx.AsyncClient:
        return httpx.AsyncClient(
            base_url=url_of(self.sock),
            headers={"Authorization": "Bearer secret"},
            trust_env=False,
            timeout=DEADLINE_S,
        )


def play(scene: Callable[[World], Awaitable[None]]) -> None:
    async def main() -> None:
        with ExitStack() as stack:
            world = World(stack)
            await world.server.start()
            try:
                await scene(world)
            finally:
                await world.server.stop()

    asyncio.run(main())


async def is_answered(world: World) -> bool:
    async with world.people() as people:
        return (await people.get("/healthz")).status_code == 200


@pytest.mark.parametrize("said", [b"", HEAD, b"\x16\x03\x01"])
def test_who_holds_every_place_loses_the_oldest(
    monkeypatch: pytest.MonkeyPatch, said: bytes
) -> None:
    monkeypatch.setattr(connections, "MOST_CONNECTIONS", 8)
    monkeypatch.setattr(connections, "REQUEST_S", 1000.0)  # none goes by itself

    async def scene(world: World) -> None:
        held = [await world.connect(said) for _ in range(40)]
        assert await is_answered(world)
        for sock in held[:30]:
            await world.closed(sock)

    play(scene)


@pytest.mark.parametrize(
    "said",
    [
        b"",
        HEAD,
        HEAD + b"\r\n" + HEAD,
        b"POST /v1/length HTTP/1.1\r\nHost: x\r\nAuthorization: Bearer secret\r\n"
        b"Content-Length: 100\r\n\r\n[1",
    ],
    ids=["nothing", "half a head", "one request and a half", "half a body"],
)
def test_who_does_not_say_what_it_wants_is_not_waited_for(
    monkeypatch: pytest.MonkeyPatch, said: bytes
) -> None:
    monkeypatch.setattr(connections, "REQUEST_S", 0.2)

    async def scene(world: World) -> None:
        sock = await world.connect(said)
        heard = await world.closed(sock)
        assert heard.count(b"200 OK") == said.count(b"\r\n\r\n") - said.count(b"POST")
        assert await is_answered(world)

    play(scene)


def test_who_waits_for_an_answer_is_waited_for(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(connections, "REQUEST_S", 0.05)

    async def scene(world: World) -> None:
        async with world.people() as people:
            asked = asyncio.create_task(people.get("/v1/slow"))
            await asyncio.sleep(0.3)
            world.go_on.set()
            assert (await asked).status_code == 200

    play(scene)


def test_who_waits_for_an_answer_keeps_its_place_in_a_flood(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setattr(connections, "MOST_CONNECTIONS", 8)

    async def scene(world: World) -> None:
        async with world.people() as people:
            asked = asyncio.create_task(people.get("/v1/slow"))
            await world.until(lambda: any(one.is_answering for one in world.limited()))
            held = [await world.connect(b"") for _ in range(40)]
            for sock in held[:30]:
                await world.closed(sock)
            world.go_on.set()
            assert (await asked).status_code == 200

    play(scene)


def test_an_answer_that_nobody_reads_gives_its_place_up(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(connections, "REQUEST_S", 0.1)
    monkeypatch.setattr(connections, "ANSWER_S", 0.2)
    ask = b"GET /v1/large HTTP/1.1\r\nHost: x\r\nAuthorization: Bearer secret\r\n\r\n"

    async def scene(world: World) -> None:
        await world.connect(ask)
        await world.until(world.limited)
        await world.until(lambda: not world.limited())

    play(scene)


@pytest.mark.parametrize(("descriptors", "places"), [(1 << 20, 256), (100, 25), (10, 8)])
def test_places_are_a_part_of_the_descriptors(
    monkeypatch: pytest.MonkeyPatch, descriptors: int, places: int
) -> None:
    monkeypatch.setattr(resource, "getrlimit", lambda which: (descriptors, descriptors))

    assert connections.most_connections() == places


def test_too_many_requests_at_once_are_told_to_come_again(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(http_app, "MAX_IN_FLIGHT", 2)

    async def scene(world: World) -> None:
        async with world.people() as people:
            asked = [asyncio.create_task(people.get("/v1/slow")) for _ in range(3)]
            done, _ = await asyncio.wait(asked, return_when=asyncio.FIRST_COMPLETED)
            assert [task.result().status_code for task in done] == [503]
            world.go_on.set()
            codes = sorted([(await task).status_code for task in asked])
            assert codes == [200, 200, 503]
            assert (await people.get("/v1/slow")).status_code == 200

    play(scene)


FREE = 40


@pytest.fixture
def few_descriptors() -> Iterator[int]:
    """Let this process have few descriptors more than it has: numbers below the limit are free."""
    before = resource.getrlimit(resource.RLIMIT_NOFILE)
    taken = {int(path.name) for path in Path("/proc/self/fd").iterdir()}
    free = (number for number in itertools.count() if number not in taken)
    yield next(itertools.islice(free, FREE, None))
    resource.setrlimit(resource.RLIMIT_NOFILE, before)


def test_who_takes_every_descriptor_is_outlived(few_descriptors: int) -> None:
    """The connections of this test use them up as well: as bad as it can be."""

    async def scene(world: World) -> None:
        hard = resource.getrlimit(resource.RLIMIT_NOFILE)[1]
        resource.setrlimit(resource.RLIMIT_NOFILE, (few_descriptors, hard))
        held: list[socket.socket] = []
        async with world.people() as people:  # reads files of its own when it is made
            with suppress(OSError):
                while True:
                    held.append(await world.connect(HEAD))
            for sock in held:
                sock.close()
            async with asyncio.timeout(DEADLINE_S):
                assert (await people.get("/healthz")).status_code == 200

    play(scene)


def test_an_answer_that_takes_long_is_waited_for(monkeypatch: pytest.MonkeyPatch) -> None:
    """As an audit does; who is to answer it says for how long."""
    monkeypatch.setattr(connections, "REQUEST_S", 2.0)
    monkeypatch.setattr(connections, "ANSWER_S", 1.0)

    async def scene(world: World) -> None:
        async with world.people() as people:
            asked = asyncio.create_task(people.get("/v1/slow"))
            await asyncio.sleep(3.0)
            world.go_on.set()
            assert (await asked).json() == "done"

    play(scene)


ASKS_FOR_SOCKET = (
    b"GET /socket HTTP/1.1\r\nHost: x\r\nUpgrade: websocket\r\nConnection: Upgrade\r\n"
    b"Sec-WebSocket-Version: 13\r\nSec-WebSocket-Key: dGhlIHNhbXBsZSBub25jZQ==\r\n"
)


@pytest.mark.parametrize(
    "also", [b"Content-Length: 5\r\n", b"X: y\r\n" * 200, b"X: " + b"y" * 9_000 + b"\r\n"]
)
def test_who_asks_for_a_websocket_in_a_way_that_is_none_is_cut_off(also: bytes) -> None:
    async def scene(world: World) -> None:
        for _ in range(3):
            await world.closed(await world.connect(ASKS_FOR_SOCKET + also + b"\r\n"))
        assert not world.server._server.server_state.connections
        await world.connect(ASKS_FOR_SOCKET + also + b"\r\n")  # the server can stop meanwhile

    play(scene)


def test_a_server_stops_while_a_websocket_is_being_closed() -> None:
    async def scene(world: World) -> None:
        sock = await world.connect(ASKS_FOR_SOCKET + b"\r\n")
        assert b"101 Switching" in await asyncio.get_running_loop().sock_recv(sock, 1000)
        (connection,) = world.server._server.server_state.connections
        assert isinstance(connection, EndableSocket)
        connection.conn.receive_data(b"\x88\x80\0\0\0\0")  # a close that takes a while, as with TLS
        world.go_on.set()

    play(scene)


def test_a_websocket_owes_no_request(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(connections, "REQUEST_S", 0.1)

    async def scene(world: World) -> None:
        sock = await world.connect(ASKS_FOR_SOCKET + b"\r\n")
        assert b"101 Switching" in await asyncio.get_running_loop().sock_recv(sock, 1000)
        await asyncio.sleep(0.4)
        assert world.server._server.server_state.connections
        world.go_on.set()

    play(scene)
