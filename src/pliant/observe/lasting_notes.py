"""Lasting notes: what replicas note of results that may be wrong, told again at the end.

Owns which of them are kept, each once, and how they are told.  Knows nothing of what they mean.
"""

from __future__ import annotations

import re
from collections.abc import Sequence
from typing import Any

from pliant.observe.log import Record

MAX_KEPT = 20
"""Of one job; what comes later is in the log alone."""

MAX_SHOWN = 5
"""In the closing lines, and in a panel."""

_REFUSED = re.compile(r"(?:node .* as )?(\S+) (?:was )?(refused: .*|cannot join: .*)", re.DOTALL)
"""What the coordinator notes of a replica that the job goes on without."""

_NUMBERS = re.compile(r"(?<![\w'])([-+]?[\d.][^\s,;:)]*(, )?)+")
"""Replicas that say the same of other values say it once; digits in quoted names count."""


def after(record: Record, before: list[dict[str, Any]]) -> list[dict[str, Any]]:
    """Return [{text, by, at}] of all so far, in the order in which they came."""
    if record.get("kind") != "note" or len(before) == MAX_KEPT:
        return before
    text, by = str(record.get("text")), record.get("replica")
    if found := _REFUSED.fullmatch(text):
        by, text = found.groups()
    elif not record.get("lasting"):
        return before
    if any(is_same(text, known["text"]) for known in before):
        return before
    return [*before, {"text": text, "by": by, "at": record.get("at") or 0.0}]


def is_same(text: str, other: str) -> bool:
    """Whether two notes differ at most in the numbers that they name."""
    return _NUMBERS.sub("#", text) == _NUMBERS.sub("#", other)


def lines(notes: Sequence[dict[str, Any]]) -> list[str]:
    """Return one line of each, for people; a bounded number."""
    shown = [f"warning ({note['by']}): {note['text']}" for note in notes[:MAX_SHOWN]]
    more = len(notes) - len(shown)
    return [*shown, f"{more} more: pliant status --json"] if more > 0 else shown
