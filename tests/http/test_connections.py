"""Strangers use up neither the places of a server nor its descriptors, nor do handshakes."""

from __future__ import annotations

import asyncio
import itertools
import resource
import socket
import ssl
from collections.abc import Awaitable, Callable, Iterator
from contextlib import ExitStack, suppress
from pathlib import Path

import httpx
import pytest
from fastapi import APIRouter, WebSocket
from fastapi.responses import StreamingResponse
from tests.certificates import Authority
from tests.http.sockets import DEADLINE_S, Strangers
from tests.scene import scene
from websockets.asyncio.client import connect

from pliant.core.values import TlsFiles
from pliant.http import app as http_app
from pliant.http import connections
from pliant.http.app import new_app
from pliant.http.connections import LimitedProtocol
from pliant.http.direct_socket import DirectSocket, direct, frame_of
from pliant.http.server import Server, open_socket, url_of
from pliant.machine.tls import ServedTls, client_context

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


Play = Callable[[Callable[[World], Awaitable[None]]], None]


@pytest.fixture
def play() -> Play:
    return played


def played(scene: Callable[[World], Awaitable[None]]) -> None:
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
@scene()
async def test_who_holds_every_place_loses_the_oldest(
    world: World, *, monkeypatch: pytest.MonkeyPatch, said: bytes
) -> None:
    monkeypatch.setattr(connections, "MOST_CONNECTIONS", 8)
    monkeypatch.setattr(connections, "REQUEST_S", 1000.0)  # none goes by itself
    held = [await world.connect(said) for _ in range(40)]
    assert await is_answered(world)
    for sock in held[:30]:
        await world.closed(sock)


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
@scene()
async def test_who_does_not_say_what_it_wants_is_not_waited_for(
    world: World, *, monkeypatch: pytest.MonkeyPatch, said: bytes
) -> None:
    monkeypatch.setattr(connections, "REQUEST_S", 0.2)
    sock = await world.connect(said)
    heard = await world.closed(sock)
    assert heard.count(b"200 OK") == said.count(b"\r\n\r\n") - said.count(b"POST")
    assert await is_answered(world)


@scene()
async def test_who_waits_for_an_answer_is_waited_for(
    world: World, *, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(connections, "REQUEST_S", 0.05)
    async with world.people() as people:
        asked = asyncio.create_task(people.get("/v1/slow"))
        await asyncio.sleep(0.3)
        world.go_on.set()
        assert (await asked).status_code == 200


@scene()
async def test_who_waits_for_an_answer_keeps_its_place_in_a_flood(
    world: World, *, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(connections, "MOST_CONNECTIONS", 8)
    async with world.people() as people:
        asked = asyncio.create_task(people.get("/v1/slow"))
        await world.until(lambda: any(one.is_answering for one in world.limited()))
        held = [await world.connect(b"") for _ in range(40)]
        for sock in held[:30]:
            await world.closed(sock)
        world.go_on.set()
        assert (await asked).status_code == 200


@scene()
async def test_an_answer_that_nobody_reads_gives_its_place_up(
    world: World, *, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(connections, "REQUEST_S", 0.1)
    monkeypatch.setattr(connections, "ANSWER_S", 0.2)
    ask = b"GET /v1/large HTTP/1.1\r\nHost: x\r\nAuthorization: Bearer secret\r\n\r\n"
    await world.connect(ask)
    await world.until(world.limited)
    await world.until(lambda: not world.limited())


@pytest.mark.parametrize(("descriptors", "places"), [(1 << 20, 256), (100, 25), (10, 8)])
def test_places_are_a_part_of_the_descriptors(
    monkeypatch: pytest.MonkeyPatch, descriptors: int, places: int
) -> None:
    monkeypatch.setattr(resource, "getrlimit", lambda which: (descriptors, descriptors))

    assert connections.most_connections() == places


@scene()
async def test_too_many_requests_at_once_are_told_to_come_again(
    world: World, *, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(http_app, "MAX_IN_FLIGHT", 2)
    async with world.people() as people:
        asked = [asyncio.create_task(people.get("/v1/slow")) for _ in range(3)]
        done, _ = await asyncio.wait(asked, return_when=asyncio.FIRST_COMPLETED)
        assert [task.result().status_code for task in done] == [503]
        world.go_on.set()
        codes = sorted([(await task).status_code for task in asked])
        assert codes == [200, 200, 503]
        assert (await people.get("/v1/slow")).status_code == 200


FREE = 40


@pytest.fixture
def few_descriptors() -> Iterator[int]:
    """Let this process have few descriptors more than it has: numbers below the limit are free."""
    before = resource.getrlimit(resource.RLIMIT_NOFILE)
    taken = {int(path.name) for path in Path("/proc/self/fd").iterdir()}
    free = (number for number in itertools.count() if number not in taken)
    yield next(itertools.islice(free, FREE, None))
    resource.setrlimit(resource.RLIMIT_NOFILE, before)


@scene()
async def test_who_takes_every_descriptor_is_outlived(
    world: World, *, few_descriptors: int
) -> None:
    """The connections of this test use them up as well: as bad as it can be."""
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


@scene()
async def test_an_answer_that_takes_long_is_waited_for(
    world: World, *, monkeypatch: pytest.MonkeyPatch
) -> None:
    """As an audit does; who is to answer it says for how long."""
    monkeypatch.setattr(connections, "REQUEST_S", 2.0)
    monkeypatch.setattr(connections, "ANSWER_S", 1.0)
    async with world.people() as people:
        asked = asyncio.create_task(people.get("/v1/slow"))
        await asyncio.sleep(3.0)
        world.go_on.set()
        assert (await asked).json() == "done"


ASKS_FOR_SOCKET = (
    b"GET /socket HTTP/1.1\r\nHost: x\r\nUpgrade: websocket\r\nConnection: Upgrade\r\n"
    b"Sec-WebSocket-Version: 13\r\nSec-WebSocket-Key: dGhlIHNhbXBsZSBub25jZQ==\r\n"
)


@pytest.mark.parametrize(
    "also", [b"Content-Length: 5\r\n", b"X: y\r\n" * 200, b"X: " + b"y" * 9_000 + b"\r\n"]
)
@scene()
async def test_who_asks_for_a_websocket_in_a_way_that_is_none_is_cut_off(
    world: World, *, also: bytes
) -> None:
    for _ in range(3):
        await world.closed(await world.connect(ASKS_FOR_SOCKET + also + b"\r\n"))
    assert not world.server._server.server_state.connections
    await world.connect(ASKS_FOR_SOCKET + also + b"\r\n")  # the server can stop meanwhile


@scene()
async def test_a_server_stops_while_a_websocket_is_being_closed(world: World) -> None:
    sock = await world.connect(ASKS_FOR_SOCKET + b"\r\n")
    assert b"101 Switching" in await asyncio.get_running_loop().sock_recv(sock, 1000)
    (connection,) = world.server._server.server_state.connections
    assert isinstance(connection, DirectSocket)
    connection.conn.receive_data(b"\x88\x80\0\0\0\0")  # a close that takes a while, as with TLS
    world.go_on.set()


@scene()
async def test_a_websocket_owes_no_request(
    world: World, *, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(connections, "REQUEST_S", 0.1)
    sock = await world.connect(ASKS_FOR_SOCKET + b"\r\n")
    assert b"101 Switching" in await asyncio.get_running_loop().sock_recv(sock, 1000)
    await asyncio.sleep(0.4)
    assert world.server._server.server_state.connections
    world.go_on.set()


HOST = "127.0.0.1"


class EncryptedWorld(Strangers):
    """An app that is served over TLS, and connections to it."""

    def __init__(self, stack: ExitStack, files: TlsFiles, agent: TlsFiles) -> None:
        super().__init__(stack, open_socket(HOST, 0))
        self.tls = ServedTls(files, HOST)
        self.agent = agent
        self.socket: DirectSocket | None = None
        app = new_app("app", "", token="secret", whose="the app")

        @app.websocket("/socket")
        async def hear(socket: WebSocket) -> None:
            await socket.accept()
            self.socket = direct(socket)
            await self.socket.hand_over(lambda data: None)

        self.server = Server(app, self.sock, self.tls)

    def people(self, trust: ssl.SSLContext | None = None) -> httpx.AsyncClient:
        trust = trust or client_context(self.agent)
        return httpx.AsyncClient(
            base_url=url_of(self.sock, self.tls), verify=trust, trust_env=False, timeout=DEADLINE_S
        )

    async def is_answered(self) -> bool:
        async with self.people() as people:
            return (await people.get("/healthz")).status_code == 200


Scene = Callable[[EncryptedWorld], Awaitable[None]]


@pytest.fixture
def play_tls(tmp_path: Path) -> Callable[[Scene], None]:
    authority = Authority(tmp_path / "job")
    files, agent = authority.files("server", names=[HOST]), authority.files("agent")

    def run(scene: Scene) -> None:
        async def main() -> None:
            with ExitStack() as stack:
                world = EncryptedWorld(stack, files, agent)
                await world.server.start()
                try:
                    await scene(world)
                finally:
                    await world.server.stop()

        asyncio.run(main())

    return run


def hello(size: int) -> bytes:
    """Return the begin of a handshake: its first bytes."""
    context = ssl.create_default_context()
    said = ssl.MemoryBIO()
    end = context.wrap_bio(ssl.MemoryBIO(), said, server_hostname="gpu1")
    with pytest.raises(ssl.SSLWantReadError):
        end.do_handshake()
    return said.read(size)


@scene(by="play_tls")
async def test_requests_are_answered_over_tls_1_3(world: EncryptedWorld) -> None:
    async with world.people() as people:
        answer = await people.get("/healthz")
        assert answer.status_code == 200
        stream = answer.extensions["network_stream"]
        assert stream.get_extra_info("ssl_object").version() == "TLSv1.3"
        assert (await people.get("/v1/status")).status_code == 401


@scene(by="play_tls")
async def test_one_that_is_gone_can_be_sent_to(world: EncryptedWorld) -> None:
    """Its transport answers nothing any more, in the turns until whoever serves it learns that."""
    url, trust = url_of(world.sock, world.tls), client_context(world.agent)
    async with (
        asyncio.timeout(DEADLINE_S),
        connect(url.replace("http", "ws") + "/socket", ssl=trust, proxy=None) as client,
    ):
        while world.socket is None:
            await asyncio.sleep(0.005)
        client.transport.abort()
        while not world.socket.disconnected:
            await asyncio.sleep(0)
        world.socket.send_frame(frame_of(b"nobody reads this"))
        assert world.socket.num_unsent == 0


@scene(by="play_tls")
async def test_who_has_no_certificate_is_not_even_told_that_it_needs_a_token(
    world: EncryptedWorld,
) -> None:
    for path in ("/healthz", "/metrics", "/docs", "/v1/status"):
        async with world.people(client_context(TlsFiles(ca=world.agent.ca))) as people:
            answer = await people.get(path)
        said = "it wants a certificate: give --tls-certificate and --tls-key"
        assert (answer.status_code, answer.json()) == (426, {"detail": said})


@scene(by="play_tls")
async def test_who_speaks_plain_http_is_told_to_speak_tls(world: EncryptedWorld) -> None:
    sock = await world.connect(b"GET /v1/status HTTP/1.1\r\nHost: x\r\n\r\n")
    said = await world.closed(sock)
    assert said.startswith(b"HTTP/1.1 426 Upgrade Required\r\n")
    assert said == connections.TELLS_TLS


@pytest.mark.parametrize(
    "said",
    [b"", hello(3), hello(100), hello(4000), b"\x00" * 100],
    ids=["nothing", "a word", "half a hello", "a hello", "garbage"],
)
@scene(by="play_tls")
async def test_who_does_not_finish_the_handshake_loses_its_place(
    world: EncryptedWorld, *, monkeypatch: pytest.MonkeyPatch, said: bytes
) -> None:
    monkeypatch.setattr(connections, "MOST_CONNECTIONS", 8)
    held = [await world.connect(said) for _ in range(40)]
    assert await world.is_answered()
    for sock in held[:30]:
        await world.closed(sock)


@pytest.mark.parametrize(
    "said", [b"", hello(100), hello(4000)], ids=["nothing", "half a hello", "a hello"]
)
@scene(by="play_tls")
async def test_who_does_not_finish_the_handshake_is_not_waited_for(
    world: EncryptedWorld, *, monkeypatch: pytest.MonkeyPatch, said: bytes
) -> None:
    monkeypatch.setattr(connections, "REQUEST_S", 0.5)
    await world.closed(await world.connect(said))
    assert await world.is_answered()


@scene(by="play_tls")
async def test_a_server_that_stops_waits_for_no_handshake(world: EncryptedWorld) -> None:
    sock = await world.connect(hello(100))
    assert await world.is_answered()  # by now that one is taken
    async with asyncio.timeout(5.0):
        await world.server.stop()
    await world.closed(sock)


@scene(by="play_tls")
async def test_a_certificate_that_is_renewed_is_shown_without_a_restart(
    world: EncryptedWorld, *, tmp_path: Path
) -> None:
    async with world.people() as before, world.people() as after:
        assert (await before.get("/healthz")).status_code == 200
        anew = Authority(tmp_path / "job")  # another CA under the old name
        anew.files("server", names=[HOST])
        anew.files("agent")
        assert (await before.get("/healthz")).status_code == 200  # its connection goes on
        with pytest.raises(httpx.ConnectError):
            await after.get("/healthz")
    assert await world.is_answered()
