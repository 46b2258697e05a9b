"""What Slurm's ``sacct --parsable2`` prints, read as jobs.

Owns the columns that are needed, and the sentence for a line that cannot be read.

    JobID|Submit|Start|End|AllocTRES
    4711|2026-10-01T08:00:00|2026-10-01T09:30:00|2026-10-02T01:00:00|cpu=64,gres/gpu=8,node=1

A column Eligible counts where it is there: a job that waits for another, or for a time that its
user has set, waits for no accelerator.
"""

from __future__ import annotations

import re
from collections import Counter

from pliant.core.errors import ConfigError
from pliant.spec.exported_jobs import Export, ExportedJob, unix_s, workload_of
from pliant.spec.pool import MOST_DEVICES

NEEDED = ("JobID", "Submit", "Start", "End", "AllocTRES")
ELIGIBLE = "Eligible"
NEVER = ("Unknown", "None", "")
"""What stands for a moment that has not come."""


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
    found: list[ExportedJob] = []
    left_out: Counter[str] = Counter()
    for at, line in rest:
        cells = line.split("|")
        if len(cells) == len(names) + 1 and not cells[-1]:
            cells.pop()  # of --parsable
        if len(cells) != len(names):
            raise ConfigError(
                f"{source} line {at} has {len(cells)} fields; expected {len(names)}, as in line"
                f" {first}"
            )
        job = _job(dict(zip(names, cells, strict=True)), f"{source} line {at}", at)
        if isinstance(job, str):
            left_out[job] += 1
        else:
            found.append(job)
    return workload_of(found, left_out, source=source)


def _job(row: dict[str, str], where: str, line: int) -> ExportedJob | str:
    """Return a job, or why it is none."""
    if "." in row["JobID"]:
        return "steps of jobs"
    if not row["AllocTRES"]:  # not even a processor: it waits, or was cancelled while it did
        return "jobs that never began"
    devices = _devices(row["AllocTRES"])
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


def _devices(tres: str) -> int:
    """Return the accelerators of ``cpu=64,gres/gpu=8,gres/gpu:a100=8,node=1``."""
    whole = re.search(r"(?:^|,)gres/gpu=(\d{1,9})(?:,|$)", tres)
    if whole:
        return int(whole[1])
    return sum(int(number) for number in re.findall(r"(?:^|,)gres/gpu:[^=,]+=(\d{1,9})", tres))


def _moment(row: dict[str, str], name: str, where: str) -> float | None:
    if row[name] in NEVER:
        return None
    moment_s = unix_s(row[name])
    if moment_s is None:
        raise ConfigError(
            f"{where}: {name} {row[name][:40]!r} is no time; expected one such as"
            " 2026-10-01T08:00:00, or Unknown"
        )
    return moment_s
