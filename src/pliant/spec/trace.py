"""Traces of capacity: how many devices there were, and when.

Owns the two forms in which they are written, and the sentence for a line that is neither.  Knows
nothing of who replays one, or how fast.

``docs/howto/simulate-a-cluster.md`` shows both.
"""

from __future__ import annotations

import math
from dataclasses import dataclass

from pliant.core.errors import ConfigError

MOST_DIGITS = 18
"""Of a number of devices; of thousands of digits Python makes no number."""

EXPECTED = "expected milliseconds,add|remove,node or time_s,devices"


@dataclass(frozen=True, slots=True, kw_only=True)
class Change:
    """From a moment on there are so many devices."""

    at_s: float
    """Since the trace began."""

    devices: int


def parse_trace(text: str, *, source: str, most: int) -> list[Change]:
    """Read a trace; of nodes beyond ``most`` nothing is seen.

    The first line decides on the form; a header line, empty lines and lines that start with # are
    left out.  Changes at one moment are taken together.

    Raises:
        ConfigError: a line is of neither form, or goes back in time; it is named.
    """
    rows = [
        (number, [part.strip() for part in line.split(",")])
        for number, line in enumerate(text.splitlines(), 1)
        if line.strip() and not line.lstrip().startswith("#")
    ]
    if rows and rows[0][1][0].replace("_", "").isalpha() and rows[0][1][0] not in ("nan", "inf"):
        rows = rows[1:]  # it names its columns: no letter of it can be a time
    if not rows:
        raise ConfigError(f"{source} is an empty trace; {EXPECTED}")
    changes: list[Change] = []
    nodes: set[str] = set()
    is_bamboo = len(rows[0][1]) == 3
    for number, row in rows:
        where = f"{source} line {number}"
        at_s, devices = _bamboo(row, nodes, where) if is_bamboo else _step(row, where)
        if changes and at_s < changes[-1].at_s:
            raise ConfigError(
                f"{where}: {at_s:g} s is before {changes[-1].at_s:g} s of the line above; a trace"
                " goes forward in time"
            )
        if changes and at_s == changes[-1].at_s:
            changes.pop()
        changes.append(Change(at_s=at_s, devices=min(devices, most)))
    return [
        change
        for before, change in zip([None, *changes], changes, strict=False)
        if before is None or before.devices != change.devices
    ]


def _bamboo(row: list[str], nodes: set[str], where: str) -> tuple[float, int]:
    """Take one event into ``nodes``."""
    if len(row) != 3 or row[1] not in ("add", "remove") or not row[2]:
        raise ConfigError(f"{where}: {_shown(row)}; expected milliseconds,add|remove,node")
    at_s = _time(row[0], where, "milliseconds,add|remove,node") / 1000
    if row[1] == "add":
        nodes.add(row[2])
    else:
        nodes.discard(row[2])
    return at_s, len(nodes)


def _step(row: list[str], where: str) -> tuple[float, int]:
    if len(row) != 2 or not row[1].isdecimal() or len(row[1]) > MOST_DIGITS:
        form = "expected time_s,devices" if len(row) == 2 else EXPECTED
        raise ConfigError(f"{where}: {_shown(row)}; {form}")
    return _time(row[0], where, "time_s,devices"), int(row[1])


def _shown(row: list[str]) -> str:
    return repr(",".join(row)[:40])


def _time(text: str, where: str, form: str) -> float:
    try:
        at = float(text)
    except ValueError:
        at = math.nan
    if not (math.isfinite(at) and at >= 0):
        raise ConfigError(f"{where}: {text!r} is no time; expected {form}")
    return at
