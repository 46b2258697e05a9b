"""A job on several hosts, which share neither a directory nor a clock."""

from __future__ import annotations

import re
import signal
from collections.abc import Iterator
from pathlib import Path

import pytest
from tests.live import namespaces
from tests.live.namespaces import Network, NetworkHost
from tests.live.stage import DEADLINE_S
from tests.processes.hosts import SCRIPT, alone, digests, hosts, pliant, records, share, until

from pliant.observe.audit import audit_run

pytestmark = [
    pytest.mark.processes,
    pytest.mark.timeout(240),
    pytest.mark.skipif(bool(namespaces.obstacle()), reason=namespaces.obstacle()),
]


@pytest.fixture
def net(tmp_path: Path) -> Iterator[Network]:
    with hosts(tmp_path, "a", "b", "c") as lent:
        yield lent


def listening(host: NetworkHost) -> set[str]:
    """Return the addresses on which something listens."""
    found = set()
    for table in ("tcp", "tcp6"):
        for line in Path(f"/proc/{host.init}/net/{table}").read_text().splitlines()[1:]:
            _, local, _, state, *_ = line.split()
            if state == "0A":
                found.add(local.rpartition(":")[0])
    return found


def as_in_proc(address: str) -> str:
    return bytes(reversed([int(part) for part in address.split(".")])).hex().upper()


@pytest.mark.soak
def test_three_commands_train_on_three_hosts_that_share_nothing(net: Network) -> None:
    """The coordinator's host runs no replica; one clock is five minutes ahead."""
    a, b, c = net.hosts
    coordinator = pliant(
        a, "coordinator", "--listen", f"{a.address}:7000", "--min", 2, "--max", 2, "train.py", 40
    )
    share(a, "runs/train/token", b, c)
    words = ("agent", "--join", f"{a.address}:7000", "--token-file", "token", "--devices", 1)
    agents = [pliant(b, *words), pliant(c, *words, CLOCK_AHEAD="300")]
    heard: dict[str, set[str]] = {host.name: set() for host in net.hosts}

    def is_over() -> bool:
        for host in net.hosts:
            heard[host.name] |= listening(host)
        return coordinator.poll() is not None

    until(is_over, "the job ends", *net.hosts)

    assert coordinator.wait() == 0, a.said()
    assert [agent.wait() for agent in agents] == [0, 0], b.said() + c.said()
    assert heard["a"] == {as_in_proc(a.address)}
    for host in (b, c):
        assert heard[host.name] <= {as_in_proc(host.address)}
    assert digests(b, c) == {alone(a, 40)}
    assert {record["node"] for record in records(a, "worker")} == {"b", "c"}
    steps = [record["step"] for record in records(a, "commit")]
    assert sorted(set(steps)) == list(range(40))
    audit = audit_run(a.own / "runs" / "train")
    assert audit.exactly_once, audit.problems


@pytest.mark.soak
@pytest.mark.parametrize("family", ["IPv4", "IPv6"])
def test_one_command_on_every_host_trains_on_all_of_them(net: Network, family: str) -> None:
    """The third host comes later; the one that has the address coordinates, and trains."""
    a, b, c = net.hosts
    place = f"{a.address}:7000" if family == "IPv4" else f"[{a.ipv6}]:7000"
    words: tuple[object, ...] = ("run", "--join", place, "--nnodes", "2:3", "--devices-per-node", 1)
    words = (*words, "--token-file", "token", "train.py", 120)
    first = pliant(b, *words)
    second = pliant(a, *words)
    share(a, "token", b)
    until(lambda: records(a, "commit")[4:], "two train", a, b)
    share(a, "token", c)
    third = pliant(c, *words)

    assert second.wait(2 * DEADLINE_S) == 0, a.said()
    assert [first.wait(), third.wait()] == [0, 0], b.said() + c.said()

    assert digests(a, b, c) == {alone(a, 120)}
    assert {record["node"] for record in records(a, "worker")} == {"a", "b", "c"}
    assert "2:3 hosts, 1 replica on each: 2 to 3 in all" in a.said()
    assert "the job has ended: " in b.said()
    audit = audit_run(a.own / "runs" / "train")
    assert audit.exactly_once, audit.problems


@pytest.mark.soak
def test_a_command_that_is_typed_twice_on_one_host_leaves_the_job_alone(net: Network) -> None:
    a, _, _ = net.hosts
    words: tuple[object, ...] = ("run", "--join", f"{a.address}:7000", "--nnodes", "1:2")
    words = (*words, "--devices-per-node", 1, "--token-file", "token", "train.py", 200)
    job = pliant(a, *words)
    until(lambda: records(a, "commit")[4:], "it trains", a)

    again = pliant(a, *words)

    assert again.wait() == 1, a.said()
    assert "another agent takes part already as node a; leave this one out, or name it" in a.said()
    assert job.wait(2 * DEADLINE_S) == 0, a.said()
    assert digests(a) == {alone(a, 200)}
    assert not records(a, "node_lost")


def test_what_replicas_print_and_the_audit_say_is_read_from_any_host(net: Network) -> None:
    """Also of a host that is gone; its coordinator does not see its files."""
    a, b, c = net.hosts
    for host in net.hosts:
        (host.own / "train.py").write_text(
            f"print('\\x1b[2Jfrom afar \\u2028', flush=True)\n{SCRIPT}"
        )
    place = f"{a.address}:7000"
    words = ("--out", "run", "--min", 2, "--max", 2, "train.py", 100_000)
    coordinator = pliant(a, "coordinator", "--listen", place, *words)
    share(a, "run/token", b, c)
    join = ("--join", place, "--token-file", "token")
    for host in (b, c):
        pliant(host, "agent", *join, "--devices", 1)
    until(lambda: records(a, "commit", "run")[20:], "two train", a, b, c)
    (gone,) = {one["replica"] for one in records(a, "worker", "run") if one["node"] == "b"}
    logs = a.own / "run" / "logs" / f"{gone}.log"
    until(lambda: logs.exists(), "what it printed was told", a, b, c)

    assert pliant(c, "audit", *join).wait() == 0, c.said()
    assert "every sample counted exactly once" in c.said()
    b.die()
    assert pliant(c, "logs", gone, *join).wait() == 0, c.said()
    assert pliant(c, "top", *join).wait() == 0, c.said()

    assert r"\x1b[2Jfrom afar \u2028" in c.said()
    assert pliant(c, "stop", "--now", *join).wait() == 0, c.said()
    coordinator.wait()


@pytest.mark.parametrize("odd", ["environment", pytest.param("name", marks=pytest.mark.soak)])
def test_an_odd_host_that_connects_first_does_not_end_the_job(net: Network, odd: str) -> None:
    """The host that coordinates trains as well, and its own agent happens to come later."""
    a, b, _ = net.hosts
    words: tuple[object, ...] = ("run", "--join", f"{a.address}:7000", "--nnodes", "1:2")
    words = (*words, "--devices-per-node", 1, "--token-file", "token", "train.py", 20)
    job = pliant(a, *words, LATE_S="6")
    share(a, "token", b)
    named = {"environment": ("--node", "b"), "name": ("--node", "a")}[odd]
    seed = "7" if odd == "environment" else "0"

    first = pliant(b, *words[:-2], *named, *words[-2:], PYTHONHASHSEED=seed)

    assert first.wait() == 1, b.said()
    assert job.wait() == 0, a.said()
    why = {"environment": "node b has PYTHONHASHSEED 7, and node a has 0", "name": "as node a;"}
    assert why[odd] in b.said()
    assert len(records(a, "commit")) == 20


def test_what_differs_between_hosts_is_named_before_anything_trains(net: Network) -> None:
    a, b, c = net.hosts
    with (b.own / "train.py").open("a") as script:
        script.write("# edited here\n")
    words: tuple[object, ...] = (
        "run",
        "--join",
        f"{a.address}:7000",
        "--nnodes",
        "2",
        "--devices-per-node",
        1,
    )
    words = (*words, "--token-file", "token", "train.py", 5)
    job = pliant(a, *words)
    share(a, "token", b, c)
    until(lambda: records(a, "node_joined"), "the host is there from which the others differ", a)
    edited, other = pliant(b, *words), pliant(c, *words, PYTHONHASHSEED="7")
    assert [edited.wait(), other.wait()] == [1, 1], b.said() + c.said()
    third = pliant(c, *words[:-1], 6)
    assert third.wait() == 1, c.said()

    assert re.search(r"/home/train\.py is not what job train runs on its other nodes", b.said())
    assert "node c has PYTHONHASHSEED 7, and node a has 0; a job needs the same" in c.said()
    assert "runs train.py 5, and this node was to run train.py 6; give the same" in c.said()
    assert not records(a, "commit")
    (b.own / "train.py").write_text(SCRIPT)
    mended = pliant(b, *words)
    assert [job.wait(), mended.wait()] == [0, 0], a.said() + b.said()


@pytest.mark.soak
def test_replicas_speak_where_interface_says_and_nowhere_else(net: Network) -> None:
    """Commands and orders go one way, gradients and state another."""
    a, b, _ = net.hosts
    words: tuple[object, ...] = ("run", "--join", f"{a.address}:7000", "--nnodes", 2)
    words = (*words, "--devices-per-node", 1, "--token-file", "token")
    for host in (a, b):
        host.ip(f"address add 10.78.0.{host.number}/24 dev eth0")
    first = pliant(a, *words, "--interface", "10.78.0.1", "train.py", 20)
    share(a, "token", b)
    second = pliant(b, *words, "--interface", "10.78.0.2", "train.py", 20)
    heard: set[str] = set()

    def is_over() -> bool:
        heard.update(listening(b))
        return first.poll() is not None

    until(is_over, "the job ends", a, b)

    assert [first.wait(), second.wait()] == [0, 0], a.said() + b.said()
    ends = {str(one["endpoint"]).rpartition(":")[0] for one in records(a, "spare")}
    assert ends == {"10.78.0.1", "10.78.0.2"}
    assert heard <= {as_in_proc("10.78.0.2")}
    assert digests(a, b) == {alone(a, 20)}


def test_a_module_that_differs_is_named_and_the_job_waits_for_a_host_that_fits(
    net: Network,
) -> None:
    """Seen: another loss on one host, exit code 0 and other weights; the job ended after 30 s."""
    a, b, c = net.hosts
    for host in net.hosts:
        (host.own / "losses.py").write_text("SCALE = 1.0\n")
        (host.own / "train.py").write_text(
            SCRIPT.replace("pliant\n", "pliant, losses\n", 1).replace(
                "(a), b)", "(a), b) * losses.SCALE"
            )
        )
    (b.own / "losses.py").write_text("SCALE = 2.0\n")
    (c.own / "train.py").write_text("print('another script')\n")
    place = f"{a.address}:7000"
    words = ("coordinator", "--listen", place, "--min", 2, "--max", 2, "--max-restarts", 0)
    job = pliant(a, *words, "--limit", "startWaitInSeconds=1", "train.py", 12)
    share(a, "runs/train/token", b, c)
    agent = ("agent", "--join", place, "--token-file", "token", "--devices")

    first = pliant(c, *agent, 1)
    assert first.wait() == 1, c.said()
    until(lambda: "node c takes no part: " in a.said(), "that is told where it coordinates", a)
    (c.own / "train.py").write_bytes((a.own / "train.py").read_bytes())
    second = pliant(c, *agent, 1)
    until(lambda: records(a, "spare"), "one is ready", a)
    other = pliant(b, *agent, 2)
    until(lambda: "its module losses is another than the run's" in a.said(), "b is refused", a)
    assert not records(a, "commit")
    other.send_signal(signal.SIGTERM)
    other.wait()
    (b.own / "losses.py").write_text("SCALE = 1.0\n")
    mended = pliant(b, *agent, 1)

    assert [one.wait() for one in (job, second, mended)] == [0, 0, 0], a.said() + b.said()
    assert digests(b, c) == {alone(a, 12)}


@pytest.mark.soak
def test_checkpoints_in_directories_that_are_not_shared_are_refused(
    net: Network, tmp_path: Path
) -> None:
    a, b, _ = net.hosts
    (tmp_path / "shared").mkdir()
    words: tuple[object, ...] = (
        "run",
        "--join",
        f"{a.address}:7000",
        "--nnodes",
        "2",
        "--devices-per-node",
        1,
    )
    words = (*words, "--token-file", "token", "train.py", 5)
    for kept, code in (("kept", 2), (tmp_path / "shared" / "kept", 0)):
        programs = [pliant(host, *words, kept) for host in (a, b)]
        share(a, "token", b)

        assert [program.wait() for program in programs] == [code, code], a.said() + b.said()

    said = "the checkpoints of some nodes go to a directory that others do not see under its path"
    assert said in a.said()
    assert list((tmp_path / "shared" / "kept").glob("step-*"))
