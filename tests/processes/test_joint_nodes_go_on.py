"""Hosts that are one node stay so when a coordinator dies; who loses its partner gets another."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path

import pytest
from tests.live import namespaces
from tests.live.namespaces import HostProgram, Network, NetworkHost
from tests.live.stage import DEADLINE_S
from tests.processes.hosts import alone, digests, hosts, pliant, records, share, until
from tests.processes.spanning import SHARDED

from pliant.observe.audit import audit_run

pytestmark = [
    pytest.mark.processes,
    pytest.mark.timeout(400),
    pytest.mark.skipif(bool(namespaces.obstacle()), reason=namespaces.obstacle()),
]


class Spanning:
    """A job of one replica, whose two workers are on two hosts; the first host only coordinates."""

    def __init__(self, net: Network, *words: object) -> None:
        self.first, *self.others = net.hosts
        self.net, self.words = net, words
        for host in net.hosts:
            (host.own / "train.py").write_text(SHARDED)
        self.coordinator = self.coordinate()
        share(self.first, "runs/train/token", *self.others)
        self.agents: dict[str, HostProgram] = {}

    def coordinate(self) -> HostProgram:
        each = ("--workers-per-replica", 2, "--hosts-per-replica", 2, "--max", 1)
        place = f"{self.first.address}:7000"
        return pliant(self.first, "coordinator", "--listen", place, *each, "train.py", *self.words)

    def employ(self, *hosts: NetworkHost) -> None:
        place = f"{self.first.address}:7000"
        for host in hosts:
            words = ("agent", "--join", place, "--token-file", "token", "--devices", 1)
            self.agents[host.name] = pliant(host, *words, PACE="0.1")

    def commits(self) -> int:
        return len(records(self.first, "commit"))

    def goes_on(self, steps: int = 5) -> None:
        before = self.commits()
        until(lambda: self.commits() >= before + steps, "steps are made", *self.net.hosts)

    def nodes(self) -> list[list[str]]:
        """Return the hosts of each host group, as the log tells last."""
        said = records(self.first, "joint_nodes")
        return list(said[-1]["nodes"]) if said else []

    def end(self, steps: int, *hosts: NetworkHost, is_proved: bool = True) -> None:
        """``is_proved``: no ledger was lost with a host."""
        assert self.coordinator.wait(4 * DEADLINE_S) == 0, self.first.said()
        for host in hosts:
            assert self.agents[host.name].wait() == 0, host.said()
        assert digests(*self.net.hosts) == {alone(self.first, steps)}
        audit = audit_run(self.first.own / "runs" / "train")
        assert audit.exactly_once or not is_proved, audit.problems


@pytest.fixture
def net(tmp_path: Path) -> Iterator[Network]:
    with hosts(tmp_path, "a", "b", "c", "d") as lent:
        yield lent


@pytest.mark.soak
def test_a_coordinator_that_is_killed_and_started_again_finds_them_one(net: Network) -> None:
    """The workers of a replica train on, on two hosts."""
    a, b, c, _ = net.hosts
    job = Spanning(net, 100)
    job.employ(b, c)
    job.goes_on()

    job.coordinator.kill()
    job.coordinator.wait()
    job.coordinator = job.coordinate()

    job.goes_on()
    assert job.nodes() in ([["b", "c"]], [["c", "b"]])
    job.end(100, b, c)
    assert [record["replica"] for record in records(a, "start_replica")] == ["r1"]
    assert [record["exited_kind"] for record in records(a, "exited")] == ["finished"]


@pytest.mark.soak
@pytest.mark.parametrize("lost", ["head", "part"])
def test_who_waits_takes_the_place_of_a_host_that_is_lost(
    net: Network, tmp_path: Path, lost: str
) -> None:
    """Of the only replica, which goes on from its checkpoint."""
    _, b, c, d = net.hosts
    job = Spanning(net, 100, tmp_path / "kept")
    job.employ(b, c)
    until(lambda: job.nodes(), "two are one", *net.hosts)
    (node,) = job.nodes()
    job.employ(d)
    until(lambda: records(job.first, "saved"), "there is a checkpoint", *net.hosts)
    victim, left = (b, c) if (node[0] == "b") == (lost == "head") else (c, b)

    job.agents[victim.name].kill()

    pair = {left.name, "d"}
    until(lambda: pair in map(set, job.nodes()), "another two are one", *net.hosts)
    job.goes_on()
    job.end(100, left, d, is_proved=False)


@pytest.mark.soak
def test_one_command_on_every_host_trains_replicas_of_two(net: Network) -> None:
    """The host that has the address coordinates, and has a part; nnodes counts hosts."""
    a, b, c, _ = net.hosts
    for host in net.hosts:
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
