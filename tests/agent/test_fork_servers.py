"""What an agent leaves behind that is killed while its fork server imports, or another was."""

from __future__ import annotations

import os
import signal
import subprocess
import sys
import tempfile
import time
from collections.abc import Iterator
from pathlib import Path

import psutil
import pytest

from pliant.agent.rendezvous_directory import OWNER

pytestmark = pytest.mark.timeout(120)

DEADLINE_S = 60.0

AGENT = """
import asyncio, os, signal
from pathlib import Path
from types import SimpleNamespace
from pliant.agent.node_facts import AgentConfig
from pliant.agent.fork_servers import ForkServers
from pliant.agent.local_replica import LocalReplica
from pliant.core.values import Incarnation, NodeId, ReplicaId
from pliant.wire.launch import Assignment
from pliant.wire.messages import Work

def take(*_):
    pass

async def main():
    config = AgentConfig(node=NodeId("h0"), devices=2, environment=os.environ)
    servers = ForkServers(config, spawn=take, on_report=take, on_death=take, on_end=take)
    command = ("train.py", 16_000 * "x")  # a long command line: the socket holds ten of them
    work = Work(job="j", command=command, cwd=os.getcwd(), out=os.getcwd())
    servers.start(work)
    server = servers._server
    os.kill(server.process.pid, signal.SIGSTOP)  # as if its imports took for ever
    for number in range(1, 21):
        name = ReplicaId(f"r{number}")
        job = SimpleNamespace(starts_all=False)
        host = SimpleNamespace(
            config=config, servers=servers, listener=take, job=job, send=take, refuse=take
        )
        replica = LocalReplica(name, [0, 1], host)
        await replica.open(Path("logs"))
        replica.start(
            Assignment(replica=name, work=work, address="127.0.0.1", incarnation=Incarnation(1))
        )
    print(server.process.pid, len(server.waiting), flush=True)
    os.kill(os.getpid(), signal.SIGKILL)

asyncio.run(main())
"""


@pytest.fixture
def meeting() -> Iterator[Path]:
    """Return a place with a path that is short enough for sockets."""
    with tempfile.TemporaryDirectory(dir="/tmp") as directory:
        yield Path(directory)


def test_nothing_is_left_of_what_was_still_queued(tmp_path: Path, meeting: Path) -> None:
    """Twenty replicas of two workers: more requests than the socket holds.

    Nor of an agent whose fork server was killed with it.
    """
    left = meeting / "pliant-left"
    left.mkdir()
    (left / OWNER).write_text('{"pid": 1, "machine": "an earlier boot"}')
    words = ["sh", "-c", 'ulimit -n 4096 && exec "$@"', "sh", sys.executable, "-c", AGENT]
    agent = subprocess.run(
        words,
        cwd=tmp_path,
        env={**os.environ, "TMPDIR": str(meeting)},
        capture_output=True,
        text=True,
        timeout=DEADLINE_S,
        check=False,
    )
    assert agent.returncode == -signal.SIGKILL, agent.stderr
    server, queued = map(int, agent.stdout.split())
    assert queued
    assert list(meeting.glob("pliant-*"))
    assert not left.exists()

    os.kill(server, signal.SIGCONT)

    until_s = time.monotonic() + DEADLINE_S
    while psutil.pid_exists(server) and time.monotonic() < until_s:
        time.sleep(0.05)
    assert not psutil.pid_exists(server), (tmp_path / "logs" / "forkserver.log").read_text()
    assert not list(meeting.glob("pliant-*"))
