"""Whoever coordinates may die, with its host: another goes on, and agents find it."""

from __future__ import annotations

import time
from collections.abc import Iterator
from pathlib import Path

import pytest
from tests.live import namespaces
from tests.live.namespaces import HostProgram, Network, NetworkHost
from tests.live.stage import DEADLINE_S
from tests.processes.hosts import alone, digests_of, hosts, pliant, training_in, until

from pliant.core.errors import EXIT_STOPPED
from pliant.core.takeover import PATIENCE_S
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


def candidates(
    net: Network, out: Path, *script: object, only: str = "abc", **more: str
) -> list[HostProgram]:
    """Start the same command on all hosts, or ``only`` some; two of them may coordinate."""
    a, b, _ = net.hosts
    places = f"{a.address}:7000,{b.address}:7000"
    words = ("run", "--join", places, "--nnodes", "1:3", "--devices-per-node", 1, "--out", out)
    token = ("--token-file", out.parent / "token")
    chosen = [host for host in net.hosts if host.name in only]
    return [pliant(host, *words, *token, "train.py", *script, **more) for host in chosen]


def test_another_host_coordinates_soon_where_only_the_process_is_gone(
    net: Network, out: Path, tmp_path: Path
) -> None:
    """Its host refuses connections, which a cut link or a stopped process does not."""
    a, b, _ = net.hosts
    stop = tmp_path / "stop"
    programs = candidates(net, out, 100_000, only="ab", STOP_AT=str(stop))
    until(lambda: training_in(out) == {"a", "b"}, "both train", a, b)
    trains_on(out, a, b)
    programs[0].kill()
    killed_s = time.monotonic()
    until(lambda: told(out, "coordinator_started"), "another coordinates", b)
    took_s = time.monotonic() - killed_s
    until(lambda: training_in(out) == {"b"}, "one trains", b)
    trains_on(out, b)
    stop.touch()

    assert programs[1].wait(DEADLINE_S) == 0, b.said()
    assert "this host coordinates the job: nobody has listened at http://10.77.0.1:7000" in b.said()
    assert took_s < PATIENCE_S
    (digest,) = digests_of(out)
    check(out, digest, b)


@pytest.mark.soak
def test_a_job_that_was_stopped_stays_so_though_a_candidate_missed_it(
    net: Network, out: Path
) -> None:
    """It was cut off, finds nobody, and coordinates: then it learns how the job ended."""
    a, b, _ = net.hosts
    coordinates, cut_off = candidates(net, out, 100_000, only="ab")
    until(lambda: training_in(out) == {"a", "b"}, "both train", a, b)
    trains_on(out, a, b)
    net.cut(a, b)
    net.cut(b, a)
    pliant(a, "stop")
    until(lambda: told(out, "job_ended"), "it ends", a)
    assert coordinates.wait(DEADLINE_S) == EXIT_STOPPED, a.said()
    before = len(told(out, "commit"))
    until(
        lambda: cut_off.poll() is not None or len(told(out, "commit")) > before,
        "it ends there too",
        b,
    )

    assert len(told(out, "commit")) == before, b.said()
    assert cut_off.wait(DEADLINE_S) == EXIT_STOPPED, b.said()
    assert "this host coordinates the job" in b.said()
    assert told(out, "coordinator_started")


@pytest.mark.parametrize("how", ["list", pytest.param("file", marks=pytest.mark.soak)])
def test_agents_find_a_coordinator_that_returns_on_another_host(
    net: Network, out: Path, tmp_path: Path, how: str
) -> None:
    """The host of the first one is gone; the directory of the run is not."""
    a, b, c = net.hosts
    stop = tmp_path / "stop"
    words = ("--out", out, "--min", 1, "--max", 2, "train.py", 100_000)
    pliant(a, "coordinator", "--listen", f"{a.address}:7000", *words)
    until(lambda: (out / "coordinator.json").exists(), "it is served", a)
    list_ = f"{a.address}:7000,{c.address}:7001"
    places = list_ if how == "list" else f"@{out}/coordinator.json"
    join = ("agent", "--join", places, "--token-file", out / "token", "--devices", 1)
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
