"""Counts as people write them: ``1 device``, ``2 devices``.

Owns the plural and nothing else.
"""

from __future__ import annotations


def counted(number: object, noun: str = "device") -> str:
    """Return ``number`` with its noun.

    >>> counted(1), counted(2, "replica")
    ('1 device', '2 replicas')
    """
    return f"{number} {noun}" if number == 1 else f"{number} {noun}s"
