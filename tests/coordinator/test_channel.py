"""An agent is trusted with its own replicas: whatever it says, the job goes on."""

from __future__ import annotations

import asyncio
import io
import json
import math
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import replace
from pathlib import Path
from typing import Any, cast

import pytest
from fastapi import WebSocket
from hypothesis import given, settings
from hypothesis import strategies as st
from prometheus_client import generate_latest
from starlette.websockets import WebSocketState
from tests.coordinator.drivers import driver_of
from tests.scene import in_a_loop
from tests.wire.messages import messages

from pliant.cli.terminal import PlainConsole
from pliant.cli.view import PlainView
from pliant.coordinator.channel import _MAY_SAY, serve_agent
from pliant.coordinator.metrics import BoardCollector
from pliant.coordinator.nodes import LOOK_S, JobNodes
from pliant.core.commands import StartReplica
from pliant.core.events import (
    Event,
    Exited,
    ExitKind,
    NodeJoined,
    Prepared,
    Refused,
    Running,
    Scaled,
    Spare,
    Switched,
    Ticked,
)
from pliant.core.job import controller
from pliant.core.job.state import Job, JobSettings
from pliant.core.policy.decide import Policy
from pliant.core.values import Generation, Incarnation, NodeId, ReplicaId
from pliant.http.app import registry_of
from pliant.observe.history import read_history
from pliant.observe.log import EventLog, Listener, Record
from pliant.wire.codec import EVENTS, Envelope, Message, decode, encode
from pliant.wire.messages import Alive, LedgerGrown, Unfit, Work

SETTINGS = JobSettings(policy=Policy(max_replicas=3))


def spare(name: str) -> Spare:
    return Spare(replica=ReplicaId(name), calls=0, num_slots=4, layout="l", endpoint="h:1")


STORY: list[Event] = [
    NodeJoined(node=NodeId("here"), devices=3),
    Scaled(target=2),
    spare("r1"),
    spare("r2"),
    *(Prepared(replica=ReplicaId(name), generation=Generation(1)) for name in ("r1", "r2")),
    *(Switched(replica=ReplicaId(name), generation=Generation(1), step=0) for name in ("r1", "r2")),
    Scaled(target=3),
    spare("r3"),
    *(Prepared(replica=ReplicaId(name), generation=Generation(2)) for name in ("r1", "r2", "r3")),
]


def job_after(num_events: int) -> Job:
    job, _ = controller.begin(now_s=0.0, settings=SETTINGS)
    for event in STORY[:num_events]:
        job, _ = controller.step(job, event, now_s=1.0, settings=SETTINGS)
    return job


STAGES = [job_after(count) for count in range(len(STORY) + 1)]


@settings(max_examples=60)
@given(
    stage=st.integers(0, len(STORY)),
    said=st.lists(messages(sorted(_MAY_SAY & EVENTS, key=str)), min_size=1, max_size=6),
)
def test_no_event_of_an_agent_ends_the_core(stage: int, said: list[Any]) -> None:
    job, now_s = STAGES[stage], 1.0

    for message in said:
        received = decode(encode(message, Incarnation(1)), _MAY_SAY)
        assert isinstance(received, Envelope), received
        now_s += 0.5
        for event in (received.message, Ticked()):
            job, _ = controller.step(job, event, now_s=now_s, settings=SETTINGS)  # type: ignore[arg-type]
        assert not math.isnan(controller.next_deadline_s(job))


HERE, THERE = NodeId("here"), NodeId("there")


def test_an_agent_speaks_for_its_own_replicas_only() -> None:
    nodes = JobNodes()
    for node, replica in ((HERE, "r1"), (THERE, "r2")):
        nodes.attach(NodeJoined(node=node, devices=1), Deaf())
        nodes.send(StartReplica(replica=ReplicaId(replica), node=node), Incarnation(1))

    assert nodes.may_say(HERE, spare("r1"))
    assert nodes.may_say(HERE, spare("r9"))  # nobody's yet: the core knows what to make of it
    assert not nodes.may_say(HERE, spare("r2"))
    assert not nodes.may_say(HERE, Exited(replica=ReplicaId("r2"), kind=ExitKind.LEFT))
    assert not nodes.may_say(HERE, Alive(node=THERE, refused=0))
    joiner = Refused(replica=ReplicaId("r2"), generation=Generation(2), reason="", joiner=True)
    assert nodes.may_say(HERE, joiner)
    names = (ReplicaId("r1"), ReplicaId("r2"))
    assert nodes.may_say(HERE, Running(node=HERE, replicas=names[:1]))
    assert not nodes.may_say(HERE, Running(node=HERE, replicas=names))
    assert nodes.own(HERE, [ReplicaId("r1"), ReplicaId("r2")]) == (ReplicaId("r1"),)


@pytest.mark.parametrize("are_joint", [False, True])
def test_a_host_that_was_part_of_a_node_may_tell_what_its_workers_have_written(
    are_joint: bool,
) -> None:
    nodes = JobNodes(are_joint=are_joint)
    for node, replica in ((HERE, "r1"), (THERE, "r2")):
        nodes.attach(NodeJoined(node=node, devices=1), Deaf())
        nodes.send(StartReplica(replica=ReplicaId(replica), node=node), Incarnation(1))
    written = LedgerGrown(replica=ReplicaId("r2"), worker=1, part=0, offset=0, lines="{}\n")

    assert nodes.may_say(HERE, written) is are_joint
    assert not nodes.may_say(HERE, replace(written, worker=None))  # the head's alone to say
    assert nodes.may_say(THERE, replace(written, worker=None))


def test_the_replicas_of_a_node_that_is_gone_may_be_found_elsewhere() -> None:
    nodes = JobNodes()
    nodes.attach(NodeJoined(node=THERE, devices=1, replicas=(ReplicaId("r2"),)), gone := Deaf())
    nodes.detach(THERE, gone, now_s=0.0)
    assert not nodes.may_say(HERE, spare("r2"))

    nodes.forget_silent(now_s=1e6)

    assert nodes.may_say(HERE, spare("r2"))


def test_nodes_that_went_at_one_moment_are_forgotten_at_one() -> None:
    nodes, names = JobNodes(away_s=10.0), [NodeId(f"n{number}") for number in range(200)]
    for number, node in enumerate(names):
        nodes.attach(NodeJoined(node=node, devices=1), gone := Deaf())
        nodes.detach(node, gone, now_s=number / 1000)  # as it comes to it
    nodes.attach(NodeJoined(node=HERE, devices=1), gone := Deaf())
    nodes.detach(HERE, gone, now_s=5.0)

    assert not nodes.forget_silent(10.15)
    assert nodes.forget_silent(10.2) == names
    assert not nodes.forget_silent(15.0)
    assert nodes.forget_silent(15.01) == [HERE]


def test_a_node_that_comes_back_is_not_forgotten() -> None:
    nodes = JobNodes(away_s=10.0)
    for node in (HERE, THERE):
        nodes.attach(NodeJoined(node=node, devices=1), gone := Deaf())
        nodes.detach(node, gone, now_s=0.0)

    nodes.attach(NodeJoined(node=HERE, devices=1), Deaf())

    assert nodes.forget_silent(11.0) == [THERE]


@in_a_loop
async def test_of_two_that_would_take_the_place_of_a_silent_agent_one_does() -> None:
    nodes = JobNodes()
    nodes.attach(NodeJoined(node=HERE, devices=1), Deaf())
    waiting = asyncio.create_task(nodes.speaks(HERE))
    await asyncio.sleep(0.01)

    nodes.attach(NodeJoined(node=HERE, devices=1), Deaf())

    assert await waiting


@in_a_loop
async def test_an_agent_whose_connection_has_ended_is_not_waited_for() -> None:
    nodes = JobNodes()
    nodes.attach(NodeJoined(node=HERE, devices=1), gone := Deaf())
    nodes.detach(HERE, gone, now_s=0.0)

    async with asyncio.timeout(LOOK_S / 2):
        assert not await nodes.speaks(HERE)
        assert not await nodes.speaks(THERE)


class Deaf:
    """A channel that nobody listens to."""

    def hang_up(self) -> None:
        pass

    def send_encoded(self, message: bytes) -> None:
        pass


@contextmanager
def raising_listeners() -> Iterator[None]:
    """Let who cannot take a record say so, where the log would go on."""

    def tell(log: EventLog, listener: Listener, record: Record) -> None:
        listener(record)

    with pytest.MonkeyPatch.context() as patched:
        patched.setattr(EventLog, "_tell", tell)
        yield


@settings(max_examples=40)
@given(said=st.lists(messages(sorted(_MAY_SAY, key=str)), max_size=8))
def test_whatever_an_agent_says_can_be_logged_and_shown(
    tmp_path_factory: pytest.TempPathFactory, said: list[Any]
) -> None:
    directory = tmp_path_factory.mktemp("run")
    log = EventLog(directory / "events.jsonl", job="j")
    driver = driver_of(log, SETTINGS)
    view = PlainView(PlainConsole(file=io.StringIO()), show=None)
    log.subscribe(view.record)

    with raising_listeners():
        for message in said:
            driver.receive(message)

    log.close()
    json.dumps(driver.board.as_json())
    numbers = BoardCollector(lambda: driver.board, driver.refused, driver.losses)
    generate_latest(registry_of(numbers))
    assert read_history(log.path).board == driver.board


class ScriptedSocket:
    """Says what an agent says, and keeps what is answered."""

    application_state = WebSocketState.CONNECTED

    def __init__(self, *said: Message) -> None:
        self.heard: list[Message] = []
        self._frames = [
            {"type": "websocket.receive", "text": encode(one, Incarnation(0)).decode()}
            for one in said
        ]

    async def accept(self) -> None:
        pass

    async def receive(self) -> dict[str, str]:
        return self._frames.pop(0) if self._frames else {"type": "websocket.disconnect"}

    async def send_text(self, text: str) -> None:
        received = decode(text)
        assert isinstance(received, Envelope)
        self.heard.append(received.message)

    async def close(self, code: int) -> None:
        pass


def test_an_agent_does_not_come_under_a_name_that_its_certificate_has_not(tmp_path: Path) -> None:
    log = EventLog(tmp_path / "events.jsonl", job="j")
    driver = driver_of(log, SETTINGS)
    socket = ScriptedSocket(NodeJoined(node=HERE, devices=1))

    async def serve() -> None:
        await driver.begin()
        work = Work(job="j", command=("train.py",), cwd="/", out="/")
        await serve_agent(cast(WebSocket, socket), driver, work, certified=["there"])

    asyncio.run(serve())

    log.close()
    assert driver.nodes.life_of(HERE) is None
    assert [type(one) for one in socket.heard] == [Unfit]


def test_an_agent_that_is_connected_and_says_nothing_is_told_once() -> None:
    """Of one without a connection it is told that it is lost."""
    nodes = JobNodes(silent_s=5.0)
    for node in (HERE, THERE):
        nodes.attach(NodeJoined(node=node, devices=1), channel := Deaf())
    told = []

    for now_s in range(20):
        if now_s not in range(3, 12):
            nodes.note_speech(THERE)
        if now_s == 4:
            nodes.note_speech(HERE)
        if now_s == 7:
            nodes.detach(THERE, channel, now_s=now_s)
        told += [(now_s, node) for node in nodes.fallen_silent(float(now_s))]

    assert told == [(9, HERE)]
    nodes.note_speech(HERE)
    assert not nodes.fallen_silent(20.0)
    assert nodes.fallen_silent(25.0) == [HERE]


def test_what_was_said_while_the_coordinator_slept_is_read_before_it_looks() -> None:
    nodes = JobNodes(silent_s=5.0)
    nodes.attach(NodeJoined(node=HERE, devices=1), Deaf())
    nodes.fallen_silent(0.0)
    nodes.note_speech(HERE)

    assert not nodes.fallen_silent(100.0)
