"""A job on several hosts whose agents reach their coordinator over TLS, among strangers."""

from __future__ import annotations

import json
import re
import shlex
import sys
from collections.abc import Iterator
from pathlib import Path

import pytest
from tests.certificates import Authority
from tests.live import namespaces
from tests.live.harassing import NEIGHBOUR
from tests.live.namespaces import Network, NetworkHost
from tests.processes.hosts import (
    alone,
    digests,
    digests_of,
    environment,
    hosts,
    pliant,
    share,
    training,
    training_in,
    until,
)

from pliant.observe.audit import audit_run

pytestmark = [
    pytest.mark.processes,
    pytest.mark.timeout(240),
    pytest.mark.skipif(bool(namespaces.obstacle()), reason=namespaces.obstacle()),
]

ATTACKS = (["idle"], ["garbage", "hello"], ["burst", "head"])


@pytest.fixture
def net(tmp_path: Path) -> Iterator[Network]:
    with hosts(tmp_path, "a", "b", "c", "stranger") as lent:
        yield lent


@pytest.fixture
def authority(tmp_path: Path) -> Authority:
    return Authority(tmp_path / "ca")


def tls_words(authority: Authority, host: NetworkHost, *names: str) -> tuple[str, ...]:
    """Make the files of a host in a directory of its own; return the options that name them."""
    made, own = authority.files(host.name, names=names or [host.address]), host.own / "tls"
    own.mkdir()
    words: list[str] = []
    for name in ("ca", "certificate", "key"):
        source = Path(getattr(made, name))
        (own / source.name).write_bytes(source.read_bytes())
        (own / source.name).chmod(0o600)
        words += [f"--tls-{name}", f"tls/{source.name}"]
    return tuple(words)


def attack(host: NetworkHost, address: str, port: int) -> None:
    """Have it attack an address, as long as there are hosts."""
    for ways in ATTACKS:
        told = json.dumps({"ways": ways, "known": [[address, port]]})
        command = f"sleep 1000 | exec {shlex.join([sys.executable, str(NEIGHBOUR), told])}"
        out = host.own / "attack.txt"
        host.start("sh", "-c", command, environment=environment(host), out=out)


@pytest.mark.soak
def test_strangers_neither_get_in_nor_stop_a_job_over_tls(
    net: Network, authority: Authority
) -> None:
    """They connect from before the agents come to the end of the job, and the coordinator is
    asked to resize it meanwhile; its certificate is renewed.
    """
    a, b, c, stranger = net.hosts
    own = {host.name: tls_words(authority, host) for host in (a, b, c)}
    words = ("--min", 1, "--max", 2, "train.py", 100_000)
    place = f"{a.address}:7000"
    coordinator = pliant(a, "coordinator", "--listen", place, *own["a"], *words)
    share(a, "runs/train/token", b, c)
    attack(stranger, a.address, 7000)
    agent = ("agent", "--join", place, "--token-file", "token", "--devices", 1)
    over = {"STOP_AT": str(a.home / "over")}  # a place that is each host's own
    agents = [pliant(host, *agent, *own[host.name], **over) for host in (b, c)]
    until(lambda: training(a) == {"b", "c"}, "two train", a, b, c)
    authority.files("a", names=[a.address])
    for name in ("a.pem", "a.key"):
        (a.own / "tls" / name).write_bytes((authority.directory / name).read_bytes())

    def is_scaled(target: int) -> bool:
        """Ask until there is a place: strangers hold them all at times."""
        elsewhere = ("--join", place, "--token-file", "token", *own["b"])
        return pliant(b, "scale", target, *elsewhere).wait() == 0

    until(lambda: is_scaled(1), "it is heard", a, b, c)
    until(lambda: len(training(a)) == 1, "one trains", a, b, c)
    until(lambda: is_scaled(2), "it is heard", a, b, c)
    until(lambda: training(a) == {"b", "c"}, "two train again", a, b, c)
    for host in (b, c):
        (host.own / "over").touch()

    assert coordinator.wait(240) == 0, a.said()
    assert [each.wait() for each in agents] == [0, 0], b.said() + c.said()
    for each in stranger.programs:
        assert each.poll() is None, "it gave up"
        for process in each.process().children(recursive=True):
            process.kill()
    (found,) = digests(b, c)
    assert found == alone(a, int(found.split()[1]))
    audit = audit_run(a.own / "runs" / "train")
    assert audit.exactly_once, audit.problems
    assert "without the token" not in a.said()


def test_a_node_comes_under_the_names_of_its_certificate_only(
    net: Network, authority: Authority
) -> None:
    """Who takes over a host cannot pose as another one."""
    a, b, c, _ = net.hosts
    place, words = f"{a.address}:7000", ("--max", 1, "train.py", 5)
    own = {host.name: tls_words(authority, host) for host in (a, b, c)}
    coordinator = pliant(a, "coordinator", "--listen", place, *own["a"], *words)
    share(a, "runs/train/token", b, c)
    agent = ("agent", "--join", place, "--token-file", "token", "--devices", 1)

    posing = pliant(c, *agent, *own["c"], "--node", "b")

    assert posing.wait() == 1, c.said()
    said = f"the certificate of node b names {c.address} and c, and not b; name the node as its"
    assert said in c.said()
    by_address = pliant(b, *agent, *own["b"], "--node", b.address)
    assert [coordinator.wait(), by_address.wait()] == [0, 0], a.said() + b.said()


@pytest.mark.soak
def test_one_certificate_may_be_for_all_nodes_where_that_is_said(
    net: Network, authority: Authority
) -> None:
    a, b, _, _ = net.hosts
    place, words = f"{a.address}:7000", ("--tls-any-node", "--max", 1, "train.py", 5)
    own = {host.name: tls_words(authority, host) for host in (a, b)}
    coordinator = pliant(a, "coordinator", "--listen", place, *own["a"], *words)
    share(a, "runs/train/token", b)
    agent = ("agent", "--join", place, "--token-file", "token", "--devices", 1)

    any_node = pliant(b, *agent, *own["b"], "--node", "x")

    assert [coordinator.wait(), any_node.wait()] == [0, 0], a.said() + b.said()


@pytest.mark.soak
def test_a_coordinator_on_another_host_takes_over_a_job_over_tls(
    net: Network, authority: Authority, tmp_path: Path
) -> None:
    """The process that coordinates is killed, and its replica with it."""
    a, b, c, _ = net.hosts
    out, stop = tmp_path / "shared" / "run", tmp_path / "stop"
    out.parent.mkdir(mode=0o700)
    own = {host.name: tls_words(authority, host) for host in (a, b, c)}
    places = f"{a.address}:7000,{b.address}:7000"
    words: tuple[object, ...] = ("run", "--join", places, "--nnodes", "1:3", "--out", out)
    words = (*words, "--devices-per-node", 1, "--token-file", out.parent / "token")
    script = ("train.py", 100_000)
    again = ("coordinator", "--listen", f"{b.address}:7000", "--out", out, *words[-2:])
    programs = [
        pliant(host, *words, *own[host.name], *script, STOP_AT=str(stop)) for host in (a, b, c)
    ]
    until(lambda: training_in(out) == {"a", "b", "c"}, "all train", a, b, c)
    programs[0].kill()
    second = pliant(b, *again, *own["b"], "--min", 1, "--max", 3, *script)
    until(lambda: training_in(out) == {"b", "c"}, "two train, with another coordinator", b, c)
    stop.touch()

    codes = [program.wait() for program in (second, *programs[1:])]
    assert codes == [0, 0, 0], b.said() + c.said()
    (found,) = digests_of(out)
    assert found == alone(b, int(found.split()[1]))
    audit = audit_run(out)
    assert audit.exactly_once, audit.problems


def test_what_does_not_fit_is_said_at_once(
    net: Network, authority: Authority, tmp_path: Path
) -> None:
    a, b, c, stranger = net.hosts
    place, words = f"{a.address}:7000", ("--max", 1, "train.py", 5)
    (tmp_path / "theirs").mkdir()
    foreign = tls_words(Authority(tmp_path / "theirs"), stranger)
    own = {host.name: tls_words(authority, host, a.address) for host in (a, b, c)}
    wrong = pliant(b, "coordinator", "--listen", f"{b.address}:7000", *own["b"], *words)
    coordinator = pliant(a, "coordinator", "--listen", place, *own["a"], *words)
    share(a, "runs/train/token", b, c, stranger)
    agent = ("agent", "--join", place, "--token-file", "token", "--devices", 1)
    refused = [
        pliant(c, *agent),
        pliant(c, *agent, *own["c"][:2]),
        pliant(stranger, *agent, *foreign),
    ]

    assert wrong.wait() == 2
    assert [each.wait() for each in refused] == [1, 1, 1], c.said() + stranger.said()
    last = pliant(b, *agent, *own["b"])
    assert [coordinator.wait(), last.wait()] == [0, 0], a.said() + b.said()

    assert f"does not name {b.address}" in b.said()
    assert re.search(r"at \S+ refuses this agent: it speaks TLS: give --tls-ca", c.said())
    assert re.search(r"at \S+ refuses this agent: it wants a certificate", c.said())
    assert re.search(r"the certificate of the coordinator at \S+ is not signed by", stranger.said())
