"""``pliant doctor`` on hosts that can take part, and on one that cannot."""

from __future__ import annotations

import json
import sys
from typing import Any

import pytest
from tests.live import namespaces
from tests.live.namespaces import NetworkHost
from tests.processes.hosts import environment, hosts, pliant, records, share, until

pytestmark = [
    pytest.mark.processes,
    pytest.mark.timeout(240),
    pytest.mark.skipif(bool(namespaces.obstacle()), reason=namespaces.obstacle()),
]


def examined(host: NetworkHost, *words: object) -> tuple[int, dict[str, Any]]:
    """Return exit code and findings, by name."""
    out = host.own / f"doctor{len(host.programs)}.txt"
    doctor = ("-m", "pliant", "doctor", "--json", *words)
    program = host.start(sys.executable, *doctor, environment=environment(host), out=out)
    code = program.wait()
    said = json.loads(out.read_text())
    assert said["fit"] == (code == 0)
    return code, {one["name"]: one for one in said["findings"]}


def test_each_host_says_whether_it_can_take_part_and_what_is_in_its_way(tmp_path: Any) -> None:
    with hosts(tmp_path, "a", "b", "c") as net:
        a, b, c = net.hosts
        place = f"{a.address}:7000"
        job = pliant(a, "coordinator", "--listen", place, "--min", 2, "train.py", 5)
        share(a, "runs/train/token", b)
        until(lambda: records(a, "job_started"), "it listens", a)
        words = ("--join", place, "--token-file", "token")

        code, found = examined(b, *words)

        assert code == 0, found
        assert found["interface"]["found"].startswith(f"{b.address} (eth0)")
        assert found["coordinator"]["found"].endswith("and the token is taken")
        assert "other hosts" not in found
        share(a, "runs/train/token", c)
        agent = pliant(c, "agent", *words, "--devices", 1)
        until(lambda: records(a, "node_joined"), "another host takes part", a, c)
        assert examined(b, *words)[1]["other hosts"]["found"] == "c: reached"
        net.cut(c, b)
        code, found = examined(b, *words)
        assert code == 1
        assert found["other hosts"]["found"] == f"c ({c.address}): no answer within 3 s"
        assert found["coordinator"]["verdict"] == "ok"
        net.heal(c, b)
        agent.kill()

        net.cut(b, a)
        (b.own / "token").write_text("x" * 20)
        code, found = examined(b, *words)

        assert code == 1
        assert found["coordinator"]["verdict"] == "obstacle"
        assert found["coordinator"]["found"] == f"{place}: no answer within 3 s"
        net.heal(b, a)
        assert examined(b, *words)[1]["coordinator"]["found"].endswith("the token is refused")
        b.ip("link set eth0 down")
        code, found = examined(b, *words)
        assert code == 1
        assert "this host has no way to" in found["interface"]["found"]
        job.kill()
