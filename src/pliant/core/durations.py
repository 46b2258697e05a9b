"""Durations as people write them: ``90s``, ``1.5m``, ``10min``, ``2h``.

Owns the units, and how long any can be.
"""

from __future__ import annotations

import re

MOST_S = 1e9
"""Any time or duration, in seconds: 31 years, so that the moment can be shown as a date."""

MOST_AT = 1e11
"""The last moment that can be shown, in seconds since 1970: in the year 5138."""

_UNITS_S = {"ms": 1e-3, "s": 1.0, "sec": 1.0, "m": 60.0, "min": 60.0, "h": 3600.0, "d": 86_400.0}


def seconds_of(text: str) -> float | None:
    """Return a duration in seconds, or None if it is none; a bare number has no unit and is none.

    >>> seconds_of("1.5m")
    90.0
    """
    found = re.fullmatch(r"(\d+(?:\.\d+)?)\s*([a-z]+)", text.strip())
    return float(found[1]) * _UNITS_S[found[2]] if found and found[2] in _UNITS_S else None


def is_moment(value: object) -> bool:
    """Whether this is a moment in seconds since 1970, or since the machine was started."""
    return isinstance(value, int | float) and 0 <= value <= MOST_AT
