"""What a page shows of a run: one object of bounded size, made of its log for a stretch of time.

Owns the shape of ``GET /v1/view`` (``docs/reference/records.md`` has its fields), and that it has
``MOST_BYTES`` at most whatever is in the log.  A ``LogView`` reads a log, running or not, from
where it had come to; the coordinator and ``pliant dashboard`` answer with the same function.  Knows
nothing of HTTP and of how anything is drawn.
"""

from __future__ import annotations

import json
import math
import threading
import time
from collections import deque
from collections.abc import Callable, Iterable
from dataclasses import asdict
from pathlib import Path
from typing import Any, Protocol

from pliant.core.text import printable_values
from pliant.observe import explain, prose, status_facts
from pliant.observe.history import History, snapshotted
from pliant.observe.log import COMMIT, CONTINUED, Record, listed, whole
from pliant.observe.reading import carried_by, follow
from pliant.observe.series import LaneSeries, SizeSeries, StepSeries
from pliant.observe.status import ENDINGS, Board, event_json
from pliant.observe.timeline import Resize

MOST_BYTES = 200_000
"""Of a view as JSON."""

POINTS = 400
MOST_POINTS = 2_000

KEPT_EVENTS = 5_000
"""Sentences that are remembered; older ones are in the log alone."""

SHOWN = {"lanes": 120, "events": 300, "resizes": 200, "checkpoints": 60}
"""Of a view at most, the newest."""

MOST_LETTERS = 300
"""Of a sentence."""

HEADLINE = (
    *("job", "state", "generation", "step", "total_steps", "num_slots", "target_replicas"),
    *("min_replicas", "max_replicas", "loss", "samples_per_s", "median_step_s", "eta_s"),
    *(
        "steps_lost",
        "checkpoint",
        "checkpoint_failure",
        "checkpoint_asked",
        "restored",
        "pool",
        "nonfinite",
    ),
    *("exit_code", "reason", "workers_per_replica", "mode"),
)
"""Fields of the status that a view has as well."""

Conclude = Callable[[Board], dict[str, Any]]
"""Returns fields of the status that the log alone cannot tell, of a run that may be gone."""


class View(Protocol):
    """What can be served as a view."""

    def as_json(self, since: float | None, until: float | None, points: int) -> bytes:
        """Return the view of a stretch of time."""

    def headline(self) -> dict[str, Any]:
        """Return what changes as time goes on: {seq, is_over, ...}."""


class LogView:
    """Reads a log as far as it has grown; any number of threads may ask."""

    def __init__(self, log: Path, conclude: Conclude | None = None) -> None:
        self._log = log
        self._conclude = conclude
        self._lock = threading.Lock()
        self._forget()

    def _forget(self) -> None:
        self._history: History | None = None
        self._told = _Told()
        self._position = 0

    def read(self) -> None:
        """Take in what has come since.

        Raises:
            OSError: the log cannot be read.
        """
        if self._history is None:
            self._history = snapshotted(self._log)
        history, told, begins = self._history, self._told, self._history.position
        for after, record in follow(self._log, self._position):
            if not self._position and record.get("kind") == CONTINUED:
                for each in carried_by(record):
                    told.add(each, 0)
                    if not begins:
                        history.add(each)
            told.add(record, self._position)
            self._position = after
            if after > begins:
                history.add(record)
                history.position = after

    def as_json(
        self, since: float | None = None, until: float | None = None, points: int = POINTS
    ) -> bytes:
        """Return the view of a stretch of time, by the wall clock; None: from the first, to the
        last record.

        Raises:
            OSError: the log cannot be read.
        """
        with self._lock:
            self.read()
            return bounded(lambda scale: self._values(since, until, points, scale))

    def headline(self) -> dict[str, Any]:
        """Return what changes as the run goes on, with a number that grows with each change.

        Raises:
            OSError: the log cannot be read.
        """
        with self._lock:
            self.read()
            status = self._status()
            shown = {name: status[name] for name in ("state", "step", "generation")}
            size = self._told.lanes.training
            return {"seq": self._position, "size": size, "is_over": _is_over(status), **shown}

    def _status(self) -> dict[str, Any]:
        board = self._history.board if self._history else Board()
        return board.as_json() | (self._conclude(board) if self._conclude else {})

    def _values(
        self, since: float | None, until: float | None, points: int, scale: float
    ) -> dict[str, Any]:
        told, history, status = self._told, self._history or History(), self._status()
        is_over = _is_over(status)
        ended = told.newest_at if is_over else None
        begins = told.began_at if since is None else since
        ends = (told.newest_at if is_over else time.time()) if until is None else until
        few = {name: max(1, math.floor(most * scale)) for name, most in SHOWN.items()}
        most = max(2, math.floor(points * scale))
        resizes = [one for one in history.board.resizes() if begins <= one.at <= ends]
        lanes = told.lanes.between(begins, ends)
        events = [event for event in told.events if begins <= event["at"] <= ends]
        kept = [one for one in told.checkpoints if begins <= one["at"] <= ends]
        return {
            "seq": self._position,
            "now": round(time.time(), 3),
            "began": told.began_at,
            "ended": ended,
            "from": begins,
            "to": ends,
            "headline": {
                **{name: status.get(name) for name in HEADLINE},
                "size": told.lanes.training if not is_over else 0,
                "committed_at": told.committed_at,
                "is_resumable": status.get("is_resumable"),
                "warnings": explain.lines(status["warnings"]),
                "doubts": [line for _, line in status_facts.doubts(status)][:20],
            },
            "decisions": [asdict(one) for one in history.explained.decisions],
            "steps": {"every": told.steps.every, **told.steps.points(begins, ends, most)},
            "size": told.sizes.points(begins, ends, most),
            "lanes": [asdict(lane) for lane in lanes[-few["lanes"] :]],
            "events": events[-few["events"] :],
            "resizes": [event_json(one) for one in resizes[-few["resizes"] :]],
            "pauses": pauses_by_cause(resizes),
            "checkpoints": kept[-few["checkpoints"] :],
            "left_out": {
                "lanes": max(0, len(lanes) - few["lanes"]),
                "events": max(0, len(events) - few["events"]),
                "resizes": max(0, len(resizes) - few["resizes"]),
                "checkpoints": max(0, len(kept) - few["checkpoints"]),
            },
        }


def _is_over(status: Record) -> bool:
    return status["exit_code"] is not None or status.get("is_over") is True


class _Told:
    """What the records tell that no status does: curves, lanes, sentences, checkpoints."""

    def __init__(self) -> None:
        self.steps = StepSeries()
        self.sizes = SizeSeries()
        self.lanes = LaneSeries()
        self.events: deque[dict[str, Any]] = deque(maxlen=KEPT_EVENTS)
        self.checkpoints: deque[dict[str, Any]] = deque(maxlen=KEPT_EVENTS)
        self.began_at = 0.0
        self.newest_at = 0.0
        self.committed_at: float | None = None
        self._target: int | None = None
        self._rooms: dict[str, int] = {}
        """Replicas for which each node has devices."""

        self._offered: int | None = None
        """Of its pool; None: it is in none."""

        self._incarnation = 0

    def add(self, record: Record, position: int) -> None:
        """Take in a record that begins at a position; whose count ``observe.reading`` says."""
        kind, at = str(record.get("kind")), float(record.get("at") or 0.0)
        incarnation = record.get("incarnation")
        if isinstance(incarnation, int):
            self._incarnation = max(self._incarnation, incarnation)
            if incarnation < self._incarnation and kind != COMMIT:
                return
        self.began_at = self.began_at or at
        self.newest_at = max(self.newest_at, at)
        if kind == COMMIT:
            self.steps.add(record)
            self.committed_at = at
            return
        self._note(kind, record, at)
        self.lanes.add(record)
        room = sum(self._rooms.values()) if self._rooms else None
        self.sizes.set(
            at, self.lanes.training, self._target, room if self._offered is None else self._offered
        )
        text = prose.line(record)
        if text is not None:
            about = str(record.get("replica") or "")
            event = {"at": at, "kind": kind, "replica": about, "text": text, "position": position}
            self.events.append(event)

    def _note(self, kind: str, record: Record, at: float) -> None:
        if kind == "job_started":
            self.steps.start()
            self._rooms.clear()
            self._target = whole(record.get("start_replicas"))
        elif kind == "decision":
            self._target = whole(record.get("target_replicas"))
        elif kind == "node_joined":
            self._rooms[str(record.get("node"))] = whole(record.get("devices"), 0)
        elif kind == "node_lost":
            for node in (record.get("node"), *listed(record, "others")):
                self._rooms.pop(str(node), None)
        elif kind == "pool":
            self._offered = whole(record.get("offered"))
        elif kind in ("saved", "save_failed"):
            names = ("checkpoint", "committed", "seconds", "reason")
            self.checkpoints.append({"at": at, **{name: record.get(name) for name in names}})
        elif kind in ENDINGS:
            self._target = None


def pauses_by_cause(resizes: Iterable[Resize]) -> list[dict[str, Any]]:
    """Return what the resizes of each kind cost: {cause, number, pause_s, longest_s, steps_lost},
    times in seconds."""
    found: dict[str, dict[str, Any]] = {}
    for one in resizes:
        new = {"cause": one.kind.value, "number": 0, "pause_s": 0.0, "longest_s": 0.0}
        of = found.setdefault(one.kind.value, new | {"steps_lost": 0})
        of["number"] += 1
        of["pause_s"] += one.pause_s or 0.0
        of["longest_s"] = max(of["longest_s"], one.pause_s or 0.0)
        of["steps_lost"] += one.steps_lost
    return list(found.values())


def bounded(values_at: Callable[[float], dict[str, Any]]) -> bytes:
    """Return values as JSON of ``MOST_BYTES`` at most; they are fewer where the scale is small."""
    scale = 1.0
    while True:
        data = _packed(values_at(scale))
        if len(data) <= MOST_BYTES or scale < 1e-3:
            return data
        scale *= min(0.7, MOST_BYTES / len(data))


def _packed(values: dict[str, Any]) -> bytes:
    return json.dumps(_short(printable_values(values)), separators=(",", ":")).encode()


def _short(value: Any) -> Any:
    """Return a value without what no page can show: endless texts, and numbers that are none."""
    if isinstance(value, str):
        return value if len(value) <= MOST_LETTERS else value[: MOST_LETTERS - 1] + "\u2026"
    if isinstance(value, float):
        return value if math.isfinite(value) else None
    if isinstance(value, dict):
        return {name: _short(one) for name, one in value.items()}
    return [_short(one) for one in value] if isinstance(value, list | tuple) else value
