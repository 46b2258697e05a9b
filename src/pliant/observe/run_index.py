"""Which runs this user had here: one small file for each, which outlives the run and a reboot.

Owns these files: who writes one when, how many are kept, and that what is damaged or another's is
passed over.  A run never waits or ends for them.  Knows nothing of what they are shown as.

    <state>/pliant/runs/<id>.json    begin: job, directory, process --> end: how, at which step

A run is one directory with one holder (``run_files.HOLDER``), however many lives it has: resuming
it writes the same file.  A file without an end whose process is gone is of a run that was killed.
"""

from __future__ import annotations

import hashlib
import os
import re
from collections.abc import Iterator
from contextlib import suppress
from dataclasses import dataclass, replace
from functools import cache
from pathlib import Path
from typing import Self

from pydantic import TypeAdapter

from pliant.core.errors import EXIT_STATE_LOST
from pliant.core.text import is_moment
from pliant.machine import run_files
from pliant.machine.files import (
    PRIVATE,
    PRIVATE_DIRECTORY,
    is_leftover,
    make_private_directory,
    read_own,
    replace_file,
)
from pliant.machine.processes import ProcessMark
from pliant.machine.registry import alone_in
from pliant.observe.status import Board

KEPT = 100
"""Runs that are remembered though they are not known to live; the oldest are forgotten."""

MOST_LETTERS = 2000
"""Of the reason of an end: enough for the sentence and its line of the script."""

WAIT_S = 1.0
"""Longest wait for others that write here, in seconds; it is written all the same then."""

_FILE = re.compile(r"[0-9a-f]{32}\.json")


@dataclass(frozen=True, slots=True, kw_only=True)
class RunOutcome:
    """How far a run came, and how it ended if it has."""

    state: str
    step: int = 0
    total_steps: int | None = None
    num_replicas: int = 0
    """Of its last generation."""

    exit_code: int | None = None
    reason: str = ""
    kept: int | None = None
    """Committed steps in its newest checkpoint."""

    can_begin_again: bool = False
    """It was to keep checkpoints and has none yet: resumed, it begins at step 0."""

    @classmethod
    def of(cls, board: Board) -> Self:
        """Return what a job's log tells."""
        timeline, kept = board.timeline, board.checkpoint
        return cls(
            state=board.state,
            step=board.committed,
            total_steps=board.total_steps,
            num_replicas=len(timeline.members.get(timeline.generation, ())),
            exit_code=board.exit_code,
            reason=(board.reason or "")[:MOST_LETTERS],
            kept=None if kept is None else int(kept["committed"]),
            can_begin_again=bool(board.committed and board.is_durable),
        )

    @property
    def is_resumable(self) -> bool:
        """Whether ``pliant resume`` goes on with it, now that it has ended."""
        if self.state == "finished":
            return False
        if self.kept is not None:
            return self.exit_code != EXIT_STATE_LOST  # else none of them verifies
        return self.can_begin_again


@dataclass(frozen=True, slots=True, kw_only=True)
class IndexedRun:
    """One run as it is remembered."""

    job: str
    out: Path
    holder: str
    mark: ProcessMark
    """Of the process of its newest life."""

    began_at: float
    """When its first life did."""

    lives: int = 1
    is_apart: bool = False
    """Its coordinator ran alone; agents may run its replicas without it."""

    ended_at: float | None = None
    outcome: RunOutcome | None = None
    """None: it runs, or was killed."""

    @property
    def key(self) -> str:
        """Return its id: as long as any other, whatever the directory is called."""
        told_apart_by = os.fsencode(f"{self.out}\0{self.holder}")
        return hashlib.blake2b(told_apart_by, digest_size=16).hexdigest()

    @property
    def has_its_files(self) -> bool:
        """Whether its directory still holds this run, and not another."""
        try:
            holder = read_own(self.out / run_files.HOLDER).decode().strip()
        except (OSError, ValueError):
            return False
        return holder == self.holder and run_files.holds_run(self.out)


class RunIndex:
    """The runs of one user on this machine."""

    def __init__(self, directory: Path) -> None:
        self._directory = directory

    def begin(self, run: IndexedRun) -> None:
        """Remember that a run lives; forget the oldest of those that do not, if there are many."""
        with suppress(OSError, ValueError):  # no room, or a directory that is no unicode
            make_private_directory(self._directory)
            with alone_in(self._directory, within_s=WAIT_S):
                before = _read(self._path(run))
                if before is not None:
                    run = replace(run, began_at=before.began_at, lives=before.lives + 1)
                self._write(run)
                self._forget_oldest()

    def end(self, run: IndexedRun, outcome: RunOutcome, at: float) -> None:
        """Remember how a life ended, unless another has begun since."""
        with suppress(OSError, ValueError), alone_in(self._directory, within_s=WAIT_S):
            newest = _read(self._path(run))
            if newest is not None and newest.mark == run.mark:
                self._write(replace(newest, outcome=outcome, ended_at=at))

    def forget(self, out: Path) -> None:
        """Forget a run whose directory was removed: it was refused before it began."""
        with suppress(OSError, ValueError), alone_in(self._directory, within_s=WAIT_S):
            for path in list(self._files()):
                run = _read(path)
                if run is not None and run.out == out and not run.has_its_files:
                    path.unlink(missing_ok=True)

    def runs(self) -> list[IndexedRun]:
        """Return all that are remembered, the newest first."""
        found = [run for path in self._files() if (run := _read(path)) is not None]
        return sorted(found, key=_age, reverse=True)

    def _path(self, run: IndexedRun) -> Path:
        return self._directory / f"{run.key}.json"

    def _write(self, run: IndexedRun) -> None:
        data = _adapter().dump_json(run)
        replace_file(self._path(run), data, mode=PRIVATE, is_durable=True)

    def _files(self) -> Iterator[Path]:
        with suppress(OSError):
            for path in self._directory.iterdir():
                if _FILE.fullmatch(path.name):
                    yield path

    def _forget_oldest(self) -> None:
        """Keep the directory small; what is not ours stays, and is not counted.

        A run of another machine or container, of which nobody here can tell whether it lives, goes
        with those that have ended: there may be any number.
        """
        self._directory.chmod(PRIVATE_DIRECTORY)
        for path in list(self._directory.iterdir()):
            if is_leftover(path.name):
                path.unlink(missing_ok=True)  # nobody else writes now
        found = {path: _read(path) for path in self._files()}
        ended = [
            path
            for path, run in found.items()
            if run is None or run.outcome is not None or run.mark.lives() is not True
        ]
        ended.sort(key=lambda path: _age(found[path]), reverse=True)
        for path in ended[KEPT:]:
            path.unlink(missing_ok=True)


def _age(run: IndexedRun | None) -> float:
    """Return when a run was last known to live; what cannot be read is the oldest."""
    return 0.0 if run is None else run.ended_at or run.began_at


@cache
def _adapter() -> TypeAdapter[IndexedRun]:
    return TypeAdapter(IndexedRun)


def _read(path: Path) -> IndexedRun | None:
    """Read one file; None: it is damaged, or not ours."""
    try:
        run = _adapter().validate_json(read_own(path))
    except (OSError, ValueError):
        return None
    return run if is_moment(run.began_at) and is_moment(run.ended_at or 0.0) else None
