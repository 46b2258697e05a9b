"""A head of a host group that asks of its part what it should not."""

from __future__ import annotations

from pathlib import Path
from types import SimpleNamespace
from typing import Any, cast

import pytest
from tests.agent.hosts.joined import R1
from tests.agent.hosts.test_leader import EndedConnection, link_of

from pliant.agent.hosts.member import PartWorkers
from pliant.agent.node_facts import AgentConfig
from pliant.agent.this_host import ThisHost
from pliant.agent.work import JobHere
from pliant.core.values import Incarnation, NodeId
from pliant.wire.host_records import PartLeaving, StartPart
from pliant.wire.messages import Work


def part_of(directory: Path) -> PartWorkers:
    """Return a part of a job of six workers on three hosts, which starts nothing."""
    work = Work(
        job="j",
        command=("train.py",),
        cwd=str(directory),
        out=str(directory),
        workers_per_replica=6,
        hosts_per_replica=3,
    )
    config = AgentConfig(node=NodeId("h1"), devices=2, environment={}, work=work)
    host = SimpleNamespace(config=config, job=JobHere(config))
    part = PartWorkers(link_of(EndedConnection()), cast(ThisHost, host))
    part._start = lambda order: None  # type: ignore[method-assign]
    return part


@pytest.mark.parametrize(
    "wrong",
    [
        {"replica": "../../r1"},
        {"replica": ""},
        {"places": ()},
        {"places": (2,)},
        {"places": (2, 2)},
        {"places": (1, 2)},
        {"places": (5, 6)},
        {"places": (2, 3, 4)},
        {"places": (-2, -1)},
    ],
)
def test_a_head_cannot_have_started_what_no_part_runs(
    tmp_path: Path, wrong: dict[str, Any]
) -> None:
    """Names of replicas become names of files."""
    right: dict[str, Any] = {"replica": R1, "places": (2, 3), "incarnation": Incarnation(1)}
    part = part_of(tmp_path)

    with pytest.raises(ValueError, match="a head says no StartPart"):
        part.obey(StartPart(**(right | wrong)))

    part.obey(StartPart(**right))


def test_a_head_does_not_speak_as_a_part(tmp_path: Path) -> None:
    with pytest.raises(ValueError, match="a head says no PartLeaving"):
        part_of(tmp_path).obey(PartLeaving(notice_s=1.0))
