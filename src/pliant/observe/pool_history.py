"""Who took what from whom in a pool, when and why: read from its event log.

Owns the choice of what people are told, and its words; every reason is the sentence that the
decision itself carried.  Knows nothing of columns or colours.
"""

from __future__ import annotations

from collections import deque
from collections.abc import Callable, Iterable, Mapping
from dataclasses import dataclass
from typing import Any

from pliant.core.device_names import devices_in_words
from pliant.core.tenancy import DEFAULT_TEAM
from pliant.core.text import counted
from pliant.observe.log import Record, listed, whole
from pliant.observe.prose import kept_by, quota_of

LAST = 40
"""Moves that are told unless somebody asks for more."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Move:
    """One thing that happened to a claim, or to the whole pool."""

    at: float
    claim: str
    """Empty: it concerns the pool."""

    what: str
    for_: str = ""
    """The claim that gets what this one gives."""

    reason: str = ""


def moves_of(records: Iterable[Record], last: int = LAST) -> list[Move]:
    """Return the last moves, oldest first.

    A claim that asks again changes something that people are not told (what a further replica is
    worth to it, whether it has checkpoints) if its sentence is the same: that is left out.
    """
    kept: deque[Move] = deque(maxlen=max(last, 1))
    asked: dict[str, str] = {}
    teller = Teller()
    for record in records:
        move = teller.move_of(record)
        if move is None:
            continue
        if record.get("kind") == "asked":
            if asked.get(move.claim) == move.what:
                continue
            asked[move.claim] = move.what
        elif record.get("kind") == "gone":
            asked.pop(move.claim, None)
        kept.append(move)
    return list(kept)


class Teller:
    """Tells one record after the other, with the names that the pool gave its devices."""

    def __init__(self) -> None:
        self._names: dict[int, str] = {}

    def move_of(self, record: Record) -> Move | None:
        """Return what a record tells people; None for what only machines need."""
        kind = str(record.get("kind"))
        if kind == "pool_started":
            self._names = {at: str(name) for at, name in enumerate(listed(record, "names"))}
        say = _SAY.get(kind)
        what = None if say is None else say(_called(record, self._names))
        if what is None:
            return None
        return Move(
            at=float(record.get("at") or 0.0),
            claim=_claim_of(record),
            what=what,
            for_=str(record.get("for_") or ""),
            reason=str(record.get("reason") or ""),
        )


def sentence(move: Move) -> str:
    """Say a move in one line."""
    why = f": {move.reason}" if move.reason else ""
    return f"{move.claim} {move.what}{why}".lstrip()


def _claim_of(record: Record) -> str:
    if record.get("kind") in ("pool_started", "pool_stopped", "team_removed"):
        return ""
    return str(_part(record, "claim").get("name") or record.get("name") or "")


def _called(record: Record, names: Mapping[int, str]) -> Record:
    """Return the record with the words for its devices instead of their numbers."""
    several = record.get("devices", [])
    words = {"device": _words([record.get("device")], names)}
    if isinstance(several, list):
        words["devices"] = _words(several, names)
    return {**record, **words}


def _words(devices: list[Any], names: Mapping[int, str]) -> str:
    numbers = [device for device in devices if isinstance(device, int)]  # a log may be damaged
    return devices_in_words(numbers, names) if numbers else ""


def _asked(record: Record) -> str:
    claim = _part(record, "claim")
    low, high = claim.get("min_replicas"), claim.get("ask_replicas")
    wants = str(high) if low == high else f"{low} to {high}"
    team = "" if claim.get("team") == DEFAULT_TEAM else f", team {claim.get('team')}"
    return f"asks for {wants} ({claim.get('priority')}{team})"


def _granted(record: Record) -> str:
    devices = record.get("devices")
    now = f"has {record.get('to')}"
    return f"gets {devices} and {now}" if devices else f"may keep what it {now}"


def _shrunk(record: Record) -> str:
    to, devices = record.get("to"), record.get("devices")
    which = f" without {devices}" if devices else ""
    return f"is to shrink to {to}{which} within {_seconds(record.get('notice_s'))}"


def _seconds(value: Any) -> str:
    return f"{value:g} s" if isinstance(value, int | float) else "no time"


def _recovered(record: Record) -> str:
    devices = record.get("devices")
    return f"is here, with {devices}" if devices else "is here, and waits"


def _noted(record: Record) -> str:
    note = record.get("note")
    return f", {note}" if note else ""


def _ended(record: Record) -> str:
    pids = record.get("pids")
    said = ", ".join(map(str, pids)) if isinstance(pids, list) else str(pids)
    return f"did not leave {record.get('device')}: process {said} was ended"


def _team(record: Record) -> str:
    team = _part(record, "team")
    return quota_of(str(team.get("name")), whole(team.get("quota")))


def _class(record: Record) -> str:
    priority = _part(record, "priority")
    return f"class {priority.get('name')} has the value {priority.get('value')}"


def _part(record: Record, name: str) -> Record:
    """Return what a record tells of one thing; empty if it is damaged."""
    part = record.get(name)
    return part if isinstance(part, dict) else {}


def _started(record: Record) -> str:
    again = " again" if record.get("follows") else ""
    return f"the pool started{again} with {counted(record.get('devices'), 'device')}"


_SAY: dict[str, Callable[[Record], str | None]] = {
    "pool_started": _started,
    "pool_stopped": lambda r: f"the pool stopped{kept_by([*map(str, listed(r, 'keeping'))])}",
    "asked": _asked,
    "recovered": _recovered,
    "grant": _granted,
    "shrink": _shrunk,
    "suspend": lambda r: (
        f"is to save and give everything back within {_seconds(r.get('notice_s'))}"
    ),
    "overdue": lambda r: f"still has {counted(r.get('excess'), 'device')} too many",
    "refuse": lambda r: "is refused",
    "released": lambda r: f"gave back {r.get('devices')}",
    "gone": lambda r: "is gone",
    "release": lambda r: f"was released by {r.get('by')}, within {_seconds(r.get('notice_s'))}",
    "ended": _ended,
    "not_ended": lambda r: f"has not left {r.get('device')}",
    "devices_set": lambda r: f"{counted(r.get('count'), 'device')} may be in use",
    "cordoned": lambda r: f"{r.get('devices')}: not handed out any more{_noted(r)}",
    "uncordoned": lambda r: f"{r.get('devices')}: handed out again",
    "drained": lambda r: f"{r.get('devices')}: taken back{_noted(r)}",
    "team_set": _team,
    "team_removed": lambda r: f"team {r.get('name')} is forgotten",
    "class_set": _class,
    "complaint": lambda r: str(r.get("reason")),
    "not_written": lambda r: "the state cannot be written; nothing is handed out",
}
"""How each kind is said; a kind that is missing is not told."""
