"""Reporter: what a session tells people.

Owns the seam and its form for a script that runs alone: facts on standard output, notes on
standard error; under an agent the same travels as notes of the wire.  Must not know the protocol.
"""

from __future__ import annotations

import sys
import time
from collections.abc import Callable, Mapping

from pliant.engine.worker.bootstrap import WorkerContext
from pliant.observe.explain import MAX_SHOWN, is_same
from pliant.observe.prose import PROGRESS_S
from pliant.wire.messages import Committed, Logged, Planned


class Reporter:
    """Who passes on what a session has to say; this one says nothing."""

    def planned(self, planned: Planned) -> None:
        """Say what a step consists of."""

    def committed(self, committed: Committed) -> None:
        """Say that a step was committed."""

    def logged(self, step: int, values: Mapping[str, float]) -> None:
        """Pass on what the script logged; called by the leader only."""

    def noted(self, text: str, *, lasting: bool = False) -> None:
        """Pass on one sentence for people; ``lasting``: again at the end, results may be wrong."""

    def closed(self) -> None:
        """Say what is left to say, as the session ends."""


class Printer(Reporter):
    """The reporter of a script that runs alone; logged values now and then, as ``pliant run``.

    Each set of names has its own clock, so that what is logged once an epoch is not passed over
    for what is logged at every step.
    """

    def __init__(self, monotonic: Callable[[], float] = time.monotonic) -> None:
        self._monotonic = monotonic
        self._told: dict[tuple[str, ...], tuple[float, int]] = {}
        self._left: dict[tuple[str, ...], tuple[int, Mapping[str, float]]] = {}
        self._lasting: list[str] = []

    def logged(self, step: int, values: Mapping[str, float]) -> None:
        """Write one line, if the last of its kind was long enough ago; keep it else."""
        names, now_s = tuple(values), self._monotonic()
        told_s, told_step = self._told.get(names, (now_s, step))
        if now_s - told_s < PROGRESS_S and step != told_step:
            self._left[names] = (step, values)
            return
        self._told[names] = (now_s, step)
        self._left.pop(names, None)
        self._write(step, values)

    def closed(self) -> None:
        """Write the last values, so that the end is seen."""
        for step, values in sorted(self._left.values(), key=lambda left: left[0]):
            self._write(step, values)
        self._left.clear()
        for text in self._lasting[:MAX_SHOWN]:
            self.noted(f"warning: {text}")
        self._lasting.clear()

    def _write(self, step: int, values: Mapping[str, float]) -> None:
        words = "  ".join(f"{name} {value:.6g}" for name, value in values.items())
        sys.stdout.write(f"step {step}  {words}\n")
        sys.stdout.flush()

    def noted(self, text: str, *, lasting: bool = False) -> None:
        """Write one line on standard error."""
        sys.stderr.write(f"pliant: {text}\n")
        if lasting and not any(is_same(text, known) for known in self._lasting):
            self._lasting.append(text)


class WireReporter(Reporter):
    """Sends what a session has to say to the agent; never blocks.

    Of several workers of a replica only the first speaks for it; the others pass on their notes.
    """

    def __init__(self, context: WorkerContext) -> None:
        self._context = context
        self._speaks = not context.worker

    def planned(self, planned: Planned) -> None:
        """Pass on what a step consists of."""
        if self._speaks:
            self._context.link.send(planned)

    def committed(self, committed: Committed) -> None:
        """Pass on a commit; it may wait for company."""
        if self._speaks:
            self._context.link.send(committed, urgent=False)

    def logged(self, step: int, values: Mapping[str, float]) -> None:
        """Pass on what the script logged."""
        if not self._speaks:
            return
        note = Logged(replica=self._context.replica, step=step, values=dict(values))
        self._context.link.send(note, urgent=False)

    def noted(self, text: str, *, lasting: bool = False) -> None:
        """Pass on one sentence for people."""
        self._context.note(text, lasting=lasting)
