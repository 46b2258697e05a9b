"""A joiner gets the state of those who train, as far as it is the same on all of them."""

from __future__ import annotations

from typing import Any

import pytest
import torch
from torch import nn

from pliant.core.errors import ConfigError
from pliant.engine.state.tagged_codec import decode, encode
from pliant.engine.state.training_state import State
from pliant.engine.state.transfer import TensorSpec


class Cached(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.linear = nn.Linear(2, 1)
        self.register_buffer("cache", torch.zeros(2), persistent=False)


class Held:
    """What a script keeps of its own."""

    def __init__(self, kept: dict[str, Any]) -> None:
        self.kept = kept

    def state_dict(self) -> dict[str, Any]:
        return self.kept

    def load_state_dict(self, state: dict[str, Any]) -> None:
        self.kept = state


def state_of(
    model: nn.Module,
    *local: str,
    extra: dict[str, Held] | None = None,
    optimizer: torch.optim.Optimizer | None = None,
) -> State:
    return State(
        model=model,
        local_buffers=frozenset(local),
        optimizers=[optimizer or torch.optim.SGD(model.parameters(), lr=0.1)],
        schedulers=[],
        scaler=None,
        extra=extra or {},
    )


def transfer(sender: State, receiver: State) -> None:
    document, tensors = encode(sender.capture_to_send())
    specs = [TensorSpec.of(tensor) for tensor in tensors]
    targets = receiver.allocate(decode(document), specs)
    with torch.no_grad():
        for target, tensor in zip(targets, tensors, strict=True):
            target.copy_(tensor)
    receiver.apply(decode(document, targets))


def test_a_local_buffer_stays_where_it_is_whatever_its_shape() -> None:
    old: Any = Cached()
    new: Any = Cached()
    old.cache = torch.ones(7)

    transfer(state_of(old, "cache"), state_of(new, "cache"))

    assert new.cache.tolist() == [0.0, 0.0]
    assert torch.equal(new.linear.weight, old.linear.weight)


def test_a_buffer_made_after_the_session_is_named_to_the_joiner() -> None:
    old = Cached()
    old.register_buffer("late", torch.ones(1))

    with pytest.raises(ConfigError, match="among their buffers 'late', which was made after"):
        transfer(state_of(old), state_of(Cached()))


def test_other_parameter_groups_are_named_to_the_joiner() -> None:
    old, new = nn.Linear(2, 1), nn.Linear(2, 1)
    groups: Any = [{"params": [new.bias]}, {"params": [new.weight]}]
    other = state_of(new, optimizer=torch.optim.SGD(groups, lr=0.1))

    with pytest.raises(ConfigError, match="SGD has other parameter groups here than on the"):
        transfer(state_of(old), other)


def test_a_learning_rate_set_by_hand_reaches_a_joiner() -> None:
    old, new = state_of(nn.Linear(2, 1)), state_of(nn.Linear(2, 1))
    old.optimizers[0].param_groups[0]["lr"] = 0.0123

    transfer(old, new)

    assert new.optimizers[0].param_groups[0]["lr"] == 0.0123


class Scaled(nn.Linear):
    scale = 1.0

    def get_extra_state(self) -> Any:
        return {"scale": self.scale}

    def set_extra_state(self, state: Any) -> None:
        self.scale = state["scale"]


def test_what_a_module_keeps_besides_tensors_travels_and_is_in_the_digest() -> None:
    old, new = Scaled(2, 1), Scaled(2, 1)
    old.scale = 0.5

    transfer(state_of(old), state_of(new))
    same = state_of(old).digest(1) == state_of(new).digest(1)
    new.scale = 0.25

    assert same
    assert state_of(old).digest(1) != state_of(new).digest(1)


def test_what_a_script_keeps_of_the_model_itself_moves_with_the_model_on_a_joiner_too() -> None:
    old, new = nn.BatchNorm1d(2), nn.BatchNorm1d(2)
    copied = old.weight.detach().clone()
    twice = [old.weight.detach(), old.weight.detach()]  # as with tied weights
    holder = Held({"live": old.state_dict(), "twice": twice, "best": [copied, torch.empty(0)]})
    joiner = Held({})
    sender, receiver = state_of(old, extra={"": holder}), state_of(new, extra={"": joiner})

    transfer(sender, receiver)
    for model in (old, new):
        with torch.no_grad():
            model.weight.fill_(3.0)
            model.get_buffer("running_mean").fill_(4.0)

    assert receiver.digest(7) == sender.digest(7)
    assert joiner.kept["live"]["weight"].tolist() == [3.0, 3.0]
    assert joiner.kept["live"]["running_mean"].tolist() == [4.0, 4.0]
    assert joiner.kept["best"][0].tolist() == [1.0, 1.0]


def test_state_of_an_optimizer_that_belongs_to_no_parameter_travels_too() -> None:
    old, new = state_of(nn.Linear(2, 1)), state_of(nn.Linear(2, 1))
    shared: Any = old.optimizers[0].state
    shared["all"] = {"steps": 3, "size": torch.tensor(4.0)}

    transfer(old, new)

    assert new.optimizers[0].state == {"all": {"steps": 3, "size": torch.tensor(4.0)}}
    assert new.digest(3) == old.digest(3)
    shared["all"]["steps"] = 4
    assert new.digest(3) != old.digest(3)
