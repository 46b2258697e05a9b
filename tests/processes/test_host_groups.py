"""A replica that spans hosts: sharded over two of them, killed, cut off, and none the worse."""

from __future__ import annotations

import signal
import time
from collections.abc import Iterator
from contextlib import suppress
from pathlib import Path

import psutil
import pytest
from tests.live import namespaces
from tests.live.namespaces import Network
from tests.processes.hosts import hosts
from tests.processes.spanning import Spanning, workers_on

pytestmark = [
    pytest.mark.processes,
    pytest.mark.timeout(900),
    pytest.mark.skipif(bool(namespaces.obstacle()), reason=namespaces.obstacle()),
]


@pytest.fixture
def net(tmp_path: Path) -> Iterator[Network]:
    with hosts(tmp_path, "a", "b", "c", "d") as lent:
        yield lent


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
