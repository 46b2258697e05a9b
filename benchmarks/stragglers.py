"""What a slow replica costs, and what moving slots brings: ``python -m benchmarks.stragglers``.

Owns the sides that are compared, and the page.  The job is ``thrash_worker``; the slow replica
waits longer in each micro-batch.
"""

from __future__ import annotations

import argparse
import statistics
import tempfile
from collections.abc import Iterator
from dataclasses import dataclass
from itertools import pairwise
from pathlib import Path

from benchmarks import harness, pliant_job
from benchmarks.harness import Figure, Page
from pliant.core.step.balance import Balance, divide

REPLICAS = 4
SLOTS = 16
SLOW = "r2"
LIMIT_S = 600.0
WORKER = harness.ROOT / "benchmarks" / "thrash_worker.py"

SIDES = {
    "nobody is slow": ("even", False),
    "one is slow": ("even", True),
    "one is slow, balance: speed": ("speed", True),
}
"""Name of a side: ``--balance``, and whether a replica is slow."""

METHOD = """\
{replicas} replicas of a GPT of 0.03M parameters share {slots} micro-batches of a step; each waits
for {pace:g} s (waiting, so that {replicas} replicas are faster than one on any machine), on {slow}
{times:g} times as long. {steps} steps; *micro-batches/s* is over the second half of them, by the
median step. *of that without a slow one*: the share that is left. *possible*: the share that the
best division of {slots} micro-batches leaves, by the times that they wait alone. All runs must end
with one digest."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Run:
    """What became of one job."""

    step_s: float
    sizes: tuple[int, ...]
    digest: str


def measure(folder: Path, side: str, chosen: argparse.Namespace) -> Run:
    """Run one job to its end."""
    folder.mkdir()
    balance, has_slow = SIDES[side]
    digest = folder / "digest"
    words = [str(WORKER), f"--steps={chosen.steps}", f"--pace={chosen.pace}", f"--slots={SLOTS}"]
    words += [f"--digest={digest}"]
    if has_slow:
        words += ["--slow", SLOW, str(chosen.times)]
    with pliant_job.running(
        folder,
        [f"--balance={balance}", *words],
        least=REPLICAS,
        start=REPLICAS,
        most=REPLICAS,
        name="stragglers",
    ) as job:
        if job.process.wait(LIMIT_S):
            raise RuntimeError((folder / "output.txt").read_text()[-4000:])
        records = job.records()
    commits = {r["step"]: r["mono"] for r in records if r["kind"] == "commit"}
    late = [commits[step] for step in sorted(commits) if step >= chosen.steps // 2]
    moves = [tuple(r["sizes"]) for r in records if r["kind"] == "slots_moved"]
    return Run(
        step_s=statistics.median(after - before for before, after in pairwise(late)),
        sizes=moves[-1] if moves else (SLOTS // REPLICAS,) * REPLICAS,
        digest=digest.read_text(),
    )


def possible(times: float) -> float:
    """Return which share of the throughput the best division leaves, if waiting were all."""
    paces_us = [round(1000 * times), *[1000] * (REPLICAS - 1)]
    return SLOTS // REPLICAS * 1000 / divide(SLOTS, paces_us, balance=Balance.SPEED).step_us


def figures_of(runs: dict[str, list[Run]], times: float) -> Iterator[Figure]:
    """Yield the rows of all sides."""
    for side, found in runs.items():
        raw = tuple(SLOTS / run.step_s for run in found)
        yield Figure(name=side, unit="micro-batches/s", raw=raw)
    whole, *others = runs
    for side in others:
        pairs = zip(runs[whole], runs[side], strict=True)
        raw = tuple(without.step_s / run.step_s for without, run in pairs)
        target = f">= {0.9 * possible(times):.2f}" if "speed" in side else ""
        yield Figure(name=f"{side}: of that without a slow one", unit="", raw=raw, target=target)
    yield Figure(name="possible", unit="", raw=(possible(times),))


def options() -> argparse.Namespace:
    """Read the command line."""
    parser = argparse.ArgumentParser(description=(__doc__ or "").partition(":")[0])
    parser.add_argument("--rounds", type=int, default=3)
    parser.add_argument("--steps", type=int, default=60)
    parser.add_argument("--pace", type=float, default=0.05, help="seconds of a micro-batch")
    parser.add_argument("--times", type=float, default=3.0, help="how much longer one waits")
    parser.add_argument("--no-page", action="store_true", help="print the table only")
    parser.add_argument("--smoke", action="store_true", help="few steps, no page")
    chosen = parser.parse_args()
    if chosen.smoke:
        chosen.no_page, chosen.steps, chosen.rounds = True, 30, 1
    return chosen


def main() -> None:
    """Measure all sides, and write the page."""
    chosen = options()
    before = harness.load()
    runs: dict[str, list[Run]] = {side: [] for side in SIDES}
    with tempfile.TemporaryDirectory(prefix="pliant-stragglers-") as scratch:
        for number in range(chosen.rounds):
            for place, side in enumerate(SIDES):
                run = measure(Path(scratch) / f"{number}-{place}", side, chosen)
                print(f"{side}: {run}", flush=True)
                runs[side].append(run)
    digests = {run.digest for found in runs.values() for run in found}
    if len(digests) != 1:
        raise SystemExit(f"the results differ: {digests}")
    page = Page(
        theme="stragglers",
        summary="One replica that is slow: what it costs the others, and what moving slots brings.",
        method=METHOD.format(
            replicas=REPLICAS,
            slots=SLOTS,
            slow=SLOW,
            pace=chosen.pace,
            times=chosen.times,
            steps=chosen.steps,
        ),
        figures=tuple(figures_of(runs, chosen.times)),
        command=harness.command_line("stragglers"),
        load=(before, harness.load()),
        notes=("All runs ended with one digest.",),
    )
    harness.publish(page, write=not chosen.no_page)


if __name__ == "__main__":
    main()
