"""An event log as a trace in Chrome's format, which Perfetto shows: each resize from cause to step.

Owns which records begin and end which slice.  Knows nothing of who asks for it.  Times are by the
log's clock, in microseconds since its first record; ``otherData.began_at`` says when that was.

    resizes      |--------------- resize to generation 4: +r3 ---------------------|
                 |detect|decide|- start -|- prepare -|boundary|transfer|first step |
    r3                         |- start -|- connect -|        |transfer|
    steps        |--|--|--|--|--|--|--|--|--|          ...

``detect``: from the newest cause to the decision; ``decide``: from there to the first order;
``start``: of joiners, until all are told to connect; ``prepare``: until they are, while they train;
``boundary``: from the order to switch until the first has; ``transfer``: until the last has,
joiners with their state; ``first step``: until it is committed.  Survivors of a loss connect within
``boundary``.  ``transfer`` of a joiner has the bytes that it was given, and how fast.
"""

from __future__ import annotations

from collections import deque
from collections.abc import Iterable
from dataclasses import dataclass, field
from typing import Any

from pliant.observe.log import Record, members_of, seconds, whole
from pliant.observe.reading import LogClock
from pliant.observe.timeline import HARMLESS_EXITS
from pliant.observe.totals import CAUSES

KEPT = 100
"""Causes and decisions of one change that are looked back on."""

RESIZES, STEPS, SAVES = "resizes", "steps", "checkpoints"

Event = dict[str, Any]


@dataclass(slots=True)
class _Change:
    """One change of the members, while it is under way."""

    causes: deque[tuple[float, str]] = field(default_factory=lambda: deque(maxlen=KEPT))
    decisions: deque[tuple[float, str]] = field(default_factory=lambda: deque(maxlen=KEPT))
    asked: dict[int, float] = field(default_factory=dict)
    """When members of a generation were told to connect."""

    prepared: dict[int, dict[str, float]] = field(default_factory=dict)
    """By generation: who was connected, and when."""

    ordered: float = 0.0
    generation: int = 0
    members: tuple[str, ...] = ()
    is_reform: bool = False
    switched: dict[str, float] = field(default_factory=dict)
    received: dict[str, tuple[int, float]] = field(default_factory=dict)
    """By joiner: bytes, and how long they took."""


@dataclass(slots=True)
class Trace:
    """Eats records in file order; answers with the events of the trace."""

    clock: LogClock = field(default_factory=LogClock)
    events: list[Event] = field(default_factory=list)
    began_s: float | None = None
    began_at: float = 0.0
    _tracks: dict[str, int] = field(default_factory=dict)
    _change: _Change = field(default_factory=_Change)
    _members: tuple[str, ...] = ()
    _generation: int = 0
    _starts: dict[str, float] = field(default_factory=dict)
    _last: dict[str, float] = field(default_factory=dict)
    """End of the newest slice of a track on which none may overlap."""

    def add(self, record: Record) -> None:
        """Take in one record; kinds it does not know change nothing."""
        self.clock.add(record)
        now_s, change = self.clock.moment_s(record), self._change
        if self.began_s is None:
            self.began_s, self.began_at = now_s, float(record.get("at") or 0.0)
        kind, name = str(record.get("kind")), str(record.get("replica"))
        if kind in CAUSES and (kind != "exited" or _is_loss(record)):
            change.causes.append((now_s, CAUSES[kind]))
        match kind:
            case "decision":
                change.decisions.append((now_s, str(record.get("reason") or "")))
            case "start_replica":
                self._starts[name] = now_s
            case "spare" if name in self._starts:
                self._slice(name, "start", self._starts[name], now_s)
            case "prepare" | "switch" | "reform" if isinstance(record.get("order"), dict):
                self._on_order(kind, record["order"], now_s)
            case "prepared":
                generation = whole(record.get("generation"), 0)
                change.prepared.setdefault(generation, {})[name] = now_s
            case "switched" if whole(record.get("generation")) == change.generation:
                change.switched[name] = now_s
                transfer_s = seconds(record.get("received_s")) or 0.0
                change.received[name] = whole(record.get("received_bytes"), 0), transfer_s
            case "commit":
                self._on_commit(record, now_s)
            case "saved" if (took_s := seconds(record.get("seconds"))) is not None:
                what = str(record.get("checkpoint"))
                self._follow(SAVES, what, now_s - took_s, now_s, committed=record.get("committed"))
            case "exited" if _is_loss(record):
                detail = f"{record.get('exited_kind')}: {record.get('detail')}"
                self._instant(name, "lost", now_s, how=detail)
            case _:
                pass

    def _on_order(self, kind: str, order: Record, now_s: float) -> None:
        change, generation = self._change, whole(order.get("generation"), 0)
        if kind in ("prepare", "reform"):
            change.asked.setdefault(generation, now_s)
        if kind in ("switch", "reform") and generation != change.generation:
            change.ordered, change.generation = now_s, generation
            change.members, change.is_reform = members_of(order), kind == "reform"
            change.switched.clear()
            change.received.clear()

    def _on_commit(self, record: Record, now_s: float) -> None:
        generation, step_s = whole(record.get("generation"), 0), seconds(record.get("step_s"))
        if generation == self._change.generation and generation > self._generation:
            self._end(self._change, now_s)
            self._generation, self._members = generation, self._change.members
            self._change = _Change()
        name = f"step {record.get('step')}"
        more = {key: record.get(key) for key in ("loss", "samples", "generation")}
        self._follow(STEPS, name, now_s - (step_s or 0.0), now_s, **more)

    def _end(self, change: _Change, done_s: float) -> None:
        """Write down a change whose first step is committed."""
        joined = [name for name in change.members if name not in self._members]
        gone = [name for name in self._members if name not in change.members]
        who = " ".join([*(f"+{name}" for name in joined), *(f"-{name}" for name in gone)])
        asked = min(change.asked.get(change.generation, change.ordered), change.ordered)
        begun = min([asked, *(self._starts[name] for name in joined if name in self._starts)])
        decided, reason = _newest(change.decisions, begun, (begun, ""))
        detected, cause = _newest(change.causes, decided, (decided, ""))
        if change.is_reform:
            detected, cause = _newest(change.causes, change.ordered, (change.ordered, ""))
            decided = begun = asked = change.ordered
        entered = sorted(change.switched.values()) or [change.ordered]
        connected = change.prepared.get(change.generation, {})
        self._slice(
            RESIZES,
            f"resize to generation {change.generation}: {who or 'the same members'}",
            detected,
            done_s,
            generation=change.generation,
            cause=cause,
            reason=reason,
            joined=joined,
            gone=gone,
            by="reform" if change.is_reform else "switch",
        )
        for name, begin, end in (
            ("detect", detected, decided),
            ("decide", decided, begun),
            ("start", begun, asked),
            ("prepare", asked, change.ordered),
            ("boundary", change.ordered, entered[0]),
            ("transfer", entered[0], entered[-1]),
            ("first step", entered[-1], done_s),
        ):
            if end > begin:
                self._slice(RESIZES, name, begin, end)
        for name, end in connected.items():
            self._slice(name, "connect", asked, end, generation=change.generation)
        for name, end in change.switched.items():
            begin = max(change.ordered, connected.get(name, change.ordered))
            what = "transfer" if name in joined else "switch"
            num_bytes, took_s = change.received.get(name, (0, 0.0))
            rate = round(num_bytes / took_s) if num_bytes and took_s else None
            more = {"bytes": num_bytes, "bytes_per_s": rate} if num_bytes else {}
            self._slice(name, what, begin, end, generation=change.generation, **more)
        size = {"replicas": len(change.members)}
        at = self._us(entered[0])
        self.events.append({"ph": "C", "name": "size", "pid": 1, "ts": at, "args": size})

    def _us(self, moment_s: float) -> int:
        return max(round((moment_s - (self.began_s or 0.0)) * 1e6), 0)

    def _track(self, name: str) -> int:
        return self._tracks.setdefault(name, len(self._tracks) + 1)

    def _slice(self, track: str, name: str, begin_s: float, end_s: float, **more: Any) -> None:
        begin = self._us(begin_s)
        took = max(self._us(end_s) - begin, 0)
        where = {"pid": 1, "tid": self._track(track), "cat": track}
        self.events.append(
            {"ph": "X", "name": name, "ts": begin, "dur": took, **where, "args": more}
        )

    def _follow(self, track: str, name: str, begin_s: float, end_s: float, **more: Any) -> None:
        """Write a slice that begins no earlier than the one before has ended."""
        self._slice(track, name, max(begin_s, self._last.get(track, begin_s)), end_s, **more)
        self._last[track] = end_s

    def _instant(self, track: str, name: str, at_s: float, **more: Any) -> None:
        where = {"pid": 1, "tid": self._track(track), "s": "t", "cat": track}
        self.events.append({"ph": "i", "name": name, "ts": self._us(at_s), **where, "args": more})

    def as_json(self, job: str) -> dict[str, Any]:
        """Return the trace as Chrome's format has it."""
        named = [_name("process_name", 0, f"pliant: {job}")]
        named += [_name("thread_name", track, name) for name, track in self._tracks.items()]
        return {
            "traceEvents": [*named, *self.events],
            "displayTimeUnit": "ms",
            "otherData": {"job": job, "began_at": self.began_at},
        }


def _is_loss(record: Record) -> bool:
    return record.get("exited_kind") not in HARMLESS_EXITS


def _newest(
    seen: Iterable[tuple[float, str]], until_s: float, otherwise: tuple[float, str]
) -> tuple[float, str]:
    return max((one for one in seen if one[0] <= until_s), default=otherwise)


def _name(what: str, track: int, name: str) -> Event:
    return {"ph": "M", "name": what, "pid": 1, "tid": track, "args": {"name": name}}


def trace_of(records: Iterable[Record]) -> dict[str, Any]:
    """Return the trace of a whole log."""
    trace, job = Trace(), ""
    for record in records:
        job = str(record.get("job") or job)
        trace.add(record)
    return trace.as_json(job)
