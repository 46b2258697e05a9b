"""Where the time of one event goes: from the request to each thing the event log tells of it.

Pure, over records of the event log.  Knows nothing of prices or of how a job is driven.
"""

from __future__ import annotations

import statistics
from collections.abc import Mapping, Sequence

from pliant.observe.log import Record

OF_THE_GENERATION = {
    "prepare": "first prepare sent",
    "prepared": "last prepared",
    "switch": "first switch sent",
    "reform": "first reform sent",
    "switched": "last switched",
    "commit": "first commit",
}
"""Kinds that name a generation, and which of several counts."""

OF_THE_EVENT = {
    "scaled": "request logged",
    "drain_requested": "request logged",
    "exited": "exit seen",
    "broken": "group broken",
    "start_replica": "replica ordered",
    "worker": "process forked",
    "spare": "spare",
}
"""Kinds that do not; the first after the request counts."""


def milestones(records: Sequence[Record], *, asked_at: float, generation: int) -> dict[str, float]:
    """Return seconds from the request to each milestone of the generation that answered it."""
    found: dict[str, float] = {}
    entered_at = max(
        (r["mono"] for r in records if r["kind"] == "switched" and _generation(r) == generation),
        default=float("inf"),
    )
    for record in records:
        kind, at = record["kind"], record["mono"] - asked_at
        if record["mono"] < asked_at:
            continue
        if kind in OF_THE_EVENT and record["mono"] <= entered_at:
            found.setdefault(OF_THE_EVENT[kind], at)
        elif kind in OF_THE_GENERATION and _generation(record) == generation:
            name = OF_THE_GENERATION[kind]
            found[name] = at if name.startswith("last") else found.get(name, at)
    return dict(sorted(found.items(), key=lambda item: item[1]))


def medians(events: Sequence[Mapping[str, float]]) -> dict[str, float]:
    """Return the median of each milestone over several events, in order of time."""
    names = {name for event in events for name in event}
    found = {name: statistics.median(e[name] for e in events if name in e) for name in names}
    return dict(sorted(found.items(), key=lambda item: item[1]))


def _generation(record: Record) -> int:
    order = record.get("order")
    holder = order if isinstance(order, dict) else record
    return int(holder.get("generation", 0))
