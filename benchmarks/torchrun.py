"""Drives an elastic torchrun job on one machine: one agent per replica, ``--nnodes=1:N``.

Owns how torchrun is started, grown, shrunk and hurt.  Must not know of pliant or of how events
are measured.

Each agent runs one worker and meets the others through the c10d rendezvous that the first agent
hosts, as it would with an agent per machine.  The rendezvous store is not shared with the workers
(``TORCH_DISABLE_SHARE_RDZV_TCP_STORE``): torch 2.13 otherwise lets restarted ranks find the dead
addresses of the round before, and the job hangs.
"""

from __future__ import annotations

import contextlib
import os
import signal
import socket
import subprocess
import sys
from collections.abc import Iterator, Sequence
from dataclasses import dataclass, field
from pathlib import Path

import psutil

from benchmarks import harness

LAUNCHER = (sys.executable, "-m", "torch.distributed.run")
TUNED = ("--rdzv-conf=last_call_timeout=1", "--monitor-interval=0.05")
"""A second instead of 30 for late comers, 0.05 s instead of 0.1 between looks at the workers."""


@dataclass(slots=True, kw_only=True)
class Torchrun:
    """One elastic job; agents are numbered in the order of their start."""

    folder: Path
    script: Sequence[str]
    most: int
    settings: Sequence[str] = ()
    workers_per_agent: int = 1
    agents: list[subprocess.Popen[bytes]] = field(default_factory=list)
    port: int = field(default_factory=lambda: free_port())

    def start_agent(self) -> subprocess.Popen[bytes]:
        """Start one more agent; it brings one more replica."""
        command = [
            *LAUNCHER,
            f"--nnodes=1:{self.most}",
            f"--nproc-per-node={self.workers_per_agent}",
            "--rdzv-backend=c10d",
            f"--rdzv-endpoint=127.0.0.1:{self.port}",
            "--rdzv-id=benchmark",
            "--max-restarts=1000",
            *self.settings,
            *self.script,
        ]
        self.folder.mkdir(parents=True, exist_ok=True)
        log = self.folder / f"agent{len(self.agents)}.log"
        environment = harness.environment(TORCH_DISABLE_SHARE_RDZV_TCP_STORE="1")
        with log.open("ab") as sink:
            agent = subprocess.Popen(
                command,
                env=environment,
                cwd=harness.ROOT,
                stdout=sink,
                stderr=sink,
                preexec_fn=harness.die_with_parent,
            )
        self.agents.append(agent)
        return agent

    def kill_worker(self, agent: subprocess.Popen[bytes]) -> None:
        """Send SIGKILL to the (last) worker of ``agent``; the agent itself lives."""
        worker = psutil.Process(agent.pid).children()[-1]
        os.kill(worker.pid, signal.SIGKILL)

    def drain(self, agent: subprocess.Popen[bytes]) -> None:
        """Ask ``agent`` to leave: torchrun's notice is SIGTERM."""
        agent.send_signal(signal.SIGTERM)
        self.agents.remove(agent)

    def close(self) -> None:
        """End everything that is left."""
        for agent in self.agents:
            harness.end(agent)


@contextlib.contextmanager
def running(job: Torchrun, *, replicas: int) -> Iterator[Torchrun]:
    """Start ``replicas`` agents and end the job on the way out."""
    try:
        for _ in range(replicas):
            job.start_agent()
        yield job
    finally:
        job.close()


def free_port() -> int:
    """Return a port that was free a moment ago."""
    with socket.socket() as probe:
        probe.bind(("127.0.0.1", 0))
        return int(probe.getsockname()[1])
