"""Links between hosts are cut and mended: the largest part goes on, and the rest comes back."""

from __future__ import annotations

import json
import socket
import time
from pathlib import Path

import pytest
from tests.live import namespaces
from tests.live.namespaces import Network
from tests.live.stage import DEADLINE_S
from tests.processes.hosts import alone, digests, hosts, pliant, records, training, until

from pliant.machine.interfaces import send_again_soon
from pliant.observe.audit import audit_run

pytestmark = [
    pytest.mark.processes,
    pytest.mark.timeout(600),
    pytest.mark.skipif(bool(namespaces.obstacle()), reason=namespaces.obstacle()),
]

CUTS = {
    "c from all": (("a", "c"), ("c", "a"), ("b", "c"), ("c", "b")),
    "all that c sends": (("c", "a"), ("c", "b")),
    "all that is sent to c": (("a", "c"), ("b", "c")),
    "b and c": (("b", "c"), ("c", "b")),
    "what b sends to c": (("b", "c"),),
}
"""Which packets go nowhere: by who sends and who receives them.  The coordinator is on a."""

STEPS = 10
"""Committed without those that are cut off, and then with them."""


def commits(net: Network) -> int:
    return len(records(net.hosts[0], "commit"))


def results(net: Network) -> dict[int, set[str]]:
    """Return the results with which each step was committed, by all ledgers of all hosts."""
    found: dict[int, set[str]] = {}
    for host in net.hosts:
        for path in host.own.glob("runs/**/ledger/*.jsonl"):
            for line in map(json.loads, path.read_text().splitlines()):
                if line.get("commit"):
                    found.setdefault(line["step"], set()).add(line["digest"])
    return found


def is_sent_again_soon() -> bool:
    """Whether the kernel lets a socket say so (Linux 6.15)."""
    with socket.socket() as sock:
        send_again_soon(sock)
        try:
            return sock.getsockopt(socket.IPPROTO_TCP, 44) == 1000
        except OSError:
            return False


@pytest.mark.soak  # it leaves 0.7 s of the 10 s after which a replica counts as silent
@pytest.mark.skipif(not is_sent_again_soon(), reason="needs Linux 6.15")
def test_a_link_that_is_cut_for_less_than_the_limit_costs_no_replica(tmp_path: Path) -> None:
    """TCP doubles its waits: 2 s after the link was mended nobody had spoken yet, and a replica
    that trained with the others was ended.
    """
    with hosts(tmp_path, "a", "b", "c") as net:
        a, b, _ = net.hosts
        stop = tmp_path / "stop"
        place = f"{a.address}:7000"
        words = ("coordinator", "--listen", place, "--min", 2, "--max", 2, "train.py", 100_000)
        job = pliant(a, *words)
        token = a.own / "runs/train/token"
        until(token.exists, "there is a token", a)
        for host in net.hosts[1:]:
            agent = ("agent", "--join", place, "--token-file", token, "--devices", 1)
            pliant(host, *agent, STOP_AT=str(stop))
        until(lambda: training(a) == {"b", "c"}, "both train", *net.hosts)

        for _ in range(2):
            began_s = time.monotonic()
            net.cut(a, b)
            net.cut(b, a)
            time.sleep(7.3)
            net.heal(a, b)
            net.heal(b, a)
            if time.monotonic() - began_s > 8.5:  # less than that the kernel owes nobody
                pytest.skip("this machine is too slow to cut a link for 7 s")
            before = commits(net)
            until(lambda before=before: commits(net) > before + STEPS, "they commit", *net.hosts)  # type: ignore[misc]
        stop.touch()

        assert job.wait(2 * DEADLINE_S) == 0, a.said()

        assert not records(a, "end_replica"), a.said()
        assert digests(*net.hosts) == {alone(a, max(r["step"] for r in records(a, "commit")) + 1)}


@pytest.mark.parametrize(
    "which",
    ["c from all", *(pytest.param(cut, marks=pytest.mark.soak) for cut in list(CUTS)[1:])],
)
def test_the_largest_part_goes_on_and_the_rest_comes_back(tmp_path: Path, which: str) -> None:
    with hosts(tmp_path, "a", "b", "c") as net:
        a, _, _ = net.hosts
        named = {host.name: host for host in net.hosts}
        cuts = [(named[sender], named[receiver]) for sender, receiver in CUTS[which]]
        stop = tmp_path / "stop"
        words = ("run", "--join", f"{a.address}:7000", "--nnodes", "1:3", "--devices-per-node", 1)
        limits = ("--limit", "heartbeatInSeconds=4", "--limit", "nodeInSeconds=6")
        more = ("--token-file", tmp_path / "token", "train.py", 100_000)
        programs = [pliant(host, *words, *limits, *more, STOP_AT=str(stop)) for host in net.hosts]
        until(lambda: training(a) == {"a", "b", "c"}, "all train together", *net.hosts)
        before = commits(net)
        until(lambda: commits(net) > before + STEPS, "they commit", *net.hosts)

        for cut in cuts:
            net.cut(*cut)
        until(lambda: len(training(a)) == 2, "two go on", *net.hosts)
        left = training(a)
        before = commits(net)
        until(lambda: commits(net) > before + STEPS, "two commit", *net.hosts)
        for cut in cuts:
            net.heal(*cut)
        until(lambda: training(a) == {"a", "b", "c"}, "the third is back", *net.hosts)
        before = commits(net)
        until(lambda: commits(net) > before + STEPS, "three commit", *net.hosts)
        stop.touch()

        assert [program.wait(2 * DEADLINE_S) for program in programs] == [0, 0, 0], a.said()

        assert left == {"a", "b"} if "all" in which.split() else "a" in left
        (digest,) = digests(*net.hosts)
        steps = int(digest.split()[1])
        assert digest == alone(a, steps)
        found = results(net)
        assert set(found) == set(range(steps))
        assert {len(those) for those in found.values()} == {1}
        audit = audit_run(a.own / "runs" / "train")
        assert audit.exactly_once, audit.problems
