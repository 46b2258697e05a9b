"""What a page shows of a pool over time: who had which device when, and the story in sentences.

Owns the reduction of a pool's log to one object of bounded size.  What is so now is the pool's own
answer (``pool.pool_status``); knows nothing of it.
"""

from __future__ import annotations

import threading
import time
from collections import deque
from pathlib import Path
from typing import Any

from pliant.observe.log import Record, listed, whole
from pliant.observe.pool_history import Teller, sentence
from pliant.observe.reading import follow
from pliant.observe.view import bounded

KEPT = 20_000
"""Stretches of devices, and sentences, that are remembered."""

SHOWN = {"lanes": 256, "spans": 2_000, "moves": 300}
"""Of a view at most; of sentences and stretches the newest."""


class PoolView:
    """Reads the log of a pool as far as it has grown; any number of threads may ask."""

    def __init__(self, log: Path) -> None:
        self._log = log
        self._lock = threading.Lock()
        self._position = 0
        self._teller = Teller()
        self._spans: deque[list[Any]] = deque(maxlen=KEPT)
        """[device, claim, since, until (None: now)]."""

        self._held: dict[int, list[Any]] = {}
        self._moves: deque[dict[str, Any]] = deque(maxlen=KEPT)
        self._began_at = 0.0
        self._ended_at: float | None = None

    def as_json(self, since: float | None, until: float | None, points: int) -> bytes:
        """Return the view of a stretch of time, by the wall clock.

        Raises:
            OSError: the log cannot be read.
        """
        with self._lock:
            self._read()
            now = time.time()
            begins = self._began_at if since is None else since
            ends = (self._ended_at or now) if until is None else until
            return bounded(lambda scale: self._values(begins, ends, scale) | {"now": now})

    def headline(self) -> dict[str, Any]:
        """Return what changes as the pool goes on, with a number that grows with each change.

        Raises:
            OSError: the log cannot be read.
        """
        with self._lock:
            self._read()
            return {"seq": self._position, "is_over": self._ended_at is not None}

    def _values(self, since: float, until: float, scale: float) -> dict[str, Any]:
        few = {name: max(1, int(most * scale)) for name, most in SHOWN.items()}
        spans = [one for one in self._spans if one[2] <= until and (one[3] or until) >= since]
        moves = [one for one in self._moves if since <= one["at"] <= until]
        lanes: dict[int, list[Any]] = {}
        for device, *span in spans[-few["spans"] :]:
            lanes.setdefault(device, []).append(span)
        shown = sorted(lanes)[: few["lanes"]]
        return {
            "seq": self._position,
            "began": self._began_at,
            "ended": self._ended_at,
            "from": since,
            "to": until,
            "lanes": [{"device": device, "spans": lanes[device]} for device in shown],
            "moves": moves[-few["moves"] :],
            "left_out": {
                "lanes": len(lanes) - len(shown),
                "spans": max(0, len(spans) - few["spans"]),
                "moves": max(0, len(moves) - few["moves"]),
            },
        }

    def _read(self) -> None:
        for after, record in follow(self._log, self._position):
            self._add(record, self._position)
            self._position = after

    def _add(self, record: Record, position: int) -> None:
        kind, at = record.get("kind"), float(record.get("at") or 0.0)
        self._began_at = self._began_at or at
        claim = record.get("claim")
        name = str(record.get("name") or (claim.get("name") if isinstance(claim, dict) else ""))
        match kind:
            case "pool_started":
                self._give_back(list(self._held), at)
                self._ended_at = None
            case "pool_stopped":
                self._ended_at = at
            case "grant" | "recovered":
                self._give(name, _devices_in(record), at)
            case "released":
                held = [one for one in _devices_in(record) if self._owner(one) == name]
                self._give_back(held, at)
            case _:
                pass
        if (move := self._teller.move_of(record)) is not None:
            told = {"at": at, "kind": kind, "claim": move.claim, "text": sentence(move)}
            self._moves.append({**told, "position": position})

    def _owner(self, device: int) -> str | None:
        return self._held[device][1] if device in self._held else None

    def _give(self, name: str, devices: list[int], at: float) -> None:
        for device in devices:
            if self._owner(device) != name:
                self._give_back([device], at)
                self._held[device] = [device, name, at, None]
                self._spans.append(self._held[device])

    def _give_back(self, devices: list[int], at: float) -> None:
        for device in devices:
            if device in self._held:
                self._held.pop(device)[3] = at


def _devices_in(record: Record) -> list[int]:
    return [one for one in map(whole, listed(record, "devices")) if one is not None]
