"""What agents and workers say for people, on its way into the log of a job.

Owns that each commit is logged once, and where logged values go.  Knows nothing of the core: what
a note means for the job is for the driver to hand on.
"""

from __future__ import annotations

import json
import os
from collections.abc import Iterable
from contextlib import suppress
from pathlib import Path

from pliant.core.values import NO_GENERATION, Generation
from pliant.machine.files import open_private
from pliant.observe import parts
from pliant.observe.log import EventLog, fields_of, plain
from pliant.observe.timeline import Commit
from pliant.wire import messages
from pliant.wire.codec import Message

KEPT_STEPS = 1000
"""How many steps back a second report of a commit is still recognised."""

LOGGED_AS: dict[type, str] = {
    messages.AgentLeft: "agent_left",
    messages.IntervalChosen: "interval_chosen",
    messages.Logged: "metrics",
    messages.Noted: "note",
    messages.Planned: "plan",
    messages.Resumed: "resumed",
    messages.SaveFailed: "save_failed",
    messages.SlotsMoved: "slots_moved",
    messages.Started: "worker",
    messages.Traceback: "traceback",
    messages.Usage: "usage",
}
"""Notes that go into the log as they are, by the kind that they have there."""


class NoteLog:
    """Writes the notes of one job."""

    def __init__(self, log: EventLog, metrics_path: Path) -> None:
        self._log = log
        self._metrics_path = metrics_path
        self._committed: dict[int, Generation] = {}

    def write_note(self, note: Message) -> None:
        """Log a note that goes into the log as it is, if this is one."""
        if type(note) in LOGGED_AS:
            self._log.write(LOGGED_AS[type(note)], **fields_of(note))
        if isinstance(note, messages.Logged):
            self._write_metrics(json.dumps(plain({"step": note.step, **note.values})) + "\n")

    def _write_metrics(self, line: str) -> None:
        """Append a line, whole or not at all; in parts, of which the oldest go, as the log's do."""
        path, data = self._metrics_path, line.encode()
        with suppress(OSError):  # on a full disk they are lost, like the log's records
            fd = open_private(path, os.O_WRONLY | os.O_APPEND)
            try:
                size = os.fstat(fd).st_size
                if os.write(fd, data) < len(data):
                    os.ftruncate(fd, size)
            finally:
                os.close(fd)
            if size + len(data) >= parts.PART_BYTES:
                number = parts.growing(path)
                path.rename(parts.closed_path(path, number))
                parts.remove(path, before=number + 1 - parts.KEPT_PARTS)

    def write_commit(self, note: messages.Committed, *, is_here: bool) -> None:
        """Log that a step is committed; at its own moment if its replica's clock is the log's."""
        when = {"mono": note.mono_s} if is_here else {}
        found = {"nonfinite": note.nonfinite, "skipped": note.is_skipped} if note.nonfinite else {}
        self._log.write(
            "commit",
            step=note.step,
            generation=note.generation,
            loss=note.loss,
            grad_norm=note.grad_norm,
            samples=note.samples,
            step_s=note.step_s,
            by=note.replica,
            **when,
            **found,
        )

    def remember(self, commits: Iterable[Commit]) -> None:
        """Know these commits, which another coordinator has logged."""
        for commit in commits:
            self.commits_once(commit.step, Generation(commit.generation))

    def commits_once(self, step: int, generation: Generation) -> bool:
        """Whether this commit was not known yet; from now on it is.

        Every member reports it, the first to be heard counts.  A step that comes again in a newer
        generation was lost and done again, and is logged again.
        """
        if generation <= self._committed.get(step, NO_GENERATION):
            return False
        self._committed[step] = generation
        self._committed.pop(step - KEPT_STEPS, None)
        return True
