"""A recorded run as the core knew it: what each coordinator's core was told, and what it said.

Owns how that is found in the log of a job or a pool, and where it cannot be: lines that are none,
parts that are gone, records of a version that did not write what a replay needs.  Nothing here is
an error but a log that is none: what cannot be read is a ``Gap``.  Knows nothing of what the core
makes of it.
"""

from __future__ import annotations

import os
import stat
from collections.abc import Iterator, Sequence
from dataclasses import asdict, dataclass, field
from itertools import islice
from pathlib import Path
from typing import Any, get_args

from pliant.core import allocation
from pliant.core.allocation.kinds import PoolBeginning
from pliant.core.commands import type_name
from pliant.core.errors import ConfigError
from pliant.core.events import Progressed, Running, Ticked
from pliant.core.job.state import Job, JobSettings
from pliant.core.tenancy import MOST_SLOTS
from pliant.core.text import in_one_line, is_moment
from pliant.core.values import Generation, NodeId, Register, ReplicaId
from pliant.machine import run_files
from pliant.observe import parts
from pliant.observe.core_values import value_of
from pliant.observe.log import ENVELOPE, Record, whole
from pliant.observe.quiet_inputs import HELD_UP, Quiet
from pliant.observe.reading import record_of
from pliant.spec.pool import MOST_DEVICES as MOST_OF_POOL
from pliant.wire.bounds import MOST_DEVICES, excess
from pliant.wire.codec import COMMANDS, EVENTS

EVENT_KINDS: dict[str, type] = {type_name(kind): kind for kind in EVENTS}
SAID_KINDS = frozenset({"decision", *map(type_name, COMMANDS)})

POOL_EVENTS: dict[str, type] = {type_name(kind): kind for kind in get_args(allocation.Event)}
POOL_ANSWERS = frozenset(type_name(kind) for kind in get_args(allocation.Action))
POOL_BEGAN = "pool_began"

OF_POOLS = frozenset({"pool_started", POOL_BEGAN, *POOL_EVENTS, *POOL_ANSWERS})
"""Kinds that no log of a job has."""

LOOKED_AT = 1000
"""Lines in which a pool's log shows what it is."""

MOST_COUNT = 1_000_000
"""Of replicas or slots that somebody wants: a core looks at each size up to it."""

COUNTS = frozenset(
    {"target", "wished", "replicas", "offered", "num_slots", "spares", "replica_increment_step"}
    | {"min_replicas", "max_replicas", "start_replicas", "replica_discrete_values"}
)

MOST_EARLY = 1000
"""Lines that are no records before one that is."""

MOST_SIGNS = 100_000
"""In one record: as many replicas as there can be."""


@dataclass(frozen=True, slots=True, kw_only=True)
class LogPlace:
    """Where something stands in a log."""

    where: str
    """``events.jsonl:17``."""

    at: float
    """When it was written, in seconds since 1970."""

    incarnation: int
    """Of the coordinator that wrote it."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Began:
    """A coordinator began."""

    place: LogPlace
    now_s: float
    settings: JobSettings
    register: Register | None
    is_asked: bool
    version: str


@dataclass(frozen=True, slots=True, kw_only=True)
class PoolBegan:
    """A pool began."""

    place: LogPlace
    now_s: float
    beginning: PoolBeginning
    version: str
    record: Record


@dataclass(frozen=True, slots=True, kw_only=True)
class CoreState:
    """What the core knew at this place."""

    place: LogPlace
    settings: JobSettings
    job: Job
    version: str


@dataclass(frozen=True, slots=True, kw_only=True)
class Told:
    """What the core was told, and when."""

    place: LogPlace
    now_s: float
    event: Any
    """Of ``core.job`` or ``core.allocation``."""

    record: Record = field(default_factory=dict)
    declined: str | None = None
    """Why it was declined, if it was."""

    is_sign: bool = False
    """It is one of the signs of life of which nothing came."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Said:
    """What was decided, ordered or noted."""

    place: LogPlace
    kind: str
    record: Record


@dataclass(frozen=True, slots=True, kw_only=True)
class Gap:
    """Something is missing from here on: what the core knew is not known."""

    place: LogPlace
    why: str


Entry = Began | PoolBegan | CoreState | Told | Said | Gap


def log_at(path: Path) -> Path:
    """Return the log that is meant by a file or the directory of a run.

    Raises:
        ConfigError: there is none.
    """
    log = run_files.event_log(path) if path.is_dir() else path
    if path.is_dir() and not run_files.holds_run(path):
        raise ConfigError(f"{path} holds no run: it has no {run_files.EVENTS}")
    if not path.is_dir() and not path.exists():
        raise ConfigError(f"{path} is not there; give the directory of a run, or its log")
    for file in [*(parts.closed_path(log, one) for one in parts.closed(log)), log]:
        if file.exists() and not stat.S_ISREG(file.stat().st_mode):
            raise ConfigError(f"{file} is no file; give the directory of a run, or its log")
    return log


def is_pool_log(log: Path) -> bool:
    """Whether this is the log of a pool, and of no job."""
    records = (record_of(line) or {} for _, line in islice(parts.lines(log), LOOKED_AT))
    return any(record.get("kind") in OF_POOLS for record in records)


def entries(log: Path) -> Iterator[Entry]:
    """Yield what a replay needs of a log, in order.

    Raises:
        ConfigError: it is no log of a job or a pool.
    """
    reader = _PoolReader() if is_pool_log(log) else _JobReader()
    early: list[Entry] = []  # as long as it may be no log at all
    for position, line in parts.lines(log):
        early.extend(reader.entries_of(log, position, line))
        if reader.is_log or len(early) > MOST_EARLY:
            yield from early
            early = []
    if reader.place is None or not reader.is_log:
        name = "" if reader.place is None else f"{reader.place.where}: "
        raise ConfigError(f"{name}{log} is no log of a job: nothing in it is a record of one")
    if _is_torn(log):
        yield Gap(place=reader.place, why="the last line is cut off")


def _is_torn(log: Path) -> bool:
    """Whether the log ends in the midst of a line."""
    with log.open("rb") as file:
        size = file.seek(0, os.SEEK_END)
        file.seek(max(0, size - 1))
        return file.read(1) not in (b"", b"\n")


@dataclass(slots=True)
class _LogReader:
    """Reads line by line what a core was told; knows where it is."""

    place: LogPlace | None = None
    is_log: bool = False
    _part: int = -1
    _line: int = 0
    _name: str = ""

    def entries_of(self, log: Path, position: int, line: bytes) -> Iterator[Entry]:
        """Yield what is missing up to this line, and what it says."""
        part, _ = parts.place(position)
        is_missing = part not in (self._part, self._part + 1)
        if part != self._part:
            self._part, self._line = part, 0
            closed = parts.closed_path(log, part)
            self._name = closed.name if closed.exists() else log.name
        self._line += 1
        record = record_of(line)
        place = self.place = _place(f"{self._name}:{self._line}", record, self.place)
        if is_missing:
            yield Gap(place=place, why="the parts of the log before this one are gone")
        if record is None and line.strip():
            yield Gap(place=place, why="this line is no record")
        if not record:
            return
        kind = record.get("kind")
        self.is_log |= isinstance(kind, str) and "mono" in record
        if kind == "records_lost":
            yield Gap(place=place, why="records before this one could not be written")
            return
        try:
            yield from self._of_record(str(kind), record, place)
        except (ValueError, TypeError, ConfigError) as error:
            why = in_one_line(f"this is no {str(kind)[:40]} that can be: {error}")[:300]
            yield Gap(place=place, why=why)

    def _of_record(self, kind: str, record: Record, place: LogPlace) -> Iterator[Entry]:
        """Yield what a record says."""
        raise NotImplementedError

    def _told(
        self, kind: type, record: Record, place: LogPlace, declined: str | None = None
    ) -> Iterator[Entry]:
        event = self._within(event_in(kind, record))
        now_s = _moment_of(record)
        yield Told(place=place, now_s=now_s, event=event, record=record, declined=declined)

    def _within(self, event: Any) -> Any:
        """Return an event whose numbers and names are those that somebody might send."""
        if (found := excess(asdict(event))) is not None:
            raise ValueError(found)
        return event


@dataclass(slots=True)
class _PoolReader(_LogReader):
    _latest_s: float = 0.0

    def _of_record(self, kind: str, record: Record, place: LogPlace) -> Iterator[Entry]:
        if kind == POOL_BEGAN:
            beginning: PoolBeginning = value_of(PoolBeginning, record.get("beginning"))
            for count in (beginning.devices, *map(_devices_of, beginning.events)):
                _require_few(count)
            self._latest_s = _moment_of(record)
            yield PoolBegan(
                place=place,
                now_s=self._latest_s,
                beginning=beginning,
                version=str(record.get("version")),
                record=record,
            )
        elif kind in POOL_EVENTS:
            for told in self._told(POOL_EVENTS[kind], record, place):
                if isinstance(told, Told):
                    _require_later(told.now_s, self._latest_s)
                    self._latest_s = told.now_s
                yield told
        elif kind in POOL_ANSWERS:
            yield Said(place=place, kind=kind, record=record)

    def _within(self, event: Any) -> Any:
        _require_few(_devices_of(event))
        is_claim = isinstance(event, allocation.Asked | allocation.Recovered)
        if is_claim and (event.claim.num_slots or 0) > MOST_SLOTS:
            raise ValueError(f"num_slots is above {MOST_SLOTS}")
        return event


def _devices_of(event: allocation.Event) -> int:
    return event.count if isinstance(event, allocation.DevicesSet) else 0


def _require_few(devices: int) -> None:
    if devices > MOST_OF_POOL:
        raise ValueError(f"{devices} devices; at most {MOST_OF_POOL} are replayed")


def _require_later(now_s: float, latest_s: float) -> None:
    if now_s < latest_s:
        raise ValueError(f"time goes back, from {latest_s:.6f} s to {now_s:.6f} s")


@dataclass(slots=True)
class _JobReader(_LogReader):
    def _of_record(self, kind: str, record: Record, place: LogPlace) -> Iterator[Entry]:
        if kind in EVENT_KINDS or kind in ("core_began", "core_state", "declined"):
            _require_counts(record)
        match kind:
            case "core_began":
                yield _began(record, place)
            case "core_state":
                yield _known(record, place)
            case "heard":
                yield from self._heard(record, place)
            case "declined" | "note":
                yield from self._declined_or_noted(record, place)
            case _ if kind in EVENT_KINDS:
                yield from self._told(EVENT_KINDS[kind], record, place)
            case _ if kind in SAID_KINDS:
                yield Said(place=place, kind=kind, record=record)
            case _:
                pass

    def _declined_or_noted(self, record: Record, place: LogPlace) -> Iterator[Entry]:
        if record["kind"] == "note":
            if "replica" not in record:  # else it is that replica's own
                yield Said(place=place, kind="note", record=record)
            return
        request = record.get("request")
        kind = EVENT_KINDS.get(str(request.get("kind"))) if isinstance(request, dict) else None
        if kind is None or not isinstance(request, dict):
            raise ValueError("what was declined is not said")
        values = {**request, "now_s": record.get("now_s")}
        yield from self._told(kind, values, place, str(record.get("reason")))

    def _heard(self, record: Record, place: LogPlace) -> Iterator[Told]:
        signs = record.get("signs")
        if not isinstance(signs, list) or len(signs) > MOST_SIGNS:
            raise ValueError("it lists no signs of life")
        for now_s, event in map(quiet_of, signs):
            yield Told(place=place, now_s=now_s, event=self._within(event), is_sign=True)


def _place(where: str, record: Record | None, before: LogPlace | None) -> LogPlace:
    at = None if record is None else record.get("at")
    incarnation = None if record is None else record.get("incarnation")
    is_number = isinstance(incarnation, int) and not isinstance(incarnation, bool)
    return LogPlace(
        where=where,
        at=float(at) if at is not None else (before.at if before else 0.0),
        incarnation=incarnation if is_number else (before.incarnation if before else 0),  # type: ignore[arg-type]
    )


def _began(record: Record, place: LogPlace) -> Began:
    return Began(
        place=place,
        now_s=_moment_of(record),
        settings=value_of(JobSettings, record.get("settings")),
        register=value_of(Register | None, record.get("register")),
        is_asked=record.get("is_asked") is True,
        version=str(record.get("version")),
    )


def _known(record: Record, place: LogPlace) -> CoreState:
    job: Job = value_of(Job, record.get("state"))
    if any(not 0 <= devices <= MOST_DEVICES for devices in job.nodes.devices.values()):
        raise ValueError(f"a node has more than {MOST_DEVICES} devices")
    return CoreState(
        place=place,
        settings=value_of(JobSettings, record.get("settings")),
        job=job,
        version=str(record.get("version")),
    )


def _require_counts(data: Any, name: str = "") -> None:
    """Refuse numbers of replicas or slots that no job has."""
    if isinstance(data, dict):
        for key, item in data.items():
            _require_counts(item, str(key))
    elif isinstance(data, list):
        for item in data:
            _require_counts(item, name)
    elif name in COUNTS and isinstance(data, int | float) and data > MOST_COUNT:
        raise ValueError(f"{name}: {data} is above {MOST_COUNT}"[:100])


def _moment_of(record: Record) -> float:
    """Return when a core was told what a record says."""
    try:
        return moment(record.get("now_s"))
    except ValueError as error:
        raise ValueError(f"now_s: {error}") from None


def event_in(kind: type, record: Record) -> Any:
    """Return the event that stands in a record, as ``EventLog.write_value`` has written it.

    Raises:
        ValueError: it is none of this kind.
    """
    name = type_name(kind)
    own = {f"{name}_{one}": one for one in ENVELOPE}
    values = {key: item for key, item in record.items() if key not in ENVELOPE}
    return value_of(kind, {own.get(key, key): item for key, item in values.items()})


def quiet_of(entry: object) -> tuple[float, Quiet]:
    """Return when an event of an entry was heard, and the event.

    Raises:
        ValueError: it is no entry.
    """
    match entry:
        case [now_s]:
            return moment(now_s), Ticked()
        case [now_s, str(node), list(replicas)] if all(isinstance(one, str) for one in replicas):
            names = tuple(map(ReplicaId, replicas))
            return moment(now_s), Running(node=NodeId(node), replicas=names)
        case [now_s, str(replica), *numbers] if 3 <= len(numbers) <= 7:
            return moment(now_s), _heartbeat(replica, numbers)
    raise ValueError(f"{str(entry)[:60]!r} is no sign of life")


def _heartbeat(replica: str, numbers: Sequence[object]) -> Progressed:
    padded = (*map(whole, numbers), 0, 0, 0, 0)
    generation, committed, calls, waiting, spoken, stuck, slow = padded[:7]
    if generation is None or committed is None or calls is None or waiting is None or slow is None:
        raise ValueError(f"a heartbeat of {replica!r:.40} counts with what is no number")
    return Progressed(
        replica=ReplicaId(replica),
        generation=Generation(generation),
        committed=committed,
        calls=calls,
        waiting=Generation(waiting),
        is_spoken_for=bool(spoken),
        held_up_by=stuck - HELD_UP if stuck else None,
        slow=slow,
    )


def moment(now_s: object) -> float:
    """Return a moment that somebody wrote.

    Raises:
        ValueError: it is none.
    """
    if isinstance(now_s, bool) or not is_moment(now_s):
        raise ValueError(f"{str(now_s)[:40]!r} is no moment")
    return float(now_s)  # type: ignore[arg-type]  # is_moment: a number
