"""Jobs that Slurm has exported, and the workload that they make.

Owns how an export is read (the columns that are needed, and the sentence for what cannot be read):
moments become seconds since the first job was submitted, and what cannot be simulated is left out
and counted.

Slurm, ``sacct --parsable2``:

    JobID|Submit|Start|End|AllocTRES
    4711|2026-10-01T08:00:00|2026-10-01T09:30:00|2026-10-02T01:00:00|cpu=64,gres/gpu=8,node=1

A column Eligible counts where it is there: a job that waits for another, or for a time that its
user has set, waits for no accelerator.
"""

from __future__ import annotations

import math
import re
from collections import Counter
from collections.abc import Sequence
from dataclasses import dataclass, replace
from datetime import UTC, datetime

from pliant.core.errors import ConfigError
from pliant.spec.pool import MOST_DEVICES
from pliant.spec.workload import Curve, WorkloadJob

FEW = 0.1
"""An export with a smaller share of its jobs in a larger share of its time than this begins with
those that ran on from before; the others of that time had ended, and are not in it."""

TWICE = 1.8
"""How much faster an elastic job is with twice the devices, where nothing better is known."""

NEEDED = ("JobID", "Submit", "Start", "End", "AllocTRES")

ELIGIBLE = "Eligible"

NEVER = ("Unknown", "None", "")
"""What stands for a moment that has not come."""


@dataclass(frozen=True, slots=True, kw_only=True)
class ExportedJob:
    """One job as its scheduler tells it; moments are Unix seconds."""

    name: str
    submitted_s: float
    began_s: float
    ended_s: float | None
    """None: it still ran when it was exported."""

    devices: int
    line: int = 0


@dataclass(frozen=True, slots=True, kw_only=True)
class Export:
    """What an export becomes."""

    jobs: list[WorkloadJob]
    notes: tuple[str, ...]
    """What was left out, and what was assumed, with how many."""


def unix_s(text: str) -> float | None:
    """Read ``2026-10-01T08:00:00``, in UTC unless it says where; None: it is no time."""
    try:
        moment = datetime.fromisoformat(text)
    except ValueError:
        return None
    return moment.replace(tzinfo=moment.tzinfo or UTC).timestamp()


def workload_of(exported: Sequence[ExportedJob | str], *, source: str) -> Export:
    """Make a workload of the jobs of an export, and of the words for those that were left out.

    Raises:
        ConfigError: there is nothing to simulate.
    """
    found = [one for one in exported if not isinstance(one, str)]
    exported_s = max((one.ended_s or one.began_s for one in found), default=0.0)
    notes = Counter(one for one in exported if isinstance(one, str))
    kept = []
    for one in found:
        ended_s = exported_s if one.ended_s is None else one.ended_s
        if ended_s <= one.began_s:
            notes["jobs that took no time"] += 1
        else:
            kept.append(replace(one, ended_s=ended_s))
    told = [f"left out: {number} {what}" for what, number in notes.items() if number]
    if not kept:
        beside = f" ({'; '.join(told)})" if told else ""
        raise ConfigError(f"{source} has no job that trained on accelerators{beside}")
    running = sum(one.ended_s is None for one in found)
    if running:
        told.append(f"{running} jobs that still ran end with the export")
    cut = _cut(kept)
    if earlier := sum(one is not other for one, other in zip(kept, cut, strict=True)):
        told.append(f"{earlier} jobs were submitted before the export begins, and arrive with it")
    if sparse := _sparse_beginning(cut):
        told.append(sparse)
    return Export(jobs=_jobs(cut), notes=tuple(told))


def _cut(kept: list[ExportedJob]) -> list[ExportedJob]:
    """Let nobody arrive before the beginning of a window, where several jobs begin at once.

    These ran already, and since when is not said; before it nothing is known of any other.
    """
    first_s = min(one.began_s for one in kept)
    if sum(one.began_s == first_s for one in kept) < 2:
        return kept
    return [
        one if one.submitted_s >= first_s else replace(one, submitted_s=first_s) for one in kept
    ]


def _sparse_beginning(kept: Sequence[ExportedJob]) -> str:
    """Say so if a long time at the beginning has hardly a job."""
    first_s = min(one.began_s for one in kept)
    first_end_s, last_s = (which(one.ended_s or 0.0 for one in kept) for which in (min, max))
    early = sum(one.began_s < first_end_s for one in kept)
    if first_end_s - first_s <= FEW * (last_s - first_s) or early >= FEW * len(kept):
        return ""
    hours, whole = (first_end_s - first_s) / 3600, (last_s - first_s) / 3600
    return (
        f"only {early} of {len(kept)} jobs began in the first {hours:.0f} of {whole:.0f} hours:"
        " others that had ended by then are missing, and what seems idle there was not; cut the"
        " export to a window (sacct -T)"
    )


def _jobs(kept: Sequence[ExportedJob]) -> list[WorkloadJob]:
    """Return them in the order of their arrival, each with a name of its own."""
    first_s = min(one.submitted_s for one in kept)
    times: Counter[str] = Counter()
    jobs = []
    for one in sorted(kept, key=lambda one: one.submitted_s):
        name = one.name or f"line {one.line}"
        times[name] += 1
        again = times[name]
        jobs.append(
            WorkloadJob(
                name=name if again == 1 else f"{name}#{again}",
                arrival_s=one.submitted_s - first_s,
                began_s=one.began_s - first_s,
                work_s=(one.ended_s or math.nan) - one.began_s,
                devices=one.devices,
                min_devices=one.devices,
                max_devices=one.devices,
                line=one.line,
            )
        )
    return jobs


def made_elastic(jobs: Sequence[WorkloadJob], *, least: int) -> list[WorkloadJob]:
    """Let jobs of at least so many devices have from half to twice as many."""
    return [
        job
        if job.is_elastic or job.devices < least
        else replace(
            job,
            min_devices=max(1, job.devices // job.workers // 2) * job.workers,
            max_devices=2 * job.devices if 2 * job.devices <= MOST_DEVICES else job.devices,
            curve=_curve(job.devices, job.workers),
        )
        for job in jobs
    ]


def _curve(devices: int, workers: int) -> Curve:
    """Return speeds of which each doubling makes ``TWICE`` as much."""
    half = max(1, devices // workers // 2) * workers
    sizes = sorted({half, devices, 2 * devices})
    return tuple((size, TWICE ** math.log2(size / devices)) for size in sizes)


def is_sacct(text: str) -> bool:
    """Whether the first line is one of names between bars."""
    return "|" in text.lstrip().partition("\n")[0]


def parse_sacct(text: str, *, source: str) -> Export:
    """Read an export; what else it has in columns does not matter.

    Raises:
        ConfigError: a column is missing, or a line cannot be read; it is named.
    """
    lines = [(at, line) for at, line in enumerate(text.splitlines(), 1) if line.strip()]
    (first, header), rest = lines[0], lines[1:]
    names = header.rstrip("|").split("|")
    for name in NEEDED:
        if name not in names:
            raise ConfigError(
                f"{source} line {first}: the column {name} is missing; export with"
                f" `sacct --parsable2 -o {','.join(NEEDED)}`"
            )
    found: list[ExportedJob | str] = []
    for at, line in rest:
        cells = line.split("|")
        if len(cells) == len(names) + 1 and not cells[-1]:
            cells.pop()  # of --parsable
        if len(cells) != len(names):
            raise ConfigError(
                f"{source} line {at} has {len(cells)} fields; expected {len(names)}, as in line"
                f" {first}"
            )
        found.append(_slurm_job(dict(zip(names, cells, strict=True)), f"{source} line {at}", at))
    return workload_of(found, source=source)


def _slurm_job(row: dict[str, str], where: str, line: int) -> ExportedJob | str:
    """Return a job, or why it is none."""
    if "." in row["JobID"]:
        return "steps of jobs"
    if not row["AllocTRES"]:  # not even a processor: it waits, or was cancelled while it did
        return "jobs that never began"
    devices = _slurm_devices(row["AllocTRES"])
    if not devices:
        return "jobs without an accelerator"
    if devices > MOST_DEVICES:
        raise ConfigError(
            f"{where}: {devices} accelerators; at most {MOST_DEVICES} can be simulated"
        )
    submitted_s, began_s, ended_s = (
        _moment(row, name, where) for name in ("Submit", "Start", "End")
    )
    if submitted_s is None:
        raise ConfigError(f"{where}: Submit is empty; expected a time, such as 2026-10-01T08:00:00")
    if began_s is None:
        return "jobs that never began"
    for name, earlier, later, at_s, until_s in (
        ("Start", "Submit", "Start", submitted_s, began_s),
        ("End", "Start", "End", began_s, began_s if ended_s is None else ended_s),
    ):
        if until_s < at_s:
            raise ConfigError(
                f"{where}: {name} {row[later]} is before {earlier} {row[earlier]}; if the clock was"
                " put back, export with TZ=UTC"
            )
    eligible_s = _moment(row, ELIGIBLE, where) if ELIGIBLE in row else None
    if eligible_s is not None:
        submitted_s = max(submitted_s, min(eligible_s, began_s))
    return ExportedJob(
        name=row["JobID"],
        submitted_s=submitted_s,
        began_s=began_s,
        ended_s=ended_s,
        devices=devices,
        line=line,
    )


def _slurm_devices(tres: str) -> int:
    """Return the accelerators of ``cpu=64,gres/gpu=8,gres/gpu:a100=8,node=1``."""
    whole = re.search(r"(?:^|,)gres/gpu=(\d{1,9})(?:,|$)", tres)
    if whole:
        return int(whole[1])
    return sum(int(number) for number in re.findall(r"(?:^|,)gres/gpu:[^=,]+=(\d{1,9})", tres))


def _moment(row: dict[str, str], name: str, where: str) -> float | None:
    text = row[name]
    if text in NEVER:
        return None
    moment_s = unix_s(text)
    if moment_s is None:
        raise ConfigError(
            f"{where}: {name} {text[:40]!r} is no time; expected one such as 2026-10-01T08:00:00"
        )
    return moment_s
