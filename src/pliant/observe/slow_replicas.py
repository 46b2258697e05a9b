"""Replicas that are far slower than the others: how much, and since when.

Owns what a log says of them, in a status and in one line.  Knows nothing of how it is found out.
"""

from __future__ import annotations

from collections.abc import Mapping
from datetime import datetime
from typing import Any

from pliant.core.printable import printable
from pliant.observe.log import Record, listed, number, seconds


def slow_in(record: Record) -> list[dict[str, Any]]:
    """Return [{replica, times, since}] as of this record."""
    at = float(record.get("at") or 0.0)
    found = []
    for one in listed(record, "replicas"):
        match one:
            case [str() as name, times, for_s]:
                factor, since_s = number(times), seconds(for_s)
                if factor is not None and since_s is not None:
                    found.append({"replica": name, "times": factor, "since": at - since_s})
            case _:
                pass  # damaged
    return found


def slow_line(values: Mapping[str, Any]) -> str:
    """Say it to a person."""
    since = datetime.fromtimestamp(values["since"]).astimezone().strftime("%H:%M:%S")
    return printable(
        f"{values['replica']} takes {values['times']:g} times as long for a micro-batch as the "
        f"others, since {since}"
    )
