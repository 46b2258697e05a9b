"""A coordinator in this process: served, found by the commands of people, ended by signals.

Owns what a process that runs a coordinator has besides it: socket, event log, token, discovery
record and signals.  Decides nothing about the job, and knows nothing of how its agents are started.

    hosted: register (incarnation + 1) --> serve --> record --> ... --> record gone, socket closed
            Ctrl-C, ``END_SIGNALS``: stop at the next step; a second Ctrl-C: end now, 130
"""

from __future__ import annotations

import asyncio
import contextlib
import logging
import secrets
import signal
import socket
import time
from collections.abc import AsyncIterator, Callable, Coroutine, Iterator
from dataclasses import asdict, dataclass, field, replace
from pathlib import Path
from typing import TYPE_CHECKING, Any, Protocol

from pliant.core.commands import EndJob
from pliant.core.errors import (
    EXIT_FAILED,
    EXIT_INTERRUPTED,
    EXIT_OK,
    EXIT_STOPPED,
    EXIT_USAGE,
    ConflictError,
    HandedOverError,
    NotBegunError,
    PermanentError,
    PliantError,
)
from pliant.core.events import StopRequested
from pliant.core.values import AgentLife
from pliant.machine import run_files
from pliant.machine.clock import Clock
from pliant.machine.event_loop import END_SIGNALS, WARNING_SIGNALS, aside, cancelled, on_signals
from pliant.machine.interfaces import is_loopback, loopback
from pliant.machine.processes import ProcessMark, oom_kills, this_boot
from pliant.machine.registry import RuntimeFiles, name_taken, running_jobs
from pliant.machine.tls import ServedTls
from pliant.observe.log import EventLog, Journal, Record
from pliant.observe.run_index import IndexedRun, RunIndex, RunOutcome
from pliant.observe.runs import why_gone
from pliant.observe.status import SIGNAL_CAME, TERMINAL_CLOSED, Board
from pliant.run.job_config import JobConfig
from pliant.run.register_location import (
    CoordinatorSign,
    RegisterLocation,
    open_location,
    write_sign,
)
from pliant.run.run_directory import WatchedDirectory, holder_of, watched

BEGIN_S = 5.0
"""How long a coordinator that is asked to stop waits for the storage that it begins with, in
seconds."""

HANG_UP_S = 15.0
"""How long a coordinator whose job has ended waits for its agents to hear it, in seconds."""

SIGN_S = 5.0
"""After which a coordinator writes again where it is, if it could not, in seconds."""

_log = logging.getLogger(__name__)

if TYPE_CHECKING:
    from pliant.coordinator.driver import JobDriver
    from pliant.wire.offers import Offer


class Observer(Protocol):
    """Someone who follows a job; called on its event loop."""

    def record(self, record: Record) -> None:
        """Take one record of the event log."""

    def output(self, worker: str, text: str) -> None:
        """Take one line that a worker printed, without its newline."""


@dataclass(slots=True, kw_only=True)
class Host:
    """A coordinator that is served."""

    driver: JobDriver
    log: EventLog
    url: str
    token: str
    directory: WatchedDirectory
    is_pod: bool = False
    """Whoever starts it again is to go on with the job."""

    stopped: asyncio.Event = field(default_factory=asyncio.Event)
    """The job is to end."""

    interrupted: asyncio.Event = field(default_factory=asyncio.Event)
    """Somebody does not want to wait for that."""

    handed_over: asyncio.Event = field(default_factory=asyncio.Event)
    """This process is to end, and the job is not."""

    asked: list[str] = field(default_factory=list)
    """What told this process to stop, oldest first."""

    async def until_the_end(self, *others: Coroutine[Any, Any, None]) -> EndJob:
        """Wait for what ends the job first: the core, the failure of another, or Ctrl-C twice.

        Raises:
            ConflictError: it goes on, under another coordinator.
        """
        driving = asyncio.create_task(self.driver.run())
        stopping = asyncio.create_task(self.interrupted.wait())
        leaving = asyncio.create_task(self.handed_over.wait())
        serving = [asyncio.create_task(other) for other in others]
        tasks: tuple[asyncio.Task[Any], ...] = (driving, stopping, leaving, *serving)
        try:
            await asyncio.wait(tasks, return_when=asyncio.FIRST_COMPLETED)
            if leaving.done() and not driving.done():
                raise HandedOverError(f"{self.asked[0]}: the job goes on, and waits for the next")
            end = await self._end(driving, stopping, serving)
        finally:
            await cancelled(*tasks)
        end = _or_unsaved(end, self.driver.board)
        if end.exit_code == EXIT_STOPPED and self.asked:
            end = replace(end, reason=f"{end.reason}: {self.asked[0]}")
        if self.driver.register.is_gone:
            end = self.directory.end_without_it(end, self.driver.board)
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
            if self.is_pod:  # nothing was decided: the next one may have better luck
                raise
            return EndJob(exit_code=EXIT_FAILED, reason=str(error))


@contextlib.asynccontextmanager
async def hosted(
    config: JobConfig,
    *,
    token: str,
    follows: bool = False,
    is_asked: bool = True,
    is_apart: bool = False,
    own: AgentLife | None = None,
    room: int | None = None,
    sock: socket.socket | None = None,
    observer: Observer | None = None,
    on_offer: Callable[[Offer], int] | None = None,
    location: RegisterLocation | None = None,
) -> AsyncIterator[Host]:
    """Take over the job and serve it to who knows the token.

    Of a job whose agents are elsewhere the end waits for them to hear of it, and takes back what
    says where it is coordinated.

    Args:
        follows: another coordinator has gone before, and what it started may still run.
        is_asked: somebody wants the job to go on, however it ended.
        is_apart: its agents are in other processes.
        own: of the agent in this process, beside those.
        room: for how many replicas there are devices, if that is known.
        sock: bound where the job is served, and closed at the end; None: one is opened.
        on_offer: takes what the job's pool offers; None: it is in none.
        location: where the register lies; None: where the job says.
    """
    from pliant.coordinator.app import create_app
    from pliant.coordinator.driver import JobDriver
    from pliant.coordinator.register import StoredRegister
    from pliant.dashboard.page import add_page
    from pliant.http.login import Logins
    from pliant.http.server import open_socket, serving, url_of

    tls = None if config.tls is None or not config.host else ServedTls(config.tls, config.host)
    if location is None:
        location = await aside(open_location, config.register, config.out, config.environ)
    await aside(location.settle, config.name, config.out)
    sock = sock or open_socket(config.address, config.port)
    url, files = url_of(sock, tls), RuntimeFiles.of("job", config.name, config.state.jobs)
    is_bare = config.is_pod and not run_files.holds_run(config.out)
    log = Journal(run_files.event_log(config.out), job=config.name)
    if observer is not None:
        log.subscribe(observer.record)
    own_to_job = (token, config.argv) if is_apart else ()
    driver = JobDriver(
        settings=replace(config.settings, nodes_may_come=is_apart),
        register=StoredRegister(
            location.register, *own_to_job, may_have_changed=location.may_have_changed
        ),
        log=log,
        metrics_path=config.out / run_files.METRICS,
        clock=Clock(),
        boot=this_boot(),
        workers_per_replica=config.workers_per_replica,
        hosts_per_replica=config.hosts_per_replica,
        may_lose_all=config.is_pod,
    )
    if own is not None:
        driver.nodes.expect(own)
    logins = Logins({socket.gethostname(), config.host} - {""})
    app = create_app(
        driver,
        work=replace(config.work(), bare_life=secrets.token_hex(8) if is_bare else ""),
        token=token,
        events_path=log.path,
        on_offer=on_offer,
        is_any_node=config.tls_any_node,
        logins=logins,
    )
    add_page(app, "job", logins)
    with contextlib.ExitStack() as stack:
        directory = stack.enter_context(watched(config.out))
        _tell_others(stack, config, log, lambda: driver.board)
        stack.enter_context(contextlib.closing(log))
        stack.enter_context(contextlib.closing(sock))
        host = Host(
            driver=driver, log=log, url=url, token=token, directory=directory, is_pod=config.is_pod
        )
        stack.enter_context(on_signals(_interrupts(host, config.out)))
        await _begun(driver.begin(is_asked=is_asked and not follows), host.stopped, config.out)
        with _remembered(config, driver, is_apart=is_apart):
            is_alone = not is_apart  # a coordinator may follow one of its job that hangs
            found = serving(
                app,
                sock,
                files,
                token=token,
                out=config.out,
                tls=tls,
                is_alone=is_alone,
                also=_inside(config),
            )
            async with found:
                said = (_end_of_the_last(driver.board), _left_unanswered(driver.board))
                _log_start(log, config, url, follows=follows, room=room)
                for text in filter(None, said):
                    log.write("note", text=text)
                if not is_apart:
                    yield host
                    return
                async with _signed(host, config.out / run_files.COORDINATOR):
                    yield host
                    await driver.nodes.hung_up(HANG_UP_S)
    if driver.register.has_outcome:
        (config.out / run_files.TOKEN).unlink(missing_ok=True)
    (config.out / run_files.COORDINATOR).unlink(missing_ok=True)


def _tell_others(
    stack: contextlib.ExitStack, config: JobConfig, log: EventLog, board: Callable[[], Board]
) -> None:
    """Let a URL and trackers hear of the job, until its log is closed, which holds records back."""
    from pliant.coordinator.notify import notifying
    from pliant.coordinator.tracking import tracking

    if config.log_to is not None:
        places = config.log_to.split(",")
        stack.enter_context(tracking(places, config.out, config.name, board))
    if config.notify is not None:
        log.subscribe(stack.enter_context(notifying(config.notify, board)).record)


def _inside(config: JobConfig) -> list[socket.socket]:
    """Listen inside of a pod as well: who forwards a port of it comes from there."""
    from pliant.http.server import open_socket

    if not config.is_pod or is_loopback(config.address):
        return []
    return [open_socket(loopback(), config.port)]


@contextlib.asynccontextmanager
async def _signed(host: Host, file: Path) -> AsyncIterator[None]:
    """Say meanwhile in this file where the job is coordinated."""
    sign = CoordinatorSign(url=host.url, incarnation=host.driver.incarnation)

    async def write() -> None:
        while True:
            try:
                return await aside(write_sign, file, sign)
            except OSError as error:
                _log.warning("where the job is coordinated could not be written: %s", error)
                await asyncio.sleep(SIGN_S)

    writing = asyncio.create_task(write())
    try:
        yield
    finally:
        await cancelled(writing)


async def _begun(begin: Coroutine[Any, Any, None], stopped: asyncio.Event, out: Path) -> None:
    """Wait until the coordinator has taken over; not for long once it is to stop.

    Raises:
        NotBegunError: it is to stop, and the storage that it reads does not answer.
    """
    beginning, stopping = asyncio.create_task(begin), asyncio.create_task(stopped.wait())
    await asyncio.wait({beginning, stopping}, return_when=asyncio.FIRST_COMPLETED)
    stopping.cancel()
    await asyncio.wait({beginning}, timeout=BEGIN_S)
    if not beginning.done():
        beginning.cancel()
        raise NotBegunError(
            f"stopped before the job had started: the files in {out} do not answer, or another "
            "process holds register.lock there"
        )
    await beginning


@contextlib.contextmanager
def _remembered(config: JobConfig, driver: JobDriver, *, is_apart: bool) -> Iterator[None]:
    """Let ``pliant ls`` know of this life: while it lasts, and how it ended."""
    index = RunIndex(config.state.runs)
    run = IndexedRun(
        job=config.name,
        out=config.out.absolute(),
        holder=holder_of(config.out, config.name),
        mark=ProcessMark.own(),
        began_at=time.time(),
        is_apart=is_apart,
    )
    index.begin(run)
    try:
        yield
    except ConflictError:
        raise  # it goes on, and who has taken over remembers it
    except BaseException as error:
        outcome = RunOutcome.of(driver.board)
        if outcome.exit_code is None:
            outcome = _ended_by(error, outcome)
        index.end(run, outcome, time.time())
        raise
    index.end(run, RunOutcome.of(driver.board), time.time())


def _ended_by(error: BaseException, outcome: RunOutcome) -> RunOutcome:
    """Return how a life ended that its coordinator did not end itself."""
    if isinstance(error, PliantError):
        said, code = str(error), EXIT_USAGE
    elif isinstance(error, Exception):
        said, code = f"the job ended: {error}", EXIT_FAILED
    else:
        said, code = "interrupted", EXIT_INTERRUPTED
    state = "stopped" if code == EXIT_INTERRUPTED else "failed"
    return replace(outcome, state=state, exit_code=code, reason=said)


def _or_unsaved(end: EndJob, board: Board) -> EndJob:
    """Return how a job ended: not well, if what it came to should be durable and is not."""
    kept = int(board.checkpoint["committed"]) if board.checkpoint is not None else 0
    if end.exit_code != EXIT_OK or board.checkpoint_failure is None or kept >= board.committed:
        return end
    why = board.checkpoint_failure["reason"]
    return EndJob(
        exit_code=EXIT_FAILED,
        reason=f"{end.reason}, but nothing after step {kept} is in a checkpoint: {why}",
    )


def refuse_second(name: str, records: Path, *, besides: Path | None = None) -> None:
    """Make sure that no job of this name runs, unless its files lie in ``besides``."""
    for job in running_jobs(records):
        if job.name == name and (besides is None or job.out != besides.absolute()):
            raise name_taken("job", name)


def _interrupts(host: Host, out: Path) -> dict[int, Callable[[], None]]:
    """Turn SIGINT and ``END_SIGNALS`` into a request to stop, a second SIGINT into the end."""

    def stop(why: str, *, is_pressed: bool = True) -> None:
        host.asked.append(why)
        host.stopped.set()
        host.driver.put(StopRequested(is_pressed=is_pressed))

    def interrupt() -> None:
        if "Ctrl-C" in host.asked:
            host.interrupted.set()
        else:
            host.log.write("interrupted")
            stop("Ctrl-C")

    def told(why: str, *, is_pressed: bool = True) -> Callable[[], None]:
        def stop_for_it() -> None:
            if host.is_pod:
                host.log.write("note", text=f"{why}: the next coordinator takes over")
                host.asked.append(why)
                host.stopped.set()  # if it has not begun
                host.handed_over.set()
                return
            host.log.write("note", text=f"{why}; to go on: pliant resume {out}")
            stop(why, is_pressed=is_pressed)

        return stop_for_it

    heeded: dict[int, Callable[[], None]] = {
        number: told(number.name + SIGNAL_CAME, is_pressed=number not in WARNING_SIGNALS)
        for number in END_SIGNALS
    }
    return heeded | {signal.SIGINT: interrupt, signal.SIGHUP: told(TERMINAL_CLOSED)}


def _end_of_the_last(board: Board) -> str | None:
    """Say how the process ended that coordinated the job before; None: it said so, or lives."""
    mark = ProcessMark.of(board.about)
    if mark is None or board.exit_code is not None or mark.lives() is not False:
        return None
    why = why_gone(board) or "it was killed, or its machine was"
    return f"process {mark.pid}, which coordinated this job before, ended without a word: {why}"


def _left_unanswered(board: Board) -> str | None:
    """Say which request the coordinator before has taken, and may not have passed on."""
    if board.checkpoint_asked is None or board.exit_code is not None:
        return None
    return (
        f"the checkpoint that was asked for at step {board.checkpoint_asked['step']} had not come "
        "when this coordinator began; ask again unless it comes"
    )


def _log_start(
    log: EventLog, config: JobConfig, url: str, *, follows: bool, room: int | None
) -> None:
    where = {
        "out": str(config.out.absolute()),
        "url": url,
        "oom_kills": oom_kills(),
        **asdict(ProcessMark.own()),
    }
    if follows:
        log.write("coordinator_started", **where)
        return
    policy = config.settings.policy
    log.write(
        "job_started",
        **where,
        **config.document(),
        min_replicas=policy.min_replicas,
        max_replicas=policy.max_replicas or room,
        start_replicas=policy.start_replicas,
    )
