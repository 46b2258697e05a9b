"""Every run of this user here, running or not: what it came to, and how it can go on.

Owns what is concluded from the index of runs, the processes that live and the logs of runs; and
which run a command is about: by ``machine.registry.meant``.  Knows nothing of how it is shown.

A run whose processes are gone and that has not said how it ended was killed.
"""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

from pliant.core.errors import ConfigError
from pliant.core.text import counted
from pliant.machine import run_files
from pliant.machine.locks import lock_is_held
from pliant.machine.processes import ProcessMark, machine_id, oom_kills
from pliant.machine.registry import (
    NotRunningError,
    Served,
    StateDirectory,
    find_job,
    meant,
    running_jobs,
)
from pliant.observe.history import read_history
from pliant.observe.run_index import IndexedRun, RunIndex, RunOutcome
from pliant.observe.status import Board

KILLED = "killed"
"""What a run is whose processes are gone without a word."""

WHY_KILLED = "its processes are gone: they were killed, or the machine was restarted"

ELSEWHERE = "elsewhere"
"""What a run is that another machine began and whose end is not known here."""


@dataclass(frozen=True, slots=True, kw_only=True)
class KnownRun:
    """One run as people see it."""

    job: str
    out: Path
    began_at: float
    outcome: RunOutcome
    lives: int = 1
    ended_at: float | None = None
    """When it ended, or was last heard of; None: it runs."""

    is_apart: bool = False
    has_its_files: bool = True

    @property
    def is_running(self) -> bool:
        """Whether its processes live."""
        return self.ended_at is None

    @property
    def is_resumable(self) -> bool:
        """Whether ``pliant resume`` goes on with it."""
        may = not self.is_running and self.has_its_files and not self.is_apart
        return may and self.outcome.is_resumable and self.outcome.state != ELSEWHERE

    @property
    def may_be_longer(self) -> bool:
        """Whether it has finished, and can train on from its last checkpoint."""
        outcome = self.outcome
        return outcome.state == "finished" and outcome.kept is not None and self.has_its_files

    @property
    def came_to(self) -> str:
        """Say in a few words how it ended: ``suspended after step 7``."""
        return f"{self.outcome.state} after {counted(self.outcome.step, 'step')}"


def known_runs(state: StateDirectory) -> list[KnownRun]:
    """Return all that are known: the running ones, oldest first, then the others, newest first."""
    index = RunIndex(state.runs)
    found = [_known(run, index) for run in index.runs()]
    listed = {run.out for run in found if run.is_running}
    for job in running_jobs(state.jobs):  # whose index could not be written
        if job.out not in listed:
            outcome = RunOutcome.of(_board(job.out))
            found.append(KnownRun(job=job.name, out=job.out, began_at=job.started, outcome=outcome))
    running = [run for run in found if run.is_running]
    running.sort(key=lambda run: (run.began_at, run.job))
    found = [run for run in found if not run.is_running]
    return [*running, *sorted(found, key=lambda run: -(run.ended_at or 0.0))]


def run_in(out: Path, board: Board | None = None) -> KnownRun:
    """Return the run in a directory, wherever it ran; ``board``: what its log says, if known."""
    board = board or _board(out)
    mark = ProcessMark.of(board.about)
    outcome = RunOutcome.of(board)
    ended_at = _ended_at(outcome, out, mark)
    return KnownRun(
        job=board.job,
        out=out.absolute(),
        began_at=float(board.about.get("at") or 0.0),
        outcome=_concluded(outcome, mark, board, is_over=ended_at is not None),
        ended_at=ended_at,
    )


def goes_on(out: Path, board: Board) -> bool:
    """Whether the run in a directory still runs, of which ``board`` tells what its log says."""
    return _ended_at(RunOutcome.of(board), out, ProcessMark.of(board.about)) is None


def status_of(run: KnownRun, board: Board) -> dict[str, Any]:
    """Return the documented shape of a status, of a run that does not answer itself."""
    outcome = run.outcome
    shape = board.as_json() | {"job": run.job, "state": outcome.state, "out": str(run.out)}
    if not run.is_running:
        gone: dict[str, Any] = {"replicas": [], "apart": [], "silent": [], "slow": []}
        gone |= {"hosts": None, "eta_s": None}
        shape |= gone | {"exit_code": outcome.exit_code}
        shape["reason"] = outcome.reason or shape["reason"]
    return shape


def find_run(name: str | None, out: Path | None, state: StateDirectory) -> Path:
    """Return the output directory that is meant: ``out``, or that of a job, which may have ended.

    Of a name the one that runs.  Else, and without a name, what ``meant`` says.

    Raises:
        ConfigError: there is none.
    """
    if out is not None:
        if not run_files.holds_run(out):
            raise ConfigError(f"{out} holds no run: it has no {run_files.EVENTS}")
        return out
    if name is None:
        found = [run for run in known_runs(state) if run.has_its_files]
        places = [*_unknown_here(found), *_by_age(found)]
        return meant(places) if places else find_running(None, state).out
    if any(job.name == name for job in running_jobs(state.jobs)):
        return find_running(name, state).out
    return find_ended(name, state).out


def _by_age(runs: Iterable[KnownRun]) -> list[Path]:
    """Return their directories, the newest last: one that runs is newer than any that ended."""
    ages = {run.out: (run.is_running, run.ended_at or run.began_at) for run in runs}
    return sorted(ages, key=ages.__getitem__)


def _unknown_here(runs: Sequence[KnownRun]) -> list[Path]:
    """Return the newest run below ``runs/`` here if it is none of these: the index forgets."""
    newest = run_files.newest_run()
    is_known = newest is None or any(run.out == newest.absolute() for run in runs)
    return [] if is_known or newest is None else [newest]


def find_running(name: str | None, state: StateDirectory) -> Served:
    """Return the running job that is meant.

    Raises:
        ConfigError: it does not run, or none does; what it came to, if that is known.
    """
    try:
        return find_job(name, state.jobs)
    except NotRunningError as error:
        raise NotRunningError(_why_not_running(name, state) or str(error)) from None


def _why_not_running(name: str | None, state: StateDirectory) -> str | None:
    """Say what became of the job that is meant, and what can be done; None: none is known."""
    runs = known_runs(state)
    if name is not None:
        run = next((run for run in runs if run.job == name), None)
        return run if run is None else f"job {name} does not run: {run.came_to}{_and_now(run)}"
    if not runs:
        return None
    run = next((run for run in runs if run.is_resumable), runs[0])
    more = "; see pliant ls" if len(runs) > 1 else ""
    return f"no job is running; {run.job}: {run.came_to}{_and_now(run)}{more}"


def find_ended(name: str, state: StateDirectory) -> KnownRun:
    """Return the run of a name that is meant, whose files are still there.

    Raises:
        ConfigError: there is none.
    """
    runs = known_runs(state)
    named = [run for run in runs if run.job == name]
    if not named:
        known = ", ".join(dict.fromkeys(run.job for run in runs))
        instead = f"known: {known}" if known else "none is; start one with pliant run"
        raise ConfigError(f"no job named {name} is running or has ended; {instead}")
    run = _of_name(named)
    if not run.has_its_files:
        why = f": {run.outcome.reason}" if run.outcome.reason else ""
        raise ConfigError(f"job {name}: {run.came_to}{why}; its files are no longer in {run.out}")
    return run


def _of_name(named: Sequence[KnownRun]) -> KnownRun:
    """Return the one that is meant of several of a name, of those that have files if any has."""
    by_place = {run.out: run for run in named if run.has_its_files}
    return by_place[meant(_by_age(by_place.values()))] if by_place else named[0]


def find_resumable(which: str | None, state: StateDirectory, *, is_longer: bool = False) -> Path:
    """Return the directory of the run to resume: named, or the one that is meant.

    ``is_longer``: one that has finished may be trained on, if it has a checkpoint.

    Raises:
        ConfigError: there is none.
    """
    if which is not None and run_files.holds_run(Path(which)):
        return Path(which)
    runs = known_runs(state)
    waiting = [run for run in runs if run.is_resumable or (is_longer and run.may_be_longer)]
    if which is None:
        if not (places := [*_unknown_here(runs), *_by_age(waiting)]):
            raise ConfigError("there is no run to resume here; name its directory")
        return meant(places)
    if named := [run for run in runs if run.job == which]:
        if (run := _of_name(named)) not in waiting:
            raise ConfigError(f"job {which}: {_why_not_resumed(run)}")
        return run.out
    known = ", ".join(dict.fromkeys(run.job for run in waiting)) or "none does"
    raise ConfigError(f"{which} is neither a run's directory nor a job that waits ({known})")


def how_to_go_on(run: KnownRun, runs: Sequence[KnownRun] = ()) -> str:
    """Return the command that goes on with a run; empty: there is none."""
    if run.outcome.state == ELSEWHERE:
        return ""
    if run.is_running:
        return f"pliant status --job {run.job}"
    if run.is_resumable:
        alike = [other for other in runs if other.job == run.job and other.is_resumable]
        return f"pliant resume {run.job if [run.out] == [one.out for one in alike] else run.out}"
    if run.is_apart and run.outcome.state == KILLED:
        return "the same command again"
    return ""


def _and_now(run: KnownRun) -> str:
    command = "resume" if run.is_resumable else "status --job"
    return f" (pliant {command} {run.job})"


def _why_not_resumed(run: KnownRun) -> str:
    if run.is_running:
        return "it is running; see pliant status"
    if run.is_apart:
        return f"{run.came_to}; start its coordinator again as it was started"
    if not run.has_its_files:
        return f"{run.came_to}; its files are no longer in {run.out}"
    if run.outcome.state == "finished":
        return f"{run.came_to}; nothing is left to do"
    return (
        f"{run.came_to}, without checkpoints (Session(checkpoint=...)): it cannot go on, but begin "
        f"again at step 0 with pliant resume {run.out}"
    )


def _known(run: IndexedRun, index: RunIndex) -> KnownRun:
    outcome, ended_at, has_files = run.outcome, run.ended_at, run.has_its_files
    if outcome is None or ended_at is None:
        board = _board(run.out) if has_files else Board()
        outcome = _outcome(board, run) if has_files else RunOutcome(state="starting")
        ended_at = _ended_at(outcome, run.out, run.mark)
        outcome = _concluded(outcome, run.mark, board, is_over=ended_at is not None)
        if ended_at is not None and outcome.state != ELSEWHERE:
            index.end(run, outcome, ended_at)  # so that its log is not read each time
    return KnownRun(
        job=run.job,
        out=run.out,
        began_at=run.began_at,
        outcome=outcome,
        lives=run.lives,
        ended_at=ended_at,
        is_apart=run.is_apart,
        has_its_files=has_files,
    )


def _outcome(board: Board, run: IndexedRun) -> RunOutcome:
    """Return what the log tells of the newest life; of one that has yet to begin it, no end."""
    outcome = RunOutcome.of(board)
    is_of_another = ProcessMark.of(board.about) != run.mark
    if outcome.exit_code is not None and is_of_another and _is_served(run.out, run.mark):
        return replace(outcome, state="starting", exit_code=None, reason="")
    return outcome


def _ended_at(outcome: RunOutcome, out: Path, mark: ProcessMark | None) -> float | None:
    """Return when a run ended, or was last heard of; None: it runs."""
    if outcome.exit_code is None and _is_served(out, mark):
        return None
    return run_files.written_at(out)


def _is_served(out: Path, mark: ProcessMark | None) -> bool:
    lives = None if mark is None else mark.lives()
    if lives is None:  # in another container: the lock of the directory tells across these
        return lock_is_held(out / run_files.RUNNING_LOCK)
    return lives


def _concluded(
    outcome: RunOutcome, mark: ProcessMark | None, board: Board, *, is_over: bool
) -> RunOutcome:
    """Return the outcome with what the log cannot say of itself."""
    if not is_over or outcome.exit_code is not None:
        return outcome
    if mark is not None and mark.is_elsewhere:
        return replace(outcome, state=ELSEWHERE, reason=f"it ran on {mark.host}")
    why = why_gone(board)
    return replace(outcome, state=KILLED, reason=WHY_KILLED + (f"; {why}" if why else ""))


def why_gone(board: Board) -> str | None:
    """Return what may have ended a run that did not say how it ended; None: nothing is known."""
    mark, before = ProcessMark.of(board.about), board.about.get("oom_kills")
    is_here = mark is not None and mark.machine == machine_id()
    if is_here and isinstance(before, int) and before < (oom_kills() or 0):
        return "since it began the kernel has killed a process beside it for want of memory"
    return f"it had been told to stop: {board.told_by}" if board.told_by else None


def _board(out: Path) -> Board:
    return read_history(run_files.event_log(out)).board
