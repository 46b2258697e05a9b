"""Start the processes of a benchmark, introduce them to each other, time what they do in turn."""

from __future__ import annotations

import multiprocessing
import os
import statistics
import sys
import time
from collections.abc import Callable
from dataclasses import dataclass, field
from typing import Any

import torch
from torch._C._distributed_c10d import Store, TCPStore

from benchmarks.harness import die_with_parent
from benchmarks.network import Network, wire_bytes
from pliant.engine.comm.group import Group
from pliant.engine.comm.mesh import Port
from pliant.engine.comm.rendezvous import Rendezvous
from pliant.engine.comm.transport import SocketTransport
from pliant.engine.reduce.buckets import Layout

SECRET = b"s" * 32
"""Of all generations of a benchmark."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Member:
    """One process among all of them, and what its groups are built from."""

    rank: int
    endpoints: list[str]
    port: Port
    store: Store
    """Reached by all; gloo meets there."""
    network: Network | None

    @property
    def size(self) -> int:
        """Number of processes."""
        return len(self.endpoints)

    def settings(self, generation: int, layout: Layout) -> dict[str, Any]:
        """Return what a build of a group needs to know."""
        return {
            "generation": generation,
            "seats": [(str(rank), endpoint) for rank, endpoint in enumerate(self.endpoints)],
            "replica": str(self.rank),
            "secret": SECRET,
            "port": self.port,
            "layout": layout,
            "deadline_s": 60.0,
        }

    def group(self, generation: int) -> Group:
        """Build a group without windows, for whatever is not measured."""
        return SocketTransport().group(Rendezvous(**self.settings(generation, Layout.of([]))))

    def leave(self) -> None:
        """End this process at once, when nobody needs it any more."""
        sys.stdout.flush()
        self.store.set(f"bye{self.rank}", "")
        if self.rank == 0:
            self.store.wait([f"bye{rank}" for rank in range(self.size)])
        os._exit(0)


@dataclass
class Timings:
    """One variant, per round: wall seconds of the slowest, CPU seconds of all, bytes sent."""

    wall_s: list[float] = field(default_factory=list)
    cpu_s: list[float] = field(default_factory=list)
    wire_bytes: list[float] = field(default_factory=list)
    """Of the process whose end of the network carried most; 0 without a network."""


def interleave(
    group: Group, variants: dict[str, Callable[[], Any]], rounds: int
) -> dict[str, Timings]:
    """Run all variants in turn, ``rounds`` times after two to warm up; all ranks must call.

    CPU seconds are summed over all threads of all ranks: they tell what a busy machine hides.
    """
    timings = {name: Timings() for name in variants}
    for count in range(rounds + 2):
        for name, run in variants.items():
            group.all_gather(torch.zeros(1))
            wall, cpu, wire = time.perf_counter(), time.process_time(), wire_bytes()
            run()
            wall = time.perf_counter() - wall
            group.all_gather(torch.zeros(1))  # what is still sent to others counts, too
            own = [wall, time.process_time() - cpu, wire_bytes() - wire]
            rows = group.all_gather(torch.tensor(own, dtype=torch.float64))
            if count >= 2:
                timings[name].wall_s.append(float(rows[:, 0].max()))
                timings[name].cpu_s.append(float(rows[:, 1].sum()))
                timings[name].wire_bytes.append(float(rows[:, 2].max()))
    group.all_gather(torch.zeros(1))
    return timings


def report(timings: dict[str, Timings], network: Network | None = None) -> None:
    """Print medians, and ratios to the first variant."""
    base = next(iter(timings.values()))
    base_wall, base_cpu = statistics.median(base.wall_s), statistics.median(base.cpu_s)
    for name, timing in timings.items():
        wall, cpu = statistics.median(timing.wall_s), statistics.median(timing.cpu_s)
        carried = statistics.median(timing.wire_bytes)
        share = carried * 8 / network.bits_per_s / wall if network else 0.0
        print(
            f"  {name:26} wall {wall * 1e3:7.1f} ms (min {min(timing.wall_s) * 1e3:.1f})"
            f" x{wall / base_wall:.2f}   cpu {cpu * 1e3:7.1f} ms x{cpu / base_cpu:.2f}"
            + (f"   {carried / 1e6:6.1f} MB, {share:.0%} of the wire" if network else ""),
            flush=True,
        )


def run_processes(
    size: int, function: Callable[..., None], *args: Any, network: Network | None = None
) -> None:
    """Run ``function(member, *args)`` in ``size`` processes; wait for all."""
    context = multiprocessing.get_context("spawn")
    if network is not None:
        network.enter()
    pipes = []
    processes = []
    for rank in range(size):
        mine, theirs = context.Pipe()
        process = context.Process(
            target=_start, args=(theirs, rank, network, function, args), daemon=True
        )
        process.start()
        theirs.close()
        pipes.append(mine)
        processes.append(process)
    for rank, pipe in enumerate(pipes):
        pid = pipe.recv()
        if network is not None:
            network.connect(rank, pid)
        pipe.send(None)
    said = [pipe.recv() for pipe in pipes]
    for pipe in pipes:
        pipe.send(said)
    for process in processes:
        process.join()
    if codes := [process.exitcode for process in processes if process.exitcode]:
        raise SystemExit(f"a process of the benchmark ended with {codes[0]}")


def _start(
    pipe: Any,
    rank: int,
    network: Network | None,
    function: Callable[..., None],
    args: tuple[Any, ...],
) -> None:
    die_with_parent()
    if network is not None:
        network.join()
    pipe.send(os.getpid())
    pipe.recv()
    address = "127.0.0.1"
    if network is not None:
        network.configure(rank)
        address = network.address(rank)
    port = Port(address)
    hosted = TCPStore(address, 0, None, is_master=True, wait_for_workers=False)
    pipe.send((port.endpoint, address, hosted.port))
    said = pipe.recv()
    _, host, number = said[0]
    store = hosted if rank == 0 else TCPStore(host, number, None, wait_for_workers=False)
    member = Member(
        rank=rank,
        endpoints=[endpoint for endpoint, _, _ in said],
        port=port,
        store=store,
        network=network,
    )
    function(member, *args)
