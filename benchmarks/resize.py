"""What joins, leaves and kills cost, pliant beside torchrun: ``python -m benchmarks.resize``.

Owns the sequence of events on pliant's side and the page.  The baseline is ``resize_torchrun``,
the arithmetic ``events``.
"""

from __future__ import annotations

import argparse
import random
import tempfile
import time
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass, field
from functools import partial
from pathlib import Path

from benchmarks import events, harness, milestones, pliant_job, resize_torchrun, torchrun
from benchmarks.events import Cost
from benchmarks.harness import Figure, Page, Tail
from pliant.observe.timeline import Timeline, timeline_of

LIMIT_S = 120.0
SETTLE_STEPS = 12
WORKER = harness.ROOT / "benchmarks" / "train_pliant.py"

METHOD = """\
Model and step as in `benchmarks.steady` (K={slots}, micro-batches of 2 samples x 32 tokens). A job
of 2 replicas grows to 3 (`join`), loses one by SIGKILL at a random moment of a step (`kill`; pliant
replaces it, `replacement`), and shrinks to 2 on notice (`drain`); {cycles} times. Every survivor
writes down the moment at which its user code after a step runs. *pause*: the gap that ends with the
first step at the new size, minus the median step at that size; of all survivors the worst. *longest
gap*: the same over everything from the request to five steps after. *samples behind*: samples not
committed in that time, at the normal pace. *kill to commit*: SIGKILL to the end of the next step of
a survivor, minus a normal step there. *ready*: order to start a replica until it trains. torchrun:
one agent per replica on one machine, `--nnodes=1:4`, c10d rendezvous, a checkpoint every 10 steps,
workers restarted by the agents; drain is SIGTERM to an agent; 3 replicas again after a kill.
*tuned*: `{tuned}`. *one agent*: `--nproc-per-node=3`, torchrun's best case. glibc keeps freed
memory on both sides; every worker has one thread."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Asked:
    """Something done to the job, and the generation that answered it."""

    kind: str
    asked_at: float
    generation: int


@dataclass(frozen=True, slots=True, kw_only=True)
class Priced:
    """One event with its cost."""

    kind: str
    cost: Cost
    ready_s: float | None = None
    milestones: dict[str, float] = field(default_factory=dict)


@dataclass(slots=True, kw_only=True)
class Run:
    """One job of pliant under events."""

    job: pliant_job.PliantJob
    tails: Path
    asked: list[Asked] = field(default_factory=list)

    def timeline(self) -> Timeline:
        """Return what the event log says so far."""
        return timeline_of(self.job.records())

    def settle(self, size: int, *, after: int = 0) -> tuple[int, ...]:
        """Wait until ``size`` replicas trained a while in a generation beyond ``after``."""

        def settled() -> tuple[int, ...] | None:
            if self.job.process.poll() is not None:
                raise TimeoutError(f"the job ended with code {self.job.process.returncode}")
            timeline = self.timeline()
            number = timeline.generation
            if number <= after or len(timeline.members.get(number, ())) != size:
                return None
            newest = sum(commit.generation == number for commit in timeline.commits)
            entered = {c.generation for c in timeline.commits if c.generation > after}
            return tuple(sorted(entered)) if newest >= SETTLE_STEPS else None

        return harness.await_true(settled, timeout_s=LIMIT_S, what=f"training with {size} replicas")

    def event(self, kind: str, act: Callable[[], object], *, size: int) -> None:
        """Do something to the job and wait until it has settled at ``size``."""
        before = self.timeline().generation
        asked_at = time.monotonic()
        act()
        entered = self.settle(size, after=before)
        self.asked.append(Asked(kind=kind, asked_at=asked_at, generation=entered[0]))
        if kind == "kill" and len(entered) > 1:
            replaced = next(
                life.requested
                for life in self.timeline().lives.values()
                if life.requested >= asked_at
            )
            self.asked.append(Asked(kind="replacement", asked_at=replaced, generation=entered[-1]))

    def newest(self) -> str:
        """Return the replica that joined last."""
        timeline = self.timeline()
        lives = timeline.lives
        members = timeline.members[timeline.generation]
        return max(members, key=lambda name: lives[name].requested)


def normal_steps(timeline: Timeline, sizes: dict[int, int]) -> dict[int, float]:
    """Return the median step at each size."""
    found = {size: timeline.median_step_s(size) for size in set(sizes.values())}
    return {size: step_s for size, step_s in found.items() if step_s is not None}


def price(run: Run, *, batch: int) -> Iterator[Priced]:
    """Price every event by its worst survivor."""
    records = run.job.records()
    timeline = timeline_of(records)
    sizes: dict[int, int] = {}
    for record in records:
        if record["kind"] in ("switch", "reform"):
            sizes[record["order"]["generation"]] = len(record["order"]["members"])
    generation_of = {c.step: c.generation for c in timeline.commits}
    normal = normal_steps(timeline, sizes)
    ready = {r.generation: r.ready_s for r in timeline.resizes() if r.ready_s is not None}
    survivors = sequences(harness.read_tails(run.tails))
    for asked in run.asked:
        costs = [
            events.cost(
                tails,
                asked_at=asked.asked_at,
                first_at=first.at,
                old_s=normal[sizes[generation_of[first.step - 1]]],
                new_s=normal[sizes[asked.generation]],
                batch=batch,
            )
            for tails in survivors
            if tails[0].at < asked.asked_at
            for first in [
                next((t for t in tails if generation_of[t.step] == asked.generation), None)
            ]
            if first is not None
        ]
        worst = max(costs, key=lambda cost: cost.pause_s)
        yield Priced(
            kind=asked.kind,
            cost=worst,
            ready_s=ready.get(asked.generation),
            milestones=milestones.milestones(
                records, asked_at=asked.asked_at, generation=asked.generation
            ),
        )


def sequences(tails: Sequence[Tail]) -> list[list[Tail]]:
    """Split the tails by process."""
    split: dict[int, list[Tail]] = {}
    for tail in tails:
        split.setdefault(tail.pid, []).append(tail)
    return list(split.values())


def measure_pliant(folder: Path, chosen: argparse.Namespace) -> list[Priced]:
    """Run one job through all cycles."""
    tails = folder / "tails"
    script = [
        *(str(WORKER), "--steps", "1000000", "--slots", str(chosen.slots)),
        *("--tails", str(tails), "--reduction", chosen.reduction),
    ]
    chance = random.Random(chosen.seed)
    with pliant_job.running(folder, script, least=1, start=2, most=4, name="resize") as job:
        run = Run(job=job, tails=tails)
        run.settle(2)
        step_s = run.timeline().median_step_s() or 0.0
        for _ in range(chosen.cycles):
            run.event("join", partial(job.scale, 3), size=3)
            time.sleep(chance.random() * step_s)
            run.event("kill", partial(job.sigkill, run.newest()), size=3)
            run.event("drain", partial(job.drain, run.newest()), size=2)
        return list(price(run, batch=chosen.slots * 2))


LIMITS: dict[tuple[str, str], tuple[str, str]] = {
    ("join", "pause_steps"): ("< 1", "< 0.3"),
    ("join", "pause_s"): ("", "< 0.1"),
    ("replacement", "pause_steps"): ("< 1", "< 0.3"),
    ("drain", "pause_steps"): ("< 0.2", "< 0.05"),
    ("kill", "wait_s"): ("< 0.5", "< 0.1"),
    ("kill", "steps_lost"): ("0", "0"),
}

ROWS = (
    ("pause_s", "pause", "s"),
    ("pause_steps", "pause in normal steps", ""),
    ("longest_s", "longest gap", "s"),
    ("wait_s", "kill to commit", "s"),
    ("steps_lost", "steps lost", ""),
    ("samples_behind", "samples behind", ""),
)


def figures_of(side: str, priced: Sequence[tuple[str, Cost]]) -> Iterator[Figure]:
    """Yield the rows of one side."""
    for kind in dict.fromkeys(kind for kind, _ in priced):
        for column, name, unit in ROWS:
            if column == "wait_s" and kind != "kill":
                continue
            target, goal = LIMITS.get((kind, column), ("", "")) if side == "pliant" else ("", "")
            raw = tuple(float(getattr(cost, column)) for found, cost in priced if found == kind)
            yield Figure(
                name=f"{side}: {kind}: {name}", unit=unit, raw=raw, target=target, goal=goal
            )


def measure_torchrun(folder: Path, chosen: argparse.Namespace) -> Iterator[Figure]:
    """Yield the rows of the baselines."""
    batch = chosen.slots * 2
    modes: dict[str, Sequence[str]] = {"torchrun, tuned": torchrun.TUNED}
    if not chosen.skip_default:
        modes["torchrun, default"] = ()
    for name, settings in modes.items():
        run = resize_torchrun.several_agents(
            folder / name, settings=settings, slots=chosen.slots, cycles=chosen.cycles
        )
        yield from figures_of(name, list(run.costs(batch=batch)))
    run = resize_torchrun.one_agent(
        folder / "one", settings=torchrun.TUNED, slots=chosen.slots, cycles=chosen.cycles
    )
    yield from figures_of("torchrun, one agent, tuned", list(run.costs(batch=batch)))


def options() -> argparse.Namespace:
    """Read the command line."""
    parser = argparse.ArgumentParser(description=(__doc__ or "").partition(":")[0])
    parser.add_argument("--cycles", type=int, default=5, help="events of each kind")
    parser.add_argument("--slots", type=int, default=12)
    parser.add_argument("--reduction", default="exact")
    parser.add_argument("--seed", type=int, default=1, help="moments of the kills")
    parser.add_argument("--only", choices=["pliant", "torchrun"])
    parser.add_argument("--skip-default", action="store_true", help="only the tuned torchrun")
    parser.add_argument("--no-page", action="store_true", help="print the table only")
    parser.add_argument("--smoke", action="store_true", help="one cycle, no page")
    chosen = parser.parse_args()
    if chosen.smoke:
        chosen.no_page = True
        chosen.cycles = 1
    return chosen


def main() -> None:
    """Measure all sides and write the page."""
    chosen = options()
    before = harness.load()
    figures: list[Figure] = []
    raw: dict[str, object] = {}
    with tempfile.TemporaryDirectory(prefix="pliant-resize-") as scratch:
        if chosen.only != "torchrun":
            priced = measure_pliant(Path(scratch) / "pliant", chosen)
            figures += figures_of("pliant", [(p.kind, p.cost) for p in priced])
            figures += [
                Figure(
                    name=f"pliant: {kind}: ready",
                    unit="s",
                    raw=tuple(p.ready_s for p in priced if p.kind == kind and p.ready_s),
                )
                for kind in ("join", "replacement")
            ]
            for kind in dict.fromkeys(p.kind for p in priced):
                name = f"milestones of a {kind}, median seconds from the request"
                raw[name] = milestones.medians([p.milestones for p in priced if p.kind == kind])
                print(f"{name}: {raw[name]}", flush=True)
        if chosen.only != "pliant":
            figures += measure_torchrun(Path(scratch) / "torchrun", chosen)
    page = Page(
        theme="resize",
        summary="What a join, a kill and a leave on notice cost the replicas that go on.",
        method=METHOD.format(
            slots=chosen.slots, cycles=chosen.cycles, tuned=" ".join(torchrun.TUNED)
        ),
        figures=tuple(figures),
        command=harness.command_line("resize"),
        load=(before, harness.load()),
        raw=raw,
    )
    harness.publish(page, write=not chosen.no_page)


if __name__ == "__main__":
    main()
