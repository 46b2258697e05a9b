"""How long a lost coordinator is looked for: in time in which this process could look."""

from __future__ import annotations

import asyncio
import socket
import time
import zlib
from collections.abc import Callable, Iterator
from dataclasses import replace
from http import HTTPStatus
from itertools import pairwise

import pytest
from tests.scene import in_a_loop
from websockets.asyncio.server import ServerConnection, serve
from websockets.http11 import Request, Response

from pliant.agent import uplink
from pliant.agent.uplink import Thinning, Uplink
from pliant.core.commands import Reform
from pliant.core.errors import PermanentError, WrongTokenError
from pliant.core.events import Progressed
from pliant.core.values import Generation, Incarnation, NodeId, Order, ReplicaId, Seat, TlsFiles
from pliant.wire.codec import MAX_MESSAGE_BYTES, encode
from pliant.wire.framing import packed
from pliant.wire.messages import AgentFailed, Heard

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
    return searching(at(place.getsockname()[1]), give_up_s, on_unfit)


@in_a_loop
async def test_the_time_in_which_the_agent_was_stopped_does_not_count(
    *, place: socket.socket
) -> None:
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


def test_long_pauses_between_attempts_count(
    place: socket.socket, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(uplink, "RETRY_S", 1.5)

    async def play() -> None:
        with pytest.raises(PermanentError, match="no coordinator at ws://127"):
            await asyncio.wait_for(looking(place, give_up_s=2.0).run(), timeout=20)

    asyncio.run(play())


def test_who_has_another_to_speak_for_it_looks_on(place: socket.socket) -> None:
    """A part whose head has a coordinator runs workers for it."""
    left = 5

    def looks_on() -> bool:
        nonlocal left
        left -= 1
        return left > 0

    async def play() -> None:
        places = at(place.getsockname()[1])
        with pytest.raises(PermanentError, match="no coordinator at ws://127"):
            await asyncio.wait_for(searching(places, 0.0, looks_on=looks_on).run(), timeout=20)

    asyncio.run(play())
    assert left == 0


def test_who_has_lost_who_spoke_for_it_looks_for_as_long_as_anybody(
    place: socket.socket, monkeypatch: pytest.MonkeyPatch
) -> None:
    """What its workers have written lately nobody else can tell."""
    monkeypatch.setattr(uplink, "RETRY_S", 0.01)
    monkeypatch.setattr(uplink, "SLOWEST_RETRY_S", 0.01)
    began_s = last_s = time.monotonic()

    def looks_on() -> bool:
        nonlocal last_s
        now_s = time.monotonic()
        if now_s - began_s > 1.0:
            return False
        last_s = now_s
        return True

    async def play() -> None:
        places = at(place.getsockname()[1])
        with pytest.raises(PermanentError, match="no coordinator at ws://127"):
            await asyncio.wait_for(searching(places, 0.5, looks_on=looks_on).run(), timeout=20)

    asyncio.run(play())
    assert time.monotonic() - last_s >= 0.5


@pytest.mark.parametrize("code", [1000, 1008])
@in_a_loop
async def test_what_answers_and_never_says_a_word_is_no_coordinator(
    *, place: socket.socket, code: int
) -> None:
    """It refuses the greeting, or stands between: every connection begins and ends."""

    async def turn_away(connection: ServerConnection) -> None:
        await connection.close(code)

    async with serve(turn_away, sock=place):
        with pytest.raises(PermanentError, match="no coordinator at ws://127"):
            await asyncio.wait_for(looking(place, give_up_s=0.3).run(), timeout=20)


def test_a_coordinator_that_is_silent_is_named_as_people_write_it(
    place: socket.socket, monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    monkeypatch.setattr(uplink, "LOOK_S", 0.01)

    async def play() -> None:
        async def say_nothing(connection: ServerConnection) -> None:
            await connection.wait_closed()

        async with serve(say_nothing, sock=place):
            running = asyncio.create_task(looking(place, give_up_s=20.0).run())
            while not caplog.messages:
                await asyncio.sleep(0.01)
            running.cancel()

    asyncio.run(play())

    port = place.getsockname()[1] if place.fileno() >= 0 else ""
    assert f"the coordinator at 127.0.0.1, port {port}" in caplog.messages[0]


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


def at(*ports: int) -> tuple[str, ...]:
    return tuple(f"ws://127.0.0.1:{port}/" for port in ports)


def test_tls_changes_how_a_place_is_reached_and_not_its_name(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    tried: list[str] = []
    link = Uplink(
        lambda: ("ws://news:7000/v1/agents", "wss://news:7001/v1/agents"),
        "token",
        greeting=list,
        on_work=ignore,
        on_command=ignore,
        on_unfit=ignore,
        on_join=ignore,
        tls=TlsFiles(),
    )

    def connect(url: str, **_: object) -> None:
        tried.append(url)
        raise ConnectionRefusedError

    async def play() -> None:
        running = asyncio.create_task(link.run())
        while len(tried) < 2:
            await asyncio.sleep(0.01)
        running.cancel()

    monkeypatch.setattr(uplink, "connect", connect)
    monkeypatch.setattr(uplink, "_resolve", lambda url: None)
    asyncio.run(play())

    assert tried[:2] == ["wss://news:7000/v1/agents", "wss://news:7001/v1/agents"]


class _Coordinator:
    """Takes agents at one port, and says its incarnation to each."""

    def __init__(self, incarnation: int) -> None:
        self.incarnation = incarnation
        self.has_come = asyncio.Event()
        self.connections: list[ServerConnection] = []

    async def take(self, connection: ServerConnection) -> None:
        self.connections.append(connection)
        await connection.send(
            encode(Heard(count=0, signs_every_s=0.5), Incarnation(self.incarnation)).decode()
        )
        self.has_come.set()
        await connection.wait_closed()


def searching(
    places: tuple[str, ...],
    give_up_s: float = 60.0,
    on_unfit: Callable[[str], None] = ignore,
    looks_on: Callable[[], bool] = lambda: False,
) -> Uplink:
    return Uplink(
        lambda: places,
        "token",
        greeting=list,
        on_work=ignore,
        on_command=ignore,
        on_unfit=on_unfit,
        on_join=ignore,
        give_up_s=give_up_s,
        looks_on=looks_on,
    )


@in_a_loop
async def test_each_of_several_places_is_tried_and_again_when_the_coordinator_has_gone(
    *, place: socket.socket
) -> None:
    """Nobody listens at the first; the second dies, and another begins there and then."""
    nobody = place.getsockname()[1]
    first, second = _Coordinator(1), _Coordinator(2)
    async with (
        serve(first.take, "127.0.0.1", 0) as one,
        serve(second.take, "127.0.0.1", 0) as b,
    ):
        ports = [next(iter(server.sockets)).getsockname()[1] for server in (one, b)]
        link = searching(at(nobody, *ports))
        running = asyncio.create_task(link.run())
        await asyncio.wait_for(first.has_come.wait(), 20)
        one.close()
        await asyncio.wait_for(second.has_come.wait(), 20)
        while link.incarnation != 2:
            await asyncio.sleep(0.01)
        running.cancel()


def test_an_older_coordinator_that_still_listens_is_left_for_the_next_place(
    monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    """What it says does not count (R3), so it looks silent."""
    monkeypatch.setattr(uplink, "LOOK_S", 0.05)

    async def play() -> None:
        old, new = _Coordinator(1), _Coordinator(2)
        async with serve(old.take, "127.0.0.1", 0) as one, serve(new.take, "127.0.0.1", 0) as b:
            ports = [next(iter(server.sockets)).getsockname()[1] for server in (one, b)]
            link = searching(at(*ports))
            link.incarnation = Incarnation(2)
            running = asyncio.create_task(link.run())
            await asyncio.wait_for(new.has_come.wait(), 20)
            while len(caplog.messages) < 2:
                await asyncio.sleep(0.01)
            running.cancel()

            assert len(old.connections) == 1
            assert "is silent; it is looked for" in caplog.messages[0]
            assert caplog.messages[1] == "the coordinator was found again"

    asyncio.run(play())


@in_a_loop
async def test_a_large_order_comes_packed_and_a_bomb_is_refused(
    *, caplog: pytest.LogCaptureFixture
) -> None:
    seats = tuple(Seat(replica=ReplicaId(f"r{i}"), endpoint=f"h{i}:1") for i in range(1, 400))
    order = Order(generation=Generation(2), members=seats)
    reform = Reform(to=order.replicas, order=order, secret="0a" * 32)
    said = packed(encode(reform, Incarnation(1))) or b""

    class Packing(_Coordinator):
        async def take(self, connection: ServerConnection) -> None:
            await connection.send(zlib.compress(bytes(64 * MAX_MESSAGE_BYTES)))
            await connection.send(said)
            await super().take(connection)

    obeyed: list[object] = []
    coordinator = Packing(1)
    async with serve(coordinator.take, "127.0.0.1", 0) as server:
        link = searching(at(next(iter(server.sockets)).getsockname()[1]))
        link._on_command = lambda command, _: obeyed.append(command)
        running = asyncio.create_task(link.run())
        async with asyncio.timeout(20):
            while not obeyed:
                await asyncio.sleep(0.01)
        running.cancel()

    assert obeyed == [reform]
    assert caplog.text.count("refused a message of the coordinator") == 1


@pytest.mark.parametrize("num_places", [1, 2])
def test_a_token_that_is_refused_everywhere_is_told_at_once(
    place: socket.socket, num_places: int
) -> None:
    async def refuse(connection: ServerConnection, request: Request) -> Response:
        return connection.respond(HTTPStatus.FORBIDDEN, "")

    async def play() -> None:
        async with serve(_Coordinator(1).take, "127.0.0.1", 0, process_request=refuse) as server:
            ports = (next(iter(server.sockets)).getsockname()[1], place.getsockname()[1])
            with pytest.raises(WrongTokenError, match="has another token; give the file"):
                await asyncio.wait_for(searching(at(*ports[:num_places])).run(), 20)

    asyncio.run(play())


def test_one_of_several_places_that_is_another_jobs_by_now_ends_nobody(
    place: socket.socket,
) -> None:
    """The coordinator has gone, and somebody else has its port."""
    refusals: list[int] = []

    async def refuse(connection: ServerConnection, request: Request) -> Response | None:
        if not refusals and not coordinator.connections:
            return None
        refusals.append(1)
        return connection.respond(HTTPStatus.FORBIDDEN, "")

    coordinator = _Coordinator(1)

    async def play() -> None:
        async with serve(coordinator.take, "127.0.0.1", 0, process_request=refuse) as server:
            ports = (next(iter(server.sockets)).getsockname()[1], place.getsockname()[1])
            running = asyncio.create_task(searching(at(*ports)).run())
            await asyncio.wait_for(coordinator.has_come.wait(), 20)
            await coordinator.connections[0].close()
            while len(refusals) < 3:
                await asyncio.sleep(0.05)

            assert not running.done()
            running.cancel()

    asyncio.run(play())


@in_a_loop
async def test_a_list_without_a_coordinator_is_named_in_the_end(*, place: socket.socket) -> None:
    port = place.getsockname()[1]
    with pytest.raises(PermanentError, match=f"at ws://127.0.0.1:{port}/ or ws://127.0.0.1:"):
        await asyncio.wait_for(searching(at(port, port), give_up_s=0.5).run(), 20)


def test_a_file_that_no_coordinator_has_written_yet_is_waited_for() -> None:
    def unwritten() -> tuple[str, ...]:
        raise FileNotFoundError(2, "No such file or directory", "coordinator.json")

    uplink = Uplink(
        unwritten,
        "token",
        greeting=list,
        on_work=ignore,
        on_command=ignore,
        on_unfit=ignore,
        on_join=ignore,
        give_up_s=0.3,
    )

    with pytest.raises(PermanentError, match=r"no coordinator at any place: .*json"):
        asyncio.run(uplink.run())


def test_what_is_too_long_for_a_coordinator_is_not_said_again_and_again(
    place: socket.socket, caplog: pytest.LogCaptureFixture
) -> None:
    """It ends the connection on such a message, and what it has not read is said again."""

    async def play() -> list[str | bytes]:
        heard: list[str | bytes] = []
        has_all = asyncio.Event()

        async def hear(connection: ServerConnection) -> None:
            async for data in connection:
                heard.append(data)
                has_all.set()

        link = looking(place, give_up_s=30.0)
        link.send(AgentFailed(node=NodeId("n1"), reason="x" * MAX_MESSAGE_BYTES))
        link.send(AgentFailed(node=NodeId("n1"), reason="short"))
        async with serve(hear, sock=place, max_size=MAX_MESSAGE_BYTES):
            running = asyncio.create_task(link.run())
            await has_all.wait()
            running.cancel()
        return heard

    (said,) = asyncio.run(play())

    assert '"reason":"short"' in str(said)
    assert "agent_failed are not said" in caplog.text


BEAT = Progressed(replica=ReplicaId("r1"), generation=Generation(3), committed=7, calls=0)


def moments_s(thinning: Thinning, every_s: float) -> list[float]:
    """Return when a heartbeat goes up, of one each half second or a little sooner."""
    beats = [0.49 * number for number in range(20)]
    return [now_s for now_s in beats if thinning.is_needed(BEAT, now_s, every_s)]


@pytest.mark.parametrize("every_s", [0.0, 0.5])
def test_of_few_replicas_all_heartbeats_go_up(every_s: float) -> None:
    assert len(moments_s(Thinning(), every_s)) == 20


def test_of_many_as_many_go_up_as_are_asked_for() -> None:
    sent_s = moments_s(Thinning(), 2.5)

    pauses_s = [after - before for before, after in pairwise(sent_s)]
    assert len(sent_s) == 4
    assert all(2.25 <= pause_s <= 2.75 for pause_s in pauses_s)


@pytest.mark.parametrize(
    "news",
    [
        replace(BEAT, generation=Generation(4)),
        replace(BEAT, calls=1),
        replace(BEAT, is_spoken_for=True),
        replace(BEAT, held_up_by=1),
    ],
)
def test_what_is_new_goes_up_at_once(news: Progressed) -> None:
    thinning = Thinning()
    assert thinning.is_needed(BEAT, 0.0, 2.5)

    assert not thinning.is_needed(replace(BEAT, committed=8, waiting=Generation(3)), 0.5, 2.5)
    assert thinning.is_needed(news, 1.0, 2.5)


def test_each_replica_has_its_own_turn() -> None:
    thinning = Thinning()
    assert thinning.is_needed(BEAT, 0.0, 2.5)

    assert thinning.is_needed(replace(BEAT, replica=ReplicaId("r2")), 0.1, 2.5)
    thinning.forget(BEAT.replica)
    assert thinning.is_needed(BEAT, 0.2, 2.5)
