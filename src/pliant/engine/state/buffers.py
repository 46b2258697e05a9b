"""Buffers: how a model's buffers move in a step that many replicas compute.

Owns what buffers do.  Every slot starts from the values of the step's start; what each
slot changed is added up along the tree, beside the gradients, as float64.  Must not know slots'
content, sums or groups: it writes one slot's changes into a vector and applies the total.

    mean    floating point: start + mean of the changes over the computed slots
    agree   integer and bool: every slot must have made the same change
    sum     start + sum of the changes          (asked for with buffers={name: "sum"})
    max     largest value any slot ended with   (asked for)
    local   left alone: differs between replicas, and is in no digest   (asked for)

Scale and zero point of a fake quantiser (``torch.ao``) follow from the range that it observed,
which moves by the mean: they are computed anew from that at the commit.

Buffers are read again by name after each slot, since ``self.ema = ...`` rebinds.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from typing import Any

import torch

from pliant.core.errors import ConfigError, UsageError
from pliant.engine.device import here, host

RULES = frozenset({"mean", "agree", "sum", "max", "local"})

LARGE_NUMEL = 16_384
"""Above this a buffer is taken for a constant (a causal mask, a table of positions) unless a rule
is given: its changes would travel as 8 bytes per element and slot."""


class BufferRules:
    """The buffers of one model and the rule of each."""

    def __init__(self, model: torch.nn.Module, rules: Mapping[str, str], num_slots: int) -> None:
        named = dict(model.named_buffers())
        _check_rules(rules, named)
        self._model = model
        self._names = frozenset(named)
        self._quantisers = [one for one in model.modules() if _is_fake_quantiser(one)]
        derived = {id(one.get_buffer(key)) for one in self._quantisers for key in _OF_RANGE}
        self._kept = [
            _CLASSES[rules.get(name) or _default(tensor, is_derived=id(tensor) in derived)](
                model, name, tensor, num_slots
            )
            for name, tensor in named.items()
            if rules.get(name) != "local"
        ]
        self.local = frozenset(name for name, rule in rules.items() if rule == "local")
        """Names of the buffers that are not the same on every replica."""
        self.width = sum(buffer.width for buffer in self._kept)
        """Float64 values per slot."""

    @torch.no_grad()
    def begin(self) -> None:
        """Remember the values of the step's start."""
        for buffer in self._kept:
            buffer.begin()

    @torch.no_grad()
    def rewind(self) -> None:
        """Give every buffer the value, and the tensor, it had at the step's start."""
        for buffer in self._kept:
            buffer.rewind()

    @torch.no_grad()
    def changes(self, slot: int) -> torch.Tensor:
        """Return what the slot that just ended changed, on the device of the buffers."""
        where = next((one.tensor.device for one in self._kept), torch.device(host.LOCATION))
        changes = torch.zeros(self.width, dtype=torch.float64, device=where)
        for buffer, part in self._parts(changes):
            buffer.write(part, slot)
        return changes

    @torch.no_grad()
    def check(self, total: torch.Tensor, num_computed: int) -> None:
        """Look at reduced changes before anybody commits them.

        Raises:
            UsageError: slots changed an integer buffer differently, or made a new one.
        """
        late = {name for name, _ in self._model.named_buffers()} - self._names
        if late:
            raise UsageError(
                f"buffer {min(late)!r} was made after the session; make it before, for instance "
                "by running one batch through the model"
            )
        for buffer, part in self._parts(total):
            if num_computed:
                buffer.check(part, num_computed)

    @torch.no_grad()
    def commit(self, total: torch.Tensor, num_computed: int) -> None:
        """Move from the step's start by the reduced changes, which are in host memory."""
        there = {where: here.device.sent(total, where) for where in self._devices()}
        for buffer, part in self._parts(total):
            buffer.rewind()
            if num_computed:
                moved = there[buffer.tensor.device]
                start = part.storage_offset() - total.storage_offset()
                same = part if moved is total else moved[start : start + buffer.width]
                buffer.commit(part, same, num_computed)
        for quantiser in self._quantisers if num_computed else ():
            _derive(quantiser)

    def _devices(self) -> set[torch.device]:
        """Return where the buffers are."""
        return {buffer.tensor.device for buffer in self._kept}

    def _parts(self, vector: torch.Tensor) -> Iterable[tuple[_Buffer, torch.Tensor]]:
        start = 0
        for buffer in self._kept:
            yield buffer, vector[start : start + buffer.width]
            start += buffer.width


class _Buffer:
    """One buffer that follows the mean rule; the others derive from it."""

    def __init__(
        self, model: torch.nn.Module, name: str, tensor: torch.Tensor, num_slots: int
    ) -> None:
        self.name = name
        path, _, self.key = name.rpartition(".")
        self.module = model.get_submodule(path)
        self.tensor = tensor
        self.shape = tensor.shape
        self.start = torch.empty(0, device=host.LOCATION)
        self.num_slots = num_slots
        self.width = self._width(tensor.numel() * (2 if tensor.is_complex() else 1))

    def _width(self, numel: int) -> int:
        return numel

    def now(self) -> torch.Tensor:
        """Return the tensor that bears the name now."""
        found = self.module._buffers.get(self.key)  # noqa: SLF001  # get_buffer refuses rebinding to None
        if found is None or found.shape != self.shape or found.dtype != self.tensor.dtype:
            raise UsageError(
                f"buffer {self.name!r} changed its shape, its type or was removed during a step; "
                "run one batch through the model before the session is made, or say "
                f'buffers={{"{self.name}": "local"}} if it is not part of the model\'s state'
            )
        return found

    def begin(self) -> None:
        self.tensor = self.now()
        self.start = self.tensor.detach().clone()

    def rewind(self) -> None:
        self.module._buffers[self.key] = self.tensor  # noqa: SLF001  # keeps the tensor itself
        if self.tensor.shape != self.shape:  # by resize_ in a forward, which ``now`` refuses
            self.tensor.resize_(self.shape)
        self.tensor.copy_(self.start)

    def write(self, out: torch.Tensor, slot: int) -> None:
        del slot
        end = _real(self.now()).double().reshape(-1)
        out.copy_(end - self._base().reshape(-1))

    def check(self, total: torch.Tensor, num_computed: int) -> None:
        """Refuse changes that cannot be committed."""

    def commit(self, total: torch.Tensor, there: torch.Tensor, num_computed: int) -> None:
        """Move by the sum of changes; ``there``: the same on the device of this buffer."""
        if total.any():  # else it keeps its bits
            self._add(there / num_computed)

    def _base(self) -> torch.Tensor:
        """Return what changes are counted from: the start; 0 where that is no finite number.

        Otherwise a mask of -inf, which nobody changes, would change by nan.
        """
        return torch.nan_to_num(_real(self.start).double(), nan=0.0, posinf=0.0, neginf=0.0)

    def _add(self, change: torch.Tensor) -> None:
        base = self._base()
        _real(self.tensor).copy_(base + change.reshape(base.shape))


class _SumBuffer(_Buffer):
    """Moves by the sum of all changes."""

    def commit(self, total: torch.Tensor, there: torch.Tensor, num_computed: int) -> None:
        del num_computed
        if total.any():
            self._add(there)


class _MaxBuffer(_Buffer):
    """Takes the largest value; each slot has columns of its own, since only sums travel."""

    def _width(self, numel: int) -> int:
        return (numel + 1) * self.num_slots

    def write(self, out: torch.Tensor, slot: int) -> None:
        row = out.view(self.num_slots, -1)[slot]
        row[0] = 1.0
        row[1:] = self.now().double().reshape(-1)

    def commit(self, total: torch.Tensor, there: torch.Tensor, num_computed: int) -> None:
        del there, num_computed
        rows = total.view(self.num_slots, -1)
        largest = rows[rows[:, 0] > 0, 1:].amax(dim=0).reshape(self.tensor.shape)
        self.tensor.copy_(here.device.sent(largest, self.tensor.device))


class _AgreeBuffer(_Buffer):
    """Makes the one change that every slot made; a hash of it shows whether all did."""

    def _width(self, numel: int) -> int:
        return numel + 1

    def write(self, out: torch.Tensor, slot: int) -> None:
        del slot
        change = _change(self.start, self.now())
        out[0] = here.device.change_word(change)
        out[1:] = change

    def check(self, total: torch.Tensor, num_computed: int) -> None:
        change = total[1:] / num_computed
        if float(total[0]) != here.device.change_word(change) * num_computed:
            raise UsageError(
                f"the micro-batches of one step changed buffer {self.name!r} in different ways; "
                "call train() or eval() alike on every replica, or say what to do with it: "
                f'buffers={{"{self.name}": "sum"}}, "max" or "local"'
            )

    def commit(self, total: torch.Tensor, there: torch.Tensor, num_computed: int) -> None:
        if not total[1:].any():
            return
        change = (there[1:] / num_computed).reshape(self.start.shape)
        if self.start.dtype is torch.bool:
            self.tensor.copy_(self.start.logical_xor(change != 0))
        else:
            self.tensor.copy_(self.start + change.to(self.start.dtype))


class _ConstantBuffer(_Buffer):
    """A large buffer that no slot may change."""

    def _width(self, numel: int) -> int:
        del numel
        return 0

    def begin(self) -> None:
        """Keep no copy; in-place changes show in the version counter."""
        self.tensor = self.now()
        self._version = self.tensor._version  # noqa: SLF001  # public nowhere; torch 2.11 to 2.15

    def rewind(self) -> None:
        self.module._buffers[self.key] = self.tensor  # noqa: SLF001  # keeps the tensor itself

    def write(self, out: torch.Tensor, slot: int) -> None:
        del out, slot
        if self.now() is not self.tensor or self.tensor._version != self._version:  # noqa: SLF001
            raise UsageError(
                f"buffer {self.name!r} has {self.tensor.numel()} elements and changed during a "
                f'step; say how: buffers={{"{self.name}": "mean"}}, "sum", "max" or "local"'
            )

    def commit(self, total: torch.Tensor, there: torch.Tensor, num_computed: int) -> None:
        del total, there, num_computed


class _DerivedBuffer(_Buffer):
    """Follows from other buffers, from which it is computed anew at the commit."""

    def _width(self, numel: int) -> int:
        del numel
        return 0

    def write(self, out: torch.Tensor, slot: int) -> None:
        del out, slot

    def commit(self, total: torch.Tensor, there: torch.Tensor, num_computed: int) -> None:
        del total, there, num_computed


_CLASSES: dict[str, type[_Buffer]] = {
    "mean": _Buffer,
    "agree": _AgreeBuffer,
    "sum": _SumBuffer,
    "max": _MaxBuffer,
    "constant": _ConstantBuffer,
    "derived": _DerivedBuffer,
}


_OF_RANGE = ("scale", "zero_point")
"""Buffers of a fake quantiser that follow from the range that it observed."""


def observes(module: torch.nn.Module) -> bool:
    """Whether it is a fake quantiser that sets its range by what it sees."""
    return _is_fake_quantiser(module) and bool(
        torch.as_tensor(module.observer_enabled, device=host.LOCATION).any()
    )


def _is_fake_quantiser(module: torch.nn.Module) -> bool:
    """Whether it is one as ``torch.ao.quantization`` has them."""
    own = dict(module.named_buffers(recurse=False))
    has_all = own.keys() >= {*_OF_RANGE, "observer_enabled"}
    return has_all and callable(getattr(module, "calculate_qparams", None))


def _derive(quantiser: Any) -> None:
    if observes(quantiser):
        for key, value in zip(_OF_RANGE, quantiser.calculate_qparams(), strict=True):
            buffer = quantiser.get_buffer(key)
            buffer.copy_(value.reshape(buffer.shape))


def _default(tensor: torch.Tensor, *, is_derived: bool) -> str:
    if is_derived:
        return "derived"
    if tensor.numel() > LARGE_NUMEL:
        return "constant"
    return "mean" if _has_mean(tensor) else "agree"


def _check_rules(rules: Mapping[str, str], named: Mapping[str, torch.Tensor]) -> None:
    for name, rule in rules.items():
        if name not in named:
            known = ", ".join(sorted(named)) or "none"
            raise ConfigError(f"buffers names {name!r}, which the model has not; it has: {known}")
        if rule not in RULES:
            raise ConfigError(
                f"buffers={{{name!r}: {rule!r}}}: the rule must be one of "
                f"{', '.join(sorted(RULES))}"
            )
        if rule == "mean" and not _has_mean(named[name]):
            raise ConfigError(f"buffers={{{name!r}: 'mean'}}: {named[name].dtype} has no mean")
        if rule == "max" and named[name].is_complex():
            raise ConfigError(f"buffers={{{name!r}: 'max'}}: complex numbers have no order")


def _has_mean(tensor: torch.Tensor) -> bool:
    return tensor.is_floating_point() or tensor.is_complex()


def _real(tensor: torch.Tensor) -> torch.Tensor:
    return torch.view_as_real(tensor) if tensor.is_complex() else tensor


def _change(start: torch.Tensor, end: torch.Tensor) -> torch.Tensor:
    """Return what turns ``start`` into ``end`` as exact float64 values (below 2**53)."""
    if start.dtype is torch.bool:
        return start.logical_xor(end).double().reshape(-1)
    return (end - start).double().reshape(-1)
