"""One worker of ``benchmarks.shards``: FSDP2 inside a replica of pliant, or plain HSDP of torch.

Owns both trainings, of the same model, data and micro-batches.  A worker rests after each turn
until its side goes on (``turns``), and hands in how long its steps took and what memory they took
at their peak.  The model is sharded before it has any memory, so that none of a whole one counts.
"""

from __future__ import annotations

import argparse
import time
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import torch
import torch.distributed as dist
from torch import nn
from torch.distributed.device_mesh import DeviceMesh, init_device_mesh
from torch.distributed.fsdp import fully_shard
from torch.utils.data import DataLoader

import pliant
from benchmarks.model import Tokens, loss_of
from benchmarks.turns import Player
from pliant.recipes.gpt import GPT, GPTConfig

LENGTH = 32
RESTS_S = 1800.0


def options() -> argparse.Namespace:
    """Read the command line."""
    parser = argparse.ArgumentParser()
    parser.add_argument("--side", choices=("pliant", "hsdp"), required=True)
    parser.add_argument("--turns", type=Path, required=True, help="socket of the driver")
    parser.add_argument("--steps", type=int, required=True, help="of a turn")
    parser.add_argument("--replicas", type=int, required=True)
    parser.add_argument("--shard", type=int, required=True)
    parser.add_argument("--slots", type=int, required=True)
    parser.add_argument("--micro-batch", type=int, required=True)
    parser.add_argument("--width", type=int, required=True)
    parser.add_argument("--layers", type=int, required=True)
    parser.add_argument("--rank", type=int, default=0, help="of plain torch")
    parser.add_argument("--meeting", help="URL, of plain torch")
    return parser.parse_args()


def kilobytes(field: str) -> int:
    """Return a line of this process's status."""
    lines = Path("/proc/self/status").read_text().splitlines()
    return next(int(line.split()[1]) for line in lines if line.startswith(f"{field}:"))


class Meter:
    """What a turn took."""

    def __init__(self, player: Player) -> None:
        self._player = player
        self._before_kb = kilobytes("VmRSS")
        self._began_s = 0.0

    def rest(self) -> None:
        """Hand in the turn that ends here, and wait for the next one."""
        record = {
            "wall_s": time.perf_counter() - self._began_s,
            "peak_bytes": 1024 * (kilobytes("VmHWM") - self._before_kb),
        }
        self._player.rest(record)
        Path("/proc/self/clear_refs").write_text("5")  # the peak counts from here
        self._began_s = time.perf_counter()


def sharded_model(chosen: argparse.Namespace, mesh: DeviceMesh) -> GPT:
    """Return a model of which no process ever holds more than its part, and one layer."""
    heads = chosen.width // 32
    with torch.device("meta"):
        model = GPT(
            GPTConfig(
                context=LENGTH,
                width=chosen.width,
                heads=heads,
                layers=chosen.layers,
                dropout=0.0,
                tied=False,
            )
        )
    for block in model.blocks:
        fully_shard(block, mesh=mesh)
    fully_shard(model, mesh=mesh)
    model.to_empty(device="cpu")
    torch.manual_seed(1)
    with torch.no_grad():
        for parameter in model.parameters():
            local: Any = parameter
            nn.init.normal_(local.to_local(), std=0.02)
    return model


def train_plain(chosen: argparse.Namespace, meter: Meter) -> None:
    """Train as HSDP has it: shards are added up in each micro-batch, copies in the last."""
    size = chosen.replicas * chosen.shard
    dist.init_process_group("gloo", init_method=chosen.meeting, rank=chosen.rank, world_size=size)
    mesh = init_device_mesh(
        "cpu", (chosen.replicas, chosen.shard), mesh_dim_names=("copies", "shard")
    )
    model: Any = sharded_model(chosen, mesh)
    optimizer = torch.optim.AdamW(model.parameters(), lr=3e-4)
    batches = forever(chosen)
    share = chosen.slots // size
    while True:
        meter.rest()
        for _ in range(chosen.steps):
            for number in range(share):
                x, y = next(batches)
                model.set_requires_all_reduce(number == share - 1)
                torch.autograd.backward(loss_of(model, x, y) / share)
            nn.utils.clip_grad_norm_(model.parameters(), 1.0)
            optimizer.step()
            optimizer.zero_grad()


def forever(chosen: argparse.Namespace) -> Iterator[Any]:
    """Yield micro-batches."""
    while True:
        yield from DataLoader(data(), batch_size=chosen.micro_batch, shuffle=True, drop_last=True)


def train_elastic(chosen: argparse.Namespace, meter: Meter) -> None:
    """Train in replicas of pliant."""
    pliant.seed(1)
    model = sharded_model(chosen, pliant.mesh(shard=chosen.shard)["shard"])
    with pliant.Session(
        model=model,
        optimizer=torch.optim.AdamW(model.parameters(), lr=3e-4),
        dataset=data(),
        global_batch_size=chosen.slots * chosen.micro_batch,
        micro_batch_size=chosen.micro_batch,
        max_grad_norm=1.0,
    ) as session:
        rest(session, meter)
        for step in session.steps(1_000_000):
            for x, y in step:
                step.backward(loss_of(model, x, y))
            if (step.index + 1) % chosen.steps == 0:
                rest(session, meter)


def rest(session: pliant.Session, meter: Meter) -> None:
    """Rest while the other side goes on, which is no hang."""
    with session.busy(max_s=RESTS_S):
        meter.rest()


def data() -> Tokens:
    """Return the data of both sides."""
    return Tokens(samples=4096, length=LENGTH)


def warm_up() -> None:
    """Load what is loaded at first use: a worker of pliant is forked from who has it already."""
    model = nn.Linear(2, 2)
    optimizer = torch.optim.AdamW(model.parameters())
    torch.autograd.backward(model(torch.zeros(1, 2)).sum())
    nn.utils.clip_grad_norm_(model.parameters(), 1.0)
    optimizer.step()


def main() -> None:
    """Train until the driver lets go."""
    chosen = options()
    torch.set_num_threads(1)
    warm_up()
    meter = Meter(Player(chosen.turns, chosen.side))
    if chosen.side == "hsdp":
        train_plain(chosen, meter)
    else:
        train_elastic(chosen, meter)


if __name__ == "__main__":
    main()
