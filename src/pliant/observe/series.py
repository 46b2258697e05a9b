"""A run as curves: steps, sizes and what each replica did, over time, in bounded memory.

Owns the shape of these while a log is read, and how few points stand for many.  Knows nothing of
files, of JSON or of who looks.

    commits   | | | | | | | |        at most ``KEPT`` buckets: each holds ``every`` steps, and
    buckets   |  ||  ||  ||  |       twice as many once they are full
    points    |      ||      |       of a stretch of time, as many as are asked for
"""

from __future__ import annotations

import math
from array import array
from bisect import bisect_left, bisect_right
from collections import deque
from collections.abc import Iterable
from dataclasses import dataclass, field
from itertools import chain
from operator import add
from typing import Any

from pliant.core.step.times import PARTS, REST
from pliant.core.text import MOST_S
from pliant.observe.living_replicas import LivingReplicas
from pliant.observe.log import Record, listed, number, seconds, whole

KEPT = 1 << 16
"""Buckets of steps: 7 MB.  Of a longer run several steps share one."""

KEPT_CHANGES = 20_000
"""Changes of size that are remembered, and as many stretches of replicas."""

COLUMNS = (
    *("at", "step", "number", "gap_s", "longest_s", "loss", "losses", "samples"),
    *("divided", "divided_s", *PARTS),
)
"""Of a bucket: moment and number of its last step, how many steps it holds, the time between
commits, summed and the longest, the sum and the number of finite losses, samples; of how many it is
known what their time went to, how long these took, and that, in seconds."""

_SUMMED = frozenset(COLUMNS) - {"at", "step", "longest_s"}
_LONGEST = COLUMNS.index("longest_s")
_UNDIVIDED = (0.0,) * (2 + len(PARTS))


class StepSeries:
    """Eats commits in file order."""

    def __init__(self) -> None:
        self.every = 1
        self._buckets = array("d")
        """The columns of one bucket behind those of the other."""

        self._in_last = 1
        self._newest_at = -math.inf
        self._is_first = True

    def start(self) -> None:
        """The job is started: until its first commit it starts, and no step takes so long."""
        self._is_first = True

    def add(self, record: Record) -> None:
        """Take in one commit."""
        at, step = float(record.get("at") or 0.0), whole(record.get("step"))
        if step is None:
            return
        if at < self._newest_at:
            at = self._newest_at  # a clock that was set back draws no curve backwards
        gap_s, samples = 0.0, 0
        if not self._is_first:
            gap_s, samples = at - self._newest_at, whole(record.get("samples"), 0)
        self._newest_at, self._is_first = at, False
        loss, losses = number(record.get("loss")), 1
        if loss is None or not math.isfinite(loss):
            loss, losses = 0.0, 0
        values = (at, step + 1, 1, gap_s, gap_s, loss, losses, samples, *_divided(record))
        if self._in_last < self.every:
            last = self._buckets[-len(COLUMNS) :]
            merged = [*map(add, last, values)]
            merged[:2] = values[:2]
            merged[_LONGEST] = max(last[_LONGEST], gap_s)
            self._buckets[-len(COLUMNS) :] = array("d", merged)
            self._in_last += 1
            return
        self._buckets.extend(values)
        self._in_last = 1
        if len(self._buckets) > KEPT * len(COLUMNS):
            self._halve()

    def _halve(self) -> None:
        """Let two buckets be one; of an odd number the last stays open."""
        columns = [array("d", _in_groups(name, self._column(name), 2)) for name in COLUMNS]
        self._in_last = self._in_last if len(self._column("at")) % 2 else 2 * self.every
        self.every *= 2
        self._buckets = array("d", chain.from_iterable(zip(*columns, strict=True)))

    def _column(self, name: str) -> array[float]:
        return self._buckets[COLUMNS.index(name) :: len(COLUMNS)]

    def points(self, since: float, until: float, most: int) -> dict[str, list[float | None]]:
        """Return the curves of a stretch of time, of so many points at most."""
        moments = self._column("at")
        first, last = bisect_left(moments, since), bisect_right(moments, until)
        together = max(1, math.ceil((last - first) / max(most, 1)))
        of = {
            name: list(_in_groups(name, self._column(name)[first:last], together))
            for name in COLUMNS
        }
        return {
            "at": _rounded(of["at"], 3),
            "step": _rounded(of["step"], 0),
            "step_s": [
                _ratio(gap, n) if gap else None
                for gap, n in zip(of["gap_s"], of["number"], strict=True)
            ],
            "longest_s": [_ratio(longest, 1) if longest else None for longest in of["longest_s"]],
            **_parts_in(of),
            "loss": [_ratio(loss, n) for loss, n in zip(of["loss"], of["losses"], strict=True)],
            "samples_per_s": [
                _ratio(samples, gap)
                for samples, gap in zip(of["samples"], of["gap_s"], strict=True)
            ],
        }


def parts_of(record: Record) -> tuple[float, ...]:
    """Return what the time of a committed step went to, in seconds; empty: it is not known."""
    parts = listed(record, "parts_us")
    known = [one / 1e6 for one in parts if isinstance(one, int) and 0 <= one <= 1e6 * MOST_S]
    return tuple(known) if len(known) == len(parts) == len(PARTS) else ()


def _divided(record: Record) -> tuple[float, ...]:
    """Return the last columns of a commit."""
    if "parts_us" not in record:
        return _UNDIVIDED
    parts, took_s = parts_of(record), seconds(record.get("step_s"))
    return (1, took_s, *parts) if parts and took_s is not None else _UNDIVIDED


def _parts_in(of: dict[str, list[float]]) -> dict[str, list[float | None]]:
    """Return the curves of the parts; what no part has is a part as well."""
    rows = zip(*(of[name] for name in ("divided", "divided_s", *PARTS)), strict=True)
    found = [
        [_ratio(part, number) for part in (*parts, max(took_s - sum(parts), 0.0))]
        for number, took_s, *parts in rows
    ]
    return {f"{name}_s": [row[at] for row in found] for at, name in enumerate((*PARTS, REST))}


def _in_groups(name: str, column: array[float], together: int) -> Iterable[float]:
    """Return one value for so many buckets that follow each other."""
    rest = column[len(column) - len(column) % together :]
    if name in ("at", "step"):
        return chain(column[together - 1 :: together], rest[-1:])
    merge = sum if name in _SUMMED else max
    groups = zip(*[iter(column)] * together, strict=False)
    return chain(map(merge, groups), [merge(rest)] if rest else [])


def _ratio(value: float, by: float) -> float | None:
    """Return a ratio in as many digits as a curve has use for; None: there is none."""
    return float(f"{value / by:.5g}") if by > 0 else None


def _rounded(values: Iterable[float], digits: int) -> list[float | None]:
    return [round(value, digits or None) for value in values]


@dataclass(slots=True)
class SizeSeries:
    """How many replicas trained, were wanted and had room, at every change."""

    changes: deque[tuple[float, int, int | None, int | None]] = field(
        default_factory=lambda: deque(maxlen=KEPT_CHANGES)
    )
    """(at, training, target, room)."""

    def set(self, at: float, training: int, target: int | None, room: int | None) -> None:
        """Note what is so from now on."""
        last = self.changes[-1] if self.changes else None
        if last is None or last[1:] != (training, target, room):
            self.changes.append((max(at, last[0] if last else at), training, target, room))

    def points(self, since: float, until: float, most: int) -> list[list[float | int | None]]:
        """Return the changes in a stretch of time, the one that counts at its beginning first.

        Of too many: of each part of the time the last one, and the one with the fewest replicas.
        """
        changes = [change for change in self.changes if change[0] <= until]
        begins = max(0, bisect_right([at for at, *_ in changes], since) - 1)
        changes = changes[begins:]
        if len(changes) > most:
            changes = [*_few(changes, most)]
        return [[round(at, 3), *values] for at, *values in changes]


def _few(changes: list[Any], most: int) -> Iterable[Any]:
    together = math.ceil(2 * len(changes) / max(most, 2))
    for at in range(0, len(changes), together):
        group = changes[at : at + together]
        fewest = min(group, key=lambda change: change[1])
        yield from [fewest, group[-1]] if fewest is not group[-1] else [fewest]


@dataclass(slots=True, kw_only=True)
class Lane:
    """One replica from its start to its end."""

    replica: str
    node: str = ""
    device: str = ""
    spans: list[list[Any]] = field(default_factory=list)
    """[what it does, since, until (None: now)]."""

    how: str = ""
    """How it ended: lost, left, finished ...; empty: it lives."""


class LaneSeries:
    """Eats the records about replicas, in file order; tells what each did when."""

    def __init__(self) -> None:
        self.lanes: deque[Lane] = deque()
        self._spans = 0
        self._of: dict[str, Lane] = {}
        self._living = LivingReplicas()

    @property
    def training(self) -> int:
        """How many train now."""
        return sum(one.state.value == "training" for one in self._living.named.values())

    def add(self, record: Record) -> None:
        """Take in one record that is no commit."""
        at = float(record.get("at") or 0.0)
        match record.get("kind"):
            case "job_started":
                self._living = LivingReplicas()
            case "coordinator_started":
                self._living.follow()
                return  # their agents say soon that they live
            case "node_joined" | "node_lost":
                self._living.add_node(record)
            case "prepare" | "dismiss" | "switch" | "reform":
                self._living.add_order(record)
                if record["kind"] in ("switch", "reform"):  # of the others nobody has heard
                    members, former = self._living.members, self._living.former
                    self._living.former = {name: former[name] for name in members if name in former}
            case "end_job" | "job_ended":
                for name in tuple(self._of):
                    self._end(name, at, "ended")
                return
            case _ if name := str(record.get("replica") or ""):
                self._living.add(record, name)
                how = str(record.get("exited_kind") or "") if record["kind"] == "exited" else ""
                self._note(name, at, how)
                return
            case _:
                return
        for name in {*self._living.named, *self._of}:
            self._note(name, at)

    def _note(self, name: str, at: float, how: str = "") -> None:
        """Note what a replica does from now on."""
        now = self._living.named.get(name)
        if now is None:
            if name not in self._living.former:
                self._end(name, at, how)
            return
        lane = self._of.get(name)
        if lane is None:
            lane = self._of[name] = Lane(replica=name, node=now.node)
            self.lanes.append(lane)
        lane.device = now.device_name or lane.device
        if not lane.spans or lane.spans[-1][0] != now.state.value:
            if lane.spans:
                lane.spans[-1][2] = at
            lane.spans.append([now.state.value, at, None])
            self._spans += 1
            while self._spans > KEPT_CHANGES and len(self.lanes) > 1:
                self._spans -= len(self.lanes.popleft().spans)

    def _end(self, name: str, at: float, how: str) -> None:
        lane = self._of.pop(name, None)
        if lane is not None and lane.spans:
            lane.spans[-1][2] = at
            lane.how = how or "lost"

    def between(self, since: float, until: float) -> list[Lane]:
        """Return those of a stretch of time, in the order in which they began."""
        return [
            lane
            for lane in self.lanes
            if lane.spans
            and lane.spans[0][1] <= until
            and (lane.spans[-1][2] is None or lane.spans[-1][2] >= since)
        ]
