"""How long a lost coordinator is looked for: in time in which this process could look."""

from __future__ import annotations

import asyncio
import socket
import time
from collections.abc import Callable, Iterator

import pytest
from websockets.asyncio.server import ServerConnection, serve

from pliant.agent import uplink
from pliant.agent.uplink import Uplink
from pliant.core.errors import PermanentError

pytestmark = pytest.mark.timeout(60)


@pytest.fixture
def place() -> Iterator[socket.socket]:
    """Return a socket whose port is taken and at which nobody listens yet."""
    with socket.socket() as taken:
        taken.bind(("127.0.0.1", 0))
        yield taken


def ignore(*_: object) -> None:
    pass


def looking(
    place: socket.socket, give_up_s: float, on_unfit: Callable[[str], None] = ignore
) -> Uplink:
    return Uplink(
        f"ws://127.0.0.1:{place.getsockname()[1]}/",
        "token",
        greeting=list,
        on_work=ignore,
        on_command=ignore,
        on_unfit=on_unfit,
        give_up_s=give_up_s,
    )


def test_the_time_in_which_the_agent_was_stopped_does_not_count(place: socket.socket) -> None:
    async def play() -> None:
        has_come = asyncio.Event()

        async def welcome(connection: ServerConnection) -> None:
            has_come.set()
            await connection.wait_closed()

        running = asyncio.create_task(looking(place, give_up_s=3.0).run())
        await asyncio.sleep(0.5)
        time.sleep(4.0)  # as if it was stopped
        await asyncio.sleep(1.0)
        async with serve(welcome, sock=place):
            coming = asyncio.create_task(has_come.wait())
            await asyncio.wait([running, coming], return_when=asyncio.FIRST_COMPLETED)
            running.cancel()
            coming.cancel()

        assert has_come.is_set(), running.exception()

    asyncio.run(play())


def test_long_pauses_between_attempts_count(
    place: socket.socket, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(uplink, "RETRY_S", 1.5)

    async def play() -> None:
        with pytest.raises(PermanentError, match="no coordinator at ws://127"):
            await asyncio.wait_for(looking(place, give_up_s=2.0).run(), timeout=20)

    asyncio.run(play())


@pytest.mark.parametrize("code", [1000, 1008])
def test_what_answers_and_never_says_a_word_is_no_coordinator(
    place: socket.socket, code: int
) -> None:
    """It refuses the greeting, or stands between: every connection begins and ends."""

    async def play() -> None:
        async def turn_away(connection: ServerConnection) -> None:
            await connection.close(code)

        async with serve(turn_away, sock=place):
            with pytest.raises(PermanentError, match="no coordinator at ws://127"):
                await asyncio.wait_for(looking(place, give_up_s=0.3).run(), timeout=20)

    asyncio.run(play())


def test_an_agent_goes_when_it_cannot_read_the_first_word(place: socket.socket) -> None:
    async def play() -> None:
        told: asyncio.Future[str] = asyncio.get_running_loop().create_future()

        async def speak(connection: ServerConnection) -> None:
            await connection.send('{"v":1,"type":"tomorrow","incarnation":1}')
            await connection.wait_closed()

        async with serve(speak, sock=place):
            running = asyncio.create_task(looking(place, 10.0, on_unfit=told.set_result).run())
            reason = await asyncio.wait_for(told, timeout=20)
            running.cancel()

        assert reason.startswith("this agent cannot read what the coordinator says (")
        assert reason.endswith("a job needs the same pliant on every node")

    asyncio.run(play())
