"""Replicas that span hosts, of which nobody in between can read what their agents say."""

from __future__ import annotations

import json
import sys
from collections.abc import Iterator
from pathlib import Path

import pytest
from tests.live import namespaces
from tests.live.namespaces import HostProgram, Network, NetworkHost
from tests.processes.hosts import environment, hosts
from tests.processes.spanning import Spanning, workers_on

pytestmark = [
    pytest.mark.processes,
    pytest.mark.timeout(900),
    pytest.mark.skipif(bool(namespaces.obstacle()), reason=namespaces.obstacle()),
]

LISTENS = """\
import json, os, socket, sys
marks, found, last = [mark.encode() for mark in sys.argv[1:]], {}, b""
sock = socket.socket(socket.AF_PACKET, socket.SOCK_RAW, socket.htons(3))
sock.bind(("eth0", 0))
sock.settimeout(0.2)
num_bytes = 0
while not os.path.exists("heard"):
    try:
        data = sock.recv(1 << 17)
    except TimeoutError:
        continue
    num_bytes += len(data)
    for mark in marks:
        if mark in data:
            found[mark.decode()] = found.get(mark.decode(), 0) + 1
print(json.dumps({"num_bytes": num_bytes, "found": found}))
"""
"""Says what of these words has gone over the network in the clear."""

MARKS = ("Pliant-Proof", '"type":"alive"', '"type":"start"', "Bearer")
"""Of a link between hosts, and of the way to the coordinator."""


@pytest.fixture
def net(tmp_path: Path) -> Iterator[Network]:
    with hosts(tmp_path, "a", "b", "c", "d") as lent:
        yield lent


def listening(host: NetworkHost) -> HostProgram:
    words = (sys.executable, "-c", LISTENS, *MARKS)
    return host.start(*words, environment=environment(host), out=host.own / "listened.json")


def heard(host: NetworkHost, program: HostProgram) -> dict[str, int]:
    """Return which of the words a host has sent or got, and how often."""
    (host.own / "heard").touch()
    assert program.wait() == 0, program.out.read_text()
    told = json.loads(program.out.read_text())
    assert told["num_bytes"] > 100_000
    found: dict[str, int] = told["found"]
    return found


@pytest.mark.soak
@pytest.mark.parametrize("tls", [True, False])
def test_hosts_of_a_replica_speak_over_tls(net: Network, tls: bool) -> None:
    """With a certificate for each host; a worker is killed meanwhile.

    Without them the same words are heard, so that a deaf listener proves nothing.
    """
    listener = listening(net.hosts[1])
    job = Spanning(net, tls=tls)
    job.employ(*net.hosts[:2])
    generation = job.trains(1)
    job.employ(*net.hosts[2:])
    generation = job.trains(2, after=generation)
    (worker,) = workers_on(job.pair()[1])

    worker.kill()

    job.trains(2, after=generation)
    job.stop()
    found = heard(net.hosts[1], listener)
    assert set(found) == (set() if tls else set(MARKS)), found
