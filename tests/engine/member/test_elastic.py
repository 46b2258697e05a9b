"""State is handed over as it is after the tail of the step that was committed last."""

from __future__ import annotations

from types import SimpleNamespace
from typing import Any

import pytest
from torch import nn

from pliant.core.commands import ListCheckpoints, Release, SkipCalls
from pliant.core.events import Spare
from pliant.core.membership.member import Member
from pliant.core.membership.resolve import Resolution
from pliant.core.values import (
    FIRST_LINEAGE,
    CheckpointInfo,
    Generation,
    Incarnation,
    Lineage,
    Order,
    ReplicaId,
    Seat,
)
from pliant.engine.comm.communicator import WindowSize
from pliant.engine.member.elastic import ElasticMembership
from pliant.engine.member.formed import Shape
from pliant.engine.member.membership_port import NOT_KEPT, Ending
from pliant.engine.member.rendezvous import Meeting
from pliant.engine.member.runtime import ProtocolRuntime
from pliant.engine.reduce.buckets import Layout


class Callbacks:
    def __init__(self) -> None:
        self.did: list[str] = []

    def commit_voted(self, decision: Any) -> None:
        self.did.append("commit")

    def give_up_attempt(self, *, buffers_may_be_written: bool) -> None:
        self.did.append("give up")

    def state_to_send(self) -> dict[str, Any]:
        self.did.append("send")
        return {}

    def dataset_attributes(self) -> bytes:
        return b""


@pytest.fixture
def callbacks() -> Callbacks:
    return Callbacks()


@pytest.fixture
def elastic(callbacks: Callbacks) -> Any:
    link = SimpleNamespace(attach=lambda *_: None, send=lambda *_: None)
    assignment = SimpleNamespace(address="127.0.0.1", work=SimpleNamespace(exchange="auto"))
    context: Any = SimpleNamespace(
        replica=ReplicaId("r1"), link=link, assignment=assignment, tls=None
    )
    layout = Layout.of(nn.Linear(1, 1).named_parameters(), extras=1)
    shape = Shape(num_slots=2, layout=layout, is_exact=True)
    runtime = ProtocolRuntime(context, layout, lambda order: WindowSize(nbytes=0))
    return ElasticMembership(
        context,
        runtime,
        shape,
        callbacks,  # type: ignore[arg-type]
        (),
        found=(),
        look=lambda: (),
        is_durable=False,
    )


def meet(elastic: Any, generation: int, *, commits: tuple[int, ...]) -> None:
    """Enter a generation of r1, which holds the state, and r2, which is to get it."""
    seats = tuple(Seat(replica=ReplicaId(name), endpoint="") for name in ("r1", "r2"))
    order = Order(
        generation=Generation(generation),
        members=seats,
        origin=None,
        hold=False,
    )
    resolution = Resolution(
        survivors=(0,),
        commits=commits,
        committed=1,
        made_by=Generation(1),
        lineage=FIRST_LINEAGE,
        calls=0,
        joiners=(1,),
    )
    meeting = Meeting(resolution=resolution, ending=Ending.NONE, apart=0)
    group = SimpleNamespace(rank=0, submit=lambda job: None)
    elastic._act_on(order, group, meeting)


def test_state_waits_for_the_tail_of_a_step_that_was_committed_late(
    elastic: Any, callbacks: Callbacks
) -> None:
    meet(elastic, 2, commits=(0,))
    assert callbacks.did == ["commit"]


def test_state_waits_for_that_tail_even_if_another_generation_comes_first(
    elastic: Any, callbacks: Callbacks
) -> None:
    meet(elastic, 2, commits=(0,))
    meet(elastic, 3, commits=())
    assert callbacks.did == ["commit"]
    elastic._handover.complete()
    assert callbacks.did == ["commit", "send"]


def test_state_is_sent_at_once_where_no_tail_is_due(elastic: Any, callbacks: Callbacks) -> None:
    meet(elastic, 2, commits=())
    assert callbacks.did == ["send"]


def test_a_spare_that_is_told_to_look_says_what_there_is_by_then(
    elastic: Any, monkeypatch: pytest.MonkeyPatch
) -> None:
    said: list[Any] = []
    monkeypatch.setattr(elastic._runtime, "tell", said.append)
    found = CheckpointInfo(name="step-8", committed=8, lineage=Lineage(1))
    elastic._look = lambda: (found,)
    me = (ReplicaId("r1"),)
    elastic._runtime._on_command(ListCheckpoints(to=me, number=3), Incarnation(1))
    elastic._runtime._on_command(SkipCalls(to=me, calls=1), Incarnation(1))

    assert not elastic.arrive()

    spares = [one for one in said if isinstance(one, Spare)]
    assert [one.checkpoints for one in spares] == [(), (found,)]
    assert [(one.asked_by, one.looked) for one in spares] == [(0, 0), (1, 3)]


def test_of_those_who_are_released_the_first_leads_and_stays_it(elastic: Any) -> None:
    me, other = ReplicaId("r1"), ReplicaId("r2")
    elastic._slots.formed = SimpleNamespace(order=SimpleNamespace(replicas=(me, other)))
    assert elastic.leads

    elastic._runtime._on_command(Release(to=(other, me)), Incarnation(1))
    assert not elastic.leads

    elastic._runtime._on_command(Release(to=(me,)), Incarnation(2))
    assert not elastic.leads


def test_a_last_checkpoint_that_is_never_written_is_one_that_failed(
    elastic: Any, callbacks: Any, monkeypatch: pytest.MonkeyPatch
) -> None:
    said: list[Any] = []
    monkeypatch.setattr(elastic._runtime, "tell", said.append)
    monkeypatch.setattr("pliant.engine.member.checkpoint_channel.KEPT_S", -1.0)
    callbacks.is_kept = lambda: False

    elastic.await_kept()

    (failed,) = said
    assert (failed.reason, failed.retry_s) == (NOT_KEPT, 0.0)


def test_a_call_is_told_to_be_finished_by_who_has_come_to_the_next_one(
    elastic: Any, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Who falls through a call runs what stands behind it: only a further call needs that."""
    said: list[Any] = []
    monkeypatch.setattr(elastic._runtime, "tell", said.append)
    elastic._runtime._member = Member(replica=ReplicaId("r1"), has_state=True)

    elastic._runtime.finish_call()
    between = elastic._runtime._heartbeat()
    assert elastic.arrive()

    assert (between.calls, elastic._runtime._heartbeat().calls) == (0, 1)
    assert [one.calls for one in said] == [1]
