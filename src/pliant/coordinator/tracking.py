"""Passes on what scripts log to trackers: each value of a step once, whatever happens to the job.

Owns what was passed on, in ``tracking.json``, and when.  The values are read from the file that the
coordinator keeps of them (``metrics.jsonl``), which outlives every process; a leader that dies may
leave values untold, and the next one tells them.  Steps that are done again after a restore are the
same, bit for bit, and are not passed on again.  Knows nothing of any tracker.

    leader: session.log --> coordinator: metrics.jsonl --> thread --> tracker
                                   tracking.json: position, newest step of each value
"""

from __future__ import annotations

import json
import logging
import threading
import time
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager, suppress
from dataclasses import asdict, dataclass, field
from itertools import islice
from pathlib import Path

from pliant.coordinator.trackers import SIZE, Tracker, tracker_of
from pliant.machine import run_files
from pliant.machine.files import PRIVATE, replace_file
from pliant.observe import parts
from pliant.observe.log import number, whole
from pliant.observe.status import Board

LOOK_S = 1.0
"""Between two looks at what was logged, in seconds."""

MOST_LINES = 5000
"""Passed on at once."""

SLOWEST_S = 60.0
"""Longest pause after a failure, in seconds."""

CLOSE_S = 20.0
"""What the end of a job waits for trackers, in seconds."""

_log = logging.getLogger(__name__)


@dataclass(slots=True)
class Passed:
    """What one tracker has."""

    known_as: str = ""
    position: int = 0
    """In ``metrics.jsonl``."""

    last: dict[str, int] = field(default_factory=dict)
    """Newest step of each value."""

    generation: int = 0
    """Newest whose resize was told."""


class Tracking:
    """Follows the values of one job for one tracker, on a thread of its own."""

    def __init__(self, where: str, out: Path, job: str, board: Callable[[], Board]) -> None:
        self._where, self._out, self._job, self._board = where, out, job, board
        self._tracker: Tracker | None = None
        self._passed = _kept(out).get(where, Passed())
        self._is_open = False
        self._is_over = threading.Event()
        self._until_s = 0.0
        self._thread = threading.Thread(target=self._run, name=f"track {where}", daemon=True)
        self._thread.start()

    def tell_end(self) -> None:
        """Pass on what is left, and no more after ``CLOSE_S``."""
        self._until_s = time.monotonic() + CLOSE_S
        self._is_over.set()

    def join(self) -> None:
        """Wait for that."""
        self._thread.join(max(self._until_s - time.monotonic(), 0.0))
        if self._thread.is_alive():
            _log.warning("%s has not got all values; a resumed run sends the rest", self._where)

    def _run(self) -> None:
        pause_s = LOOK_S
        while True:
            is_over = self._is_over.is_set()  # asked before reading: the last are not missed
            try:
                tracker = self._tracker = self._tracker or tracker_of(self._where)
                while self._pass_on(tracker):
                    pass
                if is_over:
                    board = self._board()
                    tracker.close(board.state, _final(board, self._out))
                    return
                pause_s = LOOK_S
            except Exception as error:  # a boundary: whatever a library raises ends no job
                self._is_open = False
                pause_s = min(2 * pause_s, SLOWEST_S)
                _log.warning("%s takes no values now: %s", self._where, error)
                if is_over:
                    return
            self._is_over.wait(pause_s)

    def _pass_on(self, tracker: Tracker) -> bool:
        """Pass on what is new; return whether there is more."""
        passed = self._passed
        if not self._is_open:
            passed.known_as, passed.last = tracker.begin(self._job, passed.known_as, passed.last)
            self._is_open = True
            self._keep()
        lines = list(
            islice(parts.lines(self._out / run_files.METRICS, passed.position), MOST_LINES)
        )
        resizes = [one for one in self._board().resizes() if one.generation > passed.generation]
        if not lines and not resizes:
            return False
        last, generation = dict(passed.last), passed.generation
        for _, line in lines:
            step, values = _values_of(line)
            new = {name: value for name, value in values.items() if step > last.get(name, -1)}
            if new:
                tracker.log(step, new)
                last.update(dict.fromkeys(new, step))
        for resize in resizes:
            text = f"{resize.kind} of {', '.join(resize.replicas)}: {resize.reason}"
            name = f"{resize.generation}.{resize.kind}"
            tracker.note(resize.step, name, f"{text}; {resize.num_replicas} replicas")
            if resize.step > last.get(SIZE, -1):
                tracker.log(resize.step, {SIZE: float(resize.num_replicas)})
                last[SIZE] = resize.step
            generation = resize.generation
        tracker.flush()
        passed.last, passed.generation = last, generation
        passed.position = lines[-1][0] if lines else passed.position
        self._keep()
        return len(lines) == MOST_LINES

    def _keep(self) -> None:
        with _KEEPING:
            kept = {where: asdict(one) for where, one in _kept(self._out).items()}
            text = json.dumps({**kept, self._where: asdict(self._passed)})
            replace_file(self._out / run_files.TRACKING, text.encode(), mode=PRIVATE)


_KEEPING = threading.Lock()
"""Several trackers keep what they have in one file."""


def _kept(out: Path) -> dict[str, Passed]:
    with suppress(OSError, ValueError, TypeError, AttributeError):
        text = (out / run_files.TRACKING).read_text()
        return {where: Passed(**one) for where, one in json.loads(text).items()}
    return {}


def _final(board: Board, out: Path) -> dict[str, str]:
    """Tell of the checkpoint of a finished run's last step; empty: there is none."""
    kept = board.checkpoint or {}
    if board.state != "finished" or kept.get("committed") != board.committed:
        return {}
    if not kept.get("place") or not kept.get("digest"):
        return {}  # of a version that did not say so, or one that the script saved
    run = ""
    with suppress(OSError):
        run = (out / run_files.HOLDER).read_text().strip()
    found = {"checkpoint": kept["place"], "digest": kept["digest"], "step": kept["committed"]}
    return {name: str(value) for name, value in {**found, "run": run}.items()}


def _values_of(line: bytes) -> tuple[int, dict[str, float]]:
    """Return the step of a line and its values; none if it is damaged."""
    with suppress(ValueError):
        record = json.loads(line)
        step = whole(record.pop("step", None)) if isinstance(record, dict) else None
        if step is not None:
            found = {str(name): number(value) for name, value in record.items()}
            return step, {name: value for name, value in found.items() if value is not None}
    return -1, {}


@contextmanager
def tracking(
    places: Sequence[str], out: Path, job: str, board: Callable[[], Board]
) -> Iterator[None]:
    """Pass values on meanwhile."""
    found = [Tracking(where, out, job, board) for where in places]
    try:
        yield
    finally:
        for one in found:
            one.tell_end()
        for one in found:
            one.join()
