"""Numbers for Prometheus, computed from the board when they are asked for, or counted from the log.

Owns the names; their words are those of the glossary.  Claims and users are not among the labels:
there is no bound to them.  Teams are, as far as the pool's owner has made them, and no more than
``MOST_TEAMS``; all others are one.  Counted is what the pool has done since it was started.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable, Iterator, Mapping
from typing import Any

from prometheus_client.core import CounterMetricFamily, GaugeMetricFamily, Metric

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

    def __init__(self, board: Callable[[], dict[str, Any]], counts: Mapping[str, int]) -> None:
        """``counts``: of the records of its log, by kind."""
        self._board_now = board
        self._counts = counts

    def collect(self) -> Iterator[Metric]:
        """Yield every metric with its value now."""
        board = self._board_now()
        yield from _devices(board)
        yield from _claims(board)
        yield from _teams(board)
        for kind, name in COUNTED.items():
            help_text = f"Records of kind {kind} since the pool was started."
            yield CounterMetricFamily(
                f"pliant_pool_{name}", help_text, value=self._counts.get(kind, 0)
            )


def _devices(board: dict[str, Any]) -> Iterator[Metric]:
    kinds = Counter((device.get("kind") or "", _state(device)) for device in board["devices"])
    family = GaugeMetricFamily("pliant_pool_devices", "Devices.", labels=["kind", "state"])
    for kind in sorted({one for one, _ in kinds} or {""}):
        for state in ("in_use", "idle", "cordoned", "drained", "blocked"):
            family.add_metric([kind, state], kinds[kind, state])
    yield family
    usable = board["usable"]
    yield GaugeMetricFamily("pliant_pool_usable_devices", "May be in use now.", value=usable)
    yield GaugeMetricFamily(
        "pliant_pool_failing", "1 while its state cannot be written.", value=bool(board["failure"])
    )


def _state(device: dict[str, Any]) -> str:
    if device["claim"] is not None:
        return "in_use"
    states = ("blocked", "drained", "cordoned")
    return next((state for state in states if device[f"is_{state}"]), "idle")


def _claims(board: dict[str, Any]) -> Iterator[Metric]:
    states = Counter(claim["state"] for claim in board["claims"])
    family = GaugeMetricFamily("pliant_pool_claims", "Claims by state.", labels=["state"])
    for state in STATES:
        family.add_metric([state], states[state])
    yield family


def _teams(board: dict[str, Any]) -> Iterator[Metric]:
    shares = GaugeMetricFamily(
        "pliant_pool_team_share", "Devices that its claims are to have.", labels=["team"]
    )
    quotas = GaugeMetricFamily("pliant_pool_team_quota", "Devices of its own.", labels=["team"])
    teams = sorted(board["teams"], key=lambda one: -one["share"])
    for team in teams[:MOST_TEAMS]:
        shares.add_metric([team["team"]], team["share"])
        if team["quota"] is not None:
            quotas.add_metric([team["team"]], team["quota"])
    if others := teams[MOST_TEAMS:]:
        shares.add_metric(["(others)"], sum(team["share"] for team in others))
    yield shares
    yield quotas
