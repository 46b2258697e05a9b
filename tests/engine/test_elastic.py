"""What the main thread of a replica does when news come while it waits."""

from __future__ import annotations

import socket
from collections.abc import Iterator
from pathlib import Path

import pytest

from pliant.core.vocabulary import ExitKind, Incarnation, JobId, Release, ReplicaId
from pliant.engine.bootstrap import WorkerContext
from pliant.engine.elastic import Elastic
from pliant.engine.layout import Layout
from pliant.engine.link import Link
from pliant.engine.membership import Shape

ME = ReplicaId("r1")
FIRST = Incarnation(1)


@pytest.fixture
def context(tmp_path: Path) -> Iterator[WorkerContext]:
    agent, worker = socket.socketpair()
    link = Link(worker, ME, incarnation=FIRST)
    yield WorkerContext(
        replica=ME, link=link, job=JobId("job"), out=tmp_path, address="127.0.0.1", init=None
    )
    link.close()
    agent.close()


def test_a_leaver_whose_last_exchange_broke_leaves_when_it_is_released(
    context: WorkerContext,
) -> None:
    """The others committed the boundary step, crossed, and cut the old group before it heard."""
    shape = Shape(num_slots=2, layout=Layout.of([]), is_exact=True)
    elastic = Elastic(context, shape, None, ())  # type: ignore[arg-type]
    elastic._on_command(Release(to=(ME,)), FIRST)

    with pytest.raises(SystemExit) as leaving:
        elastic.recover("the last exchange broke")

    assert leaving.value.code == 0
    assert elastic.member.leaving
    assert context.ending is ExitKind.LEFT
