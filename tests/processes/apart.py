"""Jobs whose coordinator and agents are processes of their own, and the road between them.

Agents connect to a ``Road``, which stands for the address under which a cluster offers whichever
coordinator is there: it leads to the newest one, and can be blocked for one agent.
"""

from __future__ import annotations

import json
import socket
import subprocess
import threading
from collections.abc import Iterator
from contextlib import contextmanager, nullcontext, suppress
from dataclasses import dataclass, field
from pathlib import Path

from tests.live.stage import DEADLINE_S, FORKED_PLIANT, Program, stage
from tests.processes.launching import HERE, RunningJob, environment
from tests.processes.memory_group import MemoryGroup
from tests.support.recorded import check_decisions

CHUNK_BYTES = 1 << 16


class Road:
    """Carries bytes between an agent and the coordinator that is behind it now."""

    def __init__(self) -> None:
        self.port = 0
        """Of the coordinator that new connections lead to; 0: none."""
        self.is_open = True
        self._listener = socket.create_server(("127.0.0.1", 0))
        self._pairs: list[tuple[socket.socket, socket.socket]] = []
        self._threads: list[threading.Thread] = []
        self._spawn(self._accept)

    @property
    def url(self) -> str:
        """Return the URL that agents are given."""
        return f"http://127.0.0.1:{self._listener.getsockname()[1]}"

    def cut(self) -> None:
        """Break what is connected, and let nobody through."""
        self.is_open = False
        self._break()

    def mend(self) -> None:
        """Let agents through again."""
        self.is_open = True

    def close(self) -> None:
        """End every thread and socket."""
        with suppress(OSError):
            self._listener.shutdown(socket.SHUT_RDWR)
        self._listener.close()
        self._break()
        for thread in self._threads:
            thread.join(DEADLINE_S)
        for pair in self._pairs:
            for end in pair:
                end.close()

    def _break(self) -> None:
        for pair in self._pairs:
            for end in pair:
                with suppress(OSError):
                    end.shutdown(socket.SHUT_RDWR)

    def _accept(self) -> None:
        while True:
            try:
                agent, _ = self._listener.accept()
            except OSError:
                return
            try:
                if not self.is_open or not self.port:
                    raise ConnectionRefusedError
                coordinator = socket.create_connection(("127.0.0.1", self.port), 5)
                coordinator.settimeout(None)
            except OSError:
                agent.close()
                continue
            self._pairs.append((agent, coordinator))
            self._spawn(_carry, agent, coordinator)
            self._spawn(_carry, coordinator, agent)

    def _spawn(self, target: object, *arguments: object) -> None:
        thread = threading.Thread(target=target, args=arguments, daemon=True)  # type: ignore[arg-type]
        self._threads.append(thread)
        thread.start()


def _carry(source: socket.socket, sink: socket.socket) -> None:
    with suppress(OSError):
        while data := source.recv(CHUNK_BYTES):
            sink.sendall(data)
    for end in (source, sink):
        with suppress(OSError):
            end.shutdown(socket.SHUT_RDWR)


@dataclass
class ApartJob(RunningJob):
    """A job in several processes; ``process`` is its newest coordinator."""

    is_forked: bool = True
    command: list[str] = field(default_factory=list)
    replicas: int = 2
    least: int = 1
    start: int | None = None
    timeouts: dict[str, float] = field(default_factory=dict)
    dies_once_at: Path | None = None
    """The first coordinator that is to say EndJob is killed instead, and makes this file."""
    in_group: MemoryGroup | None = None
    """Where coordinators are started."""
    roads: dict[str, Road] = field(default_factory=dict)
    agents: dict[str, Program] = field(default_factory=dict)
    coordinators: list[Program] = field(default_factory=list)

    def coordinate(self) -> None:
        """Start a coordinator, whatever has become of those before; roads lead to it."""
        port = _free_port()
        number = len(self.records("job_started")) + len(self.records("coordinator_started"))
        with nullcontext() if self.in_group is None else self.in_group.inside():
            self.process = self._start(*self._words(port))
        self.coordinators.append(self.process)
        began = ("job_started", "coordinator_started")
        self.wait_for(
            lambda: sum(r["kind"] in began for r in self.records()) > number, "it is served"
        )
        for road in self.roads.values():
            road.port = port

    def employ(self, node: str, devices: int, *options: str, road: Road | None = None) -> None:
        """Start an agent on a road of its own."""
        road = self.roads[node] = road or self.roads.get(node) or Road()
        road.port = _port_of(self)
        words = ["agent", "--join", road.url, "--token-file", self.out / "token", "--node", node]
        words += ["--devices", devices, *options]
        pliant = [FORKED_PLIANT] if self.is_forked else ["-m", "pliant"]
        self.agents[node] = self._start(*pliant, *words)

    def kill_coordinator(self) -> None:
        """SIGKILL the newest coordinator."""
        self.process.kill()
        self.process.wait(DEADLINE_S)

    def num_committed(self) -> int:
        """Count committed steps by the replicas' ledgers, which need no coordinator."""
        steps = set()
        for path in self.out.glob("ledger/*"):
            for line in path.read_text().splitlines(keepends=True):
                if line.endswith("\n") and '"commit"' in line:
                    steps.add(json.loads(line)["step"])
        return len(steps)

    def wait_for_ledger(self, count: int) -> None:
        """Wait until so many steps are committed, whether or not a coordinator lives."""
        deadline = threading.Event()
        for _ in range(int(DEADLINE_S / 0.05)):
            if self.num_committed() >= count:
                return
            deadline.wait(0.05)
        raise AssertionError(f"{self.num_committed()} of {count} steps: {self.said()}")

    def end(self) -> int:
        """Wait for the coordinator's end and then the agents'; return the job's exit code."""
        code = self.process.wait(2 * DEADLINE_S)
        for name, agent in self.agents.items():
            assert agent.wait(DEADLINE_S) == 0, f"{name}: {self.said()}"
        check_decisions(self.out)
        return code

    def _words(self, port: int) -> list[object]:
        """Return the command line; what a test waits for is no option of ``pliant``."""
        if not self.timeouts and not self.dies_once_at:
            words = ["-m", "pliant", "coordinator", "--name", "job", "--out", self.out]
            words += ["--port", port, "--min", self.least, "--max", self.replicas]
            return [*words, "--start", self.start or self.replicas, *self.command]
        given = {
            "argv": self.command,
            "out": str(self.out),
            "replicas": self.replicas,
            "least": self.least,
            "start": self.start or self.replicas,
            "dies_once_at": str(self.dies_once_at or ""),
            "port": port,
            "timeouts": self.timeouts,
        }
        return [HERE / "run_apart.py", json.dumps(given)]

    def _start(self, *words: object) -> Program:
        said = self.directory / "said.txt"
        return self.stage.start(*words, out=said, environment=environment(self.directory))


@contextmanager
def apart(
    directory: Path,
    *command: object,
    nodes: dict[str, int],
    replicas: int = 2,
    least: int = 1,
    start: int | None = None,
    timeouts: dict[str, float] | None = None,
    dies_once_at: Path | None = None,
    forked: bool = True,
    in_group: MemoryGroup | None = None,
) -> Iterator[ApartJob]:
    """Run a job apart; at the end nothing of it may live, whatever the test did."""
    for part in ("out", "tmp"):
        (directory / part).mkdir(exist_ok=True, parents=True)
    (directory / "said.txt").touch()
    nobody: subprocess.Popen[str] = subprocess.Popen(["true"], text=True)
    nobody.wait(DEADLINE_S)
    with stage(forked=forked) as here:
        job = ApartJob(
            nobody,
            "job",
            directory,
            here,
            is_forked=forked,
            command=[str(word) for word in command],
            replicas=replicas,
            least=least,
            start=start,
            timeouts=timeouts or {},
            dies_once_at=dies_once_at,
            in_group=in_group,
        )
        try:
            job.coordinate()
            for node, devices in nodes.items():
                job.employ(node, devices)
            yield job
        finally:
            for road in job.roads.values():
                road.close()


def _port_of(job: ApartJob) -> int:
    (*_, last) = [r for r in job.records() if r["kind"] in ("job_started", "coordinator_started")]
    return int(str(last["url"]).rpartition(":")[2])


def _free_port() -> int:
    with socket.create_server(("127.0.0.1", 0)) as sock:
        port: int = sock.getsockname()[1]
        return port
