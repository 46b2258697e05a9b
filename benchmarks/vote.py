"""Time the vote that ends a step: by so much a device waits for the commit (rule R16).

    python -m benchmarks.vote --replicas 2

A vote is one row of metadata from each member to all, over sockets: 32 float64 values.  Beside it
an all-gather of the same row by gloo.  Interleaved, 100 in a row per turn; medians of the slowest.
"""

from __future__ import annotations

import argparse

import torch
import torch.distributed as dist

from benchmarks import network
from benchmarks.processes import Member, interleave, report, run_processes

TIMES = 100
VALUES = 32


def measure(member: Member, chosen: argparse.Namespace) -> None:
    """Run on every rank."""
    torch.set_num_threads(1)
    control, votes = member.group(1), member.group(2)
    dist.init_process_group("gloo", store=member.store, rank=member.rank, world_size=member.size)
    row = torch.zeros(VALUES, dtype=torch.float64)
    rows = [torch.zeros_like(row) for _ in range(member.size)]

    def vote() -> None:
        for _ in range(TIMES):
            votes.all_gather(row)

    def gather() -> None:
        for _ in range(TIMES):
            dist.all_gather(rows, row)

    timings = interleave(control, {"100 votes": vote, "100 by gloo": gather}, chosen.rounds)
    if member.rank == 0:
        report(timings, member.network)
    member.leave()


def main() -> None:
    """Parse arguments, start the processes."""
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0] if __doc__ else None)
    parser.add_argument("--replicas", type=int, default=2)
    parser.add_argument("--rounds", type=int, default=15)
    parser.add_argument("--network", choices=network.RATES, help="not loopback; needs root")
    chosen = parser.parse_args()
    where = network.chosen(chosen.network)
    run_processes(chosen.replicas, measure, chosen, network=where)


if __name__ == "__main__":
    main()
