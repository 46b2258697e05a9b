"""A job whose replicas span hosts, and what runs on each of these."""

from __future__ import annotations

from collections.abc import Callable
from contextlib import suppress
from pathlib import Path
from typing import Any

import psutil
from tests.certificates import Authority
from tests.live.namespaces import HostProgram, Network, NetworkHost
from tests.live.stage import DEADLINE_S
from tests.processes.hosts import TRAINING, alone, digests, digests_of, pliant, until
from tests.processes.launching import newest_members

from pliant.observe.audit import audit_run
from pliant.observe.log import Record
from pliant.observe.reading import read

SHARDED = f"""\
import os, sys, threading, torch, pliant
from torch.distributed.fsdp import fully_shard
pliant.seed(1)
mesh = pliant.mesh(shard=int(os.environ.get("WORLD_SIZE", 1)))
model = torch.nn.Sequential(torch.nn.Linear(4, 16), torch.nn.Tanh(), torch.nn.Linear(16, 1))
fully_shard(model, mesh=mesh["shard"])
{TRAINING}"""


class Spanning:
    """A job of replicas of one worker on each of several hosts, until it is told to stop."""

    def __init__(
        self,
        net: Network,
        each: int = 2,
        *,
        tls: bool = False,
        out: Path | None = None,
        kept: Path | None = None,
    ) -> None:
        """``each``: so many hosts has a replica; ``tls``: they prove themselves and encrypt;
        ``out``: the directory of the run, if all hosts see it; ``kept``: that of checkpoints.
        """
        self.net, self.each = net, each
        self.shared, self.out = out, out or self.first.own / "runs" / "train"
        self.script: tuple[object, ...] = ("train.py", 100_000, *filter(None, [kept]))
        self.tls = certified(net) if tls else {}
        for host in net.hosts:
            (host.own / "train.py").write_text(SHARDED)
        self.places = f"{self.first.address}:7000"
        self.coordinator = self.coordinate(self.first)
        self.until((self.out / "token").exists, "there is a token")
        for host in net.hosts:
            (host.own / "token").write_bytes((self.out / "token").read_bytes())
            (host.own / "token").chmod(0o600)
        self.agents: dict[str, HostProgram] = {}

    @property
    def first(self) -> NetworkHost:
        return self.net.hosts[0]

    def coordinate(self, host: NetworkHost) -> HostProgram:
        """Start a coordinator on a host."""
        size = ("--workers-per-replica", self.each, "--hosts-per-replica", self.each)
        words = ("--listen", f"{host.address}:7000", *size, "--min", 1, "--max", 2)
        place = ("--out", self.shared) if self.shared is not None else ()
        own = self.tls.get(host.name, ())
        return pliant(host, "coordinator", *words, *place, *own, *self.script)

    def employ(self, *hosts: NetworkHost) -> None:
        """Start an agent on each of these hosts."""
        for host in hosts:
            words: tuple[object, ...] = ("--token-file", "token", "--devices", 1)
            words = ("agent", "--join", self.places, *words, *self.tls.get(host.name, ()))
            self.agents[host.name] = pliant(host, *words, STOP_AT=str(host.home / "stop"))

    def records(self, kind: str) -> list[Record]:
        found = read(self.out / "events.jsonl")
        return [record for record in found if record["kind"] == kind]

    def until(self, what: Callable[[], object], why: str) -> None:
        until(what, why, *self.net.hosts)

    def orders(self) -> list[Any]:
        found = [one["order"] for one in (*self.records("switch"), *self.records("reform"))]
        return sorted(found, key=lambda one: one["generation"])

    def trains(self, count: int, after: int = 0) -> int:
        """Wait until so many replicas train in a generation behind another; return which."""

        def do_train() -> bool:
            generation, members = newest_members(read(self.out / "events.jsonl"))
            return generation > after and len(members) == count

        self.until(do_train, f"{count} train")
        self.goes_on()
        return int(self.orders()[-1]["generation"])

    def goes_on(self) -> None:
        """Wait until steps are committed."""
        steps = len(self.records("commit"))
        self.until(lambda: len(self.records("commit")) > steps + 2, "steps go on")

    def nodes(self) -> list[list[NetworkHost]]:
        """Return the hosts of each host group, the head first, as the log tells last."""
        said, by_name = self.records("joint_nodes"), {one.name: one for one in self.net.hosts}
        return [[by_name[name] for name in one] for one in (said[-1]["nodes"] if said else ())]

    def pair(self) -> list[NetworkHost]:
        """Return head and parts of the host group that the first host is not of."""
        (hosts,) = [each for each in self.nodes() if self.first not in each]
        return hosts

    def stop(self, *, is_proved: bool = True) -> None:
        """Let it end, and look whether all is as it should be; ``is_proved``: no ledger was lost
        with a host.
        """
        for host in self.net.hosts:
            (host.own / "stop").touch()
        assert self.coordinator.wait(4 * DEADLINE_S) == 0, self.said()
        for name, agent in self.agents.items():
            assert agent.wait() == 0, (name, self.said())
        found = digests(*self.net.hosts)
        (digest,) = found if self.shared is None else digests_of(self.out)
        (self.first.own / "stop").unlink()
        assert alone(self.first, int(digest.split()[1])) == digest
        audit = audit_run(self.out)
        assert audit.exactly_once or not is_proved, audit.problems
        for host in self.net.hosts:
            assert workers_on(host) == []

    def said(self) -> list[str]:
        return [host.said() for host in self.net.hosts]


def certified(net: Network) -> dict[str, tuple[str, ...]]:
    """Make a certificate for each host, and copy it there; return the options that name it."""
    authority, options = Authority(net.hosts[0].own / "certs"), {}
    for host in net.hosts:
        authority.files(host.name, names=(host.name, host.address))
        files = {"ca": "ca.pem", "certificate": f"{host.name}.pem", "key": f"{host.name}.key"}
        (host.own / "tls").mkdir()
        for name in files.values():
            (host.own / "tls" / name).write_bytes((authority.directory / name).read_bytes())
            (host.own / "tls" / name).chmod(0o600)
        words = [(f"--tls-{option}", f"tls/{name}") for option, name in files.items()]
        options[host.name] = tuple(word for pair in words for word in pair)
    return options


def workers_on(host: NetworkHost) -> list[psutil.Process]:
    """Return the workers that live on a host: all but its commands and their fork servers."""
    commands = [program.process() for program in host.programs if program.poll() is None]
    others = {host.init, *(one.pid for one in commands)}
    others |= {server.pid for command in commands for server in command.children()}
    own, found = _namespace(host.init), []
    for one in psutil.process_iter():
        with suppress(OSError, psutil.NoSuchProcess):
            lives = one.pid not in others and one.status() != psutil.STATUS_ZOMBIE
            if lives and _namespace(one.pid) == own:
                found.append(one)
    return found


def _namespace(pid: int) -> str:
    return str(Path(f"/proc/{pid}/ns/pid").readlink())
