"""One job on one machine: a coordinator and an agent in one process, talking over loopback.

Owns joining the two, and that nothing is left at the end.  Decides nothing about the job.

    run_job: agent (fork server imports meanwhile) + coordinator --WebSocket over loopback-- agent
    in a pool: the same, but the fork server starts only when the job is offered its minimum; and
               all of it again each time that it was suspended for others
"""

from __future__ import annotations

import asyncio
import secrets
import socket
from contextlib import nullcontext
from dataclasses import replace

from pliant.agent.agent import Agent
from pliant.agent.launcher import StartServer, start_server
from pliant.agent.node_facts import AgentConfig
from pliant.agent.output import nobody_listens
from pliant.core.commands import EndJob
from pliant.core.errors import EXIT_STOPPED
from pliant.core.tenancy import PoolPlace
from pliant.core.text import counted
from pliant.core.values import NodeId
from pliant.machine.registry import RuntimeFiles, pool_place
from pliant.run.host_devices import HostDevices
from pliant.run.hosting import Observer, hosted, refuse_second
from pliant.run.job_config import JobConfig
from pliant.run.pool_job import Tenant
from pliant.run.register_location import always_at
from pliant.run.run_directory import locked
from pliant.wire.bounds import name_from


def run_job(
    config: JobConfig, *, observer: Observer | None = None, start_server: StartServer = start_server
) -> int:
    """Run a job to its end; return its exit code.  Leaves no process and no runtime file.

    Raises:
        ConfigError: the port is in use, a job of this name runs, a file cannot be written, or there
            are fewer accelerators than it needs.
        ConflictError: a coordinator on another machine has taken over the directory.
    """
    try:
        return asyncio.run(_run(config, observer, start_server))
    except KeyboardInterrupt:  # before the job could be asked to stop
        return EXIT_STOPPED


async def _run(config: JobConfig, observer: Observer | None, start_server: StartServer) -> int:
    refuse_second(config.name, config.state.jobs)
    with locked(config.out, alone=True):
        if config.pool is not None:
            return await _run_in_pool(config, config.pool, observer, start_server)
        here = HostDevices.of(config.environ, config.device_kind)
        workers, policy = config.workers_per_replica, config.settings.policy
        least = policy.min_replicas * workers
        here.require(least, f"--min {policy.min_replicas} is {counted(least, 'worker')}")
        room = max(here.count() // workers, 1)
        if not here.names:
            config = replace(config, settings=replace(config.settings, core_replicas=room))
        wanted = policy.max_replicas + policy.spares if policy.max_replicas else 1
        devices = here.count(max(wanted * workers, here.count()))
        agent = _agent(config, observer, start_server, devices=devices, here=here)
        try:
            agent.open()  # imports torch in a process of its own while this one imports FastAPI
            return (await _live(config, agent, observer, room=room)).exit_code
        finally:
            await agent.close()


def _agent(
    config: JobConfig,
    observer: Observer | None,
    start_server: StartServer,
    *,
    devices: int,
    here: HostDevices | None = None,
    tenant: Tenant | None = None,
) -> Agent:
    """``here``: the devices of the host, or ``tenant``: of a pool."""
    files = RuntimeFiles.of("job", config.name, config.state.jobs)
    return Agent(
        AgentConfig(
            node=NodeId(name_from(socket.gethostname())),
            devices=devices,
            environment=config.environ,
            address=config.address,
            work=config.work(),
            guarded=(files.token, files.targets, files.record),
            locks=tenant.locks if tenant else None,
            device_name=(here or tenant or HostDevices()).device_name,
            start_server=start_server,
        ),
        listener=observer.output if observer else nobody_listens,
        on_devices=tenant.on_devices if tenant else lambda: None,
    )


async def _live(
    config: JobConfig,
    agent: Agent,
    observer: Observer | None,
    *,
    room: int,
    tenant: Tenant | None = None,
) -> EndJob:
    """Serve the job's coordinator, connect the agent, and wait for the end.

    Of a job in a pool the pool says when the agent starts workers.
    """
    token, on_offer = secrets.token_urlsafe(32), None if tenant is None else tenant.pushed
    async with hosted(config, token=token, room=room, observer=observer, on_offer=on_offer) as host:
        agent.guard()
        with nullcontext() if tenant is None else tenant.life(host, agent):
            talks = () if tenant is None else (tenant.talks(),)
            try:
                return await host.until_the_end(agent.serve(always_at(host.url), token), *talks)
            finally:
                await agent.close()


async def _run_in_pool(
    config: JobConfig, place: PoolPlace, observer: Observer | None, start_server: StartServer
) -> int:
    """Live as often as the pool suspends the job; return how the last life ended."""
    records = pool_place(place.name, config.state)
    tenant = Tenant(
        place,
        job=config.name,
        policy=config.settings.policy,
        records=records,
        workers_per_replica=config.workers_per_replica,
    )
    async with tenant.present():
        while True:
            devices = tenant.pool_devices
            agent = _agent(config, observer, start_server, devices=devices, tenant=tenant)
            room = devices // config.workers_per_replica
            end = await _live(config, agent, observer, room=room, tenant=tenant)
            if tenant.is_over(end.exit_code):
                return end.exit_code
