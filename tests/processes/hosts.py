"""Hosts with a small script, and what is said and written on them."""

from __future__ import annotations

import os
import re
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from pathlib import Path

from tests.live import namespaces
from tests.live.namespaces import HostProgram, Network, NetworkHost
from tests.live.stage import DEADLINE_S
from tests.processes.launching import newest_members

from pliant.observe.log import Record
from pliant.observe.reading import read

TRAINING = """\
x = torch.randn(256, 4)
data = torch.utils.data.TensorDataset(x, x.sum(1, keepdim=True))
kept = {"checkpoint": pliant.Checkpoint(sys.argv[2], every="20steps")} if len(sys.argv) > 2 else {}
with pliant.Session(model=model, optimizer=torch.optim.Adam(model.parameters(), lr=0.1),
                    dataset=data, global_batch_size=32, micro_batch_size=4, **kept) as session:
    for step in session.steps(int(sys.argv[1])):
        for a, b in step:
            step.backward(torch.nn.functional.mse_loss(model(a), b))
        threading.Event().wait(float(os.environ.get("PACE", 0)))
        if os.path.exists(os.environ.get("STOP_AT", "/nowhere")):
            step.stop()
    print("digest", session.committed, session.state_digest(), flush=True)
"""
"""Of a script: all behind its model."""

SCRIPT = f"""\
import os, sys, threading, torch, pliant
pliant.seed(1)
model = torch.nn.Linear(4, 1)
{TRAINING}"""

CLOCK = """\
import os, time
_s = float(os.environ.get("CLOCK_AHEAD", 0))
_time, _time_ns = time.time, time.time_ns
time.time = lambda: _time() + _s
time.time_ns = lambda: _time_ns() + int(_s * 1e9)
"""

CHANGED = """\
import importlib.abc, importlib.util, os, signal, sys

class _Finder(importlib.abc.MetaPathFinder):
    def __init__(self, name, change):
        self.name, self.change = name, change
        if name in sys.modules:
            change(sys.modules[name])
        else:
            sys.meta_path.insert(0, self)

    def find_spec(self, name, path, target=None):
        if name != self.name:
            return None
        sys.meta_path.remove(self)
        spec = importlib.util.find_spec(name)
        load = spec.loader.exec_module
        spec.loader.exec_module = lambda module: (load(module), self.change(module))
        return spec
"""
"""Changes modules as they are imported, or that are when a program is forked."""

LATE = """\
def _make_late(module):
    import asyncio
    serve = module.Agent.serve
    async def serve_late(self, *given):
        await asyncio.sleep(float(os.environ["LATE_S"]))
        await serve(self, *given)
    module.Agent.serve = serve_late

if os.environ.get("LATE_S"):
    _Finder("pliant.agent.agent", _make_late)
"""
"""Lets an agent look for its coordinator after a while."""


@contextmanager
def hosts(directory: Path, *names: str, lasts_s: int = namespaces.LASTS_S) -> Iterator[Network]:
    """Lend hosts, each with the script in its own directory."""
    with namespaces.network(directory, *names, lasts_s=lasts_s) as lent:
        for host in lent.hosts:
            (host.own / "train.py").write_text(SCRIPT)
            (host.own / "sitecustomize.py").write_text(CLOCK + CHANGED + LATE)
        yield lent


def environment(host: NetworkHost, **more: str) -> dict[str, str]:
    kept = {name: os.environ[name] for name in ("PATH", "HOME", "LANG") if name in os.environ}
    own = {"XDG_STATE_HOME": str(host.home / "state"), "PYTHONPATH": str(host.home)}
    return {**kept, **own, "PACE": "0.05", **more}


def pliant(host: NetworkHost, *words: object, **more: str) -> HostProgram:
    return host.pliant(*words, environment=environment(host, **more))


def until(what: Callable[[], object], why: str, *hosts: NetworkHost) -> None:
    until_s = time.monotonic() + 4 * DEADLINE_S
    while not what():
        is_over = all(one.poll() is not None for host in hosts for one in host.programs)
        assert not is_over or what(), f"all ended before {why}: {[host.said() for host in hosts]}"
        assert time.monotonic() < until_s, f"{why}: {[host.said() for host in hosts]}"
        time.sleep(0.05)


def records(host: NetworkHost, kind: str, out: str = "runs/train") -> list[Record]:
    found = read(host.own / out / "events.jsonl")
    return [record for record in found if record["kind"] == kind]


def share(source: NetworkHost, token: str, *others: NetworkHost) -> None:
    """Copy the file with the token, as a person would."""
    until(lambda: (source.own / token).exists(), "there is a token", source)
    for other in others:
        (other.own / "token").write_bytes((source.own / token).read_bytes())
        (other.own / "token").chmod(0o600)


def digests(*hosts: NetworkHost) -> set[str]:
    outs = {logs.parent for host in hosts for logs in host.own.glob("runs/**/logs")}
    return {digest for out in outs for digest in digests_of(out)}


def digests_of(out: Path) -> set[str]:
    """Return what the replicas of a run have printed into its directory."""
    found = set()
    for path in out.glob("logs/r*.log"):
        found.update(re.findall(r"digest \d+ \w+", path.read_text()))
    return found


def alone(host: NetworkHost, steps: int) -> str:
    """Return what the script prints when it runs alone."""
    out = host.own / "alone.txt"
    program = host.python("train.py", steps, environment=environment(host, PACE="0"), out=out)
    assert program.wait(4 * DEADLINE_S) == 0, out.read_text()
    (found,) = re.findall(r"digest \d+ \w+", out.read_text())
    return str(found)


def training(host: NetworkHost) -> set[str]:
    """Return the nodes of the newest generation of the run on a host, once all are in it."""
    return training_in(host.own / "runs/train")


def training_in(out: Path) -> set[str]:
    """Return those of the run in a directory."""
    found = list(read(out / "events.jsonl"))
    homes = {one["replica"]: one["node"] for one in found if one["kind"] == "worker"}
    return {homes[name] for name in newest_members(found)[1]}
