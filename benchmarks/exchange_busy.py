"""What an exchange costs a main thread that computes beside it; for ``benchmarks.exchange``.

Kinds of work: pure Python, which never gives the interpreter's lock away unasked (a fixed amount,
and as much as fits until the exchange has ended), and a training step of the benchmark's GPT (the
micro-batches of one replica, forward and backward).  The exchange of all buckets starts with the
work.  What the main thread lost is split by the kernel's accounting:

    wall = on a core + ready, but no core was free (run queue) + asleep: waits for the lock

The last one is what the communication thread's share of the lock costs; the rest is the price of
moving bytes on cores that are all in use.
"""

from __future__ import annotations

import statistics
import time
from argparse import Namespace
from collections.abc import Callable
from pathlib import Path
from typing import Any

import torch

from benchmarks.exchange_ways import Builder, Exchange, Model
from benchmarks.model import build, loss_of
from benchmarks.processes import Member

PYTHON_LOOPS = 4_000_000
MICRO_BATCH, LENGTH = 2, 32

UNTIL_ENDED = "pure Python until the exchange has ended"

MEASURABLE_S = 0.001

Work = Callable[[list[float]], Any]
"""Gets a list in which the time is when the exchange has ended."""

Row = tuple[float, float, float, float]
"""Seconds of the main thread: wall, on a core, in the run queue; then of the exchange."""


def measure_busy(member: Member, ways: list[str], chosen: Namespace, folder: Path) -> None:
    """Run on every rank; rank 0 prints."""
    builder = Builder.of(member, Model(), chosen.slots, folder)
    control = member.group(1)
    exchanges: dict[str, Exchange | None] = {"no exchange": None}
    exchanges |= {way: builder.build(way, exact=True) for way in ways}
    step = _step(chosen.slots // member.size)
    works: dict[str, Work] = {
        "nothing: it waits": lambda _: None,
        "pure Python": lambda _: _count(PYTHON_LOOPS),
        UNTIL_ENDED: _count_until,
        "GPT step": lambda _: step(),
    }
    found: dict[tuple[str, str], list[torch.Tensor]] = {}
    for number in range(chosen.rounds + 2):
        for what, work in works.items():
            for way, exchange in exchanges.items():
                if exchange is None and what == UNTIL_ENDED:
                    continue
                control.all_gather(torch.zeros(1))
                row = _beside(work, exchange)
                rows = control.all_gather(torch.tensor(row, dtype=torch.float64))
                if number >= 2:
                    found.setdefault((what, way), []).append(rows)
    if member.rank == 0:
        print(f"W={member.size} K={chosen.slots}; main thread, mean of the members, medians in ms")
        for what in works:
            _report(what, {way: found[what, way] for way in exchanges if (what, way) in found})


def _beside(work: Work, exchange: Exchange | None) -> Row:
    """Do the work beside the exchange, if there is one; return what each took."""
    ended_at: list[float] = []
    began_at = time.monotonic()
    if exchange is None:
        ended_at.append(began_at)
    else:
        exchange.launch()
        exchange.group.submit(lambda _: ended_at.append(time.monotonic()))
    wall, core, queue = time.perf_counter(), *_accounts()
    work(ended_at)
    core_after, queue_after = _accounts()
    wall = time.perf_counter() - wall
    if exchange is not None:
        exchange.reduction.finish()
        exchange.group.all_gather(torch.zeros(1))
    return wall, core_after - core, queue_after - queue, ended_at[0] - began_at


def _accounts() -> tuple[float, float]:
    """Return seconds of this thread: on a core, and waiting for one."""
    waited_ns = Path("/proc/thread-self/schedstat").read_text().split()[1]
    return time.thread_time(), int(waited_ns) / 1e9


def _count(loops: int) -> None:
    count = 0
    for _ in range(loops):
        count += 1  # noqa: SIM113  it is the work


def _count_until(ended_at: list[float]) -> None:
    while not ended_at:
        _count(10_000)


def _step(share: int) -> Callable[[], None]:
    torch.manual_seed(1)
    model = build()
    batch = torch.randint(256, (2, MICRO_BATCH, LENGTH))

    def step() -> None:
        for _ in range(share):
            loss_of(model, batch[0], batch[1]).backward()  # type: ignore[no-untyped-call]
        model.zero_grad()

    return step


def _report(what: str, found: dict[str, list[torch.Tensor]]) -> None:
    print(f"  {what}")
    alone = _medians(found["no exchange"]) if "no exchange" in found else [0.0]
    for way, rows in found.items():
        wall, core, queue, moved = _medians(rows)
        lock = statistics.median(float((r[:, 0] - r[:, 1] - r[:, 2]).mean()) for r in rows)
        line = f"    beside {way:14} exchange {moved * 1e3:7.1f}"
        if alone[0] > MEASURABLE_S:
            line += (
                f"   work {wall * 1e3:7.1f} (x{wall / alone[0]:.3f}): core {core * 1e3:7.1f}"
                f" queue {queue * 1e3:6.1f} lock {lock * 1e3:6.1f} ({lock / alone[0]:.1%})"
            )
        print(line, flush=True)


def _medians(rows: list[torch.Tensor]) -> list[float]:
    return [statistics.median(float(r[:, column].mean()) for r in rows) for column in range(4)]
