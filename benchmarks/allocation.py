"""How long a pool takes to decide after one event, and how that grows: ``benchmarks.allocation``.

Owns the pools, the random events, and the page.  Pure Python on one core: no process, no torch.
"""

from __future__ import annotations

import argparse
import gc
import random
import statistics
import time
from collections.abc import Sequence
from dataclasses import replace

from benchmarks import harness
from benchmarks.harness import Figure, Page
from pliant.core.allocation import (
    Asked,
    Claim,
    Event,
    Pool,
    Released,
    Shrink,
    Suspend,
    Team,
    TimePassed,
    Withdrawn,
    new_pool,
    next_deadline_s,
    standing,
    step,
)

SHAPES = ((100, 10), (100, 100), (1_000, 100), (1_000, 1_000), (10_000, 100), (10_000, 1_000))
"""Devices and jobs."""

QUOTED = (10_000, 1_000)
KINDS = ("arrival", "departure", "change", "release")
WALL = "wall"
GAP_S = 1.0
"""Between two events, on the pool's clock."""

METHOD = """\
One process, one core. For each shape, {rounds} pools with other seeds; {events} single events each,
after as many that do not count. Four teams (three with a quota of a fifth of the devices, which
others may borrow) and four classes; a job asks on average for 1.3 times its part of the pool, its
minimum is an eighth of that, one in eight is fixed, one in four takes powers of two only, and K is
8, 24, 64 or not known. Events are drawn evenly: a job arrives (another one has left before), a job
leaves with all its devices, a job asks for another number, and a claimant gives back what it was
told to (the longest waiting first). {gap:g} s pass between two events, and whatever time-outs are
over end within the step that is timed. Timed is `step` alone, with the collector of
cycles off, by the processor time of its thread: what it takes on a core that it does not share. The
wall clock, with what other processes of the machine took, is a row of its own.
p50 and p99 are of the events of one pool; min, median and max are over the pools."""


class World:
    """A pool, and claimants that give back one after the other."""

    def __init__(self, devices: int, jobs: int, *, seed: int) -> None:
        self.random = random.Random(seed)
        self.part = devices / jobs
        fifth = devices // 5
        quotas = [Team(name=name, quota=fifth) for name in ("a", "b", "c")]
        self.pool: Pool = new_pool(devices, teams=quotas)
        self.now_s = 0.0
        self.number = 0
        self.names: list[str] = []
        self.owing: dict[str, None] = {}
        for _ in range(jobs):
            self.apply(self.arrival())
            while self.owing:
                self.apply(self.release())

    def event(self, kind: str) -> Event:
        """Return an event of this kind, or a tick where there is nothing for it."""
        self.now_s += GAP_S
        if kind == "release" and self.owing:
            return self.release()
        if kind == "change":
            return self.change()
        if kind == "departure" and len(self.names) > 1:
            return self.departure()
        return self.arrival() if kind == "arrival" else TimePassed()

    def apply(self, event: Event) -> tuple[float, float]:
        """Take one step; return the time of the processor and of the wall clock, in seconds."""
        began, began_cpu = time.perf_counter(), time.thread_time()
        self.pool, actions = step(self.pool, event, now_s=self.now_s)
        took_cpu, took = time.thread_time() - began_cpu, time.perf_counter() - began
        for action in actions:
            if isinstance(action, Shrink | Suspend):
                self.owing[action.name] = None
        return took_cpu, took

    def arrival(self) -> Event:
        """Return a new job's claim."""
        self.number += 1
        name = f"j{self.number}"
        self.names.append(name)
        ask = max(1, round(self.part * self.random.uniform(0.3, 2.3)))
        is_fixed = self.random.random() < 0.125
        low = ask if is_fixed else max(1, ask // 8)
        powers = tuple(2**n for n in range(15) if low <= 2**n <= ask)
        sized = not is_fixed and bool(powers) and self.random.random() < 0.25
        return Asked(
            claim=Claim(
                name=name,
                team=self.random.choice(("default", "a", "b", "c")),
                priority=self.random.choice(("urgent", "high", "normal", "low")),
                kind="fixed" if is_fixed else "elastic",
                min_replicas=low,
                ask_replicas=ask,
                sizes=powers if sized else None,
                num_slots=self.slots(low),
                can_suspend=not is_fixed,
                since=float(self.number),
            )
        )

    def slots(self, low: int) -> int | None:
        """Return a K, not below the minimum."""
        slots = self.random.choice((8, 24, 64, None))
        return None if slots is None else max(slots, low)

    def change(self) -> Event:
        """Return another wish of a job."""
        known = standing(self.pool, self.random.choice(self.names))
        if known is None or known.claim.kind == "fixed" or known.claim.sizes is not None:
            return TimePassed()
        claim = known.claim
        most = max(claim.min_replicas, round(self.part * 2.3))
        ask = self.random.randint(claim.min_replicas, most)
        return Asked(claim=replace(claim, ask_replicas=ask))

    def departure(self) -> Event:
        """Let a job go; what is timed is the return of its devices."""
        at = self.random.randrange(len(self.names))
        self.names[at], self.names[-1] = self.names[-1], self.names[at]
        name = self.names.pop()
        known = standing(self.pool, name)
        self.owing.pop(name, None)
        self.apply(Withdrawn(name=name))
        return Released(name=name, devices=known.devices if known else ())

    def release(self) -> Event:
        """Let the one that has waited longest give back what it should."""
        name = next(iter(self.owing))
        del self.owing[name]
        known = standing(self.pool, name)
        if known is None:
            return TimePassed()
        excess = len(known.devices) - known.replicas
        return Released(name=name, devices=known.devices[::-1][: max(0, excess)])


def measure(devices: int, jobs: int, *, events: int, seed: int) -> dict[str, list[float]]:
    """Return the time of each event in milliseconds, by kind; WALL: all, by the wall clock."""
    world = World(devices, jobs, seed=seed)
    found: dict[str, list[float]] = {kind: [] for kind in (*KINDS, WALL)}
    for number in range(2 * events):
        kind = world.random.choice(KINDS)
        if kind == "arrival" and len(world.names) >= jobs:
            world.apply(world.event("departure"))
        took_cpu, took = world.apply(world.event(kind))
        if number >= events:
            found[kind].append(took_cpu * 1e3)
            found[WALL].append(took * 1e3)
    world.apply(TimePassed())
    if next_deadline_s(world.pool) <= world.now_s:
        raise RuntimeError("a time-out that is over was not handled")
    return found


def quantile(values: Sequence[float], percent: int) -> float:
    """Return a percentile."""
    return statistics.quantiles(values, n=100, method="inclusive")[percent - 1]


def options() -> argparse.Namespace:
    """Read the command line."""
    parser = argparse.ArgumentParser(description=(__doc__ or "").partition(":")[0])
    parser.add_argument("--rounds", type=int, default=5, help="pools of each shape")
    parser.add_argument("--events", type=int, default=1000, help="events that count, in each")
    parser.add_argument("--no-page", action="store_true", help="print the table only")
    parser.add_argument("--smoke", action="store_true", help="two small shapes once, no page")
    chosen = parser.parse_args()
    chosen.shapes = SHAPES
    if chosen.smoke:
        chosen.no_page, chosen.rounds, chosen.events, chosen.shapes = True, 1, 100, SHAPES[:2]
    return chosen


def figures_of(results: dict[tuple[int, int], list[dict[str, list[float]]]]) -> list[Figure]:
    """Return all rows: each shape, then the kinds of event of the largest."""
    figures = []
    for (devices, jobs), rounds in results.items():
        is_quoted = (devices, jobs) == QUOTED
        pools = [[ms for kind in KINDS for ms in one[kind]] for one in rounds]
        for percent in (50, 99):
            target = "< 10 ms" if is_quoted and percent == 99 else ""
            figures.append(
                Figure(
                    name=f"{devices:,} devices, {jobs:,} jobs: p{percent}",
                    unit="ms",
                    raw=tuple(quantile(pool, percent) for pool in pools),
                    target=target,
                    goal=target,
                )
            )
    for kind in (*KINDS, WALL):
        figures.append(
            Figure(
                name="largest, by the wall clock: p99"
                if kind == WALL
                else f"largest, only {kind}: p99",
                unit="ms",
                raw=tuple(quantile(one[kind], 99) for one in list(results.values())[-1]),
            )
        )
    return figures


def main() -> None:
    """Measure every shape in turns and write the page."""
    chosen = options()
    before = harness.load()
    results: dict[tuple[int, int], list[dict[str, list[float]]]] = {}
    gc.disable()
    for seed in range(chosen.rounds):
        for shape in chosen.shapes:
            results.setdefault(shape, []).append(measure(*shape, events=chosen.events, seed=seed))
            gc.collect()
        print(f"round {seed + 1} of {chosen.rounds}", flush=True)
    page = Page(
        theme="allocation",
        summary="How long a pool takes to decide after one event, and how that grows.",
        method=METHOD.format(rounds=chosen.rounds, events=chosen.events, gap=GAP_S),
        figures=tuple(figures_of(results)),
        command=harness.command_line("allocation"),
        load=(before, harness.load()),
    )
    harness.publish(page, write=not chosen.no_page)


if __name__ == "__main__":
    main()
