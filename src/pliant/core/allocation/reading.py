"""What can be read from a pool: standings, reasons for waiting, totals."""

from __future__ import annotations

from pliant.core.allocation.state import Pool
from pliant.core.allocation.vocabulary import Standing, Summary


def claims(pool: Pool) -> tuple[str, ...]:
    """Return the names of all claims, also withdrawn ones whose devices are not back yet, sorted."""
    raise NotImplementedError


def standing(pool: Pool, name: str) -> Standing | None:
    """Return where a claim stands; None: it is not known."""
    raise NotImplementedError


def why(pool: Pool, name: str) -> str:
    """Say in one sentence what a claim has, and why it has no more.

    With the numbers, and with the rule where one stood in the way of a reclaim.
    """
    raise NotImplementedError


def summary(pool: Pool) -> Summary:
    """Return the totals of the pool; costs as much as there are claims."""
    raise NotImplementedError
