"""What a simulation must know of a job before it can predict one, read off an earlier run.

Owns the figures and how they follow from the event log of a run whose devices came and went.  All
are means: what is lost in a run is a sum.  Knows nothing of the run that is predicted with them.

    commits at size 4:  |    |    |          |   |   |    at size 5
                         step_s    `pause + step_s'
    start_replica ------ start_s ------> switch: whoever joins waits for the end of the step only
"""

from __future__ import annotations

import json
from collections.abc import Iterable, Iterator
from dataclasses import asdict, dataclass
from itertools import pairwise
from pathlib import Path
from statistics import fmean

from pliant.observe.log import Record, members_of
from pliant.observe.timeline import Commit, Timeline


@dataclass(frozen=True, slots=True, kw_only=True)
class Calibration:
    """Seconds, unless something else is said."""

    step_s: dict[int, float]
    """Of a step, by the number of replicas: the scaling curve."""

    num_slots: int
    samples: int
    """Of a step."""

    launch_s: float
    """From the beginning of the trace until the job has its first devices."""

    start_s: float
    """From starting a replica until it could join."""

    join_pause_s: float
    leave_pause_s: float
    joins: int
    """How many the pause is the mean of."""

    leaves: int


@dataclass(frozen=True, slots=True, kw_only=True)
class Story:
    """What the log of one run tells."""

    commits: list[Commit]
    commit_at: list[float]
    """Wall-clock time of each."""

    sizes: dict[int, int]
    """Replicas of each generation."""

    starts: list[float]
    """Of each replica that joined others: from its start to the order that took it in."""


def story_of(records: Iterable[Record]) -> Story:
    """Read a log."""
    timeline, sizes, starts, commit_at = Timeline(), {}, [], []
    known: set[str] = set()
    for record in records:
        before = timeline.num_commits
        timeline.add(record)
        if timeline.num_commits > before:
            commit_at.append(float(record["at"]))
        order = record.get("order")
        if record.get("kind") in ("switch", "reform") and isinstance(order, dict):
            members = set(members_of(order))
            sizes[int(order["generation"])] = len(members)
            at_s = timeline.clock.moment_s(record)
            starts += [at_s - timeline.lives[name].requested for name in members - known if known]
            known |= members
    return Story(commits=list(timeline.commits), commit_at=commit_at, sizes=sizes, starts=starts)


def calibration_of(
    records: Iterable[Record], *, began_at: float, num_slots: int, devices: int
) -> Calibration:
    """Read the figures off a run.

    Args:
        records: its event log.
        began_at: wall-clock time at which the trace of its devices began.
        num_slots: of a step.
        devices: as many sizes must have been trained at.

    Raises:
        ValueError: a size, or a kind of change, did not occur.
    """
    story = story_of(records)
    gaps: dict[int, list[float]] = {}
    for before, after in pairwise(story.commits):
        if before.generation == after.generation:
            gaps.setdefault(story.sizes[after.generation], []).append(after.mono - before.mono)
    step_s = {size: fmean(gaps[size]) for size in sorted(gaps)}
    if missing := set(range(1, devices + 1)) - step_s.keys():
        raise ValueError(f"no two steps in a row at {sorted(missing)} replicas: make it longer")
    pauses = list(_pauses(story, step_s))
    joins = [pause_s for is_join, pause_s in pauses if is_join]
    leaves = [pause_s for is_join, pause_s in pauses if not is_join]
    if not (joins and leaves and story.starts):
        raise ValueError(f"{len(joins)} joins and {len(leaves)} leaves: make it longer")
    start_s, first = fmean(story.starts), story.sizes[story.commits[0].generation]
    return Calibration(
        step_s=step_s,
        num_slots=num_slots,
        samples=story.commits[0].samples,
        launch_s=max(0.0, story.commit_at[0] - began_at - step_s[first] - start_s),
        start_s=start_s,
        join_pause_s=max(0.0, fmean(joins)),
        leave_pause_s=max(0.0, fmean(leaves)),
        joins=len(joins),
        leaves=len(leaves),
    )


def _pauses(story: Story, step_s: dict[int, float]) -> Iterator[tuple[bool, float]]:
    """Yield of each change whether somebody joined, and by how much the step was longer."""
    for before, after in pairwise(story.commits):
        size, now = story.sizes[before.generation], story.sizes[after.generation]
        if size != now:
            yield now > size, after.mono - before.mono - step_s[now]


def write(calibration: Calibration, path: Path) -> None:
    """Keep it for a prediction."""
    path.write_text(json.dumps(asdict(calibration), indent=1) + "\n")


def read(path: Path) -> Calibration:
    """Take one that was kept."""
    values = json.loads(path.read_text())
    values["step_s"] = {int(size): step_s for size, step_s in values["step_s"].items()}
    return Calibration(**values)
