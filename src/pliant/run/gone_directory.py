"""The directory of a run that is removed or moved under it: what became of it, and how to go on.

Owns the look, and the last sentence of such a run.  Decides nothing: the driver stops the job, and
whether its last state may be published the lease of its place says (decision 20).
"""

from __future__ import annotations

import os
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path

from pliant.core.commands import EndJob
from pliant.core.counts import counted
from pliant.core.exits import EXIT_FAILED, EXIT_STOPPED
from pliant.machine import run_files
from pliant.observe.status import Board

_DELETED = " (deleted)"
"""What the kernel adds to the name of an open directory that has none any more."""


@dataclass(frozen=True, slots=True)
class WatchedDirectory:
    """The directory of a run, held open so that it is found wherever it is moved."""

    out: Path
    fd: int

    def end_without_it(self, end: EndJob, board: Board) -> EndJob:
        """Return how a job ended that was stopped because its directory, or register, was gone."""
        if end.exit_code not in (EXIT_STOPPED, EXIT_FAILED):
            return end
        now = Path(f"/proc/self/fd/{self.fd}").readlink()
        is_moved = now != self.out and not now.name.endswith(_DELETED)
        gone = f"was moved to {now}" if is_moved else "was removed"
        if now == self.out:
            gone = f"lost its {run_files.REGISTER}"
        said = f"{self.out}, the directory of the run, {gone} while it ran; it stopped after"
        said += f" {counted(board.committed, 'step')}"
        kept, failure = board.checkpoint, board.checkpoint_failure
        if kept is None:
            why = "it keeps no checkpoints" if failure is None else failure["reason"]
            said += f", and what it has trained is lost: {why}"
        else:
            lost = board.committed - int(kept["committed"])
            again = f"pliant resume {now}" if is_moved else "the same command, in another --out,"
            said += f", {lost} of which are lost" if lost else ""
            said += f"; {again} goes on from its checkpoint of step {kept['committed']}"
        return EndJob(exit_code=EXIT_FAILED, reason=said)


@contextmanager
def watched(out: Path) -> Iterator[WatchedDirectory]:
    """Hold a directory open meanwhile."""
    fd = os.open(out, os.O_PATH | os.O_DIRECTORY | os.O_CLOEXEC)
    try:
        yield WatchedDirectory(out.resolve(), fd)
    finally:
        os.close(fd)
