"""The demo: one run that is disturbed on purpose, one that is not, and the comparison.

Owns the schedule of disturbances and the report; must not know how the report is shown.  Does to
the job exactly what a person would: it starts ``pliant run``, types ``pliant scale`` and ``pliant
drain``, and sends a SIGKILL.  Every act waits for what the event log says, never for time to pass;
time only limits the wait.

    2 replicas --scale 4--> 4 --drain--> 3 --SIGKILL--> 2 --replaced--> 3 --scale 4--> 4 --> end
    then the same job at one replica, undisturbed; then both final states are compared
"""

from __future__ import annotations

import json
import os
import shutil
import signal
import subprocess
import sys
import threading
import time
from collections.abc import Callable, Sequence
from contextlib import suppress
from dataclasses import dataclass, field
from importlib.util import find_spec
from pathlib import Path
from typing import Any

from pliant.core.errors import ConfigError, PermanentError
from pliant.machine import run_files
from pliant.machine.named_modules import require_engine
from pliant.observe import log
from pliant.observe.audit import audit_run
from pliant.observe.goodput import goodput_of
from pliant.observe.living_replicas import ReplicaActivity
from pliant.observe.reading import follow, read
from pliant.observe.status import Board, board_of, event_json
from pliant.observe.timeline import ResizeKind

RUNS = ELASTIC, UNDISTURBED = "elastic", "undisturbed"
"""Directories of the two runs."""

POLL_S = 0.05
"""Between two looks at the event log, in seconds."""

ACT_S = 120.0
"""Longest wait for one act's turn, in seconds: a hundred times what it takes."""

END_S = 600.0
"""Longest wait for a run to end after its last act, in seconds."""

COMMAND_S = 30.0
"""Longest time for one command of the CLI, in seconds."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Size:
    """How long a demo is."""

    steps: int
    spacing: int
    """Steps in peace between one change and the next act."""

    ends_after_acts: bool = False
    """The elastic run stops once every act is over, however many of ``steps`` that took: as short
    as the machine allows, and never too short for what is to be shown."""


FULL = Size(steps=160, spacing=16)
QUICK = Size(steps=400, spacing=3, ends_after_acts=True)


@dataclass(frozen=True, slots=True, kw_only=True)
class Act:
    """Something done to the job once ``num_replicas`` train in peace."""

    num_replicas: int
    deed: Callable[[str, Board], None]
    needs: Callable[[Board], bool] = lambda board: True


@dataclass(slots=True)
class BoardWatch:
    """The board of a job, brought up to date from its event log."""

    path: Path
    board: Board = field(default_factory=Board)
    _offset: int = 0

    def read_on(self) -> Board:
        """Read what is new and return the board."""
        for offset, record in follow(self.path, self._offset):
            self._offset = offset
            self.board.add(record)
        return self.board


def demo(out: Path, *, quick: bool, quiet: bool, say: Callable[[str], None]) -> dict[str, Any]:
    """Run the whole demo; return the report, which says whether it proved what it claims.

    Both runs and the report go to ``out``; ``quiet`` hides what the runs print, and
    ``say`` is told what is about to happen.

    Raises:
        ConfigError: something it needs is not here.
        PermanentError: a run failed.
    """
    script = _script()
    size = QUICK if quick else FULL
    began = time.monotonic()
    for part in RUNS:
        shutil.rmtree(out / part, ignore_errors=True)
    out.mkdir(parents=True, exist_ok=True)
    length = "as briefly as it can" if quick else f"{size.steps} steps"
    say(_INTRODUCTION.format(length=length))
    say("1. An elastic run: 2 replicas grow to 4, one is drained, one is killed.")
    bounds = ("--min", "1", "--max", "4", "--start", "2")
    steps = _run(out / ELASTIC, script, size, bounds, _ACTS, quiet=quiet)
    say("\n2. The same job at one replica, undisturbed.")
    size = Size(steps=steps, spacing=0)
    _run(out / UNDISTURBED, script, size, ("--min", "1", "--max", "1"), (), quiet=quiet)
    report = make_report(out) | {"wall_s": round(time.monotonic() - began, 1)}
    (out / "report.json").write_text(json.dumps(log.plain(report), indent=2) + "\n")
    return report


_INTRODUCTION = (
    "A byte-level GPT (3.2M parameters) learns Python's own documentation, {length}, twice:\n"
    "once while its replicas come, go and die, once in peace. Both must end with the same bits.\n"
)


# --- the schedule --------------------------------------------------------------------


def _scale_to_four(job: str, board: Board) -> None:
    _pliant("scale", "4", "--job", job)


def _drain_newest(job: str, board: Board) -> None:
    _pliant("drain", list(board.replicas)[-1], "--notice", "30s", "--job", job)


def _kill_second(job: str, board: Board) -> None:
    pid = list(board.replicas.values())[1].pids[-1]
    with suppress(ProcessLookupError):  # it ended by itself: the wait that follows will say so
        os.kill(pid, signal.SIGKILL)


def _lost_one(board: Board) -> bool:
    return any(resize.kind is ResizeKind.LOSS for resize in board.resizes())


_ACTS = (
    Act(num_replicas=2, deed=_scale_to_four),
    Act(num_replicas=4, deed=_drain_newest),
    Act(num_replicas=3, deed=_kill_second),
    Act(num_replicas=3, deed=_scale_to_four, needs=_lost_one),
    Act(num_replicas=4, deed=lambda job, board: None),
)


def is_at_peace(board: Board, act: Act, spacing: int) -> bool:
    """Whether exactly the act's replicas train, nothing is under way, and did so for a while."""
    trains = [replica.state is ReplicaActivity.TRAINING for replica in board.replicas.values()]
    if len(trains) != act.num_replicas or not all(trains) or not act.needs(board):
        return False
    resizes = board.resizes()
    return board.committed >= (resizes[-1].step if resizes else 0) + spacing


def _run(
    out: Path, script: Path, size: Size, sizes: Sequence[str], acts: Sequence[Act], *, quiet: bool
) -> int:
    """Run one job to its end, doing each act when its time has come; return its steps."""
    job, is_over = f"demo-{out.name}-{os.getpid()}", out / "acts.over"
    named = ["run", "--name", job, "--out", str(out), "--show", "none", "--kind", "cpu"]
    command = [*named, *sizes, str(script)]
    command += ["--steps", str(size.steps), "--digest", str(out / "digest.txt")]
    command += ["--until", str(is_over)] if size.ends_after_acts else []
    process = subprocess.Popen(  # noqa: S603 - our own program
        [sys.executable, "-m", "pliant", *command],
        stdout=subprocess.DEVNULL if quiet else None,
    )
    watch = BoardWatch(run_files.event_log(out))
    try:
        for act in acts:
            _wait_for(watch, act, size.spacing, process)
            act.deed(job, watch.board)
        if size.ends_after_acts:
            is_over.touch()
        code = process.wait(END_S)
    except subprocess.TimeoutExpired:
        raise PermanentError(f"the run did not end within {END_S:g} s; see {out}") from None
    finally:
        _end(process)
    if code != 0:
        raise PermanentError(f"the run ended with exit code {code}; see {out}")
    return watch.read_on().committed


def _wait_for(watch: BoardWatch, act: Act, spacing: int, process: subprocess.Popen[bytes]) -> None:
    deadline_s, pause = time.monotonic() + ACT_S, threading.Event()
    who = f"{act.num_replicas} replicas"
    while not is_at_peace(watch.read_on(), act, spacing):
        if (code := process.poll()) is not None:
            raise PermanentError(
                f"the run ended with exit code {code} before {who} trained in peace"
            )
        if time.monotonic() > deadline_s:
            raise PermanentError(f"{who} did not train in peace within {ACT_S:g} s")
        pause.wait(POLL_S)


def _end(process: subprocess.Popen[bytes]) -> None:
    """Leave no run behind, whatever happened."""
    if process.poll() is None:
        process.terminate()
        with suppress(subprocess.TimeoutExpired):
            process.wait(10)
        process.kill()
        process.wait()


def _pliant(*arguments: str) -> None:
    """Type a command, as a person would."""
    done = subprocess.run(  # noqa: S603 - our own program
        [sys.executable, "-m", "pliant", *arguments],
        check=False,
        capture_output=True,
        text=True,
        timeout=COMMAND_S,
    )
    if done.returncode != 0:
        raise PermanentError(f"pliant {' '.join(arguments)} failed: {done.stderr.strip()}")


def _script() -> Path:
    require_engine("pliant demo")
    found = find_spec("pliant.recipes.train_gpt")
    if found is None or found.origin is None:
        raise ConfigError("this installation of pliant has no recipes")
    return Path(found.origin)


# --- the report ----------------------------------------------------------------------


def make_report(out: Path) -> dict[str, Any]:
    """Compare both runs below ``out``."""
    runs = [out / run for run in RUNS]
    records = [read(run_files.event_log(run)) for run in runs]
    elastic, static = map(board_of, records)
    digests = [(run / "digest.txt").read_text().strip() for run in runs]
    audits = [audit_run(run) for run in runs]
    resizes = elastic.resizes()
    identical = digests[0] == digests[1] and elastic.committed == static.committed
    lost = sum(resize.steps_lost for resize in resizes)
    once = all(audit.exactly_once for audit in audits)
    return {
        "passed": identical and once and lost == 0,
        "bit_identical": identical,
        "state_digest": digests[0],
        "undisturbed_digest": digests[1],
        "steps": elastic.committed,
        "steps_lost": lost,
        "samples_exactly_once": once,
        "audit": [
            {
                "committed_steps": audit.committed_steps,
                "committed_samples": audit.committed_samples,
                "uncommitted_slots": audit.uncommitted,
                "problems": audit.problems,
            }
            for audit in audits
        ],
        "median_step_s": elastic.timeline.median_step_s(),
        "median_step_s_by_replicas": {
            size: elastic.timeline.median_step_s(size)
            for size in sorted({resize.num_replicas for resize in resizes} | {2})
        },
        "downtime_s": goodput_of(records[0]).downtime_s,
        "final_loss": elastic.loss,
        "events": [event_json(resize) for resize in resizes],
    }
