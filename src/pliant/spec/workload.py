"""The file of a workload: jobs that arrive at a cluster, one line for each.

Owns the columns, and the sentence for a line that cannot be read.  Knows nothing of what a job
gets.  ``docs/howto/simulate-a-cluster.md`` has the columns.
"""

from __future__ import annotations

import csv
import math
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass, replace
from difflib import get_close_matches
from typing import Any

from pliant.core.errors import ConfigError
from pliant.core.tenancy import DEFAULT_CLASS, DEFAULT_TEAM
from pliant.core.text import MOST_S
from pliant.spec.pool import MOST_DEVICES

Curve = tuple[tuple[int, float], ...]

MOST_SLOTS = 10_000_000

TWICE = 1.8
"""How much faster an elastic job is with twice the devices, where nothing better is known."""


@dataclass(frozen=True, slots=True, kw_only=True)
class WorkloadJob:
    """One job as its file tells it."""

    name: str
    arrival_s: float
    work_s: float
    """Seconds of training on ``devices``."""

    devices: int = 1
    min_devices: int = 1
    max_devices: int = 1
    workers: int = 1
    """Of a replica, all on one node; sizes are multiples of it."""

    num_slots: int | None = None
    curve: Curve = ()
    """Sizes with their speed, ascending; empty: what the slots make of it."""

    priority: str = DEFAULT_CLASS
    team: str = DEFAULT_TEAM
    device_kind: str = ""
    state_gb: float = 1.0
    """Weights and optimizer state: what a replica that joins must be given."""

    step_s: float = 1.0
    """Of a step on ``devices``: a change waits for the end of one."""

    start_s: float | None = None
    """From starting a process until it can train; None: what the way of resizing says."""

    restart_s: float | None = None
    """Of a restart from a checkpoint; None: what the way of resizing says."""

    target_s: float | None = None
    """Of ``work_s``, what is done when the loss is where somebody wants it."""

    deadline_s: float | None = None
    """Seconds after its arrival."""

    line: int = 0
    """Where it stands in the file; 0: it is of none."""

    @property
    def is_elastic(self) -> bool:
        """Whether it can have several sizes."""
        return self.min_devices < self.max_devices


def parse_workload(text: str, *, source: str) -> list[WorkloadJob]:
    """Read a workload; jobs come in the order of their arrival.

    Empty lines and lines that start with # are left out.

    Raises:
        ConfigError: a line cannot be read; it is named, with what was expected.
    """
    rows = _rows(text, source)
    number, header = next(rows, (0, []))
    if not header:
        raise ConfigError(f"{source} is an empty workload; expected {_names(list(_COLUMNS))}")
    _require_columns(header, f"{source} line {number}")
    jobs = [_job(header, row, source, at) for at, row in rows]
    if not jobs:
        raise ConfigError(f"{source} has no job behind line {number}; expected one in each line")
    lines: dict[str, int] = {}
    for job in jobs:
        if job.name in lines:
            where = f"{source} line {job.line}"
            raise ConfigError(f"{where}: job {job.name} stands in line {lines[job.name]} already")
        lines[job.name] = job.line
    return sorted(jobs, key=lambda job: job.arrival_s)


def made_elastic(jobs: Sequence[WorkloadJob], *, least: int) -> list[WorkloadJob]:
    """Let jobs of at least so many devices have from half to twice as many."""
    return [
        job
        if job.is_elastic or job.devices < least
        else replace(
            job,
            min_devices=max(1, job.devices // job.workers // 2) * job.workers,
            max_devices=2 * job.devices if 2 * job.devices <= MOST_DEVICES else job.devices,
            curve=_usual_curve(job.devices, job.workers),
        )
        for job in jobs
    ]


def _usual_curve(devices: int, workers: int) -> Curve:
    """Return speeds of which each doubling makes ``TWICE`` as much."""
    half = max(1, devices // workers // 2) * workers
    sizes = sorted({half, devices, 2 * devices})
    return tuple((size, TWICE ** math.log2(size / devices)) for size in sizes)


def _rows(text: str, source: str) -> Iterator[tuple[int, list[str]]]:
    for number, line in enumerate(text.split("\n"), 1):
        if not line.strip() or line.lstrip().startswith("#"):
            continue
        try:
            cells = next(csv.reader([line]))
        except csv.Error as error:  # a cell of a hundred thousand letters
            raise ConfigError(f"{source} line {number} is no line of CSV: {error}") from None
        yield number, [cell.strip() for cell in cells]


def _require_columns(header: list[str], where: str) -> None:
    if header[0].startswith("JobID"):
        raise ConfigError(
            f"{where} is of sacct: make a workload of it, as `pliant docs what-would-it-have-saved`"
            " shows"
        )
    if ";" in header[0]:
        raise ConfigError(
            f"{where}: columns stand between commas, not semicolons, and numbers have a point"
        )
    for name in header:
        if name not in _COLUMNS:
            nearest = get_close_matches(name, _COLUMNS, n=1, cutoff=0.5)
            hint = f"did you mean {nearest[0]}?" if nearest else _names(list(_COLUMNS))
            raise ConfigError(f"{where}: unknown column {name[:40]!r}; {hint}")
        if header.count(name) > 1:
            raise ConfigError(f"{where}: the column {name} is given twice")
    for name in ("arrival_s", "work_s"):
        if name not in header:
            raise ConfigError(f"{where}: the column {name} is missing; expected a line of names")


def _job(header: list[str], row: list[str], source: str, number: int) -> WorkloadJob:
    where = f"{source} line {number}"
    if len(row) != len(header):
        expected = f"{len(header)} cells, for {_names(header)}"
        raise ConfigError(f"{where} has {len(row)} cells; expected {expected}")
    cells = {name: cell for name, cell in zip(header, row, strict=True) if cell}
    values: dict[str, Any] = {}
    for name, cell in cells.items():
        values[_COLUMNS[name][1]] = _value(name, cell, where)
    for name in ("arrival_s", "work_s"):
        if name not in values:
            raise ConfigError(f"{where}: {name} is empty; expected {_COLUMNS[name][2]}")
    values.setdefault("name", f"job{number}")
    values.setdefault("devices", values.get("min_devices", values.get("workers", 1)))
    values.setdefault("min_devices", values["devices"])
    values.setdefault("max_devices", max(values["devices"], values["min_devices"]))
    job = WorkloadJob(**values, line=number)
    _require_consistent(job, where)
    return job


def _value(name: str, cell: str, where: str) -> Any:
    read, _, what = _COLUMNS[name]
    value = read(cell)
    if value is None:
        raise ConfigError(f"{where}: {name} {cell[:40]!r} cannot be read; expected {what}")
    return value


def _require_consistent(job: WorkloadJob, where: str) -> None:
    low, high = job.min_devices, job.max_devices
    if not low <= job.devices <= high:
        raise ConfigError(f"{where}: devices {job.devices} is not between min {low} and max {high}")
    for name, size in (("devices", job.devices), ("min", low), ("max", high)):
        if size % job.workers:
            raise ConfigError(
                f"{where}: {name} {size} is no multiple of the {job.workers} workers of a replica"
            )
    if job.num_slots is not None and high // job.workers > job.num_slots:
        raise ConfigError(
            f"{where}: max {high} is above the {job.num_slots} micro-batches of a step; each "
            "replica needs one"
        )
    if job.target_s is not None and job.target_s > job.work_s:
        raise ConfigError(f"{where}: target_s {job.target_s:g} is above work_s {job.work_s:g}")


def _names(names: list[str]) -> str:
    return ",".join(names)


# --- cells: the value, or None if it cannot be read


def _number(least: float, *, is_open: bool = False) -> Callable[[str], float | None]:
    def read(cell: str) -> float | None:
        try:
            value = float(cell)
        except ValueError:
            return None
        is_fit = math.isfinite(value) and least <= value <= MOST_S and "_" not in cell
        return value if is_fit and not (is_open and value == least) else None

    return read


def _count(most: int) -> Callable[[str], int | None]:
    def read(cell: str) -> int | None:
        is_one = cell.isascii() and cell.isdecimal() and len(cell) <= len(str(most))
        return int(cell) if is_one and 1 <= int(cell) <= most else None

    return read


def _curve(cell: str) -> Curve | None:
    """Read ``1:1 2:1.9 8:6.5``; sizes ascend."""
    points: list[tuple[int, float]] = []
    for word in cell.split():
        size, _, speed = word.partition(":")
        at, value = _count(MOST_DEVICES)(size), _number(0.0, is_open=True)(speed)
        if at is None or value is None or (points and at <= points[-1][0]):
            return None
        points.append((at, value))
    return tuple(points) or None


def _word(cell: str) -> str | None:
    return cell if cell.isprintable() and len(cell) <= 256 else None


_SECONDS = (_number(0.0), "a number of seconds of 0 or more")
_SOME_SECONDS = (_number(0.0, is_open=True), "a number of seconds above 0")
_DEVICES = (_count(MOST_DEVICES), f"a whole number of devices from 1 to {MOST_DEVICES}")

_COLUMNS: dict[str, tuple[Callable[[str], Any], str, str]] = {
    "name": (_word, "name", "a name of at most 256 letters"),
    "arrival_s": (_SECONDS[0], "arrival_s", _SECONDS[1]),
    "work_s": (_SOME_SECONDS[0], "work_s", _SOME_SECONDS[1]),
    "devices": (_DEVICES[0], "devices", _DEVICES[1]),
    "min": (_DEVICES[0], "min_devices", _DEVICES[1]),
    "max": (_DEVICES[0], "max_devices", _DEVICES[1]),
    "workers": (_DEVICES[0], "workers", _DEVICES[1]),
    "slots": (_count(MOST_SLOTS), "num_slots", "a whole number from 1 on"),
    "curve": (_curve, "curve", "sizes that ascend with their speeds, such as 1:1 2:1.9 8:6.5"),
    "priority": (_word, "priority", "the name of a class"),
    "team": (_word, "team", "the name of a team"),
    "kind": (_word, "device_kind", "a kind of devices"),
    "state_gb": (_number(0.0), "state_gb", "a number of gigabytes"),
    "step_s": (_SOME_SECONDS[0], "step_s", _SOME_SECONDS[1]),
    "start_s": (_SECONDS[0], "start_s", _SECONDS[1]),
    "restart_s": (_SECONDS[0], "restart_s", _SECONDS[1]),
    "target_s": (_SOME_SECONDS[0], "target_s", _SOME_SECONDS[1]),
    "deadline_s": (_SOME_SECONDS[0], "deadline_s", _SOME_SECONDS[1]),
}
"""What reads a cell, which field it fills, and what was expected."""
