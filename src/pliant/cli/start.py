"""``pliant run``, ``coordinator`` and ``resume``: from resolved settings to a running job.

Owns what happens around a job: the checks before anything is written, the view on it, and what is
said at its end.  Knows nothing of how a job runs (``run.local``, ``run.separate``).

    planned, resumed --> Start --> attached: run it here, follow it to its end
                               --> detached: the same Start, attached in another process
"""

from __future__ import annotations

import os
import socket
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace
from functools import partial
from pathlib import Path
from typing import Any, Self

from pliant.agent.node_facts import AgentConfig
from pliant.cli.job_settings import (
    check_tls,
    job_name,
    policy_of,
    pool_of,
    register_of,
    tls_of,
    work_options_of,
)
from pliant.cli.settings import Settings
from pliant.cli.terminal import PlainConsole, complain, patient_output, print_record, say, say_aside
from pliant.cli.view import JobView, JsonView, ShownView, view_for
from pliant.core.errors import (
    EXIT_FAILED,
    EXIT_OK,
    EXIT_STATE_LOST,
    EXIT_STOPPED,
    EXIT_TAKEN_OVER,
    EXIT_USAGE,
    ConfigError,
    ConflictError,
    NotBegunError,
)
from pliant.core.job.state import JobSettings
from pliant.core.tenancy import PoolPlace
from pliant.core.text import MOST_S, counted, in_one_line
from pliant.core.values import Exchange
from pliant.machine import run_files
from pliant.machine.interfaces import loopback
from pliant.machine.named_modules import file_of, module_of
from pliant.machine.registry import StateDirectory, any_pool, running_jobs
from pliant.observe import explain
from pliant.observe.history import read_history
from pliant.observe.log import Record
from pliant.observe.reading import only
from pliant.observe.run_index import RunIndex
from pliant.observe.status import Board
from pliant.run import background, run_directory
from pliant.run.host_devices import HostDevices
from pliant.run.hosting import refuse_second
from pliant.run.job_config import SESSION_SHARE, JobConfig, check_command, check_place
from pliant.run.local import run_job
from pliant.run.separate import run_coordinator
from pliant.spec.job import Limits, core_limits
from pliant.spec.load import check

NOT_STARTED = "stopped before the job had started"


@dataclass(frozen=True, slots=True, kw_only=True)
class Start:
    """A job that may be started, and how it is followed."""

    config: JobConfig
    init: str | None = None
    """What to begin with; a checkpoint is made into weights first."""

    show: str | None = None
    is_apart: bool = False
    """Its agents are in other processes."""

    sock: socket.socket | None = None
    """Bound where the coordinator is to listen; None: it binds one."""

    agent: AgentConfig | None = None
    """Runs replicas in the coordinator's process."""

    made: tuple[Path, ...] = ()
    """Directories that were made for it: they go if it is refused."""

    def document(self) -> dict[str, Any]:
        """Return what ``of`` makes the same start of, in another process."""
        more = {"name": self.config.name, "port": self.config.port, "out": str(self.config.out)}
        return {**self.config.document(), **more, "init": self.init, "show": self.show}

    @classmethod
    def of(cls, document: Mapping[str, Any], environ: Mapping[str, str]) -> Self:
        """Return the start that a document tells of."""
        config = JobConfig.of(
            document, name=document["name"], out=Path(document["out"]), environ=environ
        )
        return cls(
            config=replace(config, port=document["port"]),
            init=document["init"],
            show=document["show"],
        )


def planned(
    command: list[str],
    settings: Settings,
    environ: Mapping[str, str],
    *,
    is_apart: bool = False,
    address: str | None = None,
    host: str = "",
) -> Start:
    """Check everything that can be checked before anything is written, and make the directory.

    ``host``: by which agents on other hosts reach ``address``; empty: there are none.
    """
    check_command(command)
    of_job, name = _core_settings(settings), job_name(settings, command)
    session_s = settings["session_timeout"].value
    if session_s is not None:  # who may make its session later may reach steps() later, too
        start_s = max(of_job.start_s, min(session_s / SESSION_SHARE, MOST_S))
        of_job = replace(of_job, start_s=start_s)
    place, kind = pool_of(settings), settings["kind"].value
    if place is None and not is_apart:
        HostDevices.of(environ, kind)
    asked, init = settings["out"].value, settings["init"].value
    is_resumed, options = settings["resume"].value, work_options_of(settings)
    if place is not None and is_apart:
        raise ConfigError("a coordinator's agents are in no pool; --pool is for pliant run")
    state, tls = StateDirectory.of(environ), tls_of(settings, is_apart=bool(host))
    check_tls(tls, host, is_apart=is_apart)
    if options["exchange"] is Exchange.NCCL and tls is not None and tls.is_whole:
        raise ConfigError(
            "exchange nccl and TLS between replicas contradict each other, for NCCL does not"
            " encrypt what it sends; leave out one of them"
        )
    _refuse_impossible(name, place, init, state, besides=asked if is_apart else None)
    was_there = is_resumed or (asked is not None and asked.exists())
    find = run_directory.resumed_directory if is_resumed else run_directory.new_directory
    check_place(Path.cwd() / (asked or ""))
    out = find(asked, name)
    if is_resumed and not is_apart:
        run_directory.vacated(out, state.jobs)
    return Start(
        config=JobConfig(
            name=name,
            argv=tuple(command),
            settings=of_job,
            out=out,
            port=settings["port"].value,
            address=address or loopback(),
            host=host,
            token_file=None if (file := settings["token_file"].value) is None else file.absolute(),
            register=register_of(settings),
            pool=place,
            device_kind=kind if place is None else None,
            environ=environ,
            tls=tls,
            tls_any_node=settings["tls_any_node"].value,
            session_s=session_s,
            price=settings["price"].value,
            notify=settings["notify"].value,
            log_to=settings["log_to"].value,
            **options,
        ),
        init=init,
        show=settings["show"].value,
        is_apart=is_apart,
        made=() if was_there else (out,) if asked is not None else (out, out.parent),
    )


def working_in(start: Start, directory: Path | None) -> Start:
    """Go where the job works, if that is not here; what was typed is still meant from here."""
    if directory is None:
        return start
    init = start.init
    typed = init if init is None or "://" in init else str(Path(init).absolute())
    os.chdir(directory)
    return replace(start, init=typed)


def _core_settings(settings: Settings) -> JobSettings:
    restarts, limit = settings["max_restarts"].value, settings["limit"]
    limits = core_limits(check(Limits, limit.value, source=limit.source))
    policy, placement = policy_of(settings), settings["placement"].value
    return JobSettings(policy=policy, placement=placement, restart_budget=restarts, **limits)


def resumed(out: Path, environ: Mapping[str, str], command: Sequence[str] = ()) -> Start:
    """Return what goes on with the run in a directory as it was started last; go where that was.

    ``command``: a script and its arguments in place of those.

    Raises:
        ConfigError: it still runs, what it was cannot be read, or its script is gone.
    """
    place = run_directory.vacated(run_directory.writable(out), StateDirectory.of(environ).jobs)
    events = run_files.event_log(out)
    starts = [record for record in only(events, "job_started") if _is_start(record)]
    last = starts[-1] if starts else None
    if last is None:
        raise ConfigError(f"{out} does not say what ran there; use pliant run --resume --out {out}")
    out = out.absolute()
    last = {**last, "command": list(command) or last["command"]}
    if (found := read_history(events).board).exit_code == EXIT_OK and not command:
        raise ConfigError(
            f"the run in {out} has finished, after {found.committed} steps; to train longer, put "
            "the script with other arguments behind --"
        )
    try:
        os.chdir(last["cwd"])
    except OSError as error:  # it was copied from elsewhere: the script may be here, too
        if file_of(last["command"], Path.cwd()) is None:
            raise ConfigError(
                f"{last['cwd']}, where the run began, cannot be entered: {error.strerror}; "
                "call this where its script is"
            ) from None
    if file_of(last["command"], Path.cwd()) is None:
        name = module_of(last["command"])
        what = f"script {last['command'][0]}" if name is None else f"module {name}"
        raise ConfigError(f"the {what} is no longer in {last['cwd']}")
    config = JobConfig.of(last, name=last["job"], out=out, environ=environ)
    init = _moved(last, out)
    check_tls(config.tls, "", is_apart=False)
    _refuse_impossible(config.name, config.pool, init, config.state)
    return Start(config=replace(config, out=place), init=init)


def _refuse_impossible(
    name: str,
    place: PoolPlace | None,
    init: str | None,
    state: StateDirectory,
    *,
    besides: Path | None = None,
) -> None:
    if place is not None:
        any_pool(place.name, state)
    if init is not None and "://" not in init and not Path(init).exists():
        raise ConfigError(f"--init {init} does not exist")
    refuse_second(name, state.jobs, besides=besides)


def _moved(started: Record, out: Path) -> str | None:
    """Return what the run began from; what was made of a checkpoint lies in its directory."""
    init = started.get("init")
    if init is None:
        return None
    own = out / Path(init).name
    is_own = Path(init).parent == Path(str(started.get("out")))
    return str(own) if is_own and own.exists() else str(init)


def _is_start(record: Record) -> bool:
    command = record.get("command")
    return (
        record.get("kind") == "job_started"
        and isinstance(record.get("policy"), dict)
        and isinstance(command, list)
        and bool(command)
        and all(isinstance(word, str) for word in command)
        and isinstance(record.get("cwd"), str)
        and isinstance(record.get("job"), str)
    )


def _with_weights(start: Start) -> JobConfig:
    """Return the job with the weights that it begins with."""
    if start.init is None:
        return start.config
    try:
        init = run_directory.initial_weights(start.init, start.config.out)
    except ConfigError:
        _remove(start)
        raise
    return replace(start.config, init=init)


@patient_output()
def attached(start: Start, *, as_json: bool) -> int:
    """Run a job and follow it to its end; return its exit code."""
    config, out = _with_weights(start), start.config.out
    console = PlainConsole()
    if (news := _on_these_devices(start)) is not None and not as_json:
        console.print(news, soft_wrap=True)
    view: ShownView = (JsonView if as_json else view_for)(console, show=start.show)
    view.go_on(read_history(run_files.event_log(out)).board)
    code = EXIT_FAILED
    try:
        with view:
            code = _ran(start, config, view, is_quiet=as_json)
        if config.is_pod:  # decided, and told where whoever started this pod looks
            return EXIT_OK
    except ConflictError as error:
        return complain(str(error), EXIT_TAKEN_OVER)
    except NotBegunError as error:
        return complain(str(error), EXIT_STOPPED)
    except ConfigError:
        code = EXIT_USAGE
        raise
    except OSError as error:  # the disk is full, or the directory was removed
        ended = "this coordinator ended, the job did not" if config.is_pod else "the job ended"
        view.board.reason = f"{ended}: {error.filename or out}: {error.strerror}"
    finally:
        if not view.board.committed and (code == EXIT_USAGE or not run_files.holds_run(out)):
            _remove(start)
    if not as_json:
        for warning in explain.lines(view.board.warnings):
            console.print(in_one_line(warning), style="yellow", soft_wrap=True)
    if out.exists() and not as_json:
        console.print(f"files: {out}", soft_wrap=True)
    _say_how_to_go_on(config, view, code, quiet=as_json)
    if code not in (EXIT_OK, EXIT_STOPPED) or view.board.reason is None:
        complain(view.board.reason or NOT_STARTED, code)
    return code


def _ran(start: Start, config: JobConfig, view: ShownView, *, is_quiet: bool) -> int:
    """Run a job to its end; return its exit code."""
    if not start.is_apart:
        return run_job(config, observer=view)
    token, takes_part = config.token_file or config.out / run_files.TOKEN, start.agent is not None
    return run_coordinator(
        config,
        observer=view,
        on_serving=partial(invite, token, takes_part=takes_part, is_quiet=is_quiet),
        sock=start.sock,
        agent=start.agent,
    )


def _on_these_devices(start: Start) -> str | None:
    """Say how many replicas there may be on the devices of this machine, where that is news."""
    config = start.config
    if start.is_apart or config.pool is not None:
        return None
    here = HostDevices.of(config.environ, config.device_kind)
    most, workers = config.settings.policy.max_replicas, config.workers_per_replica
    room = max(here.count() // workers, 1)
    if most is None:
        limit = f"at most {counted(room, 'replica')} on {here}"
        more = "" if here.names else "; --max N sets another limit"
        return f"{limit}, and no more than a step has micro-batches{more}"
    if most * workers <= here.count():
        return None
    if here.names:
        return f"--max {most}: there will be {room} at most on {here}, each for one worker"
    slower = "they share them" if most == 1 else f"{room + 1} replicas are slower than {room}"
    return f"{most * workers} workers on {here}: {slower}"


def detached(start: Start, *, as_json: bool) -> int:
    """Start a job in the background and say where it is.

    Raises:
        ConfigError: it has ended at once, or was not found in time.
    """
    name, out, records = start.config.name, start.config.out, start.config.state.jobs
    try:
        job = background.start(
            ("pliant.cli.detached", "job", name),
            start.document(),
            log=out / run_files.OUTPUT,
            find=lambda: next((job for job in running_jobs(records) if job.name == name), None),
        )
    except background.EndedError as ended:
        if ended.code == EXIT_USAGE:
            _remove(start)
        raise
    if as_json:
        print_record({"job": name, "pid": job.pid, "url": job.url, "out": str(out)})
    else:
        say(f"job {name} runs in the background; follow it with pliant status")
    return EXIT_OK


def _remove(start: Start) -> None:
    if start.made:
        run_directory.remove(start.made[0], parent=len(start.made) > 1)
        RunIndex(start.config.state.runs).forget(start.config.out.absolute())


def _say_how_to_go_on(config: JobConfig, view: JobView, code: int, *, quiet: bool) -> None:
    """Tell that an ended run can be resumed; or that not."""
    out, board, kept = config.out, view.board, view.board.checkpoint
    if code in (EXIT_OK, EXIT_USAGE) or not out.exists():
        return
    if kept is not None and code == EXIT_STATE_LOST:
        return  # none of them verifies: the last sentence says so
    if kept is not None:
        how = f"it can go on after step {kept['committed']}: pliant resume {out}{_unsaved(board)}"
    elif board.committed and board.is_durable:
        how = f"it can begin again at step 0: pliant resume {out}{_unsaved(board)}"
    elif board.committed:
        how = "without checkpoints (Session(checkpoint=...)) it cannot go on"
    else:
        return
    if not quiet:
        say_aside(how)


def _unsaved(board: Board) -> str:
    """Say how many steps are to be made again, and why, if there are any."""
    kept = int(board.checkpoint["committed"]) if board.checkpoint is not None else 0
    missing, failure = board.committed - kept, board.checkpoint_failure
    if missing <= 0:
        return ""
    steps = f"{counted(missing, 'later step')} {'is' if missing == 1 else 'are'}"
    why = "" if failure is None else f" ({failure['reason']})"
    return f"; {steps} not saved{why}, and will be made again"


def invite(token: Path, url: str, *, takes_part: bool, is_quiet: bool) -> None:
    """Say how others take part in a job that is served at a URL.

    ``takes_part``: this host runs replicas as well, as every host does that is given the command.
    """
    if is_quiet:
        return
    place, is_tls = url.rpartition("//")[2], url.startswith("https:")
    if takes_part:
        say_aside(
            f"this host coordinates, at {place}: the same command on any other host joins it, "
            f"with a copy of {token}"
        )
        return
    more = " --tls-ca CA --tls-certificate CERTIFICATE --tls-key KEY" if is_tls else ""
    say_aside(f"waiting for agents: pliant agent --join {place} --token-file {token}{more}")
