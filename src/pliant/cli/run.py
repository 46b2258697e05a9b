"""One job on one machine: a coordinator and an agent in one process, talking over loopback.

Owns joining the two, what the process leaves on disk while it lives (discovery record, token),
its signals, and that nothing is left at its end.  Decides nothing about the job.

    run_job: agent (fork server imports meanwhile) + coordinator --WebSocket over loopback-- agent
             Ctrl-C or SIGTERM: stop at the next step; a second Ctrl-C: end now, 130
"""

from __future__ import annotations

import asyncio
import contextlib
import fcntl
import json
import os
import secrets
import signal
import socket
import time
from collections.abc import Coroutine, Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Any

from pliant.agent.agent import Agent, AgentConfig, nobody_listens
from pliant.cli.jobs import jobs_directory, running_jobs
from pliant.core.errors import ConfigError, PermanentError
from pliant.core.job import Settings
from pliant.core.policy import ElasticPolicy
from pliant.core.vocabulary import EndJob, NodeId, StopRequested
from pliant.observe.log import EventLog

if TYPE_CHECKING:
    from pliant.cli.view import Observer
    from pliant.coordinator.driver import Driver

EXIT_FAILED = 1
EXIT_STOPPED = 3
EXIT_INTERRUPTED = 130

CPU_DEVICES = 4
"""Most replicas on a machine without accelerators, unless ``--max`` says otherwise."""


@dataclass(frozen=True, slots=True, kw_only=True)
class JobConfig:
    """What to run, and how large."""

    name: str
    argv: tuple[str, ...]
    """The script and its arguments."""

    policy: ElasticPolicy
    out: Path
    """An existing directory; a run that it holds goes on."""

    max_restarts: int = Settings().restart_budget
    port: int = 0
    """Port of the coordinator; 0: any that is free."""

    address: str = "127.0.0.1"
    init: Path | None = None
    settings: Settings | None = None
    """Timeouts and budgets other than the default; ``policy`` and ``max_restarts`` count."""


def run_job(config: JobConfig, *, observer: Observer | None = None) -> int:
    """Run a job to its end; return its exit code.  Leaves no process and no runtime file.

    Raises:
        ConfigError: the port is in use, a job of this name runs, or a file cannot be written.
    """
    try:
        return asyncio.run(_run(config, observer))
    except KeyboardInterrupt:  # before the job could be asked to stop
        return EXIT_STOPPED


def count_devices() -> int:
    """Return how many replicas this machine has room for, by its accelerators or cores."""
    accelerators = [path for path in Path("/dev").glob("nvidia*") if path.name[6:].isdigit()]
    return len(accelerators) or min(CPU_DEVICES, len(os.sched_getaffinity(0)))


async def _run(config: JobConfig, observer: Observer | None) -> int:
    files = _RuntimeFiles.of(config.name)
    _refuse_second(config.name)
    with _only_one(config.out):
        return await _run_here(config, files, observer)


async def _run_here(config: JobConfig, files: _RuntimeFiles, observer: Observer | None) -> int:
    node = NodeId(socket.gethostname())
    devices = config.policy.max_replicas or count_devices()
    agent = Agent(
        AgentConfig(
            node=node,
            job=config.name,
            devices=devices,
            command=config.argv,
            cwd=Path.cwd(),
            out=config.out.absolute(),
            environment=dict(os.environ),
            address=config.address,
            init=config.init.absolute() if config.init else None,
            holder=_holder(config),
            guarded=(files.record, files.token),
        ),
        listener=observer.output if observer else nobody_listens,
    )
    try:
        agent.open()  # imports torch in a process of its own while this one imports FastAPI
        end = await _coordinate(config, files, agent, observer)
    finally:
        await agent.close()
        files.remove()
    return end.exit_code


async def _coordinate(
    config: JobConfig, files: _RuntimeFiles, agent: Agent, observer: Observer | None
) -> EndJob:
    """Serve the job's coordinator, connect the agent, and wait for the end."""
    from pliant.coordinator.app import create_app
    from pliant.coordinator.driver import Clock, Driver
    from pliant.coordinator.register import RegisterFile
    from pliant.coordinator.server import Server, open_socket, url_of

    sock = open_socket(config.address, config.port)
    log = EventLog(config.out / "events.jsonl", job=config.name)
    if observer is not None:
        log.subscribe(observer.record)
    token = secrets.token_urlsafe(32)
    driver = Driver(
        settings=_settings(config),
        register=RegisterFile(config.out / "register.json"),
        log=log,
        metrics_path=config.out / "metrics.jsonl",
        clock=Clock(),
    )
    server = Server(create_app(driver, token=token, events_path=log_path(config.out)), sock)
    url = url_of(sock)
    interrupted = asyncio.Event()
    with _signals(driver, interrupted):
        try:
            await server.start()
            files.write(config, url=url, token=token)
            agent.guard()
            _log_start(log, config, url)
            serving = agent.serve(f"{url.replace('http', 'ws', 1)}/v1/agents", token)
            end = await _until_the_end(driver, serving, interrupted)
            log.write("job_ended", exit_code=end.exit_code, reason=end.reason)
        finally:
            await agent.close()
            await server.stop()
            log.close()
    return end


def log_path(out: Path) -> Path:
    """Return where the event log of a run lies."""
    return out / "events.jsonl"


async def _until_the_end(
    driver: Driver, serve: Coroutine[Any, Any, None], interrupted: asyncio.Event
) -> EndJob:
    """Wait for whatever ends the job first: the core, the agent's failure, or Ctrl-C twice."""
    driving = asyncio.create_task(driver.run())
    serving = asyncio.create_task(serve)
    stopping = asyncio.create_task(interrupted.wait())
    tasks: tuple[asyncio.Task[Any], ...] = (driving, serving, stopping)
    try:
        await asyncio.wait(tasks, return_when=asyncio.FIRST_COMPLETED)
        if stopping.done():
            return EndJob(exit_code=EXIT_INTERRUPTED, reason="interrupted twice")
        if not driving.done():
            serving.result()
        return await driving
    except PermanentError as error:
        return EndJob(exit_code=EXIT_FAILED, reason=str(error))
    finally:
        for task in tasks:
            task.cancel()
        await asyncio.gather(*tasks, return_exceptions=True)


@contextlib.contextmanager
def _signals(driver: Driver, interrupted: asyncio.Event) -> Iterator[None]:
    """Turn the first SIGINT or SIGTERM into a wish to stop, the second SIGINT into the end."""
    loop = asyncio.get_running_loop()
    wishes = 0

    def interrupt() -> None:
        nonlocal wishes
        wishes += 1
        if wishes == 1:
            driver.put(StopRequested())
        else:
            interrupted.set()

    loop.add_signal_handler(signal.SIGINT, interrupt)
    loop.add_signal_handler(signal.SIGTERM, lambda: driver.put(StopRequested()))
    try:
        yield
    finally:
        loop.remove_signal_handler(signal.SIGINT)
        loop.remove_signal_handler(signal.SIGTERM)


def _settings(config: JobConfig) -> Settings:
    base = config.settings or Settings()
    values = {name: getattr(base, name) for name in Settings.__slots__}
    return Settings(**{**values, "policy": config.policy, "restart_budget": config.max_restarts})


def _log_start(log: EventLog, config: JobConfig, url: str) -> None:
    log.write(
        "job_started",
        command=list(config.argv),
        out=str(config.out.absolute()),
        url=url,
        cwd=str(Path.cwd()),
        pid=os.getpid(),
        init=None if config.init is None else str(config.init.absolute()),
        policy={
            name: getattr(config.policy, f"{name}_replicas") for name in ("min", "max", "start")
        },
        max_restarts=config.max_restarts,
        min_replicas=config.policy.min_replicas,
        max_replicas=config.policy.max_replicas or count_devices(),
        start_replicas=config.policy.start_replicas,
    )


def _holder(config: JobConfig) -> str:
    """Return who this job is to its checkpoints: the same in every life of its directory."""
    path = config.out / "holder"
    if not path.exists():
        path.write_text(f"{config.name}-{secrets.token_hex(4)}\n")
    return path.read_text().strip()


@contextlib.contextmanager
def _only_one(out: Path) -> Iterator[None]:
    """Make sure that one process runs the job of a directory; ends with this process.

    Raises:
        ConfigError: another one does.
    """
    with (out / "running.lock").open("ab") as file:
        try:
            fcntl.flock(file, fcntl.LOCK_EX | fcntl.LOCK_NB)
        except BlockingIOError:
            raise ConfigError(f"the job of {out} is running already; see pliant status") from None
        yield


def _refuse_second(name: str) -> None:
    if any(job.job == name for job in running_jobs()):
        raise ConfigError(f"a job named {name} is running already; choose another with --name")


@dataclass(frozen=True, slots=True)
class _RuntimeFiles:
    """What says that the job runs, and who may talk to it; gone when it ends."""

    record: Path
    token: Path

    @classmethod
    def of(cls, name: str) -> _RuntimeFiles:
        directory = jobs_directory()
        return cls(directory / f"{name}.json", directory / f"{name}.token")

    def write(self, config: JobConfig, *, url: str, token: str) -> None:
        """Write the token, for this user only, and then the record that points to it.

        Raises:
            ConfigError: the state directory cannot be written.
        """
        values = {
            "job": config.name,
            "url": url,
            "pid": os.getpid(),
            "started": time.time(),
            "out": str(config.out.absolute()),
        }
        try:
            self.record.parent.mkdir(parents=True, exist_ok=True, mode=0o700)
            for path, text in ((self.token, token), (self.record, json.dumps(values))):
                fresh = path.with_name(f".{path.name}.{os.getpid()}")
                fd = os.open(fresh, os.O_WRONLY | os.O_CREAT | os.O_TRUNC, 0o600)
                with os.fdopen(fd, "w", encoding="utf-8") as file:
                    file.write(text)
                fresh.replace(path)
        except OSError as error:
            sentence = f"{self.record.parent} cannot be written: {error.strerror}"
            raise ConfigError(sentence) from error

    def remove(self) -> None:
        """Remove what ``write`` wrote, if it is still this process's."""
        with contextlib.suppress(OSError, ValueError, KeyError):
            if json.loads(self.record.read_text())["pid"] == os.getpid():
                self.record.unlink()
                self.token.unlink()
