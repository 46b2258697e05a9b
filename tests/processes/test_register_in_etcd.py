"""Hosts that share no directory: what a coordinator must not forget lies in etcd."""

from __future__ import annotations

import shutil
from collections.abc import Iterator
from pathlib import Path

import pytest
from tests.live import namespaces
from tests.live.namespaces import HostProgram, Network, NetworkHost
from tests.live.stage import DEADLINE_S
from tests.processes.hosts import (
    alone,
    digests,
    environment,
    hosts,
    pliant,
    records,
    share,
    until,
)
from tests.run import etcd_cluster

from pliant.core.exits import EXIT_TAKEN_OVER

pytestmark = [
    pytest.mark.processes,
    pytest.mark.timeout(240),
    pytest.mark.skipif(bool(namespaces.obstacle()), reason=namespaces.obstacle()),
    pytest.mark.skipif(bool(etcd_cluster.obstacle()), reason=etcd_cluster.obstacle()),
]

MORE = 10
"""Steps that are waited for, to see that a job trains."""


@pytest.fixture
def net(tmp_path: Path) -> Iterator[Network]:
    with hosts(tmp_path, "a", "b", "c", "kept") as lent:
        yield lent


def etcd(host: NetworkHost) -> HostProgram:
    """Start etcd there; its data outlive it."""
    words = {
        "data-dir": host.home / "etcd",
        "listen-client-urls": f"http://{host.address}:2379",
        "advertise-client-urls": f"http://{host.address}:2379",
        "logger": "zap",
    }
    given = [f"--{name}={value}" for name, value in words.items()]
    out = host.own / "etcd.txt"
    return host.start(shutil.which("etcd"), *given, environment=environment(host), out=out)


def trains_on(*hosts: NetworkHost) -> None:
    """Wait until more steps are committed than now, whoever has the log of it."""

    def committed() -> int:
        return sum(len(records(host, "commit")) for host in hosts if (host.own / "runs").exists())

    before = committed()
    until(lambda: committed() >= before + MORE, "it trains", *hosts)


def test_of_two_coordinators_one_counts_and_the_other_takes_over_later(net: Network) -> None:
    """Both were started by mistake, at one moment; then etcd is away for a while, and at last the
    host that coordinates is lost.  Nobody's step is lost, or made twice.
    """
    a, b, c, kept = net.hosts
    store = etcd(kept)
    place = f"etcd://{kept.address}:2379/jobs/gpt"
    words = ("--register", place, "--token-file", "token", "--max", 1, "train.py", 100_000)
    (a.own / "token").write_text("a-token-of-all-hosts\n")
    (a.own / "token").chmod(0o600)
    share(a, "token", b, c)

    def coordinator(host: NetworkHost) -> HostProgram:
        return pliant(host, "coordinator", "--listen", f"{host.address}:7000", *words)

    running = {host: coordinator(host) for host in (a, b)}
    places = ",".join(f"{host.address}:7000" for host in (a, b))
    over = c.home / "over"
    joining = ("agent", "--join", places, "--token-file", "token", "--devices", 1)
    agent = pliant(c, *joining, STOP_AT=str(over))
    until(lambda: any(one.poll() is not None for one in running.values()), "one ends", a, b)
    first, other = (a, b) if running[a].poll() is None else (b, a)
    assert running[other].wait() == EXIT_TAKEN_OVER, other.said()
    assert "another coordinator has taken over this job" in other.said()
    trains_on(first)

    store.kill()
    store.wait()
    trains_on(first)
    store = etcd(kept)
    at_first = ("--join", f"{first.address}:7000", "--token-file", "token")
    assert pliant(c, "scale", 1, *at_first).wait() == 0, c.said()
    trains_on(first)

    first.die()
    later = coordinator(other)
    until(lambda: records(other, "registered"), "the other hears of it", other, c)
    trains_on(other)
    (c.own / "over").touch()

    assert [later.wait(DEADLINE_S), agent.wait(DEADLINE_S)] == [0, 0], other.said() + c.said()
    (found,) = digests(c)
    assert found == alone(c, int(found.split()[1]))
    assert not records(other, "reform")
    assert store.poll() is None
