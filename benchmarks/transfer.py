"""Time moving a training state to a joiner, against raw gloo between the same processes.

    python -m benchmarks.transfer --survivors 1

The state is that of a GPT with about 10M parameters and Adam: 116 MB.  Raw gloo moves the same
number of bytes as one flat tensor, point to point from rank 0.  Interleaved; medians on a joiner
from a barrier to the last byte (and digest).
"""

from __future__ import annotations

import argparse
import os
from collections.abc import Sequence
from typing import Any

import torch

from benchmarks.processes import interleave, report, run_processes
from pliant.engine.groups.build import GroupBuild
from pliant.engine.groups.comm import Comm
from pliant.engine.groups.gloo import StoreServer
from pliant.engine.reduce.buckets import Layout
from pliant.engine.state.stream import TensorSpec
from pliant.engine.state.transfer import Stamp, receive_state, send_state


def a_state() -> dict[str, Any]:
    """Parameters and two moments each, with biases and norms between the matrices."""
    state = {}
    for kind in ("weight", "exp_avg", "exp_avg_sq"):
        shapes: list[tuple[int, ...]] = [(256, 384), (256, 384)]
        for _ in range(5):
            shapes += [(1152, 384), (384, 384), (1536, 384), (384, 1536)]
            shapes += [(384,), (384,), (1152,), (384,), (1536,), (384,)]
        shapes += [(384, 1536), (384, 384)]
        state.update({f"{kind}.{n}": torch.randn(shape) for n, shape in enumerate(shapes)})
    return state


def measure(rank: int, endpoints: list[str], server: StoreServer, arguments: Any) -> None:
    """Run on every rank; the last ones join."""
    torch.set_num_threads(1)
    size = len(endpoints)
    survivors = list(range(arguments.survivors))
    joiners = list(range(arguments.survivors, size))
    group = GroupBuild(
        generation=1,
        seats=[(str(r), endpoint) for r, endpoint in enumerate(endpoints)],
        replica=str(rank),
        host="0",
        server=server,
        layout=Layout.of([]),
    ).run()
    state = a_state()
    own = list(state.values())
    nbytes = sum(tensor.nbytes for tensor in own)
    flat = torch.zeros(nbytes, dtype=torch.uint8)
    stamp = Stamp(generation=1, step=5, lineage=1)
    parties: Any = {"stamp": stamp, "survivors": survivors, "joiners": joiners}

    def allocate(_: Any, __: Sequence[TensorSpec]) -> list[torch.Tensor]:
        return own

    def move() -> None:
        if rank in survivors:
            send_state(group, **parties, value=state).wait()
        else:
            receive_state(group, **parties, allocate=allocate)

    def raw(comm: Comm) -> None:
        if rank == 0:
            for work in [comm.backend.send(flat, joiner, 0) for joiner in joiners]:
                comm.block(work)
        elif rank in joiners:
            comm.block(comm.backend.receive(flat, 0, 0))

    variants = {"raw": lambda: group.submit(raw).wait(), "state": move}
    timings = interleave(group, variants, arguments.rounds)
    if rank == size - 1:
        print(f"{nbytes / 1e6:.0f} MB, {len(own)} tensors, {len(survivors)} to {len(joiners)}")
        report(timings)
    os._exit(0)


def main() -> None:
    """Parse arguments, start the processes."""
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0] if __doc__ else None)
    parser.add_argument("--survivors", type=int, default=1)
    parser.add_argument("--joiners", type=int, default=1)
    parser.add_argument("--rounds", type=int, default=15)
    arguments = parser.parse_args()
    run_processes(arguments.survivors + arguments.joiners, measure, arguments)


if __name__ == "__main__":
    main()
