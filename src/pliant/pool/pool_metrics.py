"""Numbers for Prometheus, computed from the board when they are asked for, or counted from the log.

Owns which of them is which metric of the table (``observe.metric_table``).  Claims and users are
not among the labels: there is no bound to them.  Teams are, as far as the pool's owner has made
them, and no more than ``MOST_TEAMS``; all others are one.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable, Iterator, Mapping
from typing import Any

from prometheus_client.core import Metric

from pliant.http.exposition import Value, families
from pliant.observe.metric_table import POOL

COUNTED = {
    "grant": "grants",
    "shrink": "shrinks",
    "suspend": "suspensions",
    "refuse": "refusals",
    "ended": "ended_devices",
    "not_ended": "kept_devices",
}
"""Kinds of records that are counted, and what their numbers are called."""


MOST_TEAMS = 100

STATES = (
    *("running", "starting", "waiting", "shrinking"),
    *("suspending", "suspended", "ending"),
)


class PoolCollector:
    """Turns one pool's board into metrics."""

    def __init__(
        self,
        board: Callable[[], dict[str, Any]],
        counts: Mapping[str, int],
        now: Callable[[], float],
    ) -> None:
        """``counts``: of the records of its log, by kind; ``now``: in seconds of the epoch."""
        self._board_now = board
        self._counts = counts
        self._now = now

    def collect(self) -> Iterator[Metric]:
        """Yield every metric with its value now."""
        board = self._board_now()
        states = Counter(claim["state"] for claim in board["claims"])
        since = [one["since"] for one in board["claims"] if one["state"] == "waiting"]
        values: dict[str, Value] = {
            "pliant_pool_devices": _devices(board),
            "pliant_pool_usable_devices": board["usable"],
            "pliant_pool_failing": bool(board["failure"]),
            "pliant_pool_claims": {(state,): states[state] for state in STATES},
            "pliant_pool_longest_wait_seconds": max((self._now() - at for at in since), default=0),
            **_teams(board),
        }
        for kind, name in COUNTED.items():
            values[f"pliant_pool_{name}_total"] = self._counts.get(kind, 0)
        yield from families(POOL, values, {})


def _devices(board: dict[str, Any]) -> dict[tuple[str, ...], float]:
    kinds = Counter((device.get("kind") or "", _state(device)) for device in board["devices"])
    return {
        (kind, state): kinds[kind, state]
        for kind in sorted({one for one, _ in kinds} or {""})
        for state in ("in_use", "idle", "cordoned", "drained", "blocked")
    }


def _state(device: dict[str, Any]) -> str:
    if device["claim"] is not None:
        return "in_use"
    states = ("blocked", "drained", "cordoned")
    return next((state for state in states if device[f"is_{state}"]), "idle")


def _teams(board: dict[str, Any]) -> dict[str, Value]:
    teams = sorted(board["teams"], key=lambda one: -one["share"])
    named, others = teams[:MOST_TEAMS], teams[MOST_TEAMS:]
    shares: dict[tuple[str, ...], float] = {(one["team"],): one["share"] for one in named}
    if others:
        shares["(others)",] = sum(team["share"] for team in others)
    owned = [one for one in named if one["quota"] is not None]
    quotas: dict[tuple[str, ...], float] = {(one["team"],): one["quota"] for one in owned}
    return {"pliant_pool_team_share": shares, "pliant_pool_team_quota": quotas}
