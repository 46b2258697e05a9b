"""A simulation as text: tables and JSON, with one wording for each number; its jobs as CSV.

Owns names, units and digits.  Two simulations of one world and seed give the same bytes.
"""

from __future__ import annotations

import csv
import io
import json
import math
from collections.abc import Callable, Sequence
from dataclasses import asdict

from pliant.simulate.accounts import JobRecord
from pliant.simulate.measures import Measures


def _share(value: float) -> str:
    return f"{value:.1%}"


def _hours(value: float) -> str:
    return f"{value:.2g}" if 0.0 < value < 0.05 else f"{value:,.1f}"


def _fine_share(value: float) -> str:
    return f"{value:.3%}"


def _count(value: float) -> str:
    return f"{value:,.0f}"


def _money(value: float) -> str:
    return f"{value:,.2f}"


def _duration(seconds: float) -> str:
    for unit, unit_s in (("d", 86_400.0), ("h", 3600.0), ("min", 60.0)):
        if seconds >= 2 * unit_s:
            return f"{seconds / unit_s:,.1f} {unit}"
    return f"{round(seconds, 1):g} s"


ROWS: tuple[tuple[str, str, Callable[[float], str]], ...] = (
    ("jobs", "jobs", _count),
    ("unfinished", "not finished", _count),
    ("waiting", "  not even begun", _count),
    ("makespan_h", "makespan, hours", _hours),
    ("there_h", "accelerator-hours there", _hours),
    ("used_h", "  used", _hours),
    ("useful_h", "    training that counts", _hours),
    ("lost_h", "    training that was lost", _hours),
    ("paused_h", "    paused by changes", _hours),
    ("starting_h", "    starting", _hours),
    ("unused_h", "    held and not training", _hours),
    ("idle_h", "  idle", _hours),
    ("utilisation", "utilisation", _share),
    ("goodput", "goodput", _share),
    ("work_h", "work done, hours at sizes asked", _hours),
    ("queue_mean_s", "queue time, mean", _duration),
    ("queue_p50_s", "queue time, p50", _duration),
    ("queue_p99_s", "queue time, p99", _duration),
    ("completion_mean_s", "completion time, mean", _duration),
    ("completion_p50_s", "completion time, p50", _duration),
    ("completion_p99_s", "completion time, p99", _duration),
    ("elastic_completion_mean_s", "completion time, elastic jobs", _duration),
    ("target_mean_s", "time to the target loss", _duration),
    ("deadlines_met", "deadlines met", _share),
    ("stopped_share", "time without progress", _fine_share),
    ("preemption_cost_h", "lost to changes, hours", _hours),
    ("preemptions", "jobs stopped as a whole", _count),
    ("resizes", "resizes", _count),
    ("interventions", "interventions of people", _count),
    ("cost", "cost", _money),
    ("cost_per_useful_h", "cost of a useful hour", _money),
)
"""Field, what it is called, how it is written."""


def table(columns: Sequence[Measures]) -> list[tuple[str, ...]]:
    """Return the rows of a table, a column for each; numbers that mean nothing are left out."""
    rows: list[tuple[str, ...]] = [("", *(one.way for one in columns))]
    for name, label, text_of in ROWS:
        values = [getattr(one, name) for one in columns]
        if all(math.isnan(value) for value in values) or (name in _OPTIONAL and not any(values)):
            continue
        rows.append((label, *("-" if math.isnan(value) else text_of(value) for value in values)))
    return rows


_OPTIONAL = {"cost", "cost_per_useful_h", "unfinished", "waiting", "lost_h"}
"""Shown only where there is something."""


def as_json(columns: Sequence[Measures], *, is_whole: bool = True) -> str:
    """Return everything for machines; what has no value is null."""
    values = {"is_whole": is_whole, "simulations": [_plain(asdict(one)) for one in columns]}
    return json.dumps(values, indent=2) + "\n"


JOB_COLUMNS = (
    "name", "arrival_s", "began_s", "ended_s", "target_at_s", "is_elastic", "devices", "work_s",
    "held_device_s", "lost_device_s", "stopped_s", "resizes", "preemptions", "interventions",
)  # fmt: skip


def jobs_csv(records: Sequence[JobRecord]) -> str:
    """Return a line for each job."""
    return _csv(
        JOB_COLUMNS, [[_cell(getattr(one, name)) for name in JOB_COLUMNS] for one in records]
    )


def _csv(names: Sequence[str], rows: Sequence[Sequence[str]]) -> str:
    text = io.StringIO()
    writer = csv.writer(text, lineterminator="\n")
    writer.writerow(names)
    writer.writerows(rows)
    return text.getvalue()


def _cell(value: object) -> str:
    if value is None or (isinstance(value, float) and math.isnan(value)):
        return ""
    if isinstance(value, bool):
        return str(int(value))
    return f"{value:.6g}" if isinstance(value, float) and abs(value) < 1 else _whole(value)


def _whole(value: object) -> str:
    return f"{value:.3f}".rstrip("0").rstrip(".") if isinstance(value, float) else str(value)


def _plain(values: dict[str, object]) -> dict[str, object]:
    return {
        name: None
        if isinstance(value, float) and math.isnan(value)
        else round(value, 6)
        if isinstance(value, float)
        else value
        for name, value in values.items()
    }
