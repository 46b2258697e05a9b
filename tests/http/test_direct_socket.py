"""Messages are handed over in order and at once; who floods or does not read delays nobody.

A real server on loopback: what uvicorn and websockets do with frames is part of the claim.
"""

from __future__ import annotations

import asyncio
import socket
from collections.abc import Awaitable, Callable
from contextlib import suppress
from itertools import pairwise

import pytest
from fastapi import WebSocket
from tests.scene import scene
from websockets.asyncio.client import ClientConnection, connect
from websockets.exceptions import ConnectionClosed
from websockets.frames import CloseCode, Frame, Opcode

from pliant.http.app import new_app
from pliant.http.direct_socket import AT_ONCE, DirectSocket, direct, frame_of
from pliant.http.server import Server, open_socket, url_of
from pliant.wire.codec import MAX_MESSAGE_BYTES

pytestmark = pytest.mark.timeout(30)

DEADLINE_S = 10.0


class World:
    """A served app that keeps what it hears, and how many messages came in each turn."""

    def __init__(self) -> None:
        self.heard: list[bytes] = []
        self.socket: DirectSocket | None = None
        self.begin = asyncio.Event()
        self.has_ended = asyncio.Event()
        app = new_app("app", "", token="secret", whose="the app")

        @app.websocket("/socket")
        async def hear(socket: WebSocket) -> None:
            await socket.accept()
            self.socket = direct(socket)
            await self.begin.wait()
            await self.socket.hand_over(self.heard.append)
            self.has_ended.set()

        sock = open_socket("127.0.0.1", 0)
        self.url = url_of(sock).replace("http", "ws") + "/socket"
        self.server = Server(app, sock)

    @property
    def connection(self) -> DirectSocket:
        assert self.socket is not None
        return self.socket

    async def until(self, is_so: Callable[[], bool]) -> None:
        async with asyncio.timeout(DEADLINE_S):
            while not is_so():
                await asyncio.sleep(0.005)


Play = Callable[[Callable[[World, ClientConnection], Awaitable[None]]], None]


@pytest.fixture
def play() -> Play:
    return played


def played(scene: Callable[[World, ClientConnection], Awaitable[None]]) -> None:
    async def main() -> None:
        world = World()
        await world.server.start()
        try:
            async with connect(world.url, proxy=None, max_queue=1) as client:
                await asyncio.wait_for(scene(world, client), 20)
        finally:
            await world.server.stop()

    asyncio.run(main())


@scene()
async def test_what_waits_comes_first_and_all_of_it_in_order(
    world: World, client: ClientConnection
) -> None:
    early = [f"early {number}" for number in range(5)]
    late: list[str | bytes] = ["late", b"bytes", "\u20ac" * 100_000]
    for text in early:
        await client.send(text)
    await asyncio.sleep(0.05)
    world.begin.set()
    for data in late:
        await client.send(data)
    await client.send(["in ", "three ", "pieces"])

    expected = [*early, *late, "in three pieces"]
    await world.until(lambda: len(world.heard) == len(expected))
    assert world.heard == [x.encode() if isinstance(x, str) else x for x in expected]


@scene()
async def test_the_end_is_told_whoever_ends_it(world: World, client: ClientConnection) -> None:
    world.begin.set()
    await client.send("one")
    await world.until(lambda: bool(world.heard))
    await client.close()
    await asyncio.wait_for(world.has_ended.wait(), DEADLINE_S)


@scene()
async def test_all_that_was_said_before_the_end_is_taken(
    world: World, client: ClientConnection
) -> None:
    world.begin.set()
    await client.send("one")
    await world.until(lambda: bool(world.heard))

    client.transport.write(b"\x81\x81\0\0\0\0x" * 3 * AT_ONCE + b"\x88\x80\0\0\0\0")
    await asyncio.wait_for(world.has_ended.wait(), DEADLINE_S)

    assert len(world.heard) == 1 + 3 * AT_ONCE


@scene()
async def test_after_hanging_up_nothing_is_taken(world: World, client: ClientConnection) -> None:
    world.begin.set()
    await client.send("one")
    await world.until(lambda: bool(world.heard))

    world.connection.hang_up()
    with suppress(ConnectionClosed):
        await client.send("two")
    await asyncio.wait_for(world.has_ended.wait(), DEADLINE_S)

    assert world.heard == [b"one"]


@scene()
async def test_who_floods_leaves_others_their_turn(world: World, client: ClientConnection) -> None:
    loop, taken = asyncio.get_running_loop(), [0]
    count = 20 * AT_ONCE

    def turn() -> None:
        taken.append(len(world.heard))
        if taken[-1] < count:
            loop.call_soon(turn)

    world.begin.set()
    turn()
    client.transport.write(b"\x81\x81\0\0\0\0x" * count)
    await world.until(lambda: len(world.heard) == count)

    steps = [after - before for before, after in pairwise(taken)]
    assert max(steps) <= 2 * AT_ONCE  # those of one reading, and the rest of one before
    assert world.heard == [b"x"] * count


@scene()
async def test_who_does_not_read_is_known_by_what_is_unsent_and_cut_off(
    world: World, client: ClientConnection
) -> None:
    world.begin.set()
    await client.send("one")
    await world.until(lambda: bool(world.heard))
    client.transport.pause_reading()
    frame = frame_of(b"x" * 1_000_000)

    while world.connection.num_unsent < 4_000_000:
        world.connection.send_frame(frame)
    world.connection.cut_off()

    await asyncio.wait_for(world.has_ended.wait(), DEADLINE_S)
    world.connection.send_frame(frame)  # nobody is there: no harm


def _masked(text: str, opcode: Opcode = Opcode.TEXT, *, fin: bool = True) -> bytes:
    return Frame(opcode, text.encode(), fin=fin).serialize(mask=True)


@scene()
async def test_messages_come_whole_in_whatever_pieces_they_are_read(
    world: World, client: ClientConnection
) -> None:
    texts = ["short", "", "m" * 300, "\u20ac" * 40_000, "last"]
    plain = b"".join(map(_masked, texts))
    other = (
        _masked("", Opcode.PING)
        + _masked("in ", fin=False)
        + _masked("amid", Opcode.PING)
        + _masked("pieces", Opcode.CONT)
        + _masked("after")
    )
    world.begin.set()
    await world.until(lambda: world.socket is not None)
    for data in (plain, plain, other):
        world.connection.data_received(data[:1])
        for at, piece in ((1, 1), (2, 5), (7, 3), (10, 700), (710, 50_000)):
            world.connection.data_received(data[at : at + piece])
        world.connection.data_received(data[50_710:])

    expected = [text.encode() for text in (*texts, *texts, "in pieces", "after")]
    await world.until(lambda: len(world.heard) == len(expected))
    assert world.heard == expected


@scene()
async def test_a_message_that_is_too_large_is_not_waited_for(
    world: World, client: ClientConnection
) -> None:
    world.begin.set()
    await client.send("one")
    client.transport.write(b"\x81\xff" + (MAX_MESSAGE_BYTES + 1).to_bytes(8, "big") + bytes(9))

    with pytest.raises(ConnectionClosed) as closed:
        await asyncio.wait_for(client.recv(), DEADLINE_S)

    assert closed.value.rcvd is not None
    assert closed.value.rcvd.code == CloseCode.MESSAGE_TOO_BIG
    assert world.heard == [b"one"]


@scene()
async def test_a_frame_is_what_a_client_reads(world: World, client: ClientConnection) -> None:
    await world.until(lambda: world.socket is not None)
    for text in ("", "short", "m" * 200, "l" * 70_000, "\u20ac"):
        world.connection.send_frame(frame_of(text.encode()))
        assert await asyncio.wait_for(client.recv(), DEADLINE_S) == text


@scene()
async def test_a_small_message_does_not_wait_until_the_one_before_is_acknowledged(
    world: World, client: ClientConnection
) -> None:
    """The kernel holds it back for 40 ms otherwise, unless the client says something meanwhile."""
    await world.until(lambda: world.socket is not None)
    served = world.connection.transport.get_extra_info("socket")
    assert served.getsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY)
