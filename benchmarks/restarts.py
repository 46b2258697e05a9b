"""Restart mode, torchrun's elastic agents and in place: ``python -m benchmarks.restarts``.

Owns the sequence of events in restart mode and the page.  The other two are those of ``resize`` and
``resize_torchrun``, the arithmetic is that of ``events``.
"""

from __future__ import annotations

import argparse
import tempfile
from collections.abc import Iterator, Sequence
from functools import partial
from pathlib import Path

import psutil

from benchmarks import harness, pliant_job, resize, resize_torchrun, torchrun
from benchmarks.events import Cost
from benchmarks.harness import Figure, Page

METHOD = """\
Model and step as in `benchmarks.resize`, with K={slots}: a job of 2 processes grows to 3
(`join`), loses one by SIGKILL (`kill`), and shrinks to 2 (`drain`); {cycles} times on each side.
*pause*: the gap that ends with the first step at the new size, minus the median step at that
size. *samples repeated*: those of steps that were done again. *samples behind*: those that a job
without the event would have trained by five steps after, and this one has not. Every side but in
place keeps a checkpoint each 10 steps. *restart mode*: `pliant run --mode restart` with the
script of torchrun as it is; *with events*: it saves where `pliant.elastic_event()` says so.
*torchrun*: an agent for each process, c10d, `{tuned}`. *in place*: a script with a
`pliant.Session`. All on loopback and CPU, one thread each, on {cores} cores: 3 processes share
them, and starting interpreters competes with what trains. Ratios are of medians; there is none
where those in place are within the spread of steps."""

ROWS = (
    ("pause_s", "pause", "s"),
    ("repeated", "samples repeated", ""),
    ("samples_behind", "samples behind", ""),
)

SIDES = ("restart mode", "restart mode, with events", "torchrun", "in place")


def restart_mode(folder: Path, chosen: argparse.Namespace, *, events: bool) -> resize_torchrun.Run:
    """Grow, kill and shrink a job whose processes are started again."""
    run = resize_torchrun.Run(folder=folder)
    script = [
        *("--mode", "restart", "--max-restarts", "100", "-m", "benchmarks.train_torchrun"),
        *("--steps", "1000000", "--slots", str(chosen.slots), "--tails", str(folder / "tails")),
        *("--checkpoint", str(folder / "newest.pt"), *(["--events"] if events else [])),
    ]
    with pliant_job.running(folder, script, least=1, start=2, most=4, name="restarts") as job:
        run.wait_for(2, asked_at=0.0, what="restart mode: start")
        for _ in range(chosen.cycles):
            run.event("join", partial(job.scale, 3), before=2, after=3)
            run.event("kill", partial(kill_last, job), before=3, after=3)
            run.event("drain", partial(job.scale, 2), before=3, after=2)
    return run


def kill_last(job: pliant_job.PliantJob) -> None:
    """Send SIGKILL to the process with the highest rank."""
    found = [
        one
        for one in psutil.Process(job.process.pid).children(recursive=True)
        if "benchmarks.train_torchrun" in one.cmdline()
    ]
    max(found, key=lambda one: int(one.environ().get("RANK", -1))).kill()


def measured(folder: Path, chosen: argparse.Namespace, side: str) -> list[tuple[str, Cost]]:
    """Return what each event cost on one side."""
    batch = chosen.slots * 2
    if side == "in place":
        priced = resize.measure_pliant(folder, chosen)
        return [(one.kind, one.cost) for one in priced]
    if side == "torchrun":
        run = resize_torchrun.several_agents(
            folder, settings=torchrun.TUNED, slots=chosen.slots, cycles=chosen.cycles
        )
    else:
        run = restart_mode(folder, chosen, events="events" in side)
    return list(run.costs(batch=batch))


def figures_of(side: str, priced: Sequence[tuple[str, Cost]], batch: int) -> Iterator[Figure]:
    """Yield the rows of one side."""
    kinds = {"replacement": "kill and join"}
    for kind in dict.fromkeys(kind for kind, _ in priced):
        costs = [cost for found, cost in priced if found == kind]
        for column, name, unit in ROWS:
            raw = [
                cost.steps_lost * batch if column == "repeated" else getattr(cost, column)
                for cost in costs
            ]
            title = f"{side}: {kinds.get(kind, kind)}: {name}"
            yield Figure(name=title, unit=unit, raw=tuple(map(float, raw)))


def ratios(figures: Sequence[Figure]) -> Iterator[str]:
    """Yield how many times longer the pause of each side is than that in place, where one is seen.

    A pause is a gap minus a normal step: where those in place are not all above 0 they are within
    the spread of steps, and a ratio to them would say nothing.
    """
    pauses = {figure.name: figure for figure in figures if figure.raw}
    for kind in ("join", "kill", "drain"):
        base = pauses.get(f"in place: {kind}: pause")
        if base is None:
            continue
        if min(base.raw) <= 0:
            low, high = min(base.raw), max(base.raw)
            seen = f"{low:.2g} to {high:.2g} s"
            yield f"{kind}: in place {seen}, within the spread of steps: no ratio"
            continue
        found = {side: pauses.get(f"{side}: {kind}: pause") for side in SIDES[:-1]}
        said = "; ".join(f"{s} {one.median / base.median:.1f}" for s, one in found.items() if one)
        yield f"{kind}: pauses as multiples of the median in place: {said}"


def options() -> argparse.Namespace:
    """Read the command line."""
    parser = argparse.ArgumentParser(description=(__doc__ or "").partition(":")[0])
    parser.add_argument("--cycles", type=int, default=3, help="events of each kind")
    parser.add_argument("--slots", type=int, default=6)
    parser.add_argument("--only", choices=SIDES)
    parser.add_argument("--smoke", action="store_true", help="one cycle, no page")
    chosen = parser.parse_args()
    chosen.reduction, chosen.seed = "exact", 1
    chosen.cycles = 1 if chosen.smoke else chosen.cycles
    return chosen


def main() -> None:
    """Measure all sides and write the page."""
    chosen = options()
    before = harness.load()
    figures: list[Figure] = []
    with tempfile.TemporaryDirectory(prefix="pliant-restarts-") as scratch:
        for side in SIDES if chosen.only is None else (chosen.only,):
            priced = measured(Path(scratch) / side.replace(" ", "-"), chosen, side)
            figures += figures_of(side, priced, chosen.slots * 2)
            print(harness.table(figures), flush=True)
    page = Page(
        theme="restarts",
        summary="What a change of size and a kill cost a script that is started again, or is not.",
        method=METHOD.format(
            slots=chosen.slots,
            cycles=chosen.cycles,
            tuned=" ".join(torchrun.TUNED),
            cores=psutil.cpu_count(),
        ),
        figures=tuple(figures),
        command=harness.command_line("restarts"),
        load=(before, harness.load()),
        notes=tuple(ratios(figures)),
    )
    harness.publish(page, write=not chosen.smoke and chosen.only is None)


if __name__ == "__main__":
    main()
