"""Gradients that a hook on another stream hands over, as FSDP does; run by ``test_sharded``."""

from __future__ import annotations

import time
from collections.abc import Callable
from typing import Any

import torch
from tests.accelerator import checks, sim
from tests.accelerator.behaviour import Gate
from tests.engine import models
from torch import nn
from torch.nn.attention import SDPBackend, sdpa_kernel

import pliant
from pliant.engine.device import here
from pliant.engine.local_tensors import is_sharded
from pliant.engine.reduce.accumulate import GradientSums
from pliant.engine.reduce.buckets import Layout

LOOKED_S = 0.2


class OneSlot:
    """The sum of one slot, whose gradient comes on a stream of its own."""

    def __init__(self, *, is_apart: bool) -> None:
        """``is_apart``: it is taken apart into those of all slots."""
        self.parameter = nn.Parameter(torch.zeros(4096, device="sim"))
        here.choose([self.parameter])
        named = {"one": self.parameter}
        self.sums = GradientSums(named, Layout.of(named.items(), extras=1), is_shared=True)
        if is_apart:
            self.sums.take_apart(lambda gradient: [gradient.view(-1)])
        self.side = torch.Stream("sim")
        self.sums.begin(1)
        self.sums.open(merges=0, part=0, is_last_of_part=True, is_last=True)
        torch.accelerator.synchronize()

    def hand_over(self) -> None:
        hooks: Any = self.parameter._post_accumulate_grad_hooks
        with self.side:
            self.parameter.grad = torch.full_like(self.parameter, 7.0)
            for hook in hooks.values():
                hook(self.parameter)

    def add_up(self) -> torch.Tensor:
        """Queue the sum on the current stream, and drop the leaf."""
        leaves, together = self.sums.take_leaves()
        self.sums.put_leaves(leaves | {number: rows[0] for number, rows in together.items()})
        del leaves, together
        self.sums.close()
        return self.sums.partials(0)[0].clone()


def on_both_ways(check: Callable[[OneSlot], None]) -> None:
    for is_apart in (False, True):
        check(OneSlot(is_apart=is_apart))


def check_a_leaf_is_used_when_its_stream_has_made_it() -> None:
    def late(slot: OneSlot) -> None:
        with slot.side:
            gate = Gate()
        slot.sums.capture(slot.hand_over, 1.0)
        total = slot.add_up()
        reached = torch.Event("sim")
        reached.record(torch.accelerator.current_stream())
        until_s = time.monotonic() + LOOKED_S
        while not reached.query() and time.monotonic() < until_s:
            time.sleep(0.01)
        gate.open()
        torch.accelerator.synchronize()
        assert total.cpu().eq(7).all(), total

    on_both_ways(late)


def check_the_memory_of_a_leaf_is_its_own_until_it_is_added() -> None:
    def early(slot: OneSlot) -> None:
        slot.sums.capture(slot.hand_over, 1.0)
        slot.side.synchronize()
        gate = Gate()
        total = slot.add_up()
        with slot.side:
            other = torch.full_like(slot.parameter, 9.0)
        slot.side.synchronize()
        gate.open()
        torch.accelerator.synchronize()
        assert total.cpu().eq(7).all(), total
        del other

    on_both_ways(early)


def check_a_sharded_model_of_one_worker_has_the_bits_of_the_cpu() -> None:
    with sdpa_kernel(SDPBackend.MATH):
        expected = models.train(models.build("gpt", randomness=False), 6)
        case = models.build("gpt", randomness=False, mesh={"shard": 2})
        assert pliant.mesh(shard=2).device_type == "sim"
        assert all(map(is_sharded, case.model.parameters()))
        sim.move(case, "sim")
        assert models.train(case, 6) == expected


if __name__ == "__main__":
    checks.main(globals())
