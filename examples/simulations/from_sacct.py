"""Makes a workload for ``pliant simulate`` of the jobs that Slurm has exported.

    python from_sacct.py october.txt > october.csv

Moments become seconds since the first job was submitted.  What cannot be simulated is left out and
counted on stderr; a line that cannot be read is named, and nothing is written.  It needs Python
only: change it for what your scheduler prints.

The export is that of ``sacct --parsable2``:

    JobID|Submit|Start|End|AllocTRES
    4711|2026-10-01T08:00:00|2026-10-01T09:30:00|2026-10-02T01:00:00|cpu=64,gres/gpu=8,node=1

A column Eligible counts where it is there: a job that waits for another, or for a time that its
user has set, waits for no accelerator.
"""

from __future__ import annotations

import csv
import re
import sys
from collections import Counter
from collections.abc import Sequence
from dataclasses import dataclass, replace
from datetime import UTC, datetime
from pathlib import Path

FEW = 0.1
"""An export with a smaller share of its jobs in a larger share of its time than this begins with
those that ran on from before; the others of that time had ended, and are not in it."""

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


Row = tuple[str, float, float, float, int]

COLUMNS = ("name", "arrival_s", "work_s", "devices")
"""Of a workload; a row has when its job began in front of the work."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Export:
    """What an export becomes."""

    rows: list[Row]
    """Of the workload, with ``COLUMNS``."""

    notes: tuple[str, ...]
    """What was left out, and what was assumed, with how many."""


class ExportError(Exception):
    """An export cannot be read; the sentence says where."""


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
        ExportError: there is nothing to simulate.
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
        raise ExportError(f"{source} has no job that trained on accelerators{beside}")
    running = sum(one.ended_s is None for one in found)
    if running:
        told.append(f"{running} jobs that still ran end with the export")
    cut = _cut(kept)
    if earlier := sum(one is not other for one, other in zip(kept, cut, strict=True)):
        told.append(f"{earlier} jobs were submitted before the export begins, and arrive with it")
    if sparse := _sparse_beginning(cut):
        told.append(sparse)
    return Export(rows=_rows(cut), notes=tuple(told))


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


def _rows(kept: Sequence[ExportedJob]) -> list[Row]:
    """Return them in the order of their arrival, each with a name of its own."""
    first_s = min(one.submitted_s for one in kept)
    times: Counter[str] = Counter()
    rows = []
    for one in sorted(kept, key=lambda one: one.submitted_s):
        name = one.name or f"line {one.line}"
        times[name] += 1
        again, ended_s = times[name], one.began_s if one.ended_s is None else one.ended_s
        rows.append(
            (
                name if again == 1 else f"{name}#{again}",
                one.submitted_s - first_s,
                one.began_s - first_s,
                ended_s - one.began_s,
                one.devices,
            )
        )
    return rows


def parse_sacct(text: str, *, source: str) -> Export:
    """Read an export; what else it has in columns does not matter.

    Raises:
        ExportError: a column is missing, or a line cannot be read; it is named.
    """
    lines = [(at, line) for at, line in enumerate(text.splitlines(), 1) if line.strip()]
    (first, header), rest = lines[0], lines[1:]
    names = header.rstrip("|").split("|")
    for name in NEEDED:
        if name not in names:
            raise ExportError(
                f"{source} line {first}: the column {name} is missing; export with"
                f" `sacct --parsable2 -o {','.join(NEEDED)}`"
            )
    found: list[ExportedJob | str] = []
    for at, line in rest:
        cells = line.split("|")
        if len(cells) == len(names) + 1 and not cells[-1]:
            cells.pop()  # of --parsable
        if len(cells) != len(names):
            raise ExportError(
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
    submitted_s, began_s, ended_s = (
        _moment(row, name, where) for name in ("Submit", "Start", "End")
    )
    if submitted_s is None:
        raise ExportError(f"{where}: Submit is empty; expected a time, such as 2026-10-01T08:00:00")
    if began_s is None:
        return "jobs that never began"
    for name, earlier, later, at_s, until_s in (
        ("Start", "Submit", "Start", submitted_s, began_s),
        ("End", "Start", "End", began_s, began_s if ended_s is None else ended_s),
    ):
        if until_s < at_s:
            raise ExportError(
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
        raise ExportError(
            f"{where}: {name} {text[:40]!r} is no time; expected one such as 2026-10-01T08:00:00"
        )
    return moment_s


def main() -> int:
    """Read the export that is named, and write the workload to stdout."""
    (path,) = sys.argv[1:]
    try:
        text = Path(path).read_text(encoding="utf-8").removeprefix("\ufeff")
        found = parse_sacct(text, source=path)
    except (ExportError, OSError) as error:
        print(error, file=sys.stderr)
        return 2
    for note in found.notes:
        print(f"{path}: {note}", file=sys.stderr)
    writer = csv.writer(sys.stdout, lineterminator="\n")
    writer.writerow(COLUMNS)
    for name, arrival_s, _, work_s, devices in found.rows:
        writer.writerow((name, *(f"{value:.12g}" for value in (arrival_s, work_s, devices))))
    waits = sorted(began_s - arrival_s for _, arrival_s, began_s, *_ in found.rows)
    mean_h, p99_h = sum(waits) / len(waits) / 3600, waits[len(waits) * 99 // 100] / 3600
    print(f"{path}: jobs waited {mean_h:.1f} h in the mean (p99 {p99_h:.1f} h)", file=sys.stderr)
    return 0


if __name__ == "__main__":
    sys.exit(main())
