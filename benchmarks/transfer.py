"""Time moving a training state to a joiner, against the same bytes without more ado.

    python -m benchmarks.transfer --survivors 1

The state is that of a GPT with about 10M parameters and Adam: 116 MB.  Raw is the same number of
bytes as one flat tensor, point to point from rank 0.  Both over gloo, as it was, and over pliant's
sockets.  Interleaved; medians of the slowest from a barrier to the last byte (and digest).
"""

from __future__ import annotations

import argparse
import tempfile
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import Any

import torch

from benchmarks import certificates, network
from benchmarks.gloo_baseline import GlooTransport
from benchmarks.processes import Member, interleave, report, run_processes
from pliant.engine.comm.communicator import Communicator
from pliant.engine.comm.group import Group
from pliant.engine.comm.rendezvous import Rendezvous
from pliant.engine.comm.transport import SocketTransport
from pliant.engine.reduce.buckets import Layout
from pliant.engine.state.transfer import Stamp, TensorSpec, receive_state, send_state


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


def measure(member: Member, chosen: argparse.Namespace, folder: Path) -> None:
    """Run on every rank; the last ones join."""
    torch.set_num_threads(1)
    control = member.group(1)
    groups = {
        "gloo": GlooTransport(member.store).group(Rendezvous(**member.settings(2, Layout.of([])))),
        "sockets": member.group(3),
    }
    if chosen.tls:
        tls = certificates.contexts(folder)
        rendezvous = Rendezvous(**member.settings(4, Layout.of([])), tls=tls)
        groups["tls"] = SocketTransport().group(rendezvous)
    state = a_state()
    variants: dict[str, Callable[[], None]] = {}
    for name, group in groups.items():
        move = Move(group, state, chosen.survivors)
        variants |= {f"raw, {name}": move.raw, f"state, {name}": move.state}
    timings = interleave(control, variants, chosen.rounds)
    if member.rank == 0:
        nbytes = sum(tensor.nbytes for tensor in state.values())
        parties = f"{chosen.survivors} to {chosen.joiners}"
        print(f"{nbytes / 1e6:.0f} MB, {len(state)} tensors, {parties}")
        report(timings, member.network)
    member.leave()


class Move:
    """The two ways to move a state over one group."""

    def __init__(self, group: Group, state: dict[str, Any], survivors: int) -> None:
        self._group = group
        self._state = state
        self._own = list(state.values())
        self._flat = torch.zeros(sum(tensor.nbytes for tensor in self._own), dtype=torch.uint8)
        self._parties: Any = {
            "stamp": Stamp(generation=1, step=5, lineage=1),
            "survivors": list(range(survivors)),
            "joiners": list(range(survivors, group.size)),
            "replicas": [f"r{rank}" for rank in range(group.size)],
        }

    def raw(self) -> None:
        """Move one flat tensor from rank 0."""
        self._group.submit(self._move_flat).wait()

    def state(self) -> None:
        """Move the state as pliant does."""
        if self._group.rank in self._parties["survivors"]:
            send_state(self._group, **self._parties, value=self._state).wait()
        else:
            receive_state(self._group, **self._parties, allocate=self._allocate)

    def _move_flat(self, comm: Communicator) -> None:
        joiners = self._parties["joiners"]
        if comm.rank == 0:
            comm.wait(comm.post(sends=[(joiner, self._flat) for joiner in joiners]))
        elif comm.rank in joiners:
            comm.wait(comm.post(receives=[(0, self._flat)]))

    def _allocate(self, _: Any, __: Sequence[TensorSpec]) -> list[torch.Tensor]:
        return self._own


def main() -> None:
    """Parse arguments, start the processes."""
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0] if __doc__ else None)
    parser.add_argument("--survivors", type=int, default=1)
    parser.add_argument("--joiners", type=int, default=1)
    parser.add_argument("--rounds", type=int, default=15)
    parser.add_argument("--tls", action="store_true", help="also through sockets with TLS")
    parser.add_argument("--network", choices=network.RATES, help="not loopback; needs root")
    chosen = parser.parse_args()
    size = chosen.survivors + chosen.joiners
    with tempfile.TemporaryDirectory(prefix="pliant-transfer-") as name:
        if chosen.tls:
            certificates.make(Path(name))
        where = network.chosen(chosen.network)
        run_processes(size, measure, chosen, Path(name), network=where)


if __name__ == "__main__":
    main()
