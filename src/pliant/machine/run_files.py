"""What the files in the directory of a run are called; a pool's has the first four as well.

Owns the names.  Knows nothing of what is in the files.
"""

from __future__ import annotations

from contextlib import suppress
from pathlib import Path

EVENTS = "events.jsonl"
"""Everything that happened, in order: status, audit and resumption read it."""

CLOSED_EVENTS = "events.*.jsonl"
"""Earlier parts of a long one."""

RUNNING_LOCK = "running.lock"
"""Locked by whoever serves the directory."""

OUTPUT = "pliant.log"
"""What a detached process prints."""

STATE = "state.json"
"""What a pool must not forget."""

REGISTER = "register.json"
"""What a coordinator must not forget."""

COORDINATOR = "coordinator.json"
"""Where a job on several hosts is coordinated; agents with ``--join @FILE`` read it."""

METRICS = "metrics.jsonl"
"""What scripts log, once per committed step."""

TRACKING = "tracking.json"
"""What of that was passed on to which tracker."""

TOKEN = "token"  # noqa: S105  a file's name
"""Who knows it may talk to the coordinator."""

HOLDER = "holder"
"""Who this job is to its checkpoints, in every life of the directory."""

LEDGER = "ledger"
"""Directory: which samples each replica computed."""

CONDENSED = "ledger.snapshot"
"""What the audit of the oldest steps has found, whose lines are gone."""

CONDENSING_LOCK = "ledger.lock"
"""Locked by who writes that."""

INPUTS = "inputs"
"""Directory: what the script was, read and wrote, for each process that has run the job."""

ONCE = "once"
"""Directory: which blocks of ``pliant.once`` have ended, and who runs one."""

OUTPUTS = "outputs"
"""Directory: what scripts write to ``pliant.run_dir()``."""

PLACES = "places"
"""Directory: what the first replica named for what is one in a job, as its checkpoints."""

LOGS = "logs"
"""Directory: what workers and fork servers print."""


def event_log(out: Path) -> Path:
    """Return where the event log of a run or a pool lies."""
    return out / EVENTS


def holds_run(out: Path) -> bool:
    """Whether something has begun to run in a directory."""
    return event_log(out).is_file() or any(out.glob(CLOSED_EVENTS))


def runs_in(runs: Path) -> list[Path]:
    """Return the directories of runs in a directory."""
    return [out for out in runs.glob("*") if holds_run(out)]


def newest_run(runs: Path = Path("runs")) -> Path | None:
    """Return the directory of the run that was written last, of those below ``runs``."""
    return max(runs_in(runs), key=written_at, default=None)


def written_at(out: Path) -> float:
    """Return when something was written last into a run's event log; 0: it has none."""
    times = [0.0]
    for path in (event_log(out), *out.glob(CLOSED_EVENTS)):
        with suppress(OSError):  # a part that was closed or removed since
            times.append(path.stat().st_mtime)
    return max(times)
