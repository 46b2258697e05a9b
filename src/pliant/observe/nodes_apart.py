"""Nodes of a job that do not reach each other: since when, and when that is tried again.

Owns what a log says of them, in a status and in one line.  Knows nothing of how it is found out.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from datetime import datetime
from typing import Any

from pliant.core.printable import printable
from pliant.observe.log import Record, listed, seconds


def after(record: Record, before: Sequence[Mapping[str, Any]]) -> list[dict[str, Any]]:
    """Return [{nodes, times, since, again_at}] as of this record; ``again_at`` null: now."""
    at = float(record.get("at") or 0.0)
    since = {tuple(one["nodes"]): one["since"] for one in before}
    found = []
    for pair in listed(record, "pairs"):
        match pair:
            case [[str() as one, str() as other], int() as times, again_s]:
                wait_s = seconds(again_s)
                again_at = None if wait_s is None else at + wait_s
                began = since.get((one, other), at)
                nodes = [one, other]
                found.append({"nodes": nodes, "times": times, "since": began, "again_at": again_at})
            case _:
                pass  # damaged
    return found


def line(values: Mapping[str, Any]) -> str:
    """Say it to a person."""
    one, other = values["nodes"]
    at = values["again_at"]
    again = "one replica tries it now" if at is None else f"one replica tries it at {_clock(at)}"
    since = _clock(values["since"])
    return printable(f"nodes {one} and {other} do not reach each other since {since}; {again}")


def _clock(at: float) -> str:
    return datetime.fromtimestamp(at).astimezone().strftime("%H:%M:%S")
