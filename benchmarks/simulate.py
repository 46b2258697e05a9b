"""What a simulation costs, and how that grows with jobs and accelerators: ``benchmarks.simulate``.

Owns the shapes and the page.  Pure Python on one core: no torch; each simulation in a process of
its own, so that its memory is its own.
"""

from __future__ import annotations

import argparse
import hashlib
import json
import resource
import subprocess
import sys
import time
from dataclasses import asdict, dataclass

from examples.simulations import generate

from benchmarks import harness
from benchmarks.harness import Figure, Page
from pliant.simulate import report
from pliant.simulate.measures import measured
from pliant.simulate.resize_costs import IN_PLACE
from pliant.simulate.simulation import SimulatedWorld, Simulation
from pliant.spec.cluster import ClusterSpec
from pliant.spec.workload import parse_workload

SHAPES: tuple[tuple[int, int], ...] = (
    (1_000, 40), (10_000, 200), (100_000, 2_000),
    (10_000, 1_000), (10_000, 5_000), (100_000, 10_000),
)  # fmt: skip
"""Jobs and accelerators: first about as many of both, then with more and more idle accelerators."""

QUOTED = (100_000, 2_000)
DAYS = 14
ELASTIC = 0.1

METHOD = """\
`generate.py mix --jobs N --days 14 --elastic 0.1 --seed R` on accelerators of one kind, in place,
until the last job has ended; {rounds} seeds. The mix is that of `examples/simulations/generate.py`
(93 % of the jobs on one accelerator, 2.3 % on eight or more, median 1,144 s, mean 13,136 s,
arrivals by day and night); one
job in ten is elastic, from half to four times its size. Each simulation runs in a process of its
own. Timed is the processor time of `Simulation.run`, without reading or generating the jobs; memory
is the largest resident set of the whole process, jobs included. An event is one step of
`core.allocation`.
The first seed of each shape is simulated twice, in two processes, and must give the same bytes."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Cost:
    """Of one simulation."""

    cpu_s: float
    memory_mb: float
    events: int
    digest: str
    """Of the report and the file of all jobs."""


def simulate_once(jobs: int, accelerators: int, seed: int) -> Cost:
    """Simulate one shape in this process."""
    spec = ClusterSpec.model_validate({"nodes": [{"name": "all", "count": accelerators}]})
    text = generate.csv_of(generate.mix(jobs=jobs, days=DAYS, elastic=ELASTIC, seed=seed))
    mix = parse_workload(text, source="mix")
    simulation = Simulation(SimulatedWorld(cluster=spec, jobs=mix), IN_PLACE)
    began = time.process_time()
    simulation.run()
    cpu_s = time.process_time() - began
    text = report.as_json([measured(simulation)]) + report.jobs_csv(simulation.records)
    return Cost(
        cpu_s=cpu_s,
        memory_mb=resource.getrusage(resource.RUSAGE_SELF).ru_maxrss / 1024,
        events=simulation.pool.num_events,
        digest=hashlib.sha256(text.encode()).hexdigest(),
    )


def measure(jobs: int, accelerators: int, seed: int) -> Cost:
    """Simulate one shape in a process of its own."""
    words = [sys.executable, "-m", "benchmarks.simulate", "--one", f"{jobs},{accelerators},{seed}"]
    done = subprocess.run(words, cwd=harness.ROOT, capture_output=True, text=True, check=True)
    return Cost(**json.loads(done.stdout))


def figures_of(results: dict[tuple[int, int], list[Cost]]) -> list[Figure]:
    """Return the rows of the page."""
    figures = []
    for (jobs, accelerators), costs in results.items():
        name = f"{jobs:,} jobs, {accelerators:,} accelerators"
        is_quoted = (jobs, accelerators) == QUOTED
        for what, unit, raw, goal in (
            ("time", "s", tuple(one.cpu_s for one in costs), "< 60 s"),
            ("memory", "MB", tuple(one.memory_mb for one in costs), "< 1000 MB"),
            ("per event", "us", tuple(one.cpu_s / one.events * 1e6 for one in costs), ""),
        ):
            target = goal if is_quoted else ""
            figures.append(
                Figure(name=f"{name}: {what}", unit=unit, raw=raw, target=target, goal=target)
            )
    return figures


def options() -> argparse.Namespace:
    """Read the command line."""
    parser = argparse.ArgumentParser(description=(__doc__ or "").partition(":")[0])
    parser.add_argument("--rounds", type=int, default=3, help="seeds of each shape")
    parser.add_argument("--no-page", action="store_true", help="print the table only")
    parser.add_argument("--smoke", action="store_true", help="the smallest shape once, no page")
    parser.add_argument("--one", metavar="JOBS,ACCELERATORS,SEED", help="one simulation, as JSON")
    chosen = parser.parse_args()
    chosen.shapes = SHAPES
    if chosen.smoke:
        chosen.no_page, chosen.rounds, chosen.shapes = True, 1, SHAPES[:1]
    return chosen


def main() -> None:
    """Measure every shape in turns and write the page."""
    chosen = options()
    if chosen.one is not None:
        jobs, accelerators, seed = map(int, chosen.one.split(","))
        print(json.dumps(asdict(simulate_once(jobs, accelerators, seed))))
        return
    before = harness.load()
    results: dict[tuple[int, int], list[Cost]] = {}
    for seed in range(chosen.rounds):
        for jobs, accelerators in chosen.shapes:
            cost = measure(jobs, accelerators, seed)
            results.setdefault((jobs, accelerators), []).append(cost)
            if seed == 0 and measure(jobs, accelerators, seed).digest != cost.digest:
                raise RuntimeError(f"{jobs} jobs are not the same when they are simulated again")
            print(f"{jobs:,} on {accelerators:,}, seed {seed}: {cost.cpu_s:.1f} s", flush=True)
    page = Page(
        theme="simulate",
        summary="What a simulation costs, and how that grows with jobs and accelerators.",
        method=METHOD.format(rounds=chosen.rounds),
        figures=tuple(figures_of(results)),
        command=harness.command_line("simulate"),
        load=(before, harness.load()),
    )
    harness.publish(page, write=not chosen.no_page)


if __name__ == "__main__":
    main()
