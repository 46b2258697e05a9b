"""Optimizer state: what an optimizer remembers from step to step, wherever it keeps it.

Owns which of it travels, how it is taken, and the refusal of what cannot.  Must not know steps,
gradients or who else has a copy.

    param_groups, state            travel
    optimizers in attributes       travel as further optimizers (Lookahead and other wrappers)
    values and tensors in others   travel once they are not as the constructor left them
    tensors in objects             are refused, with the attribute's name
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Mapping, Sequence
from functools import cache, partial
from itertools import islice
from types import FunctionType, MethodType, ModuleType
from typing import Any

import torch

from pliant.core.errors import ConfigError, UsageError
from pliant.engine.device import here, host
from pliant.engine.fingerprint import memory_of, walk
from pliant.engine.local_tensors import is_sharded, local_of, sharded_like
from pliant.engine.state.tagged_codec import CodecError, encode

Optimizer = torch.optim.Optimizer

_OPAQUE = (Optimizer, FunctionType, MethodType, ModuleType, type, partial)
"""What is not looked into: code, and optimizers, which are looked at by themselves."""

_SIMPLE = (bool, int, float, complex, str, bytes, type(None), *_OPAQUE)

MAX_LOOKED_AT = 1000
"""Values in one attribute that are looked at after each update, about 0.5 ms."""

_OF_SCHEDULERS = frozenset({"step", "_opt_called", "_step_count"})
"""What a scheduler of torch puts into its optimizer."""


def held(optimizer: Optimizer) -> list[torch.Tensor]:
    """Return the parameters of all its groups."""
    return [parameter for group in optimizer.param_groups for parameter in group["params"]]


def with_nested(optimizers: Iterable[Optimizer]) -> list[Optimizer]:
    """Return these, and then those that they wrap, each once."""
    found: dict[int, Optimizer] = {}
    waiting = list(optimizers)
    for one in waiting:  # grows meanwhile
        if id(one) not in found:
            found[id(one)] = one
            parts = (part for value in _attributes(one).values() for part in _flat(value))
            waiting += [part for part in parts if isinstance(part, Optimizer)]
    return list(found.values())


class OptimizerState:
    """Of one optimizer over the parameters of one model."""

    def __init__(self, optimizer: Optimizer, names: Mapping[int, str]) -> None:
        """``names``: of the model's parameters, by ``id``."""
        self.optimizer = optimizer
        self._names = names
        self._first = {name: _print(value) for name, value in self._own().items()}
        self._inside: dict[str, str] | None = None
        self._left_alone: dict[str, frozenset[type]] = {}
        """Attributes that travel, with the types of their parts when they were looked at."""

    def capture(self) -> dict[str, Any]:
        """Return it; its tensors are the optimizer's own."""
        optimizer, names = self.optimizer, self._names
        groups = [
            {
                "params": [names[id(parameter)] for parameter in group["params"]],
                "values": {key: value for key, value in group.items() if key != "params"},
            }
            for group in optimizer.param_groups
        ]
        states = {
            names[id(parameter)]: {
                key: local_of(value) if torch.is_tensor(value) else value
                for key, value in optimizer.state[parameter].items()
            }
            for parameter in held(optimizer)
            if parameter in optimizer.state
        }
        shared = {key: value for key, value in optimizer.state.items() if not torch.is_tensor(key)}
        captured = {"groups": groups, "state": states, "shared": shared}
        attributes = self.attributes()
        return {**captured, "attributes": attributes} if attributes else captured

    def attributes(self) -> dict[str, Any]:
        """Return those attributes that are state: no longer what the constructor made them."""
        changed = {}
        for name, value in self._own().items():
            now = _print(value)
            if now is not None and now != self._first.get(name):
                changed[name] = value
        return changed

    def tensors(self) -> Iterator[tuple[str, str, torch.Tensor]]:
        """Iterate over the tensors of its state: parameter, key, tensor."""
        state = self.optimizer.state
        for parameter in held(self.optimizer):
            if entries := state.get(parameter):
                name = self._names[id(parameter)]
                for key in sorted(entries, key=str):
                    if isinstance(value := entries[key], torch.Tensor):
                        yield name, key, local_of(value)

    def sharded(self) -> Iterator[tuple[str, str, torch.Tensor]]:
        """Iterate over those tensors of its state that are sharded: parameter, key, tensor."""
        for parameter in held(self.optimizer) if any(map(is_sharded, held(self.optimizer))) else ():
            for key, value in self.optimizer.state.get(parameter, {}).items():
                if is_sharded(value):
                    yield self._names[id(parameter)], key, value

    def objects(self) -> dict[str, Any]:
        """Return what else it remembers."""
        state = self.capture()
        plain = {
            name: {key: value for key, value in entries.items() if not torch.is_tensor(value)}
            for name, entries in state["state"].items()
        }
        return {**state, "groups": [], "state": plain}

    def apply(self, received: Mapping[str, Any], parameters: Mapping[str, torch.Tensor]) -> None:
        """Take what ``capture`` gave elsewhere.

        Raises:
            ConfigError: the optimizer here has other parameter groups.
        """
        optimizer = self.optimizer
        here = [[self._names[id(p)] for p in group["params"]] for group in optimizer.param_groups]
        there = [group["params"] for group in received["groups"]]
        if here != there[: len(here)]:
            raise ConfigError(
                f"{type(optimizer).__name__} has other parameter groups here than on the replicas "
                "that already train"
            )
        for names in there[len(here) :]:  # added in a tail that a joiner has not run
            optimizer.add_param_group({"params": [parameters[name] for name in names]})
        for group, values in zip(optimizer.param_groups, received["groups"], strict=True):
            group.update(values["values"])
        is_of_host = all(map(host.is_here, tensors_in([received])))  # where all else was, too
        optimizer.state.clear()
        for name, entries in received["state"].items():
            parameter = parameters[name]
            optimizer.state[parameter] = {
                key: _placed(value, parameter, moves=is_of_host and key != "step")
                for key, value in entries.items()
            }
        optimizer.state.update(received["shared"])
        for name, value in received.get("attributes", {}).items():
            setattr(optimizer, name, value)

    def refuse_hidden(self) -> None:
        """Refuse what can neither travel nor be made anew; called after each of a few updates.

        Raises:
            UsageError: names the attribute.
        """
        for name, key, tensor in self.sharded():
            if not _is_placed_alike(tensor, self.optimizer, self._names, name):
                raise UsageError(
                    f"{type(self.optimizer).__name__} keeps {key!r} of the sharded parameter "
                    f"{name!r} in another shape, which would not reach a joining replica; use an "
                    "optimizer whose state has the shape of the parameters"
                )
        own = self._own()
        self._left_alone = {name: _types(value) for name, value in own.items()}
        in_state = self._memory_of_state()
        inside: dict[str, str] = {}
        for name, value in self._further().items():
            for path, part in _walk(value, name):
                if torch.is_tensor(part):
                    is_own = name in own
                    is_lost = memory_of(part) in in_state if is_own else not self._is_model(part)
                    if part.numel() and is_lost:
                        self._refuse(f"a tensor in {path}")
                elif name not in own:
                    inside[path] = repr(part)
        before, self._inside = self._inside or inside, inside
        for path, text in inside.items():
            if before.get(path) != text:
                self._refuse(f"a value that changes from step to step in {path}")

    def refuse_changed(self) -> None:
        """Refuse a value in an object that changed since it was last looked at; after each update.

        Raises:
            UsageError: names the attribute.
        """
        before = self._inside
        if before is None:
            return
        for name, value in self._further().items():
            if isinstance(value, _SIMPLE):
                continue
            types = _types(value)
            if types <= self._left_alone.get(name, frozenset()):
                continue
            if is_own := self._travels(value):
                self._left_alone[name] = types
            in_state = self._memory_of_state() if is_own else frozenset()
            for path, part in islice(_walk(value, name), MAX_LOOKED_AT):
                if torch.is_tensor(part):
                    is_lost = memory_of(part) in in_state if is_own else not self._is_model(part)
                    if part.numel() and is_lost:
                        self._refuse(f"a tensor in {path}")
                elif not is_own and before.setdefault(path, text := repr(part)) != text:
                    self._refuse(f"a value that changes from step to step in {path}")

    def _memory_of_state(self) -> frozenset[int]:
        return frozenset(memory_of(tensor) for *_, tensor in self.tensors())

    def _refuse(self, what: str) -> None:
        raise UsageError(
            f"{type(self.optimizer).__name__} keeps {what}, which would not reach a joining "
            "replica; keep it in optimizer.state, in the parameter groups, or as a plain value or "
            "tensor in an attribute of the optimizer itself"
        )

    def _own(self) -> dict[str, Any]:
        """Return the attributes that can travel: values, tensors and containers of them."""
        return {name: value for name, value in self._further().items() if self._travels(value)}

    def _further(self) -> dict[str, Any]:
        """Return the attributes that are no part of what travels anyway, under another name."""
        others = with_nested([self.optimizer])
        known = {id(p) for one in others for p in (one, one.state, one.param_groups, one.defaults)}
        attributes = _attributes(self.optimizer)
        return {name: value for name, value in attributes.items() if id(value) not in known}

    def _travels(self, value: Any) -> bool:
        """Whether a value can, and the script does not make it anew on a joiner."""
        if any(torch.is_tensor(part) and self._is_model(part) for part in _flat(value)):
            return False
        try:
            encode(value)
        except CodecError:
            return False
        return True

    def _is_model(self, tensor: torch.Tensor) -> bool:
        """Whether it is a parameter, or memory of one: the script makes it anew on a joiner."""
        return id(tensor) in self._names or memory_of(tensor) in {
            memory_of(parameter) for parameter in held(self.optimizer)
        }


def _attributes(optimizer: Optimizer) -> dict[str, Any]:
    """Return what it has beyond what every optimizer of torch has."""
    usual = _usual()
    return {name: value for name, value in vars(optimizer).items() if name not in usual}


@cache
def _usual() -> frozenset[str]:
    return (
        frozenset(vars(torch.optim.SGD([torch.zeros(1, device=host.LOCATION)], lr=0.1)))
        | _OF_SCHEDULERS
    )


def _flat(value: Any) -> Iterator[Any]:
    """Iterate over a value's parts, through containers only."""
    return (
        part for _, part in walk(value, opaque=(torch.Tensor, *_OPAQUE), objects=False, keys=True)
    )


def _types(value: Any) -> frozenset[type]:
    """Return the types of a value and of its first parts, through containers only."""
    return frozenset(map(type, islice(_flat(value), MAX_LOOKED_AT)))


def _walk(value: Any, path: str) -> Iterator[tuple[str, Any]]:
    """Iterate over the tensors and plain values in a value, through objects as well."""
    kinds = (torch.Tensor, bool, int, float, str, type(None))
    return (
        each
        for each in walk(value, path, opaque=(torch.Tensor, *_OPAQUE))
        if isinstance(each[1], kinds)
    )


def _print(value: Any) -> tuple[Any, ...] | None:
    """Return what two equal values have in common; None of one that cannot travel."""
    try:
        document, tensors = encode(value)
    except CodecError:
        return None
    return document, *((tensor.dtype, tensor.shape, here.device.word(tensor)) for tensor in tensors)


def _placed(value: Any, parameter: torch.Tensor, *, moves: bool) -> Any:
    """Return a value of a state as the optimizer of this parameter has it.

    ``moves``: also from host memory to the parameter's device, if it is shaped like it.
    """
    local = local_of(parameter)
    is_alike = torch.is_tensor(value) and value.shape == local.shape
    if torch.is_tensor(value) and (not host.is_here(value) or (moves and is_alike)):
        value = value.to(local.device)  # which of them differs between workers
    return sharded_like(value, parameter) if is_alike and value.dim() else value


def _is_placed_alike(
    tensor: torch.Tensor, optimizer: Optimizer, names: Mapping[int, str], name: str
) -> bool:
    parameter = next(one for one in held(optimizer) if names[id(one)] == name)
    return local_of(tensor).shape == local_of(parameter).shape


def tensors_in(captured: Sequence[Mapping[str, Any]]) -> list[torch.Tensor]:
    """Return the tensors that belong to parameters, of captured optimizers."""
    return [
        value
        for optimizer in captured
        for entries in optimizer["state"].values()
        for value in entries.values()
        if torch.is_tensor(value)
    ]


def refuse_kept_gradients(
    optimizers: Sequence[Optimizer], present: Sequence[torch.nn.Parameter]
) -> None:
    """Refuse an optimizer that keeps a gradient itself, whose memory is used again, or tensors
    that have none, as of 8 bits in a class of their own.

    Raises:
        UsageError: names the optimizer and the entry of its state.
    """
    lent = {memory_of(parameter.grad) for parameter in present if parameter.grad is not None} - {0}
    for optimizer in optimizers:
        for entries in optimizer.state.values():
            for key, value in entries.items() if isinstance(entries, Mapping) else ():
                if not torch.is_tensor(value):
                    continue
                try:
                    is_lent = memory_of(value) in lent
                except RuntimeError as error:
                    raise UsageError(
                        f"{type(optimizer).__name__} keeps {key!r} in its state as a "
                        f"{type(value).__name__}, which cannot be sent to a joining replica; take "
                        "an optimizer with plain tensors, such as torch.optim.AdamW"
                    ) from error
                if is_lent:
                    raise UsageError(
                        f"{type(optimizer).__name__} keeps a gradient itself in its state as "
                        f"{key!r}, and the next steps overwrite it; keep a copy (grad.clone())"
                    )
