"""Nodes of a job whose agents are connected and say nothing, and since when.

Owns what a log says of them, in a status and in one line.  Knows nothing of how it is found out.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from datetime import datetime
from typing import Any

from pliant.core.printable import printable
from pliant.observe.log import Record, listed


def after(record: Record, before: Sequence[Mapping[str, Any]]) -> list[dict[str, Any]]:
    """Return [{node, since}] as of this record."""
    at, since = float(record.get("at") or 0.0), {one["node"]: one["since"] for one in before}
    names = [node for node in listed(record, "nodes") if isinstance(node, str)]
    return [{"node": node, "since": since.get(node, at)} for node in names]


def line(values: Mapping[str, Any]) -> str:
    """Say it to a person."""
    since = datetime.fromtimestamp(values["since"]).astimezone().strftime("%H:%M:%S")
    return printable(
        f"nothing is heard of the agent of node {values['node']} since {since}: nothing new is "
        "started there until it speaks"
    )
