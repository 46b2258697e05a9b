"""Slots: computes the micro-batches that this replica owns, one at a time.

Owns one attempt at a step, from the first slot to the launch of the last bucket: where each slot
starts (data, random numbers, buffers), what its backward gives, and in which order buckets are
handed over.  Must not know how they are reduced, when the step commits, or why an attempt is
given up and begun again.

Beside the gradients one float64 vector per slot goes through the same tree (``Extras``): all that
the commit needs travels in buckets, so that a vote stands for a complete result (R14).
"""

from __future__ import annotations

import json
import math
import textwrap
import time
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any

import torch

from pliant.core.errors import UsageError
from pliant.core.step.balance import UNKNOWN_US
from pliant.core.step.batching import Node, root
from pliant.engine import probe, randomness
from pliant.engine.data.ledger import Ledger
from pliant.engine.data.loading import BatchRequest, Schedule, SlotLoader
from pliant.engine.device import here, host
from pliant.engine.reduce.accumulate import GradientSums
from pliant.engine.reduce.buckets import SHARED
from pliant.engine.reduce.gradient_tree import Position, ValueSums, positions
from pliant.engine.sharding.stages import Shapes, Stages
from pliant.engine.state.buffers import BufferRules

Launch = Callable[[int, list[torch.Tensor]], None]

Backwards = Callable[[], float | None]
"""Leaves a micro-batch's gradients in ``.grad``; returns the loss, if this worker has it."""

_LOSS, _WEIGHT, _COMPUTED, _INVALID, _PRESENCE = range(SHARED + 1, SHARED + 6)

_CLIP = ""
"""Under which name slots tell each other to what norm to clip; 0: not at all."""

Logged = tuple[str, str, str]
"""What a slot has logged: name, value and weight, both as ``float.hex`` gives them."""


def extras_width(num_parameters: int, buffers: BufferRules) -> int:
    """Return how many float64 values every slot sends beside its gradients."""
    return _PRESENCE + num_parameters + buffers.width


@dataclass(frozen=True, slots=True, kw_only=True)
class Extras:
    """What travels beside the gradients, added up over all slots of a step."""

    values: torch.Tensor
    num_parameters: int

    @property
    def weight(self) -> float:
        """Total weight of the step."""
        return float(self.values[_WEIGHT])

    @property
    def loss(self) -> float:
        """Weighted mean of the losses; nan if no slot was computed."""
        return float(self.values[_LOSS]) / self.weight if self.weight else math.nan

    @property
    def num_computed(self) -> int:
        """Number of slots with a backward."""
        return int(self.values[_COMPUTED])

    @property
    def is_invalid(self) -> bool:
        """Whether some replica's sums are wrong: nobody may commit this attempt."""
        return bool(self.values[_INVALID])

    @property
    def presence(self) -> list[bool]:
        """Which parameters any slot touched, by their place in the buckets."""
        part = self.values[_PRESENCE : _PRESENCE + self.num_parameters]
        return [bool(count) for count in part.tolist()]

    @property
    def buffers(self) -> torch.Tensor:
        """The sum of the buffers' changes."""
        return self.values[_PRESENCE + self.num_parameters :]


@dataclass(frozen=True, slots=True, kw_only=True)
class Attempt:
    """One attempt at one step, as this replica sees it."""

    step: int
    nodes: tuple[Node, ...]
    """The maximal subtrees it owns; in fast mode one node over all its slots."""

    lineage: int
    generation: int
    launch: Launch
    tell: Callable[[bytes], None] = lambda payload: None
    """Takes what all members are to learn beside the sums; see ``Reduction.tell``."""

    lent: Sequence[Sequence[torch.Tensor]] = ()
    """Flat buffers by bucket in which to add up; see ``GradientSums.begin``."""


@dataclass(slots=True)
class _OpenSlot:
    """The slot that the user's code is computing now."""

    position: Position
    request: BatchRequest
    has_backward: bool = False
    weight: float = 0.0
    loss: Callable[[], list[torch.Tensor]] | None = None
    """Reads it as it was in the backward: the script may change the tensor in place behind that.

    None: no backward so far, or one of weight 0."""

    logged: list[tuple[str, Callable[[], list[torch.Tensor]], float]] = field(default_factory=list)
    """Names, what reads the value, and weights."""


@dataclass(frozen=True, slots=True, kw_only=True)
class _Said:
    """What a slot says beside its gradients, on its way to the host."""

    slot: _OpenSlot
    present: list[int]
    """Numbers of the parameters that it touched."""
    is_invalid: bool
    changes: Callable[[], list[torch.Tensor]] | None
    """Of the buffers, if they say anything; waits for the device, as what the slot reads does."""


class Slots:
    """Hands out the slots of one attempt after another; see the module's text."""

    def __init__(
        self,
        *,
        sums: GradientSums,
        num_parameters: int,
        buffers: BufferRules,
        schedule: Schedule,
        loader: SlotLoader,
        ledger: Ledger,
        scaler: torch.amp.GradScaler | None,
        stages: Stages,
    ) -> None:
        self._sums = sums
        self._num_parameters = num_parameters
        self.width = extras_width(num_parameters, buffers)
        """Of what every slot says beside its gradients."""
        self._extras = ValueSums(self.width)
        self._buffers = buffers
        self._schedule = schedule
        self._loader = loader
        self._ledger = ledger
        self._scaler = scaler
        self._stages = stages
        self._logged: dict[int, bytes] = {}
        """What slots of the attempt have logged, packed."""
        self._said: list[tuple[Position, _Said | None]] = []
        """What the slots of the attempt say beside their gradients, on its way to the host."""
        self._attempt: Attempt | None = None
        self._left: list[Position] = []
        self._open: _OpenSlot | None = None
        self._ready: list[bool] = []
        self._launched = 0
        self.nonfinite = ""
        """The first slot of this attempt whose loss here is nan or inf, in words; or empty."""
        self.passed_over = ""
        """The first slot of this attempt that had no backward here, in words; or empty."""
        self.slot_us = UNKNOWN_US
        """How long what is computed at once took here, in the newest whole attempt."""
        self.data_us = self.compute_us = 0
        """What the newest whole attempt here waited for its loader, and took beside that."""
        self._began_s = self._data_s = 0.0
        self._entered = 0
        self.has_rehearsed = False

    def begin(self, attempt: Attempt) -> None:
        """Start an attempt at a step; what is left of an earlier one is given up."""
        self._attempt = attempt
        self._open = None
        self._left = positions(attempt.nodes)
        self._ready = [False] * self._sums.num_buckets
        self._launched = 0
        self.nonfinite = self.passed_over = ""
        self._began_s, self._entered, self._data_s = time.monotonic(), 0, 0.0
        self._buffers.begin()
        self._sums.begin(len(attempt.nodes), self._on_ready, attempt.lent)
        self._extras.begin(len(attempt.nodes))
        self._said, self._logged = [], {}
        self._loader.want(attempt.step, [position.slot for position in self._left])

    def next(self) -> tuple[Any] | None:
        """Close the open slot and open the next; return its batch in a tuple, None at the end.

        When the last slot is closed, every bucket has been launched.
        """
        attempt = self._current()
        self._close()
        while self._left:
            position = self._left.pop(0)
            request = self._schedule.request(attempt.step, position.slot)
            self._open_sums(position)
            if request is not None:
                return (self._enter(position, request),)
            self._end(position, None)
        self._launch_extras(attempt)
        return None

    def _launch_extras(self, attempt: Attempt) -> None:
        """Hand over what goes beside the gradients: every slot is computed."""
        spent_us = int(1e6 * (time.monotonic() - self._began_s))
        self._push_said()
        self.data_us = int(1e6 * self._data_s)
        self.compute_us = int(1e6 * (time.monotonic() - self._began_s)) - self.data_us
        self.slot_us = max(1, spent_us // self._entered) if self._entered else UNKNOWN_US
        packed = json.dumps({slot: one.decode() for slot, one in self._logged.items()})
        attempt.tell(packed.encode())
        attempt.launch(self._sums.num_buckets, self._extras.partials())

    def backward(self, loss: torch.Tensor, weight: float | None) -> None:
        """Run the open slot's one backward."""
        slot = self._without_backward("step.backward")
        self._stages.refuse_backward()
        weight = _checked_weight(weight, len(slot.request.samples))
        _check_loss(loss)
        slot.has_backward = True
        if weight == 0.0:
            return
        slot.weight = weight
        root = loss if self._scaler is None else self._scaler.scale(loss)
        with torch.autocast(loss.device.type, enabled=False):
            scale = weight / self._schedule.micro_batch_size
            self._sums.capture(lambda: torch.autograd.backward(root), scale)
        slot.loss = here.device.read([loss])

    def log(self, values: Mapping[str, Any], weight: float | None) -> None:
        """Take note of numbers of the open slot."""
        slot = self._open
        if slot is None or self._stages.is_several:
            raise UsageError(
                "step.log belongs inside the loop over a step, once a micro-batch is there, and "
                "not with a model in stages, whose workers know different things; in a tail use "
                "session.log"
            )
        counted = _checked_weight(weight, len(slot.request.samples))
        for name, value in values.items():
            if any(name == known for known, *_ in slot.logged):
                raise UsageError(f"step.log was given {name!r} twice for one micro-batch")
            tensor = value if isinstance(value, torch.Tensor) else _number(value)
            if tensor.numel() != 1:
                raise UsageError(
                    f"step.log takes numbers and tensors of one element, and {name!r} has the "
                    f"shape {tuple(tensor.shape)}; log its mean"
                )
            slot.logged.append((name, here.device.read([tensor]), counted))

    def set_clip(self, norm: float | None) -> bool:
        """Take note that the open slot wants the gradient clipped so; False: there is none open."""
        if self._open is not None:
            wanted = torch.tensor(norm or 0.0, dtype=torch.float64, device=host.LOCATION)
            self._open.logged.append((_CLIP, lambda: [wanted], 0.0))
        return self._open is not None

    def pipeline(self, run: Backwards, weight: float | None, shapes: Shapes = ()) -> None:
        """Run forward and backward of the open slot as a schedule has it; all have ``shapes``."""
        slot = self._without_backward("step.pipeline")
        self._stages.check_shapes(shapes)
        if self._scaler is not None:
            raise UsageError(
                "step.pipeline with scaler= is not possible: the schedule computes the loss by "
                "itself; use bfloat16, which needs no scaler"
            )
        slot.weight = _checked_weight(weight, len(slot.request.samples))
        slot.has_backward = True
        if not self.has_rehearsed:  # what is sent has its shapes found out by a forward
            self.has_rehearsed = True
            self._sums.let_accumulate(run)
            self._sums.take_accumulated(None)
            self._buffers.rewind()
        place = (self._schedule.seed, slot.request.step, slot.request.slot)
        randomness.seed_place("slot", *place, *self._stages.coordinates)
        found: list[float | None] = []
        self._sums.let_accumulate(lambda: found.append(run()))
        value, slot.weight = self._stages.agree(found[0], slot.weight)
        if slot.weight == 0.0:
            self._sums.take_accumulated(None)
            return
        self._sums.take_accumulated(slot.weight / self._schedule.micro_batch_size)
        agreed = torch.tensor(value, dtype=torch.float64, device=host.LOCATION)
        slot.loss = lambda: [agreed]

    def _without_backward(self, call: str) -> _OpenSlot:
        """Return the open slot, which this call is for."""
        slot = self._open
        if slot is None:
            raise UsageError(f"{call} was called outside of the loop over the step")
        if slot.has_backward:
            raise UsageError(
                f"{call} was called twice for one micro-batch; add the losses, call it once"
            )
        return slot

    @property
    def open_slot(self) -> int:
        """Which micro-batch the script computes now; -1: none."""
        return -1 if self._open is None else self._open.request.slot

    def give_up(self) -> None:
        """Forget this attempt; buffers have their values of the step's start again."""
        if self._attempt is not None:
            self._buffers.rewind()
            self._end_attempt()

    def check(self, extras: Extras) -> None:
        """Look at what the whole step changed in the buffers before anybody commits it.

        Raises:
            UsageError: it cannot be committed.
        """
        if extras.num_computed and not self._stages.is_several and not any(extras.presence):
            raise UsageError(
                "no loss that step.backward was given depends on a parameter of the session's "
                "model, so the step would train nothing; compute it with that model"
            )
        self._buffers.check(extras.buffers, extras.num_computed)

    def commit(self, extras: Extras, *, is_skipped: bool = False) -> None:
        """Move the buffers by what the whole step changed, and forget the attempt.

        ``is_skipped``: they stay as they were at the step's start.
        """
        if is_skipped:
            self._buffers.rewind()
        else:
            self._buffers.commit(extras.buffers, extras.num_computed)
        self._loader.forget(before=self._current().step)
        self._end_attempt()

    def forget_buffers(self) -> None:
        """Use new flat buffers from now on: an abandoned group may still touch the present ones."""
        self._sums.forget_buffers()

    def _end_attempt(self) -> None:
        self._attempt = None
        self._open = None
        self._left = []
        self._sums.release()

    def _current(self) -> Attempt:
        if self._attempt is None:
            raise RuntimeError("no attempt at a step was begun")
        return self._attempt

    def _enter(self, position: Position, request: BatchRequest) -> Any:
        """Prepare data, buffers and random numbers of a slot, then hand it to the user."""
        probe.at("micro_batch", request.step)
        asked_s = time.monotonic()
        batch = self._loader.take_batch(request)
        self._data_s += time.monotonic() - asked_s
        self._buffers.rewind()
        self._open = _OpenSlot(position, request)
        self._entered += 1
        randomness.seed_place("slot", self._schedule.seed, request.step, request.slot)
        return batch

    def _close(self) -> None:
        slot, self._open = self._open, None
        if slot is None:
            return
        self._record(slot)
        self._end(slot.position, slot)

    def _record(self, slot: _OpenSlot, *, is_own: bool = True) -> None:
        """Write a slot that has ended to the ledger; ``is_own``: this replica's sums hold it.

        Raises:
            UsageError: its backward has failed.
        """
        if slot.weight and slot.loss is None:
            raise UsageError(
                "the backward of a micro-batch failed and the script went on; a part of its "
                "gradients is added already. Let the error end the script"
            )
        attempt = self._current()
        if not is_own:
            return
        if not slot.has_backward and not self.passed_over:
            self.passed_over = _named(slot)
        self._ledger.slot(
            lineage=attempt.lineage,
            step=attempt.step,
            generation=attempt.generation,
            slot=slot.request.slot,
            ids=slot.request.samples,
            is_used=slot.loss is not None,
        )

    @torch.no_grad()
    def _end(self, position: Position, slot: _OpenSlot | None) -> None:
        """Add the slot's leaves: its own, or absent ones."""
        present = self._sums.close()
        self._said.append((position, self._say(slot, present)))

    def _say(self, slot: _OpenSlot | None, present: list[int]) -> _Said | None:
        """Start reading what a slot says beside its gradients; None if it is absent."""
        if slot is None or (slot.loss is None and not slot.logged):
            return None
        has_loss = slot.loss is not None
        changes = self._buffers.changes(slot.position.slot) if has_loss else None
        return _Said(
            slot=slot,
            present=present,
            is_invalid=self._sums.is_invalid,
            changes=here.device.read([changes]) if changes is not None and len(changes) else None,
        )

    def _values(self, said: _Said | None) -> torch.Tensor | None:
        """Return it as a vector; may wait for the device."""
        if said is None:
            return None
        slot = said.slot
        values = torch.zeros(self.width, dtype=torch.float64, device=host.LOCATION)
        if slot.logged:
            packed = self._logged[slot.request.slot] = _packed(slot)
            values[SHARED] = len(packed)
        if slot.loss is None:
            return values
        loss = float(slot.loss()[0])
        if not math.isfinite(loss) and not self.nonfinite:
            self.nonfinite = f" in {_named(slot)}"
        told = (loss * slot.weight, slot.weight, 1.0, said.is_invalid)
        values[_LOSS:_PRESENCE] = values.new_tensor(told)
        presence = values[_PRESENCE : _PRESENCE + self._num_parameters]
        if len(said.present) == self._num_parameters:
            presence.fill_(1.0)
        else:
            presence[said.present] = 1.0
        if said.changes is not None:
            values[_PRESENCE + self._num_parameters :] = said.changes()[0]
        return values

    @staticmethod
    def is_computed(values: torch.Tensor) -> bool:
        """Whether these are of a slot that had a backward."""
        return bool(values[_COMPUTED])

    def present_in(self, values: torch.Tensor) -> list[int]:
        """Return the numbers of the parameters that a slot touched."""
        presence = values[_PRESENCE : _PRESENCE + self._num_parameters]
        return [number for number, count in enumerate(presence.tolist()) if count]

    def _open_sums(self, position: Position) -> None:
        self._sums.open(
            merges=position.merges,
            part=position.part,
            is_last_of_part=position.is_last_of_part,
            is_last=position.is_last,
        )

    def _push_said(self) -> None:
        """Add up what the slots said; waits once, for the last, behind which all others are."""
        for said in [said for _, said in self._said if said is not None][-1:]:
            if (last := said.changes or said.slot.loss) is not None:
                last()
        for position, each in self._said:
            self._push(position, self._values(each))
        self._said = []

    def _push(self, position: Position, values: torch.Tensor | None) -> None:
        self._extras.push(
            values,
            merges=position.merges,
            part=position.part,
            is_last_of_part=position.is_last_of_part,
        )

    def _on_ready(self, bucket: int) -> None:
        """Launch in a fixed order: replicas may differ in which bucket is complete first."""
        self._ready[bucket] = True
        while self._launched < len(self._ready) and self._ready[self._launched]:
            attempt = self._current()
            probe.at("bucket", attempt.step)
            attempt.launch(self._launched, self._sums.partials(self._launched))
            self._launched += 1


def _packed(slot: _OpenSlot) -> bytes:
    """Return what a slot has logged; may wait for the device."""
    rows: list[Logged] = [
        (name, float(read()[0]).hex(), weight.hex()) for name, read, weight in slot.logged
    ]
    return json.dumps(rows).encode()


def logged_means(
    parts: Sequence[bytes], num_slots: int
) -> tuple[dict[str, tuple[float, float]], set[float]]:
    """Return weighted mean and total weight of all that was logged, by name, and norms to clip to.

    Added along the tree of the gradients, whoever computed which slot.
    """
    norms: set[float] = set()
    slots: dict[int, dict[str, tuple[float, float]]] = {}
    for part in parts:
        for slot, text in json.loads(part).items():
            rows: list[Logged] = json.loads(text)
            norms |= {float.fromhex(value) for name, value, _ in rows if name == _CLIP}
            slots[int(slot)] = {
                name: (float.fromhex(value), float.fromhex(weight))
                for name, value, weight in rows
                if name != _CLIP
            }
    names = sorted({name for values in slots.values() for name in values})
    sums = ValueSums(2 * len(names))
    sums.begin(1)
    for visit in positions([root(num_slots)]):
        values = None
        if (said := slots.get(visit.slot)) is not None:
            found = [said.get(name, (0.0, 0.0)) for name in names]
            pairs = [(value * weight if weight else 0.0, weight) for value, weight in found]
            values = torch.tensor(pairs, dtype=torch.float64, device=host.LOCATION).flatten()
        sums.push(values, merges=visit.merges, part=0, is_last_of_part=visit.is_last_of_part)
    totals = sums.partials()[0].view(-1, 2).tolist()
    return {
        name: (total / weight if weight else math.nan, weight)
        for name, (total, weight) in zip(names, totals, strict=True)
    }, norms


def _named(slot: _OpenSlot) -> str:
    samples = textwrap.shorten(", ".join(map(str, slot.request.samples)), 100)
    return f"micro-batch {slot.request.slot} (samples {samples})"


def _number(value: float) -> torch.Tensor:
    return torch.tensor(float(value), dtype=torch.float64, device=host.LOCATION)


def _checked_weight(weight: float | None, samples: int) -> float:
    if weight is None:
        return float(samples)
    value = float(weight)
    if not math.isfinite(value) or value < 0.0:
        raise UsageError(f"weight must be finite and at least 0, got {weight!r}")
    return value


def _check_loss(loss: torch.Tensor) -> None:
    if not isinstance(loss, torch.Tensor) or loss.numel() != 1:
        got = tuple(loss.shape) if isinstance(loss, torch.Tensor) else type(loss).__name__
        raise UsageError(f"step.backward takes the mean loss, a tensor of one element, got {got}")
    if not loss.requires_grad:
        raise UsageError("the loss does not depend on any parameter that requires a gradient")
