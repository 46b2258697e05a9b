"""A replica that spans hosts: sharded over two of them, killed, cut off, and none the worse."""

from __future__ import annotations

import signal
from collections.abc import Iterator
from pathlib import Path

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
