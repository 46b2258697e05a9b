"""Seeded workloads and traces for ``pliant simulate``: job mixes and spot churn.

    python examples/simulations/generate.py mix --jobs 1000 --days 14 --seed 1 > mix.csv
    python examples/simulations/generate.py spot --nodes 32 --losses-per-hour 2 > spot.csv

The same words give the same jobs or changes, whatever the machine.  Needs Python only.
"""

from __future__ import annotations

import argparse
import math
import random
import sys

DAY_S = 86_400.0

MEDIAN_S = 1144.0
MEAN_S = 13_136.0
"""Of how long a job runs: the figures published for Philly (Jeon et al., ATC 2019), as they are
quoted most often."""

LONGEST_S = 30 * DAY_S
"""No job runs for longer."""

SPREAD = 2.2376265858090023
"""Sigma of the log-normal with this median that has this mean when it ends at the longest."""

ONE_SHARE, EIGHT_SHARE = 0.93, 0.023
"""Shares of jobs on one accelerator, and on eight or more."""

EIGHTS = ((8, 0.7), (16, 0.2), (32, 0.1))
"""Of those with eight or more, how many have how many; the published figures do not say."""

FEW = ((2, 0.6), (4, 0.4))

Job = tuple[str, float, float, int, int, int, int | None]
"""Of each job ``COLUMNS``."""

COLUMNS = ("name", "arrival_s", "work_s", "devices", "min", "max", "slots")


def mix(*, jobs: int = 1000, days: float = 14, elastic: float = 0.1, seed: int = 0) -> list[Job]:
    """Return jobs as on a shared cluster; this share of them is elastic.

    Arrivals follow the working day: at night they are a third as frequent as at noon.
    """
    same = [float(jobs), float(days), float(seed)]  # with another share the same jobs
    draw = random.Random(f"mix {same}")
    arrivals = sorted(_arrival(draw, days) for _ in range(jobs))
    return [_job(draw, number, at_s, elastic=elastic) for number, at_s in enumerate(arrivals, 1)]


def spot(
    *,
    nodes: int = 32,
    days: float = 1,
    losses_per_hour: float = 2,
    burst: float = 3,
    away_s: float = 1200,
    seed: int = 0,
) -> list[tuple[float, int]]:
    """Return how many nodes there are from when on: they come and go.

    Losses come at random and take several nodes at once (``burst`` in the mean); each node comes
    back by itself after a while (``away_s`` in the mean).
    """
    names = ("nodes", "days", "lossesPerHour", "burst", "awayInSeconds", "seed")
    values = (nodes, days, losses_per_hour, burst, away_s, seed)
    given = dict(zip(names, map(float, values), strict=True))
    draw = random.Random(f"spot {given}")
    end_s, rate, at_s = days * DAY_S, losses_per_hour / 3600, 0.0
    moves: list[tuple[float, int]] = []
    while rate and (at_s := at_s + draw.expovariate(rate)) < end_s:
        count = 1
        while draw.random() < 1 - 1 / burst:
            count += 1
        moves.append((at_s, -count))
        moves += [(at_s + draw.expovariate(1 / away_s), 1) for _ in range(count)]
    changes, missing = [(0.0, nodes)], 0  # bursts may take more than there are
    for moment_s, move in sorted(moves):
        if moment_s >= end_s:
            break
        missing -= move
        left = max(0, nodes - missing)
        if left != changes[-1][1]:
            changes.append((round(moment_s, 3), left))
    return changes


def _arrival(draw: random.Random, days: float) -> float:
    """Return a moment; more often by day than by night."""
    while True:
        at_s = draw.random() * days * DAY_S
        noon = math.cos((at_s / DAY_S - 0.5) * 2 * math.pi)
        if draw.random() < (2 + noon) / 3:
            return round(at_s, 3)


def _job(draw: random.Random, number: int, at_s: float, *, elastic: float) -> Job:
    devices = _devices(draw)
    work_s = min(LONGEST_S, math.exp(draw.gauss(math.log(MEDIAN_S), SPREAD)))
    is_elastic = draw.random() < elastic
    return (
        f"j{number}",
        at_s,
        round(max(1.0, work_s), 3),
        devices,
        max(1, devices // 2) if is_elastic else devices,
        4 * devices if is_elastic else devices,
        16 * devices if is_elastic else None,
    )


def _devices(draw: random.Random) -> int:
    where = draw.random()
    if where < ONE_SHARE:
        return 1
    sizes = EIGHTS if where < ONE_SHARE + EIGHT_SHARE else FEW
    at = draw.random()
    for size, share in sizes:
        at -= share
        if at < 0:
            return size
    return sizes[-1][0]


def csv_of(jobs: list[Job]) -> str:
    """Return the workload as ``pliant simulate`` reads it."""
    rows = [COLUMNS, *(["" if cell is None else str(cell) for cell in job] for job in jobs)]
    return "".join(",".join(row) + "\n" for row in rows)


def main() -> None:
    """Read the command line, and print the file."""
    parser = argparse.ArgumentParser(description=(__doc__ or "").partition("\n")[0])
    kinds = parser.add_subparsers(dest="kind", required=True)
    jobs = kinds.add_parser("mix", help="a workload")
    jobs.add_argument("--jobs", type=int, default=1000)
    jobs.add_argument("--days", type=float, default=14)
    jobs.add_argument("--elastic", type=float, default=0.1, help="share of the jobs")
    churn = kinds.add_parser("spot", help="a trace of nodes that come and go")
    churn.add_argument("--nodes", type=int, default=32)
    churn.add_argument("--days", type=float, default=1)
    churn.add_argument("--losses-per-hour", type=float, default=2)
    churn.add_argument("--burst", type=float, default=3, help="nodes of a loss, in the mean")
    churn.add_argument(
        "--away-s", type=float, default=1200, help="until a node is back, in the mean"
    )
    for kind in (jobs, churn):
        kind.add_argument("--seed", type=int, default=0)
    given = vars(parser.parse_args())
    if given.pop("kind") == "mix":
        sys.stdout.write(csv_of(mix(**given)))
    else:
        rows = "".join(f"{at_s},{nodes}\n" for at_s, nodes in spot(**given))
        sys.stdout.write(f"time_s,devices\n{rows}")


if __name__ == "__main__":
    main()
