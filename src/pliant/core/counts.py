"""Counts and lists as people write them: ``1 device``, ``2 devices``; ``a, b and c``.

Owns the plural and the last comma, and nothing else.
"""

from __future__ import annotations

from collections.abc import Sequence


def counted(number: object, noun: str = "device") -> str:
    """Return ``number`` with its noun.

    >>> counted(1), counted(2, "replica")
    ('1 device', '2 replicas')
    """
    plural = "es" if noun.endswith("batch") else "s"
    return f"{number} {noun}" if number == 1 else f"{number} {noun}{plural}"


def in_words(names: Sequence[str], most: int | None = None) -> str:
    """Return all of them in one phrase, or the first and how many more there are.

    >>> in_words(["a"]), in_words(["a", "b", "c"]), in_words(["a", "b", "c"], 1)
    ('a', 'a, b and c', 'a and 2 more')
    """
    if most is not None and len(names) > most:
        names = [*names[:most], f"{len(names) - most} more"]
    *before, last = names
    return f"{', '.join(before)} and {last}" if before else last
