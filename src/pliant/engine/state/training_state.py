"""Training state: everything of a run that a joiner needs and a digest covers.

Owns the list of what a joiner needs and its three uses: captured to be sent, applied on a joiner,
hashed.
Must not know how it travels, nor who sends it to whom.

Values that are not tensors go through the codec, which refuses what it cannot carry by its path;
``check`` does that round trip when a session starts, so that nobody learns it at the first join.
"""

from __future__ import annotations

import copy
from collections import deque
from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from typing import Any, Protocol

import torch
import xxhash

from pliant.core.errors import ConfigError, UsageError
from pliant.engine.device import here, host
from pliant.engine.local_tensors import (
    is_sharded,
    local_of,
    reshard,
    sharding_modules,
    whole_of,
)
from pliant.engine.state.optimizer_state import OptimizerState, held, tensors_in, with_nested
from pliant.engine.state.tagged_codec import CodecError, TensorRef, decode, encode
from pliant.engine.state.transfer import TensorSpec

TensorPath = tuple[Any, ...]
"""Where a tensor is in a captured state, by the keys that lead to it."""


class Stateful(Protocol):
    """What a script gives to be kept with its run: ``extra_state``, schedulers, a scaler."""

    def state_dict(self) -> Any:
        """Return the state; plain values and tensors."""

    def load_state_dict(self, state: Any, /) -> Any:
        """Take the state that another replica's ``state_dict`` gave."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Spelled:
    """How ``model.state_dict()`` names things, for these buffers."""

    buffers: tuple[tuple[str, int], ...]
    """Names and tensors, by ``id``."""
    persistent: frozenset[str]
    """Names of the buffers that it has."""
    aliases: Mapping[str, str]
    """Its further names for a tensor: tied weights."""


@dataclass(kw_only=True, eq=False)
class State:
    """The state of one run's objects."""

    model: torch.nn.Module
    local_buffers: frozenset[str]
    optimizers: Sequence[torch.optim.Optimizer]
    schedulers: Sequence[Stateful]
    scaler: Stateful | None
    extra: Mapping[str, Stateful]

    def __post_init__(self) -> None:
        self._parameters = dict(self.model.named_parameters())
        """As they are for the whole session: see ``check_parameters``."""
        self._names = {id(tensor): name for name, tensor in self._parameters.items()}
        self._sharding = sharding_modules(self.model)
        optimizers = with_nested(self.optimizers)
        self.optimizer_states = [OptimizerState(one, self._names) for one in optimizers]
        self._spelled: Spelled | None = None
        self._views: dict[str, torch.Tensor] = {}

    def capture(self) -> dict[str, Any]:
        """Return the state; its tensors are what lies here of the run's own, not copies."""
        reshard(self._sharding)
        return {
            "parameters": {n: self._view(n, p) for n, p in self._parameters.items()},
            "buffers": {n: self._view(n, b) for n, b in self.model.named_buffers()},
            **self.flags(),
            **self.objects(),
            "optimizers": [part.capture() for part in self.optimizer_states],
        }

    def flags(self) -> dict[str, dict[str, bool]]:
        """Return what steers a forward besides tensors; never what it was before."""
        return {
            "requires_grad": {n: p.requires_grad for n, p in self._parameters.items()},
            "training": {name: module.training for name, module in self.model.named_modules()},
        }

    def tensors(self) -> Iterator[tuple[TensorPath, torch.Tensor]]:
        """Iterate over the tensors that all replicas have alike, without those of ``objects``."""
        for name, parameter in self._parameters.items():
            yield ("parameters", name), local_of(parameter)
        for name, buffer in self.model.named_buffers():
            if name not in self.local_buffers:
                yield ("buffers", name), buffer
        for number, part in enumerate(self.optimizer_states):
            for name, key, tensor in part.tensors():
                yield ("optimizers", number, "state", name, key), tensor

    def objects(self) -> dict[str, Any]:
        """Return the rest of the state: what modules, optimizers and the script's objects say."""
        return {
            "modules": {name: module.get_extra_state() for name, module in self._with_extra()},
            "optimizers": [part.objects() for part in self.optimizer_states],
            "schedulers": [scheduler.state_dict() for scheduler in self.schedulers],
            "scaler": None if self.scaler is None else self.scaler.state_dict(),
            "extra": {name: part.state_dict() for name, part in self.extra.items()},
        }

    def _capture_shared(self) -> dict[str, Any]:
        """Return the state without buffers that are local to a replica: they may have any shape."""
        state = self.capture()
        for name in self.local_buffers:
            state["buffers"].pop(name, None)
        return state

    def _view(self, name: str, tensor: torch.Tensor) -> torch.Tensor:
        """Return the tensor without its graph: the same object for as long as it is the same."""
        tensor = local_of(tensor)
        view = self._views.get(name)
        if (
            view is None
            or host.address_of(view) != host.address_of(tensor)
            or view.dtype != tensor.dtype
            or view.shape != tensor.shape
            or view.stride() != tensor.stride()
        ):
            view = self._views[name] = tensor.detach()
        return view

    def capture_to_send(self) -> dict[str, Any]:
        """Return the state for a transfer that goes on while the next step is computed.

        Parameters and optimizer states change at the next commit, after the transfer; everything
        else is copied.  Buffers that are local to a replica stay here: they may have any shape.
        A tensor of ``extra`` that is one of the model's or an optimizer's own (what
        ``model.state_dict()`` returns) is sent as that, so that it moves with it on a joiner too.
        """
        state = self._capture_shared()
        kept = [*state["parameters"].values(), *tensors_in(state["optimizers"])]
        memo: dict[int, Any] = {id(tensor): tensor for tensor in kept}
        for buffer in state["buffers"].values():
            copy.deepcopy(buffer, memo)
        there = {_place(t): memo[id(t)] for t in (*kept, *state["buffers"].values())}
        for tensor in _tensors(state["extra"]):
            if (own := there.get(_place(tensor))) is not None and tensor.numel():
                memo[id(tensor)] = own  # the script keeps the model's tensor, not a copy of it
        return copy.deepcopy(state, memo)

    def capture_to_keep(self) -> dict[str, Any]:
        """Return the state for a checkpoint; its tensors are the run's own, none is copied.

        A tensor of ``extra`` that is one of the model's or an optimizer's is that one here too.
        """
        state = self._capture_shared()
        memo: dict[int, Any] = {}
        if own := list(_tensors(state["extra"])):
            kept = [*state["parameters"].values(), *state["buffers"].values()]
            kept += tensors_in(state["optimizers"])
            there = {_place(tensor): tensor for tensor in reversed(kept) if tensor.numel()}
            memo = {id(tensor): there.get(_place(tensor), tensor) for tensor in own}
        state["extra"] = copy.deepcopy(state["extra"], memo)
        return state

    def begin_with(
        self,
        weights: Mapping[str, torch.Tensor],
        states: Mapping[str, Mapping[str, Any]],
    ) -> None:
        """Take the optimizer states of another run, whose weights the model has taken already.

        Raises:
            ConfigError: that run's model has not all of this one's tensors, or others.
        """
        wanted = set(self.model.state_dict())
        tied = {alias for alias, name in self.spelled().aliases.items() if name[6:] in weights}
        missing = sorted(n for n in wanted - weights.keys() if f"model.{n}" not in tied)
        if missing:
            raise ConfigError(f"the checkpoint to start from has no {missing[0]!r}")
        strange = sorted(weights.keys() - wanted)
        if strange:
            raise ConfigError(
                f"the checkpoint to start from has {strange[0]!r}, which this model has not"
            )
        parameters = dict(self.model.named_parameters())
        for optimizer in self.optimizers:
            own = set(map(id, held(optimizer)))
            for name, entries in states.items():
                if name in parameters and id(parameters[name]) in own:
                    optimizer.state[parameters[name]] = dict(entries)

    def spelled(self) -> Spelled:
        """Look again only if a buffer is another tensor than before; parameters never are."""
        buffers = tuple(
            (name, id(tensor)) for name, tensor in self.model.named_buffers(remove_duplicate=False)
        )
        if self._spelled is None or self._spelled.buffers != buffers:
            first = {id(tensor): name for name, tensor in self.model.named_parameters()}
            first |= {id(tensor): name for name, tensor in self.model.named_buffers()}
            found = self.model.state_dict(keep_vars=True)
            self._spelled = Spelled(
                buffers=buffers,
                persistent=frozenset(name for name, _ in self.model.named_buffers()) & set(found),
                aliases={
                    f"model.{name}": f"model.{first[id(tensor)]}"
                    for name, tensor in found.items()
                    if first.get(id(tensor), name) != name
                },
            )
        return self._spelled

    def parameter_groups(self) -> dict[str, Any]:
        """Return the plain values of all optimizers' groups, by the names that DCP gives them.

        ``optim.param_groups.<number>.<key>``, parameters by name: the flattening of
        ``torch.distributed.checkpoint`` since torch 2.4.
        """
        plain = (bool, int, float, str, type(None))
        groups = [
            {"params": group["params"], **group["values"]}
            for part in self.optimizer_states[: len(self.optimizers)]
            for group in part.capture()["groups"]
        ]
        return {
            f"optim.param_groups.{number}.{key}": value
            for number, group in enumerate(groups)
            for key, value in group.items()
            if isinstance(value, plain)
            or (isinstance(value, tuple | list) and all(isinstance(part, plain) for part in value))
        }

    def allocate(self, document: Any, specs: Sequence[TensorSpec]) -> list[torch.Tensor]:
        """Return where each tensor of a document is to be written: own storage where there is any.

        Optimizer states are new tensors of the sender's type: ``load_state_dict`` would cast the
        float32 state of a bfloat16 parameter.

        Raises:
            ConfigError: the sender's model has got a parameter or buffer that this one lacks.
        """
        own: dict[int, torch.Tensor] = {}
        captured = self.capture()
        for part in ("parameters", "buffers"):
            for name, found in document[part].items():
                if name not in captured[part]:
                    raise ConfigError(
                        f"the replicas that train have among their {part} {name!r}, which was made "
                        "after the session; make it before, so that joiners have it too"
                    )
                if isinstance(found, TensorRef):
                    own[found.index] = captured[part][name]
        return [own[n] if n in own else spec.like() for n, spec in enumerate(specs)]

    @torch.no_grad()
    def apply(self, state: Mapping[str, Any]) -> None:
        """Take a received state; tensors already in place are left alone.

        Raises:
            ConfigError: the optimizers here do not have the parameter groups of the sender's.
        """
        own = self.capture()
        for part in ("parameters", "buffers"):
            for name, tensor in state[part].items():
                if host.address_of(tensor) != host.address_of(own[part][name]):
                    own[part][name].copy_(tensor)
        for name, parameter in self.model.named_parameters():
            parameter.requires_grad_(state["requires_grad"][name])
        for name, module in self.model.named_modules():
            module.training = state["training"][name]
        for name, module in self._with_extra():
            module.set_extra_state(state["modules"][name])
        parameters = self._parameters
        for optimizer, received in zip(self.optimizer_states, state["optimizers"], strict=True):
            optimizer.apply(received, parameters)
        for scheduler, received in zip(self.schedulers, state["schedulers"], strict=True):
            scheduler.load_state_dict(received)
        if self.scaler is not None:
            self.scaler.load_state_dict(state["scaler"])
        for name, thing in self.extra.items():
            thing.load_state_dict(state["extra"][name])

    def digest(self, committed: int) -> str:
        """Return a hash of the state's bytes in logical order, whatever the memory format.

        Bytes, because ``torch.equal`` takes -0 for 0 and nan for different from itself.  Buffers
        that are local to a replica are left out.  Which tensors are one object does not count: a
        joiner's script may hold one where another holds two views of it.  What is sharded is made
        whole, one tensor after the other, so the hash is that of a run that is not; every worker
        of the replica must call.
        """
        state = self._capture_shared()
        whole = self.sharded_by_view(state)
        document, tensors = encode(_in_order({"committed": committed, **state}), shared=False)
        hasher = xxhash.xxh3_128(document)
        for local in tensors:
            tensor = whole_of(whole.get(id(local), local))
            hasher.update(f"{tensor.dtype}{tuple(tensor.shape)}".encode())
            here.device.feed(hasher, tensor)
        return hasher.hexdigest()

    def sharded_parameters(self) -> list[tuple[str, torch.Tensor]]:
        """Return the sharded ones, by name."""
        return [(name, one) for name, one in self._parameters.items() if is_sharded(one)]

    def sharded_by_view(self, state: Mapping[str, Any]) -> dict[int, torch.Tensor]:
        """Return what is sharded by the ``id`` of what stands for it in a captured state."""
        found = {id(state["parameters"][name]): one for name, one in self.sharded_parameters()}
        for part, captured in zip(self.optimizer_states, state["optimizers"], strict=True):
            for name, key, tensor in part.sharded():
                found[id(captured["state"][name][key])] = tensor
        return found

    def check_parameters(self) -> None:
        """Make sure that the model has the parameters it had when the session was made.

        Raises:
            UsageError: one was added, replaced or taken out, or an optimizer holds another.
        """
        reshard(self._sharding)
        found = {id(tensor): name for name, tensor in self.model.named_parameters()}
        if found == self._names and all(id(p) in found for o in self.optimizers for p in held(o)):
            return
        new = sorted(name for key, name in found.items() if self._names.get(key) != name)
        gone = sorted(name for key, name in self._names.items() if key not in found)
        if new:
            what = f"parameter {new[0]!r} was made"
        elif gone:
            what = f"parameter {gone[0]!r} was taken out of the model"
        else:
            what = "a parameter that is not in the model was given to an optimizer"
        raise UsageError(
            f"{what} after the session was; make everything that is trained before the session, "
            "and freeze what has to wait (requires_grad)"
        )

    def check(self) -> None:
        """Send the state through the codec and back.

        Raises:
            ConfigError: something in it cannot travel; names where it is.
        """
        try:
            decode(*encode(self.capture()))
        except CodecError as error:
            raise ConfigError(
                f"the state of this run cannot be sent to a joining replica: {error}"
            ) from error

    def _with_extra(self) -> list[tuple[str, torch.nn.Module]]:
        """Return the modules that keep more than tensors, as ``state_dict`` asks them for it."""
        base = torch.nn.Module
        return [
            (name, module)
            for name, module in self.model.named_modules()
            if type(module).get_extra_state is not base.get_extra_state
            and type(module).set_extra_state is not base.set_extra_state
        ]


def _tensors(value: Any) -> Iterable[torch.Tensor]:
    if torch.is_tensor(value):
        yield value
    elif isinstance(value, Mapping):
        for part in value.values():
            yield from _tensors(part)
    elif isinstance(value, list | tuple | deque):
        for part in value:
            yield from _tensors(part)


def _place(tensor: torch.Tensor) -> tuple[Any, ...]:
    """Return what two tensors have in common that are the same memory, seen in the same way."""
    if tensor.layout is not torch.strided or tensor.device.type == "meta":
        return (id(tensor),)
    return tensor.device, host.address_of(tensor), tensor.dtype, tensor.shape, tensor.stride()


def _in_order(value: Any) -> Any:
    """Return the value with every plain dict sorted: insertion order is history, not state."""
    if type(value) is dict:
        items = sorted(value.items(), key=lambda item: (type(item[0]).__name__, repr(item[0])))
        return {key: _in_order(part) for key, part in items}
    if type(value) in (list, tuple):
        return type(value)(_in_order(part) for part in value)
    return value
