"""Probe: the named points of a step at which a test can make something go wrong.

Owns the one function that the engine calls at each of them.  Must not know what happens there:
without a hook in ``pliant.testing.faults`` nothing does.
"""

from __future__ import annotations

from pliant.testing import faults


def at(point: str, step: int) -> None:
    """Pass ``point`` with ``step`` steps committed so far."""
    if faults.installed is not None:
        faults.installed(point, step)
