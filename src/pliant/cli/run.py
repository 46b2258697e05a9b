"""One job on one machine: a coordinator and an agent in one process, talking over loopback.

Owns joining the two, and that nothing is left at the end.  Decides nothing about the job.

    run_job: agent (fork server imports meanwhile) + coordinator --WebSocket over loopback-- agent
"""

from __future__ import annotations

import asyncio
import os
import secrets
import socket
from pathlib import Path
from typing import TYPE_CHECKING

from pliant.agent.agent import Agent, AgentConfig, nobody_listens
from pliant.cli.discovery import RuntimeFiles
from pliant.cli.hosting import JobConfig, hosted, locked, refuse_second
from pliant.core.policy import ElasticPolicy
from pliant.core.vocabulary import NodeId
from pliant.wire.notes import Work

if TYPE_CHECKING:
    from pliant.cli.view import Observer

EXIT_STOPPED = 3

CPU_DEVICES = 4
"""Most replicas on a machine without accelerators, unless ``--max`` says otherwise."""


def run_job(config: JobConfig, *, observer: Observer | None = None) -> int:
    """Run a job to its end; return its exit code.  Leaves no process and no runtime file.

    Raises:
        ConfigError: the port is in use, a job of this name runs, or a file cannot be written.
        ConflictError: a coordinator on another machine has taken over the directory.
    """
    try:
        return asyncio.run(_run(config, observer))
    except KeyboardInterrupt:  # before the job could be asked to stop
        return EXIT_STOPPED


def count_devices() -> int:
    """Return how many replicas this machine has room for, by its accelerators or cores."""
    accelerators = [path for path in Path("/dev").glob("nvidia*") if path.name[6:].isdigit()]
    return len(accelerators) or min(CPU_DEVICES, len(os.sched_getaffinity(0)))


def most_replicas(policy: ElasticPolicy) -> int:
    """Return how many replicas an explicit maximum wants room for, spares included."""
    return policy.max_replicas + policy.spares if policy.max_replicas else 0


async def _run(config: JobConfig, observer: Observer | None) -> int:
    refuse_second(config.name)
    with locked(config.out, alone=True):
        work = config.work()
        agent = _agent(config, work, observer)
        try:
            agent.open()  # imports torch in a process of its own while this one imports FastAPI
            return await _run_with(agent, config, work, observer)
        finally:
            await agent.close()


def _agent(config: JobConfig, work: Work, observer: Observer | None) -> Agent:
    files = RuntimeFiles.of("job", config.name)
    return Agent(
        AgentConfig(
            node=NodeId(socket.gethostname()),
            devices=max(most_replicas(config.policy), count_devices()),
            environment=dict(os.environ),
            address=config.address,
            work=work,
            guarded=(files.token, files.record),
        ),
        listener=observer.output if observer else nobody_listens,
    )


async def _run_with(agent: Agent, config: JobConfig, work: Work, observer: Observer | None) -> int:
    """Serve the job's coordinator, connect the agent, and wait for the end."""
    token, devices = secrets.token_urlsafe(32), count_devices()
    async with hosted(config, work, token=token, devices=devices, observer=observer) as host:
        agent.guard()
        try:
            end = await host.until_the_end(agent.serve(host.agents_url, token))
        finally:
            await agent.close()
    return end.exit_code
