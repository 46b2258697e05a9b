"""A coordinator in this process: served, found by the commands of people, ended by signals.

Owns what a process that runs a coordinator has besides it: socket, event log, token, discovery
record, signals, and which other processes may serve the same directory.  Decides nothing about
the job, and knows nothing of how its agents are started.

    hosted: register (incarnation + 1) --> serve --> record --> ... --> record gone, socket closed
            Ctrl-C or SIGTERM: stop at the next step; a second Ctrl-C: end now, 130
"""

from __future__ import annotations

import asyncio
import contextlib
import os
import secrets
import signal
from collections.abc import AsyncIterator, Callable, Coroutine, Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Any

from pliant.core.commands import EndJob
from pliant.core.errors import ConfigError, ConflictError, PermanentError
from pliant.core.events import StopRequested
from pliant.core.exits import EXIT_FAILED, EXIT_INTERRUPTED
from pliant.core.job.state import JobSettings
from pliant.core.policy.decide import Policy
from pliant.core.tenancy import PoolPlace
from pliant.machine import locks, run_files
from pliant.machine.clock import Clock
from pliant.machine.discovery import RuntimeFiles
from pliant.machine.event_loop import on_signals
from pliant.machine.files import PRIVATE, replace_file
from pliant.machine.jobs import running_jobs
from pliant.observe.log import EventLog
from pliant.run.observer import Observer
from pliant.spec.policy import fields_beside_bounds
from pliant.wire.messages import Work

if TYPE_CHECKING:
    from pliant.coordinator.driver import JobDriver
    from pliant.wire.offers import Offer


@dataclass(frozen=True, slots=True, kw_only=True)
class JobConfig:
    """What to run, and how large."""

    name: str
    argv: tuple[str, ...]
    """The script and its arguments."""

    policy: Policy
    out: Path
    """An existing directory; a run that it holds goes on."""

    max_restarts: int = JobSettings().restart_budget
    port: int = 0
    """Port of the coordinator; 0: any that is free."""

    address: str = "127.0.0.1"
    init: Path | None = None
    pool: PoolPlace | None = None
    """None: every device of the machine is the job's."""

    settings: JobSettings | None = None
    """Timeouts and budgets other than the default; ``policy`` and ``max_restarts`` count."""

    def work(self) -> Work:
        """Return what agents are to run; a holder is chosen in the first life of the directory."""
        return Work(
            job=self.name,
            command=self.argv,
            cwd=str(Path.cwd()),
            out=str(self.out.absolute()),
            init=str(self.init.absolute()) if self.init else None,
            holder=_holder(self),
        )


@dataclass(frozen=True, slots=True, kw_only=True)
class Host:
    """A coordinator that is served."""

    driver: JobDriver
    log: EventLog
    url: str
    token: str
    interrupted: asyncio.Event
    """Somebody does not want to wait for the job's end."""

    @property
    def agents_url(self) -> str:
        """Return where agents connect."""
        return f"{self.url.replace('http', 'ws', 1)}/v1/agents"

    async def until_the_end(self, *others: Coroutine[Any, Any, None]) -> EndJob:
        """Wait for what ends the job first: the core, the failure of another, or Ctrl-C twice.

        Raises:
            ConflictError: it goes on, under another coordinator.
        """
        driving = asyncio.create_task(self.driver.run())
        stopping = asyncio.create_task(self.interrupted.wait())
        serving = [asyncio.create_task(other) for other in others]
        tasks: tuple[asyncio.Task[Any], ...] = (driving, stopping, *serving)
        try:
            await asyncio.wait(tasks, return_when=asyncio.FIRST_COMPLETED)
            end = await self._end(driving, stopping, serving)
        finally:
            for task in tasks:
                task.cancel()
            await asyncio.gather(*tasks, return_exceptions=True)
        self.log.write("job_ended", exit_code=end.exit_code, reason=end.reason)
        return end

    async def _end(
        self,
        driving: asyncio.Task[EndJob],
        stopping: asyncio.Task[Any],
        serving: list[asyncio.Task[None]],
    ) -> EndJob:
        if stopping.done():
            end = EndJob(exit_code=EXIT_INTERRUPTED, reason="interrupted twice")
            self.driver.end(end)
            return end
        try:
            if not driving.done():
                for task in serving:
                    if task.done():
                        task.result()
            return await driving
        except ConflictError:
            raise
        except PermanentError as error:
            return EndJob(exit_code=EXIT_FAILED, reason=str(error))


@contextlib.asynccontextmanager
async def hosted(
    config: JobConfig,
    work: Work,
    *,
    token: str,
    follows: bool = False,
    devices: int | None = None,
    observer: Observer | None = None,
    on_offer: Callable[[Offer], int] | None = None,
) -> AsyncIterator[Host]:
    """Take over the job and serve it.

    Args:
        config: of the job.
        work: what agents are told to run.
        token: who knows it may talk to the coordinator.
        follows: another coordinator has gone before, and what it started may still run.
        devices: how many there are, if that is known.
        observer: hears of every record of the event log.
        on_offer: takes what the job's pool offers; None: it is in none.
    """
    from pliant.coordinator.app import create_app
    from pliant.coordinator.driver import JobDriver
    from pliant.coordinator.register import RegisterFile
    from pliant.http.server import open_socket, serving, url_of

    sock = open_socket(config.address, config.port)
    url, files = url_of(sock), RuntimeFiles.of("job", config.name)
    events = run_files.event_log(config.out)
    log = EventLog(events, job=config.name)
    if observer is not None:
        log.subscribe(observer.record)
    driver = JobDriver(
        settings=_settings(config),
        register=RegisterFile(config.out / run_files.REGISTER),
        log=log,
        metrics_path=config.out / run_files.METRICS,
        clock=Clock(),
    )
    app = create_app(driver, work=work, token=token, events_path=events, on_offer=on_offer)
    interrupted = asyncio.Event()
    signals = on_signals(_interrupts(driver, interrupted))
    with contextlib.closing(log), contextlib.closing(sock), signals:
        await driver.begin()
        async with serving(app, sock, files, token=token, out=config.out):
            _log_start(log, config, url, follows=follows, devices=devices)
            yield Host(driver=driver, log=log, url=url, token=token, interrupted=interrupted)


def lasting_token(out: Path) -> str:
    """Return the token of all coordinators of a directory; the first of them makes it.

    Raises:
        ConfigError: it cannot be read or written.
    """
    path = out / run_files.TOKEN
    try:
        if not path.exists():
            replace_file(path, secrets.token_urlsafe(32).encode(), mode=PRIVATE)
        return path.read_text().strip()
    except OSError as error:
        raise ConfigError(f"{path} cannot be used: {error.strerror}") from error


@contextlib.contextmanager
def locked(out: Path, *, alone: bool, taken: str | None = None) -> Iterator[None]:
    """Keep others away from a directory; ends with this process.

    One that is ``alone`` runs the workers, too, and tolerates nobody.  Of several coordinators
    with agents elsewhere the register decides which counts, so they tolerate each other.

    Args:
        out: the directory.
        alone: nobody else may serve it.
        taken: what to say if somebody does.

    Raises:
        ConfigError: another runs the job that does not go with this one.
    """
    with locks.locked(out / run_files.RUNNING_LOCK, shared=not alone, within_s=0) as is_ours:
        if not is_ours:
            raise ConfigError(taken or f"the job of {out} is running already; see pliant status")
        yield


def refuse_second(name: str, *, besides: Path | None = None) -> None:
    """Make sure that no job of this name runs, unless its files lie in ``besides``.

    Raises:
        ConfigError: one does.
    """
    for job in running_jobs():
        if job.name == name and (besides is None or job.out != besides.absolute()):
            sentence = f"a job named {name} is running already; choose another with --name"
            raise ConfigError(sentence)


def _interrupts(driver: JobDriver, interrupted: asyncio.Event) -> dict[int, Callable[[], None]]:
    """Turn the first SIGINT or SIGTERM into a request to stop, the second SIGINT into the end."""
    requests = 0

    def stop() -> None:
        driver.put(StopRequested())

    def interrupt() -> None:
        nonlocal requests
        requests += 1
        if requests == 1:
            stop()
        else:
            interrupted.set()

    return {signal.SIGINT: interrupt, signal.SIGTERM: stop}


def _settings(config: JobConfig) -> JobSettings:
    base = config.settings or JobSettings()
    values = {name: getattr(base, name) for name in JobSettings.__slots__}
    return JobSettings(**{**values, "policy": config.policy, "restart_budget": config.max_restarts})


def _log_start(
    log: EventLog, config: JobConfig, url: str, *, follows: bool, devices: int | None
) -> None:
    if follows:
        log.write("coordinator_started", out=str(config.out.absolute()), url=url, pid=os.getpid())
        return
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
        elastic_policy=fields_beside_bounds(config.policy),
        pool=config.pool,
        max_restarts=config.max_restarts,
        min_replicas=config.policy.min_replicas,
        max_replicas=config.policy.max_replicas or devices,
        start_replicas=config.policy.start_replicas,
    )


def _holder(config: JobConfig) -> str:
    """Return who this job is to its checkpoints: the same in every life of its directory."""
    path = config.out / run_files.HOLDER
    with contextlib.suppress(FileNotFoundError):
        if said := path.read_text().strip():
            return said
    holder = f"{config.name}-{secrets.token_hex(4)}"
    replace_file(path, f"{holder}\n".encode())
    return holder
