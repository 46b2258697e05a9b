"""How much of the wall time trained: goodput, downtime and where it went.

Owns the accounting.  Time is monotonic and runs from the first record of a job to its last one;
the start is the time to the first commit, downtime the part of every gap between commits that
exceeds the median step of that size, where the gap crosses a change of generation.
"""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import dataclass
from itertools import pairwise

from pliant.observe.log import Record, number
from pliant.observe.timeline import Timeline


@dataclass(frozen=True, slots=True, kw_only=True)
class Goodput:
    """Seconds are monotonic; ``goodput`` is committed samples per second of wall time."""

    wall_s: float
    start_s: float
    """From the start of the job to its first commit; the whole time if there is none."""

    downtime_s: float
    """Time in which no step progressed because of a resize, summed; without the start."""

    committed_steps: int
    committed_samples: int
    goodput: float
    """Committed samples per second of wall time."""

    productive: float
    """Share of the wall time that was neither start nor downtime, 0 to 1."""


def goodput_of(records: Iterable[Record]) -> Goodput:
    """Account for a whole log, or for what there is of it."""
    timeline = Timeline()
    commits: dict[tuple[int, int], _Commit] = {}
    monos: list[float] = []
    for record in records:
        timeline.add(record)
        mono = number(record.get("mono"))
        if mono is None:
            continue
        monos = [min([mono, *monos]), max([mono, *monos])]
        if record.get("kind") == "commit":
            commit = _Commit(record, mono, timeline)
            commits.setdefault((commit.step, commit.generation), commit)
    in_order = list(commits.values())
    wall_s = monos[-1] - monos[0] if monos else 0.0
    start_s = in_order[0].mono - monos[0] if in_order else wall_s
    downtime_s = sum(
        max(later.mono - earlier.mono - (timeline.median_step_s(later.size) or 0.0), 0.0)
        for earlier, later in pairwise(in_order)
        if earlier.generation != later.generation
    )
    samples = sum({commit.step: commit.samples for commit in in_order}.values())
    return Goodput(
        wall_s=wall_s,
        start_s=start_s,
        downtime_s=downtime_s,
        committed_steps=len({commit.step for commit in in_order}),
        committed_samples=samples,
        goodput=samples / wall_s if wall_s > 0 else 0.0,
        productive=max(wall_s - start_s - downtime_s, 0.0) / wall_s if wall_s > 0 else 0.0,
    )


class _Commit:
    """What the accounting needs of one commit; the size is that of its generation."""

    def __init__(self, record: Record, mono: float, timeline: Timeline) -> None:
        self.step = int(record.get("step") or 0)
        self.generation = int(record.get("generation") or 0)
        self.mono = mono
        self.samples = int(record.get("samples") or 0)
        self.size = len(timeline.members.get(self.generation, ())) or None
