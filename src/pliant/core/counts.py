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


def in_words(names: Sequence[str]) -> str:
    """Return all of them in one phrase.

    >>> in_words(["a"]), in_words(["a", "b", "c"])
    ('a', 'a, b and c')
    """
    *before, last = names
    return f"{', '.join(before)} and {last}" if before else last
