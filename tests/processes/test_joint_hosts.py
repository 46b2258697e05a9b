"""A replica that spans hosts: sharded over two of them, killed, cut off, and none the worse."""

from __future__ import annotations

import signal
import time
from collections.abc import Callable, Iterator
from contextlib import suppress
from pathlib import Path
from typing import Any

import psutil
import pytest
from tests.live import namespaces
from tests.live.namespaces import HostProgram, Network, NetworkHost
from tests.live.stage import DEADLINE_S
from tests.processes.hosts import alone, digests, hosts, pliant, records, share, until

from pliant.observe.audit import audit_run
from pliant.observe.log import Record

pytestmark = [
    pytest.mark.processes,
    pytest.mark.timeout(900),
    pytest.mark.skipif(bool(namespaces.obstacle()), reason=namespaces.obstacle()),
]

FORK_SERVER = "pliant.engine.worker.fork_server"

SHARDED = """\
import os, sys, threading, torch, pliant
from torch.distributed.fsdp import fully_shard
pliant.seed(1)
mesh = pliant.mesh(shard=2)
model = torch.nn.Sequential(torch.nn.Linear(4, 16), torch.nn.Tanh(), torch.nn.Linear(16, 1))
fully_shard(model, mesh=mesh["shard"])
x = torch.randn(256, 4)
data = torch.utils.data.TensorDataset(x, x.sum(1, keepdim=True))
with pliant.Session(model=model, optimizer=torch.optim.Adam(model.parameters(), lr=0.1),
                    dataset=data, global_batch_size=32, micro_batch_size=4) as session:
    for step in session.steps(int(sys.argv[1])):
        for a, b in step:
            step.backward(torch.nn.functional.mse_loss(model(a), b))
        threading.Event().wait(float(os.environ.get("PACE", 0)))
        if os.path.exists(os.environ.get("STOP_AT", "/nowhere")):
            step.stop()
    print("digest", session.committed, session.state_digest(), flush=True)
"""


@pytest.fixture
def net(tmp_path: Path) -> Iterator[Network]:
    with hosts(tmp_path, "a", "b", "c", "d") as lent:
        for host in lent.hosts:
            (host.own / "train.py").write_text(SHARDED)
        yield lent


class Spanning:
    """A job of replicas of two workers on two hosts, until it is told to stop."""

    def __init__(self, net: Network) -> None:
        self.net, self.first = net, net.hosts[0]
        self.place = f"{self.first.address}:7000"
        each = ("--workers-per-replica", 2, "--hosts-per-replica", 2, "--min", 1, "--max", 2)
        words = ("coordinator", "--listen", self.place, *each, "train.py", 100_000)
        self.coordinator = pliant(self.first, *words)
        share(self.first, "runs/train/token", *net.hosts[1:])
        (self.first.own / "token").write_bytes((self.first.own / "runs/train/token").read_bytes())
        (self.first.own / "token").chmod(0o600)
        self.agents: dict[str, HostProgram] = {}

    def employ(self, *hosts: NetworkHost) -> None:
        """Start an agent on each of these hosts."""
        for host in hosts:
            words = ("agent", "--join", self.place, "--token-file", "token", "--devices", 1)
            self.agents[host.name] = pliant(host, *words, STOP_AT=str(host.home / "stop"))

    def records(self, kind: str) -> list[Record]:
        return records(self.first, kind)

    def until(self, what: Callable[[], object], why: str) -> None:
        until(what, why, *self.net.hosts)

    def orders(self) -> list[Any]:
        found = [one["order"] for one in (*self.records("switch"), *self.records("reform"))]
        return sorted(found, key=lambda one: one["generation"])

    def trains(self, count: int, after: int = 0) -> int:
        """Wait until so many replicas train in a generation behind another; return which."""

        def members() -> int:
            newest = self.orders()[-1:]
            if not newest or newest[0]["generation"] <= after:
                return 0
            names = {seat["replica"] for seat in newest[0]["members"]}
            entered = [one for one in self.records("switched")]
            at = {one["replica"] for one in entered if one["generation"] == newest[0]["generation"]}
            return len(names) if names == at else 0

        self.until(lambda: members() == count, f"{count} train")
        steps = len(self.records("commit"))
        self.until(lambda: len(self.records("commit")) > steps + 2, "steps go on")
        return int(self.orders()[-1]["generation"])

    def pair(self) -> list[NetworkHost]:
        """Return head and part of the joint node that the coordinator's host is not of."""
        nodes = self.records("joint_nodes")[-1]["nodes"]
        (names,) = [each for each in nodes if self.first.name not in each]
        by_name = {host.name: host for host in self.net.hosts}
        return [by_name[name] for name in names]

    def stop(self) -> None:
        """Let it end, and look whether all is as it should be."""
        for host in self.net.hosts:
            (host.own / "stop").touch()
        assert self.coordinator.wait(4 * DEADLINE_S) == 0, self.first.said()
        for name, agent in self.agents.items():
            assert agent.wait() == 0, (name, [host.said() for host in self.net.hosts])
        (found,) = digests(*self.net.hosts)
        (self.first.own / "stop").unlink()
        assert alone(self.first, int(found.split()[1])) == found
        audit = audit_run(self.first.own / "runs" / "train")
        assert audit.exactly_once, audit.problems
        for host in self.net.hosts:
            assert workers_on(host) == []


def workers_on(host: NetworkHost) -> list[psutil.Process]:
    """Return the workers that live on a host: what its fork server has forked."""
    own, found = _namespace(host.init), []
    for one in psutil.process_iter():
        with suppress(OSError, psutil.NoSuchProcess):
            parent = one.parent()
            is_worker = (
                parent is not None and "pliant.engine.worker.fork_server" in parent.cmdline()
            )
            if is_worker and _namespace(one.pid) == own:
                found.append(one)
    return found


def _namespace(pid: int) -> str:
    return str(Path(f"/proc/{pid}/ns/pid").readlink())


@pytest.fixture
def job(net: Network) -> Spanning:
    """Return one with two replicas on four hosts, the second of which came later."""
    job = Spanning(net)
    job.employ(*net.hosts[:2])
    generation = job.trains(1)
    job.employ(*net.hosts[2:])
    job.trains(2, after=generation)
    return job


@pytest.mark.soak
def test_a_replica_on_two_hosts_trains_and_another_joins_it(job: Spanning) -> None:
    assert {record["node"] for record in job.records("worker")} == {
        job.pair()[0].name,
        *(set(job.records("joint_nodes")[0]["nodes"][0][:1])),
    }
    assert not job.records("exited")

    job.stop()


def test_a_worker_of_another_host_is_killed_and_its_replica_replaced(job: Spanning) -> None:
    _, part = job.pair()
    (worker,) = workers_on(part)

    worker.kill()

    job.trains(2, after=job.orders()[-1]["generation"])
    (exited,) = job.records("exited")
    assert (exited["exited_kind"], exited["detail"], exited["worker"]) == ("signal", "SIGKILL", 1)
    job.stop()


@pytest.mark.soak
@pytest.mark.parametrize("lost", ["head", "part"])
def test_the_agent_of_a_host_is_killed_and_another_takes_its_place(
    job: Spanning, lost: str
) -> None:
    pair = job.pair()
    host, other = pair if lost == "head" else pair[::-1]
    before = job.orders()[-1]["generation"]

    job.agents.pop(host.name).kill()

    before = job.trains(1, after=before)
    job.until(lambda: not workers_on(host) + workers_on(other), "nothing is left there")
    job.employ(host)
    job.trains(2, after=before)
    job.stop()


@pytest.mark.soak
@pytest.mark.parametrize("stopped", ["head", "part"])
def test_an_agent_that_was_stopped_finds_itself_alone_and_is_joined_anew(
    job: Spanning, stopped: str
) -> None:
    """Its workers go on meanwhile; they are killed before it is of use again."""
    pair = job.pair()
    host, other = pair if stopped == "head" else pair[::-1]
    before = job.orders()[-1]["generation"]

    job.agents[host.name].send_signal(signal.SIGSTOP)

    job.until(lambda: not workers_on(other), "the other one has found it silent")
    time.sleep(3)  # 8 s in all
    job.agents[host.name].send_signal(signal.SIGCONT)
    job.trains(2, after=job.trains(1, after=before))
    job.stop()


@pytest.mark.soak
@pytest.mark.parametrize("lost", ["head", "part"])
def test_a_fork_server_is_killed_and_the_node_goes_on(job: Spanning, lost: str) -> None:
    pair = job.pair()
    host = pair[0] if lost == "head" else pair[1]
    before = job.orders()[-1]["generation"]
    (worker,) = workers_on(host)
    server = worker.parent()
    assert server is not None

    server.kill()

    job.trains(2, after=job.trains(1, after=before))
    (exited,) = job.records("exited")
    assert (exited["detail"], exited["worker"]) == ("SIGKILL", int(lost == "part"))
    with suppress(psutil.NoSuchProcess):  # nobody reaps there what has lost its parent
        assert worker.status() == psutil.STATUS_ZOMBIE
    job.stop()


@pytest.mark.soak
def test_hosts_of_a_replica_that_do_not_reach_each_other_are_joined_anew(job: Spanning) -> None:
    head, part = job.pair()
    before = job.orders()[-1]["generation"]

    for one, other in ((head, part), (part, head)):
        job.net.cut(one, other)

    before = job.trains(1, after=before)
    job.until(lambda: job.records("joint_nodes")[-1]["alone"], "they are alone")
    for one, other in ((head, part), (part, head)):
        job.net.heal(one, other)
    job.trains(2, after=before)
    job.stop()


@pytest.mark.soak
@pytest.mark.parametrize("leaver", [0, 1])
def test_a_host_that_is_told_to_end_lets_its_replica_leave(job: Spanning, leaver: int) -> None:
    host = job.pair()[leaver]
    before = job.orders()[-1]["generation"]

    agent = job.agents.pop(host.name)
    agent.send_signal(signal.SIGTERM)

    before = job.trains(1, after=before)
    agent.wait()
    assert {record["exited_kind"] for record in job.records("exited")} == {"left"}
    job.employ(host)
    job.trains(2, after=before)
    job.stop()
