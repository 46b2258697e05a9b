"""What must be true after chaos: of the result, of what is left, and of what was held meanwhile."""

from __future__ import annotations

import json
from collections import defaultdict
from collections.abc import Mapping
from pathlib import Path

import psutil
from tests.chaos.fleet import Fleet
from tests.live.namespaces import NetworkHost
from tests.processes.footprint import Footprint
from tests.support.recorded import check_decisions

from pliant.observe.audit import audit_run

SETTLING = 8
"""Looks at a new process that say nothing of what it holds later."""

ENOUGH = 30
"""Looks at processes of a kind without which nothing can be said of what they hold."""

LONG_S = 300.0
"""A shorter run shows how its processes come up, and not what they hold over time."""

FEW = 8
"""Descriptors by which two may differ: connections come and go with hosts."""

LISTENING, ESTABLISHED = "0A", "01"


def digests(path: Path) -> dict[str, int]:
    """Return the results that replicas came to, each with the steps of it."""
    lines = [json.loads(line) for line in path.read_text().splitlines()]
    return {line["digest"]: line["committed"] for line in lines}


def check_ledgers(out: Path, steps: int) -> None:
    """Assert that each step has one result, that each sample counts once, and what was decided."""
    results: dict[int, set[str]] = defaultdict(set)
    for path in out.glob("ledger/*.jsonl"):
        for line in path.read_bytes().splitlines():
            try:
                told = json.loads(line)
            except ValueError:  # its writer was killed in the midst
                continue
            if told.get("commit"):
                results[told["step"]].add(told["digest"])
    twice = {step: found for step, found in results.items() if len(found) > 1}
    assert not twice, f"steps with several results: {twice}"
    check_decisions(out)
    audit = audit_run(out)
    assert audit.exactly_once, audit.problems
    assert audit.committed_steps == steps


def leftovers(fleet: Fleet) -> list[str]:
    """Name what is left on the hosts besides the files of the run."""
    return [f"{host.name}: {what}" for host in fleet.net.hosts for what in _left_on(host)]


def _left_on(host: NetworkHost) -> list[str]:
    found = [
        f"process {process.pid} {process.cmdline()}"
        for process in psutil.Process(host.init).children(recursive=True)
        if process.status() != psutil.STATUS_ZOMBIE
    ]
    proc = Path(f"/proc/{host.init}")
    for table in ("tcp", "tcp6"):
        for line in (proc / "net" / table).read_text().splitlines()[1:]:
            _, local, remote, state, *_ = line.split()
            if state in (LISTENING, ESTABLISHED):
                found.append(f"{table} socket {local} {remote} {state}")
    for line in (proc / "net" / "unix").read_text().splitlines()[1:]:
        found += [f"unix socket {line}"] if len(line.split()) > 7 else []
    found += [f"shared memory {path.name}" for path in (proc / "root/dev/shm").iterdir()]
    # torch keeps a cache of its own per user, as it does for python train.py
    temporary = (host.own / "tmp").iterdir()
    return found + [str(one) for one in temporary if not one.name.startswith("torchinductor_")]


def held_by(held: Mapping[str, Mapping[psutil.Process, Footprint]]) -> dict[str, Footprint]:
    """Return what processes of each kind held over the run, once they had come up."""
    lives = {
        what: Footprint.of_all(each.values(), settling=SETTLING) for what, each in held.items()
    }
    return {what: one for what, one in lives.items() if len(one.samples) >= ENOUGH}


def growth(lives: Mapping[str, Footprint]) -> dict[str, list[str]]:
    """Name what holds more and more."""
    found = {w: one.growth(few=FEW) for w, one in lives.items() if one.lasted_s > LONG_S}
    return {what: grown for what, grown in found.items() if grown}
