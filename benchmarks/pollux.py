"""A workload of the Pollux paper as `pliant simulate` reads it: ``python -m benchmarks.pollux``.

    python -m benchmarks.pollux adaptdl/simulator/workloads/workload-6.csv > jobs.csv
    pliant simulate examples/simulations/shared.yaml jobs.csv --way preempt,restart:30,in-place

Owns how long each configuration takes, and where that is from.  The workloads (160 jobs in 8 hours,
as in section 5.3 of the paper) are in the branch osdi21-artifact of github.com/petuum/adaptdl; they
are read by their path, and none is part of this repository.
"""

from __future__ import annotations

import argparse
import csv
import sys
from collections.abc import Iterable, Iterator
from pathlib import Path

START_S = 30
"""From being given accelerators until a job trains, and for each change of its accelerators, as
their simulator counts."""

WORK_S: dict[tuple[str, int, int], int] = {
    ("ncf", 1, 32768): 47,
    ("cifar10", 6, 2048): 905, ("cifar10", 8, 2048): 866,
    ("cifar10", 12, 4096): 625, ("cifar10", 16, 4096): 483,
    ("deepspeech2", 6, 320): 4144, ("deepspeech2", 8, 320): 3536, ("deepspeech2", 12, 640): 2485,
    ("bert", 6, 384): 3101, ("bert", 8, 384): 2459,
    ("bert", 12, 384): 1601, ("bert", 16, 384): 1326,
    ("yolov3", 4, 64): 14105,
    ("imagenet", 24, 3200): 35000, ("imagenet", 32, 6400): 27465, ("imagenet", 48, 6400): 24319,
}  # fmt: skip
"""Seconds of training by application, accelerators and batch: the shortest completion time of such
a job in the published results (simulator/results-jobload/tiresias-0.5 and -1.0), in which fixed
sizes are kept, less ``START_S``.  A job of ncf waits for up to 60 s besides, all others too: the
shortest has not waited.  imagenet at 24 never ran undisturbed; it stands between the 80 % and 50 %
of the ideal speed by which their configurations were chosen."""

EFFICIENCY = 0.8
"""Of the smallest configuration, to one accelerator: what they allowed at most."""

DEMOTED_DEVICE_S = 16 * 3600
"""Tiresias puts a job behind all others once it has used so much."""

COLUMNS = (
    "name", "arrival_s", "work_s", "devices", "min", "max", "curve", "priority", "start_s",
)  # fmt: skip


def converted(rows: Iterable[dict[str, str]], *, is_one_class: bool = False) -> Iterator[list[str]]:
    """Yield the lines of our workload.

    Raises:
        ValueError: a job is of a configuration whose time is not known.
    """
    yield list(COLUMNS)
    for row in rows:
        one = (row["application"], int(row["num_replicas"]), int(row["batch_size"]))
        if one not in WORK_S:
            raise ValueError(f"{row['name']}: nothing is published of {one}")
        points = curve(one[0], one[2])
        is_long = one[1] * WORK_S[one] > DEMOTED_DEVICE_S
        yield [
            row["name"],
            row["time"],
            str(WORK_S[one]),
            str(one[1]),
            "1",
            str(max(points)),
            " ".join(f"{size}:{speed:.6g}" for size, speed in points.items()),
            "low" if is_long and not is_one_class else "normal",
            str(START_S),
        ]


def curve(application: str, batch: int) -> dict[int, float]:
    """Return speeds by size at a batch that stays: those measured, and that of one accelerator."""
    known = {
        size: 1 / work_s
        for (name, size, this), work_s in WORK_S.items()
        if (name, this) == (application, batch)
    }
    least = min(known)
    return known if least == 1 else {1: known[least] / (EFFICIENCY * least), **known}


def main() -> None:
    """Write the workload to the standard output."""
    parser = argparse.ArgumentParser(description=(__doc__ or "").partition(":")[0])
    parser.add_argument("workload", type=Path, help="name,time,application,num_replicas,batch_size")
    parser.add_argument(
        "--one-class", action="store_true", help="long jobs wait no longer than others"
    )
    chosen = parser.parse_args()
    with chosen.workload.open(newline="") as lines:
        rows = list(csv.DictReader(lines))
    csv.writer(sys.stdout, lineterminator="\n").writerows(
        converted(rows, is_one_class=chosen.one_class)
    )


if __name__ == "__main__":
    main()
