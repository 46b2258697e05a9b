"""Non-finite steps: committed ones whose loss or gradient was nan or inf.

Owns what a log says of them, in numbers and in one line.  Knows nothing of what a session does
about them, beside whether it left an update out.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from pliant.core.counts import counted
from pliant.observe.log import COMMIT, Record


def after(record: Record, before: dict[str, Any] | None) -> dict[str, Any] | None:
    """Return {step, what, steps, skipped} of all so far; the first two are of the newest."""
    if record.get("kind") != COMMIT or not record.get("nonfinite"):
        return before
    known = before or {"steps": 0, "skipped": 0}
    return {
        "step": record.get("step"),
        "what": str(record["nonfinite"]),
        "steps": known["steps"] + 1,
        "skipped": known["skipped"] + bool(record.get("skipped")),
    }


def line(values: Mapping[str, Any]) -> str:
    """Say it to a person."""
    steps, skipped = counted(values["steps"], "step"), values["skipped"]
    what = f"{values['what']} at step {values['step']}; {steps} like it so far"
    return f"{what}, {skipped} skipped" if skipped else what
