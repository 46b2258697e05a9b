"""A recorded run as the core knew it: what each coordinator's core was told, and what it said.

Owns how that is found in the log of a job, and where it cannot be: lines that are none, parts that
are gone, records of a version that did not write what a replay needs.  Nothing here is an error but
a log that is none: what cannot be read is a ``Gap``.  Knows nothing of what the core makes of it.
"""

from __future__ import annotations

import os
import stat
from collections.abc import Iterator
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Any

from pliant.core.commands import type_name
from pliant.core.errors import ConfigError
from pliant.core.events import Event
from pliant.core.job.state import Job, JobSettings
from pliant.core.text import is_moment
from pliant.core.values import Register
from pliant.machine import run_files
from pliant.observe import parts
from pliant.observe.core_values import event_in, value_of
from pliant.observe.log import CONTINUED, Record
from pliant.observe.quiet_inputs import quiet_of
from pliant.observe.reading import record_of
from pliant.wire.bounds import MOST_DEVICES, excess
from pliant.wire.codec import COMMANDS, EVENTS

EVENT_KINDS: dict[str, type] = {type_name(kind): kind for kind in EVENTS}
SAID_KINDS = frozenset({"decision", *map(type_name, COMMANDS)})

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
    event: Event
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


Entry = Began | CoreState | Told | Said | Gap


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


def entries(log: Path) -> Iterator[Entry]:
    """Yield what a replay needs of a log, in order.

    Raises:
        ConfigError: it is no log of a job.
    """
    reader = _InputReader()
    early: list[Entry] = []  # as long as it may be no log at all
    for position, line in parts.lines(log):
        early.extend(reader.entries_of(log, position, line))
        if reader.is_log or len(early) > MOST_EARLY:
            yield from early
            early = []
    if reader.place is None or not reader.is_log:
        name = "" if reader.place is None else f"{reader.place.where}: "
        raise ConfigError(f"{name}{log} is no log of a job: nothing in it is a record of one")
    if is_torn(log):
        yield Gap(place=reader.place, why="the last line is cut off")


def is_torn(log: Path) -> bool:
    """Whether the log ends in the midst of a line."""
    with log.open("rb") as file:
        size = file.seek(0, os.SEEK_END)
        file.seek(max(0, size - 1))
        return file.read(1) not in (b"", b"\n")


@dataclass(slots=True)
class LogWalk:
    """Reads line by line; knows where it is."""

    place: LogPlace | None = None
    _part: int = -1
    _line: int = 0
    _name: str = ""

    def record_or_gaps(self, log: Path, position: int, line: bytes) -> tuple[list[Gap], Record]:
        """Return what is missing up to this line, and its record; an empty one if it is none."""
        part, _ = parts.place(position)
        missing = part != self._part and part != self._part + 1
        if part != self._part:
            self._part, self._line = part, 0
            closed = parts.closed_path(log, part)
            self._name = closed.name if closed.exists() else log.name
        self._line += 1
        record = record_of(line)
        self.place = _place(f"{self._name}:{self._line}", record, self.place)
        gaps = []
        if missing:
            why = "the parts of the log before this one are gone"
            gaps.append(Gap(place=self.place, why=why))
        if record is None and line.strip():
            gaps.append(Gap(place=self.place, why="this line is no record"))
        return gaps, record or {}


@dataclass(slots=True)
class _InputReader(LogWalk):
    """Finds what a core was told."""

    is_log: bool = False
    _is_old: bool = False

    def entries_of(self, log: Path, position: int, line: bytes) -> Iterator[Entry]:
        gaps, record = self.record_or_gaps(log, position, line)
        yield from gaps
        if not record or self.place is None:
            return
        self.is_log |= isinstance(record.get("kind"), str) and "mono" in record
        try:
            yield from self._of_record(record, self.place)
        except (ValueError, TypeError) as error:
            kind = str(record.get("kind"))[:40]
            yield Gap(place=self.place, why=f"this is no {kind} that can be: {error}"[:300])

    def _of_record(self, record: Record, place: LogPlace) -> Iterator[Entry]:
        kind = record.get("kind")
        if kind in EVENT_KINDS or kind in ("core_began", "core_state", "declined"):
            _require_counts(record)
        match kind:
            case "core_began":
                yield _began(record, place)
            case "core_state":
                yield _known(record, place)
            case "heard":
                yield from _heard(record, place)
            case "declined" | "note":
                yield from self._declined_or_noted(record, place)
            case "records_lost":
                yield Gap(place=place, why="records before this one could not be written")
            case str() if kind in EVENT_KINDS:
                yield from self._told(EVENT_KINDS[kind], record, place)
            case str() if kind in SAID_KINDS:
                yield Said(place=place, kind=kind, record=record)
            case _ if kind == CONTINUED:
                pass
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

    def _told(
        self, kind: type, record: Record, place: LogPlace, declined: str | None = None
    ) -> Iterator[Entry]:
        if record.get("now_s") is None:  # of an older version
            if not self._is_old:
                self._is_old = True
                yield Gap(place=place, why="it is not said when the core was told (older version)")
            return
        event = event_in(kind, record)
        yield Told(place=place, now_s=moment_of(record), event=_within(event), declined=declined)


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
        now_s=moment_of(record),
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


def _heard(record: Record, place: LogPlace) -> Iterator[Told]:
    signs = record.get("signs")
    if not isinstance(signs, list) or len(signs) > MOST_SIGNS:
        raise ValueError("it lists no signs of life")
    for now_s, event in map(quiet_of, signs):
        yield Told(place=place, now_s=now_s, event=_within(event), is_sign=True)


def _within(event: Any) -> Event:
    """Return an event whose numbers and names are those that an agent might send."""
    if (found := excess(asdict(event))) is not None:
        raise ValueError(found)
    return event  # type: ignore[no-any-return]  # the kinds are those of events


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


def moment_of(record: Record) -> float:
    """Return when a core was told what a record says.

    Raises:
        ValueError: that is no moment.
    """
    now_s = record.get("now_s")
    if isinstance(now_s, bool) or not is_moment(now_s):
        raise ValueError(f"now_s: {str(now_s)[:40]!r} is no moment")
    return float(now_s)  # type: ignore[arg-type]  # is_moment: a number
