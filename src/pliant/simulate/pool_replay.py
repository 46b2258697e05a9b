"""A recorded pool, played once more through the core that shared its devices out, and compared.

Owns how that is found in the log of a pool, and the comparison: of each thing that the core was
told, whether it answers the same as was recorded then.  After a gap, or a difference, nothing is
certain until the pool was started anew.  Decides nothing: who gets what is ``core.allocation``'s.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import dataclass, field
from itertools import islice
from pathlib import Path
from typing import get_args

from pliant.core.allocation import Action, Asked, DevicesSet, Event, Recovered, kinds
from pliant.core.allocation.kinds import KindedPool, PoolBeginning, begun
from pliant.core.allocation.values import Actions
from pliant.core.commands import type_name
from pliant.core.errors import ConfigError
from pliant.core.tenancy import MOST_SLOTS
from pliant.core.text import in_one_line
from pliant.observe import parts
from pliant.observe.core_values import event_in, value_of
from pliant.observe.log import Record, fields_of, kind_of
from pliant.simulate.replay import Break, difference_between
from pliant.simulate.replay_log import Gap, LogPlace, LogWalk, is_torn, moment_of
from pliant.spec.pool import MOST_DEVICES

BEGAN = "pool_began"
TOLD = {type_name(kind): kind for kind in get_args(Event)}
SAID = frozenset(type_name(kind) for kind in get_args(Action))

OF_POOLS = frozenset({"pool_started", BEGAN, *TOLD, *SAID})
"""Kinds that no log of a job has."""

LOOKED_AT = 1000
"""Lines in which a pool's log shows what it is."""


def is_pool_log(log: Path) -> bool:
    """Whether this is the log of a pool, and of no job."""
    walk = LogWalk()
    for position, line in islice(parts.lines(log), LOOKED_AT):
        _, record = walk.record_or_gaps(log, position, line)
        if record.get("kind") in OF_POOLS:
            return True
    return False


@dataclass(frozen=True, slots=True, kw_only=True)
class PoolTurn:
    """One thing that the core of a pool was told, what was recorded of its answer, and is now."""

    place: LogPlace
    now_s: float
    event: Event | None
    """None: the pool begins."""

    record: Record
    beginning: PoolBeginning | None = None
    version: str = ""
    """Beginning: of the pliant that wrote this."""

    actions: Actions | None = None
    """What the core answers now; None: that is not known."""

    recorded: tuple[Record, ...] = ()
    difference: str | None = None

    @property
    def is_quiet(self) -> bool:
        """Whether it has no consequence that anybody is told."""
        return self.event is not None and not self.actions and not self.recorded


PoolStep = PoolTurn | Break


@dataclass(slots=True)
class _Waiting:
    """What was told last, while what was recorded of the answer is collected."""

    place: LogPlace
    now_s: float
    event: Event
    record: Record
    said: list[Record] = field(default_factory=list)


def pool_replayed(log: Path) -> Iterator[PoolStep]:
    """Play the log of a pool; yield each turn once all that was recorded of it is known."""
    walk, replay = LogWalk(), _PoolReplay()
    for position, line in parts.lines(log):
        gaps, record = walk.record_or_gaps(log, position, line)
        for gap in gaps:
            yield from replay.lose(gap)
        if record and walk.place is not None:
            yield from replay.read(record, walk.place)
    yield from replay.end(is_last=True)
    if walk.place is not None and is_torn(log):
        yield from replay.lose(Gap(place=walk.place, why="the last line is cut off"))


@dataclass(slots=True)
class _PoolReplay:
    core: KindedPool | None = None
    """None: what it knows is not certain."""

    waiting: _Waiting | None = None
    latest_s: float = 0.0

    def lose(self, gap: Gap) -> Iterator[PoolStep]:
        """End what is certain."""
        yield from self.end(is_last=True)
        self.core = None
        yield Break(place=gap.place, is_certain=False, why=gap.why)

    def read(self, record: Record, place: LogPlace) -> Iterator[PoolStep]:
        """Take in the next record."""
        kind = str(record["kind"])
        try:
            if kind == BEGAN:
                yield from self.end(is_last=True)
                yield self._begin(record, place)
            elif kind in TOLD:
                yield from self.end()
                self._hear_event(TOLD[kind], record, place)
            elif kind in SAID and self.waiting is not None:
                self.waiting.said.append(record)
            elif kind == "records_lost":
                why = "records before this one could not be written"
                yield from self.lose(Gap(place=place, why=why))
        except (ValueError, TypeError, ConfigError) as error:
            why = in_one_line(f"this is no {kind[:40]} that can be: {error}")[:300]
            yield from self.lose(Gap(place=place, why=why))

    def _begin(self, record: Record, place: LogPlace) -> PoolTurn:
        beginning: PoolBeginning = value_of(PoolBeginning, record.get("beginning"))
        now_s = moment_of(record)
        for count in (beginning.devices, *map(_devices_of, beginning.events)):
            _require_few(count)
        self.core, self.latest_s = begun(beginning, now_s=now_s), now_s
        return PoolTurn(
            place=place,
            now_s=now_s,
            event=None,
            record=record,
            beginning=beginning,
            version=str(record.get("version")),
            actions=(),
        )

    def _hear_event(self, kind: type, record: Record, place: LogPlace) -> None:
        if record.get("now_s") is None:
            raise ValueError("it is not said when the core was told (older version)")
        event: Event = event_in(kind, record)
        _require_few(_devices_of(event))
        if isinstance(event, Asked | Recovered) and (event.claim.num_slots or 0) > MOST_SLOTS:
            raise ValueError(f"num_slots is above {MOST_SLOTS}")
        now_s = moment_of(record)
        if now_s < self.latest_s:
            raise ValueError(f"time goes back, from {self.latest_s:.6f} s to {now_s:.6f} s")
        self.latest_s = now_s
        self.waiting = _Waiting(place, now_s, event, record)

    def end(self, *, is_last: bool = False) -> Iterator[PoolTurn]:
        """Let the core answer what it was told last.

        ``is_last``: its process may have ended before all of the answer was written.
        """
        told, self.waiting = self.waiting, None
        if told is None:
            return
        actions, difference = None, None
        if self.core is not None:
            try:
                self.core, actions = kinds.step_kinds(self.core, told.event, now_s=told.now_s)
                difference = difference_of(actions, told.said, may_be_cut=is_last)
            except Exception as error:  # whatever stands in the log
                difference = in_one_line(f"the core does not take it: {error!r}")[:400]
            if difference is not None:
                self.core = None
        yield PoolTurn(
            place=told.place,
            now_s=told.now_s,
            event=told.event,
            record=told.record,
            actions=actions,
            recorded=tuple(told.said),
            difference=difference,
        )


def record_of_action(action: Action) -> Record:
    """Return an action as the log has it."""
    return {"kind": kind_of(action), **fields_of(action)}


def difference_of(
    actions: Actions, recorded: Sequence[Record], *, may_be_cut: bool = False
) -> str | None:
    """Say in what an answer differs first from the recorded one; None: in nothing."""
    now = [record_of_action(action) for action in actions]
    return difference_between(now, recorded, may_be_cut=may_be_cut)


def _devices_of(event: Event) -> int:
    return event.count if isinstance(event, DevicesSet) else 0


def _require_few(devices: int) -> None:
    if devices > MOST_DEVICES:
        raise ValueError(f"{devices} devices; at most {MOST_DEVICES} are replayed")
