"""``pliant run`` and ``pliant coordinator``: from resolved settings to a running job.

Owns what happens around a job: its directory, the view on it, and what is left when it was
refused.  Knows nothing of how a job runs (``run.local``, ``run.separate``).
"""

from __future__ import annotations

import json
import os
import shutil
import subprocess
import sys
from collections.abc import Mapping
from contextlib import suppress
from pathlib import Path

from rich.console import Console

from pliant.cli.policy_commands import words_of
from pliant.cli.printing import lasting
from pliant.cli.settings import (
    Resolved,
    job_name,
    output_directory,
    policy_of,
    pool_of,
    resolve,
    shown_replica,
)
from pliant.cli.view import JobView, view_for
from pliant.core.counts import counted
from pliant.core.errors import ConfigError, ConflictError
from pliant.core.exits import (
    EXIT_FAILED,
    EXIT_OK,
    EXIT_STATE_LOST,
    EXIT_STOPPED,
    EXIT_TAKEN_OVER,
    EXIT_USAGE,
)
from pliant.core.policy.decide import Policy
from pliant.machine import run_files
from pliant.machine.jobs import forget_suspended, record_suspended, running_jobs, suspended_jobs
from pliant.machine.pools import find_pool
from pliant.observe import log
from pliant.observe.log import Record
from pliant.observe.status import Board, board_of
from pliant.run import background
from pliant.run.hosting import JobConfig, locked, refuse_second
from pliant.run.local import run_job
from pliant.run.separate import run_coordinator

INITIAL_S = 3600.0
"""Longest that a checkpoint to begin with may take to read, in seconds."""

NOT_STARTED = "stopped before the job had started"


class JsonView(JobView):
    """Every record of the event log on standard output, as it is."""

    def record(self, record: Record) -> None:
        """Print one record."""
        self.take(record)
        print(json.dumps(record), flush=True)

    def output(self, replica: str, text: str) -> None:
        """Leave output out: standard output holds records only."""


def coordinated(command: list[str], settings: Mapping[str, Resolved], *, as_json: bool) -> int:
    """Run the coordinator of a job, and follow it to its end; return its exit code.

    Its directory is where an earlier coordinator of the job has left what it knew.

    Raises:
        ConfigError: it has no port to which agents can come back.
    """
    if not settings["port"].value:
        raise ConfigError("a coordinator needs a --port of its own, to which its agents come back")
    out = settings["out"].value or Path("runs") / job_name(settings, command[0])
    settings = {
        **settings,
        "out": Resolved(value=out, source="--out"),
        "resume": Resolved(value=run_files.holds_run(out), source="--out"),
    }
    return attached(command, settings, as_json=as_json, is_apart=True)


def attached(
    command: list[str],
    settings: Mapping[str, Resolved],
    *,
    as_json: bool,
    is_apart: bool = False,
) -> int:
    """Run a job and follow it to its end; return its exit code.  ``is_apart``: agents are not here.

    Raises:
        ConfigError: it cannot run like this.
    """
    with lasting():
        return _attached(command, settings, as_json=as_json, is_apart=is_apart)


def _attached(
    command: list[str], settings: Mapping[str, Resolved], *, as_json: bool, is_apart: bool
) -> int:
    name, policy = _checked(command, settings, is_apart=is_apart)
    new = not _exists(settings)
    out = output_directory(settings, name)
    try:
        init = _initial(settings["init"].value, out)
    except ConfigError:
        if new:
            _remove(out, settings)
        raise
    config = JobConfig(
        name=name,
        argv=tuple(command),
        policy=policy,
        max_restarts=settings["max_restarts"].value,
        out=out,
        port=settings["port"].value,
        init=init,
        pool=pool_of(settings),
    )
    waiting = next((job for job in suspended_jobs() if job.job == name), None)
    forget_suspended(name)
    console = Console(highlight=False)
    show = shown_replica(settings)
    view = JsonView(console, show=show) if as_json else view_for(console, show=show)
    for record in log.read(run_files.event_log(out)).records:  # of the run that is resumed
        view.board.add(record)
    code = EXIT_FAILED
    try:
        with view:
            code = (run_coordinator if is_apart else run_job)(config, observer=view)
    except ConflictError as error:
        return _say_last(str(error), EXIT_TAKEN_OVER)
    except ConfigError:
        code = EXIT_USAGE
        raise
    except OSError as error:  # the disk is full, or the directory was removed
        view.board.reason = f"the job ended: {error.filename or out}: {error.strerror}"
    finally:
        if code == EXIT_USAGE and waiting is not None:
            record_suspended(name, waiting.out, waiting.committed)
        has_begun = code != EXIT_USAGE and run_files.holds_run(out)
        if new and not view.board.committed and not has_begun:
            _remove(out, settings)
    if out.exists() and not as_json:
        console.print(f"files: {out}", markup=False, soft_wrap=True)
    _say_how_to_go_on(name, out, view, code, quiet=as_json)
    if code not in (EXIT_OK, EXIT_STOPPED) or view.board.reason is None:
        _say_last(view.board.reason or NOT_STARTED, code)
    return code


def _say_last(sentence: str, code: int) -> int:
    print(f"pliant: {' '.join(sentence.split())}", file=sys.stderr)
    return code


def resumed(out: Path, *, detach: bool, as_json: bool) -> int:
    """Go on with the run in a directory as it was started last, where it was started.

    Raises:
        ConfigError: what it was cannot be read, or its script is gone.
    """
    records = log.read(run_files.event_log(out)).records
    began = [record for record in records if _is_start(record)]
    if not began:
        raise ConfigError(f"{out} does not say what ran there; use pliant run --resume --out {out}")
    last = began[-1]
    out = out.absolute()
    if (found := board_of(records)).exit_code == EXIT_OK:
        raise ConfigError(f"the run in {out} has finished, after {found.committed} steps")
    given = {
        **{f"{name}_replicas": last["policy"].get(name) for name in ("min", "max", "start")},
        "policy": last.get("elastic_policy"),
        "name": last["job"],
        "out": out,
        "max_restarts": last.get("max_restarts"),
        "init": _moved(last, out),
        "resume": True,
        **_place(last),
    }
    try:
        os.chdir(last["cwd"])
    except OSError as error:
        raise ConfigError(f"the run began in {last['cwd']}: {error.strerror}") from None
    if not Path(last["command"][0]).is_file():
        raise ConfigError(f"the script {last['command'][0]} is no longer in {last['cwd']}")
    settings = resolve(given, {}, None)
    start = detached if detach else attached
    return start(list(last["command"]), settings, as_json=as_json)


def _moved(began: Record, out: Path) -> str | None:
    """Return what the run began from; what was made of a checkpoint lies in its directory."""
    init = began.get("init")
    if init is None:
        return None
    own = out / Path(init).name
    is_own = Path(init).parent == Path(str(began.get("out")))
    return str(own) if is_own and own.exists() else str(init)


def _place(began: Record) -> dict[str, str]:
    """Return the settings that take a run back to the pool that it began in."""
    place = began.get("pool")
    if not isinstance(place, dict):
        return {}
    names = {"pool": "name", "team": "team", "priority": "priority"}
    return {setting: str(place.get(name)) for setting, name in names.items()}


def _is_start(record: Record) -> bool:
    return (
        record.get("kind") == "job_started"
        and isinstance(record.get("policy"), dict)
        and isinstance(record.get("command"), list)
        and isinstance(record.get("cwd"), str)
    )


def _say_how_to_go_on(name: str, out: Path, view: JobView, code: int, *, quiet: bool) -> None:
    """Tell, and remember for ``pliant status``, that an ended run can be resumed; or that not."""
    board, kept = view.board, view.board.checkpoint
    if code in (EXIT_OK, EXIT_USAGE) or not out.exists():
        return
    if kept is not None and code == EXIT_STATE_LOST:
        return  # none of them verifies: the last word says so
    if kept is not None:
        record_suspended(name, out, int(kept["committed"]))
        said = f"it can go on after step {kept['committed']}: pliant resume {out}{_unsaved(board)}"
    elif board.committed and board.checkpoint_failure is not None:
        said = f"it can begin again at step 0: pliant resume {out}{_unsaved(board)}"
    elif board.committed:
        said = "without checkpoints (Session(checkpoint=...)) it cannot go on"
    else:
        return
    if not quiet:
        print(said, file=sys.stderr)


def _unsaved(board: Board) -> str:
    """Say how many steps are to be made again, and why, if there are any."""
    kept = int(board.checkpoint["committed"]) if board.checkpoint is not None else 0
    missing, failure = board.committed - kept, board.checkpoint_failure
    if missing <= 0:
        return ""
    steps = f"{counted(missing, 'later step')} {'is' if missing == 1 else 'are'}"
    why = "" if failure is None else f" ({failure['reason']})"
    return f"; {steps} not saved{why}, and will be made again"


def detached(command: list[str], settings: Mapping[str, Resolved], *, as_json: bool) -> int:
    """Start a job in the background and say where it is."""
    name, _ = _checked(command, settings)
    new = not _exists(settings)
    out = output_directory(settings, name)
    try:
        job = background.start(
            _again(command, settings, name, out),
            log=out / run_files.OUTPUT,
            find=lambda: next((job for job in running_jobs() if job.name == name), None),
        )
    except background.EndedError as ended:
        if new and ended.code == EXIT_USAGE:
            _remove(out, settings)
        raise
    if as_json:
        print(json.dumps({"job": name, "pid": job.pid, "url": job.url, "out": str(out)}))
    else:
        print(f"job {name} runs in the background; follow it with pliant status")
    return EXIT_OK


def _checked(
    command: list[str], settings: Mapping[str, Resolved], *, is_apart: bool = False
) -> tuple[str, Policy]:
    """Check everything that can be checked before anything is written."""
    policy = policy_of(settings)
    name = job_name(settings, command[0])
    shown_replica(settings)
    place = pool_of(settings)
    if place is not None and is_apart:
        raise ConfigError("a coordinator's agents are in no pool; --pool is for pliant run")
    if place is not None:
        find_pool(place.name)
    if settings["max_restarts"].value < 0:
        raise ConfigError(f"--max-restarts {settings['max_restarts'].value} must be at least 0")
    init = settings["init"].value
    if init is not None and "://" not in init and not Path(init).exists():
        raise ConfigError(f"--init {init} does not exist")
    refuse_second(name, besides=settings["out"].value if is_apart else None)
    return name, policy


def _initial(source: str | None, out: Path) -> Path | None:
    """Return the file to start from; a checkpoint is made into one, by a process with torch.

    Raises:
        ConfigError: it cannot be read.
    """
    if source is None or ("://" not in source and Path(source).is_file()):
        return None if source is None else Path(source)
    target = out / "init.pt"
    try:
        done = subprocess.run(  # noqa: S603 - our own program
            [sys.executable, "-m", "pliant.checkpoint.starting_weights", source, str(target)],
            check=False,
            capture_output=True,
            text=True,
            timeout=INITIAL_S,
        )
    except subprocess.TimeoutExpired:
        raise ConfigError(f"--init {source} was not read within {INITIAL_S:g} s") from None
    if done.returncode != 0:
        said = done.stderr.strip().rpartition("\n")[2]
        raise ConfigError(f"--init {source}: {said}")
    return target


def _remove(out: Path, settings: Mapping[str, Resolved]) -> None:
    """Leave nothing of a run that was refused before its first step."""
    try:
        with locked(out, alone=True):  # of two that were started at the same moment one lives
            shutil.rmtree(out, ignore_errors=True)
    except (ConfigError, OSError):
        return
    if settings["out"].value is None:
        with suppress(OSError):
            out.parent.rmdir()  # runs/, if it was made for this


def _exists(settings: Mapping[str, Resolved]) -> bool:
    out: Path | None = settings["out"].value
    return settings["resume"].value or (out is not None and out.exists())


def _again(command: list[str], settings: Mapping[str, Resolved], name: str, out: Path) -> list[str]:
    """Return the arguments that start the same job in the foreground of another process."""
    arguments = ["run", "--name", name, "--out", str(out)]
    for flag, key in (
        ("--min", "min_replicas"),
        ("--max", "max_replicas"),
        ("--start", "start_replicas"),
        ("--max-restarts", "max_restarts"),
        ("--port", "port"),
        ("--show", "show"),
        ("--init", "init"),
        ("--pool", "pool"),
        ("--team", "team"),
        ("--priority", "priority"),
    ):
        if settings[key].value is not None and settings[key].source != "default":
            arguments += [flag, str(settings[key].value)]
    for word in words_of(settings["policy"].value):
        arguments += ["--policy", word]
    arguments += ["--resume"] if settings["resume"].value else []
    return [*arguments, *command]
