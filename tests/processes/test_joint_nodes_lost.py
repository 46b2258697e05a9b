"""Replicas that span hosts: coordinators and hosts are lost, or one command starts all."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path

import pytest
from tests.live import namespaces
from tests.live.namespaces import Network
from tests.live.stage import DEADLINE_S
from tests.processes.hosts import alone, digests, hosts, pliant, records, share
from tests.processes.spanning import SHARDED, Spanning, workers_on

from pliant.core.errors import EXIT_TAKEN_OVER

pytestmark = [
    pytest.mark.processes,
    pytest.mark.timeout(1200),
    pytest.mark.skipif(bool(namespaces.obstacle()), reason=namespaces.obstacle()),
]


@pytest.fixture
def net(tmp_path: Path) -> Iterator[Network]:
    with hosts(tmp_path, *"abcdefg") as lent:
        yield lent


@pytest.fixture
def out(tmp_path: Path) -> Path:
    """Return the directory of the run, with its register, which all hosts see."""
    (tmp_path / "shared").mkdir(mode=0o700)
    return tmp_path / "shared" / "run"


@pytest.mark.soak
def test_another_coordinator_takes_over_joint_nodes(net: Network, out: Path) -> None:
    """First from one that lives; then one that is killed, together with the agent of a part."""
    a, b, c, d, e, f, _ = net.hosts
    job = Spanning(net, out=out)
    job.places = f"{a.address}:7000,{f.address}:7000"
    job.employ(b, c)
    generation = job.trains(1)
    job.employ(d, e)
    generation = job.trains(2, after=generation)

    second = job.coordinate(f)

    assert job.coordinator.wait() == EXIT_TAKEN_OVER, a.said()
    job.until(lambda: job.records("coordinator_started"), "another coordinates")
    job.goes_on()
    assert not job.records("exited")
    (worker,) = workers_on(job.nodes()[0][1])
    worker.kill()
    generation = job.trains(2, after=generation)

    victim = job.nodes()[1][1]
    job.agents.pop(victim.name).kill()
    second.kill()
    job.coordinator = job.coordinate(a)

    generation = job.trains(1, after=generation)
    job.employ(victim)
    job.trains(2, after=generation)
    job.stop()


@pytest.mark.soak
def test_two_of_the_three_hosts_of_a_node_are_lost_at_once(net: Network, out: Path) -> None:
    job = Spanning(net, each=3, out=out)
    job.employ(*net.hosts[1:4])
    generation = job.trains(1)
    job.employ(*net.hosts[4:])
    generation = job.trains(2, after=generation)
    left, *lost = job.nodes()[1]

    for host in lost:
        job.agents.pop(host.name)
        host.die()

    generation = job.trains(1, after=generation)
    job.until(lambda: job.records("joint_nodes")[-1]["alone"] == [left.name], "one waits")
    assert workers_on(left) == []
    net.switch_on()
    job.employ(*[host for host in net.hosts if host.name in {one.name for one in lost}])
    job.trains(2, after=generation)
    job.stop()


@pytest.mark.soak
def test_all_hosts_are_lost_at_once_and_come_back(net: Network, out: Path, tmp_path: Path) -> None:
    """The same commands go on from the newest checkpoint."""
    job = Spanning(net, out=out, kept=tmp_path / "shared" / "kept")
    job.employ(*net.hosts[1:3])
    generation = job.trains(1)
    job.employ(*net.hosts[3:5])
    generation = job.trains(2, after=generation)
    job.until(lambda: job.records("saved"), "there is a checkpoint")

    for host in net.hosts:
        host.die()

    net.switch_on()
    job.coordinator = job.coordinate(job.first)
    job.employ(*net.hosts[1:5])
    job.trains(2, after=generation)
    job.stop()


@pytest.mark.soak
def test_one_command_on_every_host_trains_replicas_of_two(net: Network) -> None:
    """The host that has the address coordinates, and has a part; nnodes counts hosts."""
    a, b, c, *_ = net.hosts
    for host in (a, b, c):
        (host.own / "train.py").write_text(SHARDED)
    words: tuple[object, ...] = ("run", "--join", f"{a.address}:7000", "--nnodes", "2:3")
    words = (*words, "--devices-per-node", 1, "--token-file", "token")
    words = (*words, "--workers-per-replica", 2, "--hosts-per-replica", 2, "train.py", 60)
    first = pliant(a, *words)
    share(a, "token", b, c)
    second, third = pliant(b, *words), pliant(c, *words)

    assert first.wait(4 * DEADLINE_S) == 0, a.said()

    assert [second.wait(), third.wait()] == [0, 0], b.said() + c.said()
    assert digests(a, b, c) == {alone(a, 60)}
    assert "2:3 hosts, 1 replica on every 2: 1 in all" in a.said()
    (told,) = {len(one["nodes"]) for one in records(a, "joint_nodes") if one["nodes"]}
    assert told == 1
    assert "1 host waits for another: hostsPerReplica is 2" in a.said()
