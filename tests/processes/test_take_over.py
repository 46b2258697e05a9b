"""Whoever coordinates may die, with its host: one that is started elsewhere goes on."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path

import pytest
from tests.live import namespaces
from tests.live.namespaces import Network, NetworkHost
from tests.live.stage import DEADLINE_S
from tests.processes.hosts import alone, digests_of, hosts, pliant, until

from pliant.observe.audit import audit_run
from pliant.observe.log import Record
from pliant.observe.reading import read

pytestmark = [
    pytest.mark.processes,
    pytest.mark.timeout(400),
    pytest.mark.skipif(bool(namespaces.obstacle()), reason=namespaces.obstacle()),
]

MORE = 10
"""Steps that are waited for, to see that a job trains."""


@pytest.fixture
def net(tmp_path: Path) -> Iterator[Network]:
    (tmp_path / "shared").mkdir(mode=0o700)
    with hosts(tmp_path, "a", "b", "c") as lent:
        yield lent


@pytest.fixture
def out(tmp_path: Path) -> Path:
    """Return the directory of the run, which all hosts see."""
    return tmp_path / "shared" / "run"


def told(out: Path, kind: str) -> list[Record]:
    return [one for one in read(out / "events.jsonl") if one["kind"] == kind]


def trains_on(out: Path, *hosts: NetworkHost) -> None:
    """Wait until more steps are committed than now."""
    before = len(told(out, "commit"))
    until(lambda: len(told(out, "commit")) >= before + MORE, "it trains", *hosts)


def check(out: Path, digest: str, alone_at: NetworkHost) -> None:
    """Every step counts once, with the result of a run that nobody touched."""
    steps = int(digest.split()[1])
    assert digest == alone(alone_at, steps)
    assert {one["step"] for one in told(out, "commit")} >= set(range(steps))
    audit = audit_run(out)
    assert audit.exactly_once, audit.problems


@pytest.mark.parametrize("how", ["list", pytest.param("file", marks=pytest.mark.soak)])
def test_agents_find_a_coordinator_that_returns_on_another_host(
    net: Network, out: Path, tmp_path: Path, how: str
) -> None:
    """The host of the first one is gone; the directory of the run is not."""
    a, b, c = net.hosts
    stop = tmp_path / "stop"
    places = ("--out", out, "--register", out.parent / "register")
    words = (*places, "--min", 1, "--max", 2, "train.py", 100_000)
    pliant(a, "coordinator", "--listen", f"{a.address}:7000", *words)
    until(lambda: (out / "coordinator.json").exists(), "it is served", a)
    list_ = f"{a.address}:7000,{c.address}:7001"
    where = list_ if how == "list" else f"@{out}/coordinator.json"
    join = ("agent", "--join", where, "--token-file", out / "token", "--devices", 1)
    agents = [pliant(host, *join, STOP_AT=str(stop)) for host in (b, c)]
    trains_on(out, a, b, c)
    a.die()
    second = pliant(c, "coordinator", "--listen", f"{c.address}:7001", *words)
    until(lambda: len(told(out, "registered")) >= 2, "both are heard again", b, c)
    trains_on(out, b, c)
    stop.touch()

    codes = [program.wait(DEADLINE_S) for program in (second, *agents)]

    assert codes == [0, 0, 0], b.said() + c.said()
    assert not told(out, "reform")
    (digest,) = digests_of(out)
    check(out, digest, b)
    assert not (out / "coordinator.json").exists()
