"""What workers say to each other between hosts is carried whole, and no faster than it is read."""

from __future__ import annotations

import asyncio
from contextlib import suppress
from pathlib import Path

import pytest
from tests.agent.hosts.joined import R1, until
from tests.scene import in_a_loop

from pliant.agent.hosts import tunnels
from pliant.agent.hosts.tunnels import WINDOW_BYTES, Tunnels
from pliant.wire.host_records import STREAM_BYTES, TunnelOpened, TunnelRead, TunnelRecord


class End:
    """One end of a link, whose other end is the test."""

    def __init__(self, directory: Path | None) -> None:
        self.said: list[TunnelRecord] = []
        self.frames: list[bytes] = []
        self.tunnels = Tunnels(say=self.said.append, write=self._write)
        self.tunnels.directory_of = lambda replica: directory

    async def _write(self, frame: bytes) -> None:
        self.frames.append(frame)

    def sent(self) -> int:
        return sum(len(frame) - STREAM_BYTES for frame in self.frames)


@in_a_loop
async def test_no_more_is_sent_than_the_other_end_has_room_for(*, tmp_path: Path) -> None:
    part = End(None)
    await part.tunnels.listen(R1, tmp_path)
    reader, writer = await asyncio.open_unix_connection(tmp_path / "store")
    writer.write(bytes(3 * WINDOW_BYTES))

    await until(lambda: part.sent() == WINDOW_BYTES, "the window is full")
    await asyncio.sleep(0.1)
    assert part.sent() == WINDOW_BYTES
    assert part.said == [TunnelOpened(stream=1, replica=R1, socket="store")]
    part.tunnels.read(TunnelRead(stream=1, count=1000))
    await until(lambda: part.sent() == WINDOW_BYTES + 1000, "what was read makes room")

    await part.tunnels.close()
    with suppress(ConnectionResetError):
        assert await reader.read() == b""
    writer.close()


@in_a_loop
async def test_more_than_there_is_room_for_is_not_taken(*, tmp_path: Path) -> None:
    head = End(tmp_path)  # where nobody listens so far
    head.tunnels.opened(TunnelOpened(stream=7, replica=R1, socket="channel"))
    frame = (7).to_bytes(STREAM_BYTES, "big") + bytes(WINDOW_BYTES)
    head.tunnels.take_frame(frame)

    with pytest.raises(ValueError, match="more than was asked for"):
        head.tunnels.take_frame(frame[: STREAM_BYTES + 1])

    head.tunnels.take_frame(b"\0\0\0\1gone")  # of a stream that has ended
    await head.tunnels.close()


@in_a_loop
async def test_a_worker_0_is_waited_for_and_its_end_is_the_end_of_the_other(
    *, tmp_path: Path
) -> None:
    head = End(tmp_path)
    head.tunnels.opened(TunnelOpened(stream=7, replica=R1, socket="channel"))
    head.tunnels.take_frame((7).to_bytes(STREAM_BYTES, "big") + b"early")
    heard: list[bytes] = []

    async def serve(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        heard.append(await reader.readexactly(5))
        writer.close()

    server = await asyncio.start_unix_server(serve, tmp_path / "channel")
    await until(lambda: head.frames, "the end is told")

    assert heard == [b"early"]
    assert head.frames == [(7).to_bytes(STREAM_BYTES, "big")]
    assert head.said == [TunnelRead(stream=7, count=5)]
    server.close()
    await head.tunnels.close()


@pytest.mark.parametrize("number", [-1, 0, 1 << 32, 1 << 80, 7])
@in_a_loop
async def test_a_tunnel_without_a_number_of_its_own_is_not_opened(
    *, tmp_path: Path, number: int
) -> None:
    head = End(tmp_path)
    head.tunnels.opened(TunnelOpened(stream=7, replica=R1, socket="channel"))

    with pytest.raises(ValueError, match="number"):
        head.tunnels.opened(TunnelOpened(stream=number, replica=R1, socket="store"))

    await head.tunnels.close()


def test_tunnels_are_not_opened_without_end(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(tunnels, "MOST_STREAMS", 3)

    async def play() -> None:
        head = End(tmp_path)
        for number in (1, 2, 3):
            head.tunnels.opened(TunnelOpened(stream=number, replica=R1, socket="channel"))

        with pytest.raises(ValueError, match="more than 3"):
            head.tunnels.opened(TunnelOpened(stream=4, replica=R1, socket="channel"))

        await head.tunnels.close()

    asyncio.run(play())
