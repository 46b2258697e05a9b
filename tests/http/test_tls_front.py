"""Who does not finish a handshake keeps nobody away, and nobody gets in without one."""

from __future__ import annotations

import asyncio
import ssl
from collections.abc import Awaitable, Callable
from contextlib import ExitStack
from pathlib import Path

import httpx
import pytest
from fastapi import WebSocket
from tests.certificates import Authority
from tests.http.sockets import DEADLINE_S, Strangers
from websockets.asyncio.client import connect

from pliant.core.tls_files import TlsFiles
from pliant.http import connections, tls_front
from pliant.http.app import new_app
from pliant.http.direct_socket import DirectSocket, direct, frame_of
from pliant.http.server import Server, open_socket, url_of
from pliant.machine.control_tls import ServedTls, client_context

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
def play(tmp_path: Path) -> Callable[[Scene], None]:
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


def test_requests_are_answered_over_tls_1_3(play: Callable[[Scene], None]) -> None:
    async def scene(world: EncryptedWorld) -> None:
        async with world.people() as people:
            answer = await people.get("/healthz")
            assert answer.status_code == 200
            stream = answer.extensions["network_stream"]
            assert stream.get_extra_info("ssl_object").version() == "TLSv1.3"
            assert (await people.get("/v1/status")).status_code == 401

    play(scene)


def test_one_that_is_gone_can_be_sent_to(play: Callable[[Scene], None]) -> None:
    """Its transport answers nothing any more, in the turns until whoever serves it learns that."""

    async def scene(world: EncryptedWorld) -> None:
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

    play(scene)


def test_who_has_no_certificate_is_not_even_told_that_it_needs_a_token(
    play: Callable[[Scene], None],
) -> None:
    async def scene(world: EncryptedWorld) -> None:
        for path in ("/healthz", "/metrics", "/docs", "/v1/status"):
            async with world.people(client_context(TlsFiles(ca=world.agent.ca))) as people:
                answer = await people.get(path)
            said = "it wants a certificate: give --tls-certificate and --tls-key"
            assert (answer.status_code, answer.json()) == (426, {"detail": said})

    play(scene)


def test_who_speaks_plain_http_is_told_to_speak_tls(play: Callable[[Scene], None]) -> None:
    async def scene(world: EncryptedWorld) -> None:
        sock = await world.connect(b"GET /v1/status HTTP/1.1\r\nHost: x\r\n\r\n")
        said = await world.closed(sock)
        assert said.startswith(b"HTTP/1.1 426 Upgrade Required\r\n")
        assert said == tls_front.TELLS_TLS

    play(scene)


@pytest.mark.parametrize(
    "said",
    [b"", hello(3), hello(100), hello(4000), b"\x00" * 100],
    ids=["nothing", "a word", "half a hello", "a hello", "garbage"],
)
def test_who_does_not_finish_the_handshake_loses_its_place(
    play: Callable[[Scene], None], monkeypatch: pytest.MonkeyPatch, said: bytes
) -> None:
    monkeypatch.setattr(connections, "MOST_CONNECTIONS", 8)

    async def scene(world: EncryptedWorld) -> None:
        held = [await world.connect(said) for _ in range(40)]
        assert await world.is_answered()
        for sock in held[:30]:
            await world.closed(sock)

    play(scene)


@pytest.mark.parametrize(
    "said", [b"", hello(100), hello(4000)], ids=["nothing", "half a hello", "a hello"]
)
def test_who_does_not_finish_the_handshake_is_not_waited_for(
    play: Callable[[Scene], None], monkeypatch: pytest.MonkeyPatch, said: bytes
) -> None:
    monkeypatch.setattr(tls_front, "REQUEST_S", 0.5)

    async def scene(world: EncryptedWorld) -> None:
        await world.closed(await world.connect(said))
        assert await world.is_answered()

    play(scene)


def test_a_server_that_stops_waits_for_no_handshake(play: Callable[[Scene], None]) -> None:
    async def scene(world: EncryptedWorld) -> None:
        sock = await world.connect(hello(100))
        assert await world.is_answered()  # by now that one is taken
        async with asyncio.timeout(5.0):
            await world.server.stop()
        await world.closed(sock)

    play(scene)


def test_a_certificate_that_is_renewed_is_shown_without_a_restart(
    play: Callable[[Scene], None], tmp_path: Path
) -> None:
    async def scene(world: EncryptedWorld) -> None:
        async with world.people() as before, world.people() as after:
            assert (await before.get("/healthz")).status_code == 200
            anew = Authority(tmp_path / "job")  # another CA under the old name
            anew.files("server", names=[HOST])
            anew.files("agent")
            assert (await before.get("/healthz")).status_code == 200  # its connection goes on
            with pytest.raises(httpx.ConnectError):
                await after.get("/healthz")
        assert await world.is_answered()

    play(scene)
