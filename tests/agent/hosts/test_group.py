"""Several hosts are one node: whole, or gone; what its workers say reaches them all."""

from __future__ import annotations

import asyncio
import errno
import os
import signal
import socket
from collections.abc import Callable
from contextlib import suppress
from dataclasses import replace
from functools import partial
from pathlib import Path

import psutil
import pytest
from tests.agent.hosts.joined import Joined, played, until
from tests.agent.test_local_replica import MEETS, WAITS, gone
from tests.agent.world import end, start
from tests.certificates import Authority
from tests.scene import scene
from websockets.asyncio.server import ServerConnection, serve
from websockets.http11 import Request, Response

from pliant.agent.hosts import group as hosts_group
from pliant.agent.hosts import link as hosts_link
from pliant.agent.hosts import listener as hosts_listener
from pliant.agent.worker import LOOK_S
from pliant.agent.workers_here import SILENT_LOOKS
from pliant.core.agreement import NodeFacts
from pliant.core.events import Exited, ExitKind, NodeJoined, NodeLeaving, Progressed
from pliant.core.values import TlsFiles
from pliant.wire.messages import (
    AgentLeft,
    HostAlone,
    LedgerGrown,
    OutputGrown,
    Started,
    Traceback,
)

pytestmark = [pytest.mark.processes, pytest.mark.timeout(180)]

Play = Callable[..., Joined]


@pytest.fixture
def play(tmp_path: Path) -> Play:
    return partial(played, tmp_path)


@scene(WAITS, workers=4, devices=3)
async def test_hosts_are_alone_until_they_are_told_to_be_one_node(
    hosts: Joined, *, caplog: pytest.LogCaptureFixture
) -> None:
    said = [await host.alone() for host in hosts.hosts]
    assert [(one.node, one.devices, one.missed) for one in said] == [
        ("h0", 3, ()),
        ("h1", 3, ()),
    ]

    waits = "this host waits for 1 other host: a replica of job j is on 2 hosts"
    await until(lambda: caplog.messages.count(waits) == 2, "both say that they wait")

    await hosts.join()

    assert {"this host is one node with h1 now", "this host is one node with h0 now"} <= {
        *caplog.messages
    }
    assert [host.joined.devices for host in hosts.hosts] == [4, 0]
    assert hosts.head.facts.parts == ("h1",)
    assert all(len(host.all(HostAlone)) == 1 for host in hosts.hosts)


@scene(WAITS)
async def test_a_replica_has_workers_on_each_host_and_ends_as_one(hosts: Joined) -> None:
    await hosts.join()
    await hosts.head.say(start("r1"))
    workers = await hosts.started(2)
    await hosts.waits("r1.0", "r1.1")
    assert [(one.worker, one.node) for one in workers] == [(0, "h0"), (1, "h0")]
    assert ("r1.1", "waiting") in hosts.parts[0].lines

    await hosts.head.say(end("r1"))

    (exited,) = await hosts.head.exits()
    assert (exited.replica, exited.kind, exited.worker) == ("r1", ExitKind.SIGNAL, None)
    assert gone([one.pid for one in workers])
    assert hosts.parts[0].all(type(exited)) == []


@pytest.mark.parametrize("failing", [0, 1])
@scene(WAITS)
async def test_a_host_that_fails_while_it_is_joined_is_not_one_with_others(
    hosts: Joined, *, failing: int
) -> None:
    told = await hosts.order()
    host, other = hosts.hosts[failing], hosts.hosts[1 - failing]
    await host.say(told)
    await until(lambda: host.agent._joint._task, "it is about to be joined")

    host.agent._joint.give_up()
    await other.say(told)

    await other.alone(2)
    assert not any(one.all(NodeFacts)[-1].head for one in hosts.hosts)


@pytest.mark.parametrize("place", [0, 1])
@scene(WAITS)
async def test_a_killed_worker_takes_those_of_other_hosts_and_another_replica_follows(
    hosts: Joined, *, place: int
) -> None:
    await hosts.join()
    await hosts.head.say(start("r1"))
    workers = await hosts.started(2)
    await hosts.waits("r1.0", "r1.1")

    os.kill(workers[place].pid, signal.SIGKILL)

    (exited,) = await hosts.head.exits()
    assert (exited.kind, exited.detail, exited.worker) == (ExitKind.SIGNAL, "SIGKILL", place)
    assert gone([one.pid for one in workers])
    await hosts.head.say(start("r2"))
    await hosts.started(4)
    await hosts.waits("r2.0", "r2.1")
    assert all(len(host.all(HostAlone)) == 1 for host in hosts.hosts)


@scene(WAITS, devices=2)
async def test_a_replica_lives_while_another_host_has_not_started_its_workers(
    hosts: Joined,
) -> None:
    """A host that has just come imports torch first; its partner may have done so long ago."""
    await hosts.join()
    await hosts.head.say(start("r1"))
    _, elsewhere = await hosts.started(2)
    server = psutil.Process(elsewhere.pid).parent()
    assert server is not None
    server.suspend()
    try:
        await hosts.head.say(start("r2"))
        await until(lambda: len(hosts.head.all(Started)) == 3, "r2.0 is started, and r2.1 is not")
        await asyncio.sleep((SILENT_LOOKS + 2) * LOOK_S)
        hosts.head.heard.clear()

        def lives() -> bool:
            return any(one.replica == "r2" for one in hosts.head.all(Progressed))

        await until(lives, "r2 shows life")
    finally:
        server.resume()


def test_the_last_words_of_a_worker_of_another_host_say_why_its_replica_has_ended(
    play: Play,
) -> None:
    script = MEETS + (
        "if rank == 1:\n    raise ValueError('broken on purpose')\nthreading.Event().wait()\n"
    )

    async def scene(hosts: Joined) -> None:
        await hosts.join()
        await hosts.head.say(start("r1"))

        (exited,) = await hosts.head.exits()

        assert (exited.kind, exited.detail) == (ExitKind.SCRIPT, "ValueError: broken on purpose")
        assert exited.worker == 1
        (told,) = hosts.head.all(Traceback)
        assert (told.replica, told.worker) == ("r1", 1)

    play(scene, script)


@scene(WAITS)
async def test_a_fork_server_of_a_part_that_dies_takes_the_replica_and_not_the_node(
    hosts: Joined,
) -> None:
    await hosts.join()
    await hosts.head.say(start("r1"))
    workers = await hosts.started(2)
    await hosts.waits("r1.0", "r1.1")
    parent = psutil.Process(workers[1].pid).ppid()

    os.kill(parent, signal.SIGKILL)

    (exited,) = await hosts.head.exits()
    assert (exited.detail, exited.worker) == ("SIGKILL", 1)
    assert gone([one.pid for one in workers])
    await hosts.head.say(start("r2"))
    await hosts.waits("r2.0", "r2.1")


@pytest.mark.parametrize("lost", [0, 1, 2])
@scene(WAITS, hosts=3, workers=3)
async def test_an_agent_that_is_gone_leaves_the_others_alone_with_nothing_running(
    hosts: Joined, *, lost: int
) -> None:
    await hosts.join()
    await hosts.head.say(start("r1"))
    workers = await hosts.started(3)
    await hosts.waits("r1.0", "r1.1", "r1.2")
    others = [host for number, host in enumerate(hosts.hosts) if number != lost]

    await hosts.hosts[lost].agent.close()

    for host in others:
        assert (await host.alone(2)).missed == ()
        assert (host.joined.devices, host.facts.head, host.facts.parts) == (0, "", ())
    assert gone([one.pid for one in workers])
    if lost:
        exited, *_ = await hosts.head.exits()  # said again on the new connection
        assert (exited.kind, exited.worker) == (ExitKind.SIGNAL, lost)
        assert exited.detail.startswith(f"host h{lost} is lost: ")


def test_a_host_that_falls_silent_is_lost_to_the_others(
    play: Play, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(hosts_link, "LOOK_S", 0.2)

    async def scene(hosts: Joined) -> None:
        await hosts.join()
        await hosts.head.say(start("r1"))
        workers = await hosts.started(2)
        await hosts.waits("r1.0", "r1.1")
        (link,) = hosts.head.agent._joint.links

        link._outbox = asyncio.Queue()  # nothing reaches the part any more

        for host in hosts.hosts:
            await host.alone(2)
        assert gone([one.pid for one in workers])
        assert hosts.head.all(Exited)[0].detail == "host h1 is lost: it has ended the connection"

    play(scene, WAITS)


def test_a_part_that_does_not_come_is_missed_and_all_are_alone_again(
    play: Play, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(hosts_listener, "JOIN_S", 3.0)

    async def scene(hosts: Joined) -> None:
        told = await hosts.order()
        head, near, far = hosts.hosts
        await head.say(told)
        await near.say(told)  # and the third hears nothing

        assert (await head.alone(2)).missed == ("h2",)
        assert (await near.alone(2)).missed == ()
        assert len(far.all(HostAlone)) == 1
        await far.say(told)
        assert (await far.alone(2)).missed == ("h0",)

        told = await hosts.order(endpoint=(await head.alone(2)).endpoint)
        for host in hosts.hosts:
            await host.say(told)
        await hosts.are_joined()

    play(scene, WAITS, hosts=3, workers=3)


def test_a_host_without_free_descriptors_says_so_and_goes_on_when_there_are_some(
    play: Play, monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    used_up = ["127.0.0.2"]

    def has_none(_number: int) -> None:
        raise OSError(errno.EMFILE, "Too many open files")

    class Listener(hosts_listener.HeadListener):
        def __init__(self, address: str, tls: TlsFiles | None) -> None:
            with monkeypatch.context() as patch:
                if address in used_up:
                    patch.setattr(hosts_listener, "check_free", has_none)
                super().__init__(address, tls)

    monkeypatch.setattr(hosts_group, "HeadListener", Listener)
    monkeypatch.setattr(hosts_group, "AGAIN_S", 0.1)

    async def scene(hosts: Joined) -> None:
        (part,) = hosts.parts
        said = [await part.alone(count) for count in (1, 2, 3)]
        assert {(one.devices, one.endpoint) for one in said} == {(0, "")}
        assert all("no file descriptor is free there" in one.obstacle for one in said)
        here = [text for text in caplog.messages if "cannot be one with others" in text]
        assert len(here) == 1, "it is said once"

        used_up.clear()
        await until(lambda: not part.all(HostAlone)[-1].obstacle, "it has gone on")
        await hosts.join()

    play(scene, WAITS)


def test_who_was_missed_is_said_again_where_it_may_not_have_been_heard(
    play: Play, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Else the same two are told to be one at once, and fail again."""
    monkeypatch.setattr(hosts_listener, "JOIN_S", 1.0)

    async def scene(hosts: Joined) -> None:
        await hosts.head.say(await hosts.order())
        assert (await hosts.head.alone(2)).missed == ("h1",)

        assert hosts.head.connection is not None
        await hosts.head.connection.close()

        assert (await hosts.head.alone(3)).missed == ("h1",)
        await hosts.join()

    play(scene, WAITS)


def test_who_does_not_know_the_secret_is_not_let_in_nor_trusted(
    play: Play, monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    monkeypatch.setattr(hosts_listener, "JOIN_S", 1.0)

    async def scene(hosts: Joined) -> None:
        told = await hosts.order()
        await hosts.head.say(told)
        await hosts.parts[0].say(replace(told, secret="ab" * 32))

        assert (await hosts.head.alone(2)).missed == ("h1",)
        assert (await hosts.parts[0].alone(2)).missed == ("h0",)
        for other in ("h0", "h1"):
            assert any(
                text.startswith(f"this host and {other} did not reach each other: ")
                for text in caplog.messages
            )

    play(scene, WAITS)


def test_a_head_that_does_not_know_the_secret_is_not_followed(
    play: Play, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(hosts_listener, "JOIN_S", 1.0)
    came: list[str] = []

    def pretend(connection: ServerConnection, request: Request, response: Response) -> None:
        came.append(request.headers["Pliant-Part"])
        response.headers["Pliant-Proof"] = request.headers["Pliant-Proof"]  # as the part has said

    async def scene(hosts: Joined) -> None:
        async def stay(connection: ServerConnection) -> None:
            await connection.wait_closed()

        async with serve(stay, "127.0.0.1", 0, process_response=pretend) as server:
            port = next(iter(server.sockets)).getsockname()[1]
            told = await hosts.order(endpoint=f"127.0.0.1:{port}")
            await hosts.parts[0].say(told)

            assert (await hosts.parts[0].alone(2)).missed == ("h0",)
            assert set(came) == {"h1"}

    play(scene, WAITS)


def test_strangers_at_the_door_keep_no_part_out_and_find_it_closed_afterwards(
    play: Play, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(hosts_listener, "OPEN_S", 60.0)  # they do not go by themselves

    async def scene(hosts: Joined) -> None:
        told = await hosts.order()
        host, _, port = told.endpoint.partition(":")
        with pytest.raises(ConnectionRefusedError):  # nobody is awaited so far
            socket.create_connection((host, int(port)))
        await hosts.head.say(told)
        strangers: list[tuple[asyncio.StreamReader, asyncio.StreamWriter]] = []
        await until(lambda: hosts.head.agent._joint._task, "the head listens")
        while len(strangers) < 3 * hosts_listener.MOST_STRANGERS:
            with suppress(ConnectionRefusedError):
                strangers.append(await asyncio.open_connection(host, int(port)))
        strangers[-1][1].write(b"GET / HTTP/1.1\r\nHost: h0\r\n\r\n")
        sent_away = 2 * hosts_listener.MOST_STRANGERS
        await until(lambda: sum(map(_has_ended, strangers)) >= sent_away, "the oldest go")

        for part in hosts.parts:
            await part.say(told)

        await hosts.are_joined()
        with pytest.raises(ConnectionRefusedError):
            socket.create_connection((host, int(port)))
        for _, writer in strangers:
            writer.close()
            with suppress(OSError):
                await writer.wait_closed()

    play(scene, WAITS)


def _has_ended(stranger: tuple[asyncio.StreamReader, asyncio.StreamWriter]) -> bool:
    return stranger[0].at_eof() or stranger[0].exception() is not None


TALKS = (
    MEETS
    + """
import hashlib, socket
path = f"{own.inner}/" + ("channel" if sys.argv[1:] != ["store"] else "store")
sock = socket.socket(socket.AF_UNIX)
sent = b"".join(hashlib.sha256(b"%d" % n).digest() for n in range(200_000))
if rank == 0:
    sock.bind(path)
    threading.Event().wait(0.3)  # the other is there first
    sock.listen()
    other = sock.accept()[0]
    while len(found := other.recv(1 << 20)):
        other.sendall(found)
else:
    sock.connect(path)
    sending = threading.Thread(target=sock.sendall, args=(sent,))
    sending.start()
    found = b""
    while len(found) < len(sent):
        found += sock.recv(1 << 20)
    print("same", found == sent)
    sock.close()
print("waiting", flush=True)
threading.Event().wait()
"""
)


@scene("import sys\n" + TALKS)
async def test_workers_of_two_hosts_meet_as_on_one(hosts: Joined) -> None:
    await hosts.join()
    await hosts.head.say(start("r1"))

    await hosts.waits("r1.0", "r1.1")  # the end of one is the end of the other

    assert ("r1.1", "same True") in hosts.parts[0].lines


def test_what_a_part_writes_and_prints_that_nobody_else_sees_goes_up_through_the_head(
    play: Play,
) -> None:
    script = MEETS + (
        "ledger = Path(own.work.out) / 'ledger'\nledger.mkdir(exist_ok=True)\n"
        "(ledger / ('r1.1.jsonl' if rank else 'r1.jsonl')).write_text('{\"rank\": %d}\\n' % rank)\n"
        'print("waiting", flush=True)\nthreading.Event().wait()\n'
    )

    async def scene(hosts: Joined) -> None:
        await hosts.join()
        await hosts.head.say(start("r1"))
        await hosts.waits("r1.0", "r1.1")
        await hosts.head.say(end("r1"))
        await hosts.head.exits()

        head, part = hosts.hosts
        lines = {None: '{"rank": 0}\n', 1: '{"rank": 1}\n'}
        assert {one.worker: one.lines for one in head.all(LedgerGrown)} == lines
        printed = {(one.worker, one.text) for one in head.all(OutputGrown)}
        assert {(0, "waiting\n"), (1, "waiting\n")} <= printed
        assert part.all(LedgerGrown) == part.all(OutputGrown) == []
        last = head.heard.index(head.all(Exited)[0])
        assert all(head.heard.index(one) < last for one in head.all(LedgerGrown))

        for link in head.agent._joint.links:
            link.cut()  # what was on its way the part tells itself, as far as it knows
        await part.alone(2)
        await until(lambda: part.all(LedgerGrown), "the part tells it again")
        assert [(one.worker, one.lines) for one in part.all(LedgerGrown)] == [(1, lines[1])]

    play(scene, script, shared=False)


@scene(WAITS, grace_s=120.0)
async def test_a_part_that_is_told_to_end_waits_until_the_replicas_have_left(hosts: Joined) -> None:
    await hosts.join()
    await hosts.head.say(start("r1"))
    await hosts.waits("r1.0", "r1.1")
    head, part = hosts.hosts

    leaving = asyncio.create_task(part.agent.depart())

    await until(lambda: head.all(NodeLeaving), "the head says that its node leaves")
    assert not leaving.done()
    await head.say(end("r1"))
    await leaving
    assert part.all(AgentLeft)
    assert (await head.alone(2)).missed == ()
    assert head.all(AgentLeft)
    # Where nobody has heard that, this tells it.
    assert head.joined.life.follows(head.all(NodeJoined)[0].life)
    assert head.joined.devices == 0
    assert len(part.all(HostAlone)) == 1


def test_hosts_with_certificates_are_joined_by_tls(play: Play, tmp_path: Path) -> None:
    async def scene(hosts: Joined) -> None:
        await hosts.join()
        links = hosts.head.agent._joint.links
        assert len(links) == 2
        assert all(one._connection.transport.get_extra_info("peercert") for one in links)
        await hosts.head.say(start("r1"))
        await hosts.waits("r1.0", "r1.1", "r1.2")

    play(scene, WAITS, hosts=3, workers=3, tls=Authority(tmp_path / "ca").files())
