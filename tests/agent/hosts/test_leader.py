"""A part of a host group that says what it should not, and a link that ends before it begins."""

from __future__ import annotations

import asyncio
from collections.abc import Callable
from types import SimpleNamespace
from typing import Any, cast

import pytest
from tests.agent.hosts.joined import R1
from tests.agent.world import DEADLINE_S
from tests.scene import in_a_loop
from websockets.exceptions import ConnectionClosedOK

from pliant.agent.hosts.leader import HeadWorkers
from pliant.agent.hosts.link import HostLink
from pliant.agent.replicas_here import ReplicasHere
from pliant.agent.this_host import ThisHost
from pliant.core.values import NO_INCARNATION, NodeId
from pliant.wire.codec import Message, encode
from pliant.wire.host_records import (
    RECORDS,
    LinkRecord,
    PartNews,
    PartReaped,
)
from pliant.wire.messages import LedgerGrown, OutputGrown

H1 = NodeId("h1")


class EndedConnection:
    """One that was lost before anything was heard; over TLS it has no socket any more."""

    def __init__(self, *frames: str) -> None:
        self.transport, self.frames, self.is_cut = self, list(frames), False

    def get_extra_info(self, name: str) -> None:
        return None

    def abort(self) -> None:
        self.is_cut = True

    def __aiter__(self) -> EndedConnection:
        return self

    async def __anext__(self) -> str:
        if not self.frames:
            raise ConnectionClosedOK(None, None)
        return self.frames.pop(0)

    async def send(self, data: object) -> None:
        raise ConnectionClosedOK(None, None)


def link_of(connection: EndedConnection) -> HostLink:
    return HostLink(cast(Any, connection), H1, devices=1)


@in_a_loop
async def test_a_link_that_was_lost_before_it_was_used_has_ended() -> None:
    link = link_of(EndedConnection())

    await asyncio.wait_for(link.run(), DEADLINE_S)

    assert link.ended.is_set()


@in_a_loop
async def test_what_cannot_be_taken_ends_the_link_and_nothing_else() -> None:
    said = RECORDS.dump_json(PartReaped(replica=R1, place=1, returncode=1)).decode()
    link = link_of(EndedConnection(said, said))

    def fail(record: LinkRecord) -> None:
        raise OverflowError("too large")

    link.attach(fail)
    await asyncio.wait_for(link.run(), DEADLINE_S)

    assert link.ended.is_set()
    assert link.why == "it has said what could not be taken"


class NoReplicas:
    def get(self, replica: str) -> None:
        return None


def take(*_: object) -> None:
    """Take anything for nothing."""


def head_of(send: Callable[..., None] = take, refuse: Callable[..., None] = take) -> HeadWorkers:
    host = SimpleNamespace(send=send, refuse=refuse)
    return HeadWorkers(cast(ReplicasHere, NoReplicas()), cast(ThisHost, host), take)


@pytest.mark.parametrize("worker", [None, 0])
def test_a_part_does_not_tell_what_a_worker_0_has_written_or_printed(worker: int | None) -> None:
    sent: list[Message] = []
    refused: list[tuple[str, str]] = []
    head = head_of(sent.append, lambda *why: refused.append(why))
    forged = LedgerGrown(replica=R1, part=0, offset=0, lines="{}\n", worker=worker)
    printed = OutputGrown(replica=R1, offset=0, text="hello\n", worker=1)

    async def play() -> None:
        news = [encode(message, NO_INCARNATION).decode() for message in (forged, printed)]
        said = [RECORDS.dump_json(PartNews(message=one)).decode() for one in news]
        link = link_of(EndedConnection(*said))
        head.meet(link)
        await asyncio.wait_for(link.run(), DEADLINE_S)

    asyncio.run(play())
    assert sent == [printed]
    assert refused == [("h1", "spoke for a worker 0")]
