"""Team slots: the slots of a replica whose workers compute several at the same time.

Owns the passes of an attempt: in each, every worker computes one slot of its shard, or one for
nothing where there is none left for it, since what they compute in needs all of them.  After a
pass every worker holds the leaves of all its slots, and adds them in the order in which one worker
alone would: the bits do not depend on how many there are.  Must not know how leaves get from one
worker to the other (``LeafExchange``), groups between replicas, or the protocol.

    pass          slot 0 | slot 1        one per shard, at the same time
    leaves        0 1    | 0 1           everybody has both
    sums          +0 +1  | +0 +1         the same additions on every worker
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import torch

from pliant.core.errors import UsageError
from pliant.core.step.passes import Pass, passes
from pliant.engine.data.loading import BatchRequest
from pliant.engine.data.slots import Attempt, Backwards, Slots
from pliant.engine.device import host
from pliant.engine.reduce.buckets import SHARED
from pliant.engine.reduce.gradient_tree import Position
from pliant.engine.sharding.shard_sums import LeafExchange
from pliant.engine.sharding.stages import Shapes


class TeamSlots(Slots):
    """See the module's text."""

    def __init__(self, team: LeafExchange, **parts: Any) -> None:
        """``parts``: as ``Slots``."""
        super().__init__(**parts)
        self._team = team
        self._passes: list[Pass] = []
        self._pass: Pass | None = None
        self._visits: list[Position] = []
        self._requests: list[BatchRequest | None] = []

    def begin(self, attempt: Attempt) -> None:
        """Start an attempt at a step; what is left of an earlier one is given up."""
        super().begin(attempt)
        self._visits, self._left = self._left, []
        self._requests = [self._schedule.request(attempt.step, v.slot) for v in self._visits]
        holds = [request is not None for request in self._requests]
        self._passes = list(passes(holds, self._team.num_shards))
        self._pass = None
        own = (self._own_place(one) for one in self._passes)
        self._loader.want(
            attempt.step, [self._visits[place].slot for place in own if place is not None]
        )

    def next(self) -> tuple[Any] | None:
        """End the pass and begin the next; return this worker's batch, None at the end."""
        attempt = self._current()
        self._end_pass()
        while self._passes:
            self._pass = self._passes.pop(0)
            place = self._own_place(self._pass)
            if place is not None and (request := self._requests[place]) is not None:
                self._sums.open(merges=0, part=0, is_last_of_part=False, is_last=False)
                return (self._enter(self._visits[place], request),)
            self._end_pass()
        self._launch_extras(attempt)
        return None

    def _own_place(self, one: Pass) -> int | None:
        """Return what this worker computes in a pass: its own slot, or the first for nothing."""
        place = one.of_shard(self._team.shard)
        return place if place is not None else one.of_shard(0)

    @torch.no_grad()
    def _end_pass(self) -> None:
        """Add up the slots of the pass that is open."""
        done, self._pass = self._pass, None
        slot, self._open = self._open, None
        if done is None:
            return
        values: Sequence[torch.Tensor] = ()
        leaves: Sequence[dict[int, torch.Tensor]] = ()
        if slot is not None:
            if self._team.is_sharded and not slot.has_backward:
                raise UsageError(
                    "step.backward was not called for a micro-batch of a sharded model; call it "
                    "for each, with weight=0 for one that does not count"
                )
            is_own = done.of_shard(self._team.shard) is not None
            self._record(slot, is_own=is_own and self._team.is_first_of_shard)
            own_leaves, together = self._sums.take_leaves()
            own = self._values(self._say(slot, [*own_leaves, *together])) if is_own else None
            if own is None:
                own, own_leaves = torch.zeros(self.width, device=host.LOCATION).double(), {}
            values = self._team.gather_values(own)
            sizes = [int(one[SHARED]) for one in values]
            if any(sizes):
                packed = self._logged.get(slot.request.slot, b"") if is_own else b""
                told = self._team.gather_bytes(packed, sizes)
                for place, one in zip(done.computed, told, strict=False):
                    if one:
                        self._logged[self._visits[place].slot] = one
            present = [self.present_in(one) for one in values]
            leaves = self._team.gather_leaves(own_leaves, present)
            for number, rows in together.items():
                for given_leaves, row in zip(leaves, rows, strict=True):
                    given_leaves[number] = row
        given = dict(zip(done.computed, zip(values, leaves, strict=True), strict=False))
        for place in done.places:
            visit = self._visits[place]
            said, its_leaves = given.get(place, (None, {}))
            self._open_sums(visit)
            is_computed = said is not None and self.is_computed(said)
            self._sums.put_leaves(its_leaves if is_computed else {})
            self._sums.close()
            self._push(visit, said)

    def pipeline(self, run: Backwards, weight: float | None, shapes: Shapes = ()) -> None:
        """Run forward and backward of the open slot as a schedule has it."""
        if self._team.is_sharded:
            raise UsageError(
                "step.pipeline of a model under fully_shard is not possible yet; leave out one of "
                "the two"
            )
        super().pipeline(run, weight, shapes)

    def backward(self, loss: torch.Tensor, weight: float | None) -> None:
        """Run the open slot's one backward, also of a weight of 0: the others need this one."""
        super().backward(loss, weight)
        slot = self._open
        if self._team.is_sharded and slot is not None and slot.weight == 0.0:
            with torch.autocast(loss.device.type, enabled=False):
                self._sums.capture(lambda: torch.autograd.backward(loss), 1.0)
