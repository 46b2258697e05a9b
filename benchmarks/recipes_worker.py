"""One worker of ``benchmarks.recipes``: a recipe, or the same model in a plain loop of torch.

Owns both trainings and what they begin with.  The recipe is what ``pliant recipe run`` runs, but
for a rest after each turn; the loop knows nothing of pliant, and takes its model from the
directory that the recipe names.  A worker rests until its side goes on (``turns``), and hands in
how long its steps took.
"""

from __future__ import annotations

import argparse
import json
import random
import string
import time
from collections.abc import Iterator
from pathlib import Path
from typing import Any
from unittest import mock

import torch
import torch.distributed as dist
from torch import Tensor, nn
from torch.nn.parallel import DistributedDataParallel
from torch.utils.data import DataLoader

import pliant
from benchmarks.turns import Player
from pliant.recipes import train
from pliant.recipes.families import SHORT, Geometry, geometry
from pliant.spec.load import check
from pliant.spec.recipe import Recipe

RESTS_S = 1800.0
SAMPLES = 2048
RATE = 1e-4

SMALL = {"width": 768, "inner": 2048, "layers": 12, "heads": 12, "kv_heads": 12, "head_size": 64}
GEOMETRIES = {
    "tiny": geometry("llama", "tiny", 262),
    "124M": Geometry(family="llama", vocabulary=50_257, is_tied=True, others=SHORT, **SMALL),
}
"""The second has the width, layers and vocabulary of GPT-2 small, and 123.6M parameters."""


def options() -> argparse.Namespace:
    """Read the command line."""
    parser = argparse.ArgumentParser()
    parser.add_argument("--make", choices=GEOMETRIES, help="write model and data, and end")
    parser.add_argument("--folder", type=Path, required=True, help="of model and data")
    parser.add_argument("--side", choices=("recipe", "plain"), default="plain")
    parser.add_argument("--turns", type=Path, help="socket of the driver")
    parser.add_argument("--steps", type=int, default=1, help="of a turn")
    parser.add_argument("--slots", type=int, default=4)
    parser.add_argument("--micro-batch", type=int, default=1)
    parser.add_argument("--length", type=int, required=True)
    parser.add_argument("--sharded", action="store_true", help="two workers share the model")
    parser.add_argument("--rank", type=int, default=0, help="of the loop")
    parser.add_argument("--meeting", help="URL, of the loop")
    return parser.parse_args()


def make(chosen: argparse.Namespace) -> None:
    """Write fresh weights, and texts each of which is one sample."""
    from transformers import LlamaConfig, LlamaForCausalLM

    torch.manual_seed(1)
    model = LlamaForCausalLM(LlamaConfig(**GEOMETRIES[chosen.make].config()))
    model.save_pretrained(chosen.folder / "model")
    draw = random.Random(1)
    texts = (
        "".join(draw.choices(string.ascii_letters, k=chosen.length - 1)) for _ in range(SAMPLES)
    )
    lines = "".join(json.dumps({"text": text}) + "\n" for text in texts)
    (chosen.folder / "texts.jsonl").write_text(lines)


class Meter:
    """What a turn took."""

    def __init__(self, player: Player) -> None:
        self._player = player
        self._began = (0.0, 0.0)

    def rest(self) -> None:
        """Hand in the turn that ends here, and wait for the next one."""
        record = {
            "wall_s": time.perf_counter() - self._began[0],
            "cpu_s": time.process_time() - self._began[1],
        }
        self._player.rest(record)
        self._began = (time.perf_counter(), time.process_time())


def train_recipe(chosen: argparse.Namespace, meter: Meter) -> None:
    """Train by a recipe, which rests after each turn; resting is no hang."""

    class Paced(pliant.Session):
        def steps(self, *args: Any, **names: Any) -> Any:
            self._rest()
            for step in super().steps(*args, **names):
                yield step
                if (step.index + 1) % chosen.steps == 0:
                    self._rest()

        def _rest(self) -> None:
            with self.busy(max_s=RESTS_S):
                meter.rest()

    fields = {
        "task": "pretrain",
        "model": {"weights": str(chosen.folder / "model"), "tokenizer": "bytes"},
        "data": {
            "train": str(chosen.folder / "texts.jsonl"),
            "sequenceLength": chosen.length,
            "cache": str(chosen.folder / "cache"),
        },
        "training": {
            "steps": 1_000_000,
            "globalBatchSize": chosen.slots * chosen.micro_batch,
            "microBatchSize": chosen.micro_batch,
            "learningRate": RATE,
            "schedule": "constant",
        },
    }
    with mock.patch.object(pliant, "Session", Paced):
        train.train(check(Recipe, fields, source="the recipe"))


def train_plain(chosen: argparse.Namespace, meter: Meter) -> None:
    """Train two ranks: under DDP, which adds up in the last micro-batch, or FSDP2, in each."""
    from transformers import LlamaForCausalLM

    dist.init_process_group("gloo", init_method=chosen.meeting, rank=chosen.rank, world_size=2)
    model: Any = LlamaForCausalLM.from_pretrained(chosen.folder / "model", dtype=torch.float32)
    model.train()
    model = (
        sharded(model)
        if chosen.sharded
        else DistributedDataParallel(model, gradient_as_bucket_view=True)
    )
    optimizer = torch.optim.AdamW(model.parameters(), lr=RATE, weight_decay=0.0)
    share, batches = chosen.slots // 2, forever(chosen)
    while True:
        meter.rest()
        for _ in range(chosen.steps):
            for number in range(share):
                if not chosen.sharded:
                    model.require_backward_grad_sync = number == share - 1
                tokens = next(batches)
                loss = model(input_ids=tokens, labels=tokens, use_cache=False).loss
                torch.autograd.backward(loss / share)
            nn.utils.clip_grad_norm_(model.parameters(), 1.0)
            optimizer.step()
            optimizer.zero_grad()


def sharded(model: Any) -> Any:
    """Let two ranks hold half of each layer."""
    from torch.distributed.device_mesh import init_device_mesh
    from torch.distributed.fsdp import fully_shard

    mesh = init_device_mesh("cpu", (2,))
    for layer in model.model.layers:
        fully_shard(layer, mesh=mesh)
    return fully_shard(model, mesh=mesh)


def forever(chosen: argparse.Namespace) -> Iterator[Tensor]:
    """Yield micro-batches of tokens, each (B, T)."""
    generator = torch.Generator().manual_seed(chosen.rank)
    data: Any = torch.randint(256, (SAMPLES, chosen.length), generator=generator)
    while True:
        yield from DataLoader(data, batch_size=chosen.micro_batch, shuffle=True, drop_last=True)


def main() -> None:
    """Train until the driver lets go."""
    chosen = options()
    if chosen.make:
        make(chosen)
        return
    torch.set_num_threads(1)
    meter = Meter(Player(chosen.turns, chosen.side))
    (train_recipe if chosen.side == "recipe" else train_plain)(chosen, meter)


if __name__ == "__main__":
    main()
