"""Time the reduction of one model's buckets over gloo, against all-reduce and against DDP.

    python -m benchmarks.exchange --replicas 2 --slots 8

Every round runs every variant once, in the same processes.  Printed are medians over the rounds, on
rank 0, from a barrier to the last result, and the ratios to plain all-reduce of the same buckets.
No computation overlaps: this is the cost of the exchange alone.
"""

from __future__ import annotations

import argparse
import os
from collections.abc import Callable
from typing import Any

import torch
from torch import distributed as dist

from benchmarks.processes import interleave, report, run_processes
from pliant.core.step import batching
from pliant.engine.groups.build import GroupBuild
from pliant.engine.groups.gloo import StoreServer
from pliant.engine.groups.group import Group
from pliant.engine.reduce import shared_memory
from pliant.engine.reduce.buckets import Layout
from pliant.engine.reduce.exchange import Reduction
from pliant.engine.reduce.plan import ReductionPlan
from pliant.engine.reduce.windows import WindowCache


class Model(torch.nn.Module):
    """Ten million parameters in the proportions of a small GPT."""

    def __init__(self) -> None:
        super().__init__()
        sizes = [(256, 384)] + [(384, 1152), (384, 384), (384, 1536), (1536, 384)] * 6
        self.weights = torch.nn.ParameterList(torch.zeros(shape) for shape in sizes)

    def forward(self, factor: torch.Tensor) -> torch.Tensor:
        """Give every parameter a gradient at almost no cost."""
        return torch.stack([(weight * factor).sum() for weight in self.weights]).sum()


def measure(rank: int, endpoints: list[str], server: StoreServer, arguments: Any) -> None:
    """Run on every rank."""
    torch.set_num_threads(1)
    size = len(endpoints)
    model = Model()
    layout = Layout.of(model.named_parameters(), extras=64)
    owned = batching.ownership(arguments.slots, size)
    plan = ReductionPlan.of(arguments.slots, owned)

    def build(generation: int, plan: ReductionPlan) -> Group:
        return GroupBuild(
            generation=generation,
            seats=[(str(r), endpoint) for r, endpoint in enumerate(endpoints)],
            replica=str(rank),
            host="0",
            server=server,
            layout=layout,
            window_cache=None if arguments.sockets else WindowCache(),
            window_size=shared_memory.window_size(layout, plan, rank),
        ).run()

    group = build(1, plan)
    exact = Reduction(group, layout, plan)
    fast = Reduction(build(2, plan.one_each()), layout, plan, exact=False)
    partials = ones(exact, plan.partials[rank])
    whole = ones(fast, 1)
    copies = [bucket.empty().zero_() for bucket in layout.buckets]

    def reduce_exactly() -> None:
        for bucket in layout.buckets:
            exact.launch(bucket.index, partials[bucket.index])
        exact.finish()

    def reduce_fast() -> None:
        for bucket in layout.buckets:
            fast.launch(bucket.index, whole[bucket.index])
        fast.finish()

    def all_reduce() -> None:
        def job(comm: Any) -> None:
            for copy in copies:
                comm.run(comm.backend.all_reduce(copy))

        group.submit(job).wait()

    row = torch.zeros(8, dtype=torch.int64)
    variants: dict[str, Callable[[], Any]] = {
        "all-reduce in place": all_reduce,
        "fast": reduce_fast,
        "exact": reduce_exactly,
        "metadata": lambda: group.all_gather(row),
    }
    if arguments.ddp:
        variants["DDP backward"] = prepare_ddp(model, rank, endpoints)
    timings = interleave(group, variants, arguments.rounds)
    if rank == 0:
        size_mb = sum(bucket.numel * bucket.dtype.itemsize for bucket in layout.buckets) / 1e6
        print(f"W={size} K={arguments.slots} partials={plan.partials} {size_mb:.0f} MB")
        report(timings)
    os._exit(0)


def ones(reduction: Reduction, count: int) -> list[list[torch.Tensor]]:
    """Return partials by bucket, where the reduction wants them."""
    found = []
    for bucket in reduction.layout.buckets:
        flats = list(reduction.lent[bucket.index]) if reduction.lent else []
        found.append(flats or [bucket.empty() for _ in range(count)])
        for flat in found[-1]:
            flat.fill_(1)
    return found


def prepare_ddp(model: Model, rank: int, endpoints: list[str]) -> Callable[[], None]:
    """Wrap the model in DDP over a group of its own."""
    host, _, port = endpoints[0].rpartition(":")
    store = dist.TCPStore(host, int(port), is_master=False, wait_for_workers=False)  # type: ignore[attr-defined]
    dist.init_process_group("gloo", store=store, rank=rank, world_size=len(endpoints))
    wrapped = torch.nn.parallel.DistributedDataParallel(model)
    factor = torch.ones(())

    def backward() -> None:
        wrapped(factor).backward()

    return backward


def main() -> None:
    """Parse arguments, start the processes."""
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0] if __doc__ else None)
    parser.add_argument("--replicas", type=int, default=2)
    parser.add_argument("--slots", type=int, default=8)
    parser.add_argument("--rounds", type=int, default=15)
    parser.add_argument("--ddp", action="store_true")
    parser.add_argument("--sockets", action="store_true", help="without windows")
    arguments = parser.parse_args()
    run_processes(arguments.replicas, measure, arguments)


if __name__ == "__main__":
    main()
