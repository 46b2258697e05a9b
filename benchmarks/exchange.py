"""Time the reduction of one model's buckets, against how it was over gloo.

    python -m benchmarks.exchange --replicas 2 --slots 8 --windows --tls
    python -m benchmarks.exchange --replicas 2 --network 1gbit
    python -m benchmarks.exchange --busy
    python -m benchmarks.exchange --abort 20
    python -m benchmarks.exchange --flood 20 --replicas 3

Every round runs every variant once, in the same processes; before that, the results of all are
compared bit for bit.  Printed are medians over the rounds, of the slowest member, from a barrier to
the last result, CPU time of all members, and the ratios to gloo's all-reduce of the same buckets.
No computation overlaps: this is the cost of the exchange alone.
"""

from __future__ import annotations

import argparse
import tempfile
from collections.abc import Callable
from functools import partial
from pathlib import Path
from typing import Any

import torch
from torch import distributed as dist

from benchmarks import certificates, network
from benchmarks.exchange_abort import measure_abort
from benchmarks.exchange_busy import measure_busy
from benchmarks.exchange_flood import compile_flood, measure_flood
from benchmarks.exchange_ways import GLOO, Builder, Exchange, Model, check_alike, gloo_all_reduce
from benchmarks.processes import Member, interleave, report, run_processes
from pliant.engine.comm.group import Group

METADATA_CALLS = 50


def measure(member: Member, chosen: argparse.Namespace, folder: Path) -> None:
    """Run on every rank."""
    torch.set_num_threads(1)
    model = Model()
    builder = Builder.of(member, model, chosen.slots, folder)
    control = member.group(1)
    exact = {way: builder.build(way, exact=True) for way in ways(chosen)}
    check_alike(exact, exact=True)
    fast = {way: builder.build(way, exact=False) for way in ways(chosen)}
    check_alike(fast, exact=False)
    timings = interleave(control, variants(model, member, exact, fast, chosen), chosen.rounds)
    if member.rank == 0:
        plan, buckets = builder.plan, builder.layout.buckets
        size_mb = sum(bucket.numel * bucket.dtype.itemsize for bucket in buckets) / 1e6
        where = f", {chosen.network}" if chosen.network else ""
        print(
            f"W={member.size} K={chosen.slots} partials={plan.partials} {size_mb:.0f} MB{where}; "
            "exact results are the same bits whichever way"
        )
        report(timings, member.network)
    member.leave()


def variants(
    model: Model,
    member: Member,
    exact: dict[str, Exchange],
    fast: dict[str, Exchange],
    chosen: argparse.Namespace,
) -> dict[str, Callable[[], Any]]:
    """Return what is timed, in order."""
    copies = [torch.zeros(flats[0].shape) for flats in fast[GLOO].partials]
    found: dict[str, Callable[[], Any]] = {
        "gloo all-reduce in place": partial(gloo_all_reduce, exact[GLOO].group, copies)
    }
    found |= {f"fast, {way}": each.run for way, each in fast.items()}
    found |= {f"exact, {way}": each.run for way, each in exact.items()}
    for way, each in exact.items():
        if not way.endswith("windows"):
            found[f"{METADATA_CALLS} x metadata, {way}"] = partial(metadata, each.group)
    if chosen.ddp:
        found["DDP backward"] = prepare_ddp(model, member)
    return found


def ways(chosen: argparse.Namespace) -> list[str]:
    """List the ways that were asked for."""
    return [
        GLOO,
        "sockets",
        *(["tls"] if chosen.tls else []),
        *(["gloo windows", "windows"] if chosen.windows else []),
    ]


def metadata(group: Group) -> None:
    """Exchange small vectors, as in the head of a step."""
    row = torch.zeros(8, dtype=torch.int64)
    for _ in range(METADATA_CALLS):
        group.all_gather(row)


def prepare_ddp(model: Model, member: Member) -> Callable[[], None]:
    """Wrap the model in DDP over a group of its own."""
    dist.init_process_group("gloo", store=member.store, rank=member.rank, world_size=member.size)
    wrapped = torch.nn.parallel.DistributedDataParallel(model)
    factor = torch.ones(())

    def backward() -> None:
        wrapped(factor).backward()

    return backward


def measure_and_leave(member: Member, function: Callable[..., None], *args: Any) -> None:
    """Run a measurement of another module on every rank."""
    torch.set_num_threads(1)
    function(member, *args)
    member.leave()


def options() -> argparse.Namespace:
    """Read the command line."""
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0] if __doc__ else None)
    parser.add_argument("--replicas", type=int, default=2)
    parser.add_argument("--slots", type=int, default=8)
    parser.add_argument("--rounds", type=int, default=15)
    parser.add_argument("--ddp", action="store_true")
    parser.add_argument("--windows", action="store_true", help="also through shared memory")
    parser.add_argument("--tls", action="store_true", help="also through sockets with TLS")
    parser.add_argument("--network", choices=network.RATES, help="not loopback; needs root")
    parser.add_argument("--busy", action="store_true", help="cost to a main thread beside it")
    parser.add_argument("--abort", type=int, metavar="TIMES", help="time from abandon to its end")
    parser.add_argument("--flood", type=int, metavar="TIMES", help="time to meet beside strangers")
    return parser.parse_args()


def main() -> None:
    """Parse arguments, start the processes."""
    chosen = options()
    where = network.chosen(chosen.network)
    with tempfile.TemporaryDirectory(prefix="pliant-exchange-") as name:
        if chosen.tls:
            certificates.make(Path(name))
        if chosen.abort:
            run_processes(
                chosen.replicas, measure_and_leave, measure_abort, chosen.abort, network=where
            )
        elif chosen.flood:
            compile_flood(Path(name))
            measured = partial(measure_flood, times=chosen.flood, encrypts=chosen.tls)
            run_processes(chosen.replicas, measure_and_leave, measured, Path(name), network=where)
        elif chosen.busy:
            tasks = (measure_busy, ways(chosen), chosen, Path(name))
            run_processes(chosen.replicas, measure_and_leave, *tasks, network=where)
        else:
            run_processes(chosen.replicas, measure, chosen, Path(name), network=where)


if __name__ == "__main__":
    main()
