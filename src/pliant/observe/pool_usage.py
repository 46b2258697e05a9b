"""What was used of a pool, by whom and how long it was waited for: read from its event log.

Owns the sums.  Durations are by the log's clock (``reading.LogClock``); over a reboot nothing is
held.  What a pool did not see it does not count: if it dies, what its claims held is counted up to
the last record if they are gone when it is there again, and in between if they are not.  Since one
has ended nothing is held either, and the wall clock says how long that is.
Parts of the log that are gone are told by where the sums begin.  Knows nothing of columns.

Every few minutes a pool writes who holds what (``holding``), so that a log says it that was cut.
"""

from __future__ import annotations

import math
from collections.abc import Iterable
from dataclasses import dataclass, field
from typing import Any, Literal, TypeVar

from pliant.core.tenancy import DEFAULT_TEAM
from pliant.observe.log import Record, listed, number
from pliant.observe.reading import LogClock

T = TypeVar("T")

By = Literal["team", "user", "job"]
BY: tuple[By, ...] = ("team", "user", "job")


@dataclass(frozen=True, slots=True, kw_only=True)
class UsageRow:
    """What one team, user or job has used."""

    name: str
    device_s: float
    """Seconds of devices that were its own, summed."""

    waiting_s: float
    """Seconds in which a claim wanted its minimum and did not have it, summed."""

    preemptions: int
    """How often one of its claims had to give something to another."""

    claims: int


@dataclass(frozen=True, slots=True, kw_only=True)
class PoolUsage:
    """What was used of a pool in a span of time."""

    by: By
    since_at: float
    """Wall-clock time at which the sums begin: the span's begin, or the log's if that is later."""

    until_at: float
    is_cut: bool
    """The log does not reach back as far as was asked for."""

    rows: tuple[UsageRow, ...]
    total: UsageRow


@dataclass(slots=True)
class _Known:
    """One claim while the log is read."""

    team: str
    user: str
    devices: set[int] = field(default_factory=set)
    waits: bool = False
    before: tuple[str, bool] | None = None
    """Team and wait before it asked last: what holds on if that is refused.  None: it is new."""


@dataclass(slots=True)
class _Sums:
    device_s: float = 0.0
    waiting_s: float = 0.0
    preemptions: int = 0
    claims: set[str] = field(default_factory=set)


@dataclass(frozen=True, slots=True, kw_only=True)
class _Span:
    """A time in which nothing changed, and what was so."""

    seconds: float
    claims: tuple[tuple[str, str, str, int, bool], ...]
    """Name, team, user, devices, whether it waits."""

    preempted: str = ""
    """The claim that had to give at its end."""


def usage_of(
    records: Iterable[Record],
    *,
    by: By,
    since_s: float | None = None,
    now_at: float,
    now_mono: float | None = None,
) -> PoolUsage:
    """Return what was used in the last ``since_s`` seconds; None: as far as the log reaches.

    ``now_mono`` is now on the node's monotonic clock if the pool runs; None: it ended with the log.
    """
    spans = _Reader().read(records, now_at=now_at, now_mono=now_mono)
    known_s = sum(span.seconds for span in spans)
    left_s = math.inf if since_s is None else since_s
    sums: dict[str, _Sums] = {}
    total, counted_s = _Sums(), 0.0
    for span in reversed(spans):  # the newest first: the span that was asked for ends now
        if counted_s >= left_s:
            break
        seconds = min(span.seconds, left_s - counted_s)
        counted_s += seconds
        for name, team, user, devices, waits in span.claims:
            key = {"team": team, "user": user, "job": name}[by]
            for one in (sums.setdefault(key, _Sums()), total):
                one.device_s += devices * seconds
                one.waiting_s += seconds * waits
                one.preemptions += name == span.preempted
                one.claims.add(name)
    return PoolUsage(
        by=by,
        since_at=now_at - counted_s,
        until_at=now_at,
        is_cut=since_s is not None and known_s < since_s,
        rows=tuple(
            sorted(
                (_row(name, one) for name, one in sums.items()),
                key=lambda row: (-row.device_s, row.name),
            )
        ),
        total=_row("", total),
    )


def _row(name: str, sums: _Sums) -> UsageRow:
    return UsageRow(
        name=name,
        device_s=round(sums.device_s, 3),
        waiting_s=round(sums.waiting_s, 3),
        preemptions=sums.preemptions,
        claims=len(sums.claims),
    )


class _Reader:
    """Turns records into spans."""

    def __init__(self) -> None:
        self._clock = LogClock()
        self._claims: dict[str, _Known] = {}
        self._owner = ""
        self._spans: list[_Span] = []
        self._shared: dict[Any, Any] = {}
        """What claims had, each once: that changes more seldom than something is written."""

        self._absent: dict[str, _Known] = {}
        """Claims of the life before, until the pool has opened again."""

        self._absent_s = 0.0
        self._absent_at = 0
        """Which span is of the time in which no pool saw them."""

    def read(
        self, records: Iterable[Record], *, now_at: float, now_mono: float | None
    ) -> list[_Span]:
        clock = self._clock
        for record in records:
            if number(record.get("mono")) is None:
                continue
            before_s, is_rebooted = clock.newest_s, clock.add(record)
            passed_s = 0.0 if before_s is None else (clock.newest_s or 0.0) - before_s
            kind = str(record.get("kind"))
            if kind == "pool_started":
                self._restart(record, passed_s, is_rebooted=is_rebooted)
            else:
                self._span(passed_s)
            self._apply(kind, record)
        if clock.newest_s is None:
            return []
        if now_mono is None:  # it is over
            self._claims = {}
            self._span(max(0.0, now_at - clock.newest_at))
        else:
            self._span(max(0.0, now_mono + clock.ahead_s - clock.newest_s))
        return self._spans

    # --- time

    def _span(self, seconds: float, preempted: str = "") -> None:
        if not seconds and not preempted:
            return
        claims = tuple(
            self._one((name, one.team, one.user, len(one.devices), one.waits))
            for name, one in self._claims.items()
            if one.devices or one.waits or name == preempted
        )
        claims = self._one(claims)
        self._spans.append(_Span(seconds=seconds, claims=claims, preempted=preempted))

    def _one(self, value: T) -> T:
        """Return the first value that was equal to this one."""
        found: T = self._shared.setdefault(value, value)
        return found

    def _restart(self, record: Record, passed_s: float, *, is_rebooted: bool) -> None:
        """A pool began: who had something before says so until it opens, or had nothing since."""
        self._absent, self._claims = ({} if is_rebooted else self._claims), {}
        self._absent_s, self._absent_at = passed_s, len(self._spans)
        self._span(self._absent_s)
        self._owner = str(record.get("user") or self._owner)

    def _returns(self, name: str, known: _Known) -> None:
        """Count what a claim held while no pool saw it."""
        before = self._absent.pop(name, None)
        if before is None or not self._absent_s:
            return
        span, at = self._spans[self._absent_at], self._absent_at
        held = (name, known.team, known.user, len(before.devices), before.waits)
        self._spans[at] = _Span(seconds=span.seconds, claims=(*span.claims, held))

    # --- what happened

    def _apply(self, kind: str, record: Record) -> None:
        name = str(record.get("name") or "")
        known = self._claims.get(name)
        match kind:
            case "asked" | "recovered":
                self._asked(kind, record)
            case "grant" if known is not None:
                known.devices |= _devices(record.get("devices"))
                known.waits = not known.devices and not record.get("to")
            case "released" if known is not None:
                known.devices -= _devices(record.get("devices"))
            case "gone" | "withdrawn" if known is not None:
                known.waits = False
            case "refuse" if known is not None:
                if known.before is not None:
                    known.team, known.waits = known.before
                elif not known.devices:
                    del self._claims[name]
            case "shrink" | "suspend" if known is not None:
                if record.get("for_"):
                    self._span(0.0, preempted=name)
                if kind == "suspend":
                    known.waits = True
            case "holding":
                self._hold(record)
            case _:
                pass

    def _asked(self, kind: str, record: Record) -> None:
        claim = record.get("claim")
        if not isinstance(claim, dict):
            return
        name = str(claim.get("name"))
        known = self._claims.get(name)
        if known is None:
            known = self._claims[name] = self._new(name, claim)
            if kind == "recovered":
                known.devices = _devices(record.get("devices"))
                self._returns(name, known)
        else:
            known.before = (known.team, known.waits)
        known.team = str(claim.get("team") or DEFAULT_TEAM)
        known.waits = not known.devices and bool(claim.get("ask_replicas"))

    def _hold(self, record: Record) -> None:
        """Take the pool's own list of who holds what."""
        claims = [one for one in listed(record, "claims") if isinstance(one, dict)]
        holders = {str(one.get("name")): one for one in claims}
        for name in self._claims.keys() - holders.keys():
            del self._claims[name]
        for name, one in holders.items():
            known = self._claims.setdefault(name, self._new(name, one))
            known.devices, known.waits = _devices(one.get("devices")), bool(one.get("waits"))

    def _new(self, name: str, claim: dict[str, Any]) -> _Known:
        user, slash, _ = name.partition("/")
        owner = self._owner or "?"
        return _Known(str(claim.get("team") or DEFAULT_TEAM), user if slash else owner)


def _devices(value: Any) -> set[int]:
    return {one for one in value if isinstance(one, int)} if isinstance(value, list) else set()
