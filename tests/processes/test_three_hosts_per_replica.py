"""Replicas of three workers on three hosts each: joined, killed, and none the worse."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from pathlib import Path

import pytest
from tests.live import namespaces
from tests.live.namespaces import Network, NetworkHost
from tests.processes.hosts import hosts
from tests.processes.spanning import Spanning, workers_on

pytestmark = [
    pytest.mark.processes,
    pytest.mark.timeout(1200),
    pytest.mark.skipif(bool(namespaces.obstacle()), reason=namespaces.obstacle()),
]


@pytest.fixture
def net(tmp_path: Path) -> Iterator[Network]:
    with hosts(tmp_path, *"abcdefg") as lent:
        yield lent


@pytest.mark.soak
def test_a_worker_and_then_an_agent_of_a_part_are_killed_and_others_take_their_place(
    net: Network,
) -> None:
    """A second replica joins later; the host that waits takes the place of one that is lost."""
    job = Spanning(net, each=3, tls=True)
    job.employ(*net.hosts[:3])
    generation = job.trains(1)
    job.employ(*net.hosts[3:6])
    generation = job.trains(2, after=generation)
    head, second, third = job.pair()
    (worker,) = workers_on(second)

    worker.kill()

    generation = job.trains(2, after=generation)
    (exited,) = job.records("exited")
    assert (exited["exited_kind"], exited["detail"]) == ("signal", "SIGKILL")
    assert exited["worker"] == 1
    assert job.pair() == [head, second, third]
    job.employ(net.hosts[6])
    job.until(lambda: job.records("joint_nodes")[-1]["alone"] == ["g"], "one host waits")

    job.agents.pop(third.name).kill()

    generation = job.trains(1, after=generation)
    generation = job.trains(2, after=generation)
    assert set(job.pair()) == {head, second, net.hosts[6]}
    job.employ(third)  # it knows what its worker has computed last, and nobody else does
    job.until(lambda: job.has_ledgers_of(third), "that is told")
    job.stop()


@pytest.mark.soak
def test_parts_that_do_not_reach_each_other_are_joined_with_others(
    net: Network, tmp_path: Path
) -> None:
    """Before they are of one node, and while a replica trains there."""
    _, b, c, d, e, *_ = net.hosts
    job = Spanning(net, each=3, out=tmp_path / "run", kept=tmp_path / "kept")
    both_ways(net.cut, c, d)
    job.employ(b, c, d)
    job.until(lambda: {"c", "d"} in job.missed(), "two parts have missed each other")
    job.employ(e)
    generation = job.trains(1)
    job.until(lambda: job.records("saved"), "there is a checkpoint")
    (node,) = job.nodes()
    assert not {c, d} <= set(node)

    both_ways(net.cut, *node[1:])

    job.trains(1, after=generation)
    (node,) = job.nodes()
    assert not {c, d} <= set(node)
    job.stop(is_proved=False)


def both_ways(change: Callable[[NetworkHost, NetworkHost], None], *ends: NetworkHost) -> None:
    one, other = ends
    change(one, other)
    change(other, one)
