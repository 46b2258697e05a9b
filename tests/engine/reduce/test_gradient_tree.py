"""Whoever writes to ``.grad`` while a step is computed is refused: replicas see others there."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import pytest
import torch
from torch import nn

from pliant.core.errors import UsageError
from pliant.core.step import batching
from pliant.engine.reduce import gradient_tree
from pliant.engine.reduce.accumulate import GradientSums
from pliant.engine.reduce.buckets import Layout
from pliant.engine.reduce.gradient_tree import has_own_memory, is_watched, positions

Writes = Callable[[nn.Sequential], object]

WRITTEN = r"^\.grad of '\d\.\w+' was written to inside the loop over a step"


@pytest.fixture(autouse=True)
def _all_have_hooks(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(gradient_tree, "SMALL_BYTES", 0)


def network() -> nn.Sequential:
    return nn.Sequential(nn.Linear(3, 5), nn.Tanh(), nn.Linear(5, 2))


def compute(
    model: nn.Sequential, before: Writes = lambda _: None, *, num_slots: int = 4
) -> GradientSums:
    """Compute a step of a replica that has all slots; ``before`` each of them, but the first."""
    layout = Layout.of(model.named_parameters(), extras=1)
    sums = GradientSums(dict(model.named_parameters()), layout)
    sums.begin(1)
    for position in positions([batching.root(num_slots)]):
        sums.open(
            merges=position.merges,
            part=position.part,
            is_last_of_part=position.is_last_of_part,
            is_last=position.is_last,
        )
        if position.slot:
            before(model)
        sums.capture(lambda: torch.autograd.backward(model(torch.randn(2, 3)).square().sum()), 1.0)
        sums.close()
    return sums


def clamp(model: nn.Sequential) -> None:
    for parameter in model.parameters():
        if parameter.grad is not None:
            parameter.grad.clamp_(-0.01, 0.01)


def replace(model: nn.Sequential) -> None:
    for parameter in model.parameters():
        parameter.grad = torch.zeros_like(parameter)


@pytest.mark.parametrize("writes", [clamp, nn.Module.zero_grad, replace])
@pytest.mark.parametrize("place", [1, 2])
def test_a_hook_that_writes_to_a_lent_sum_is_refused(writes: Writes, place: int) -> None:
    model = network()

    def hook(module: nn.Module, given: Any, got: Any) -> None:
        del module, given, got
        writes(model)

    model[place].register_full_backward_hook(hook)

    with pytest.raises(UsageError, match=WRITTEN):
        compute(model)


@pytest.mark.parametrize("writes", [clamp, nn.Module.zero_grad])
def test_a_hook_that_writes_to_a_small_gradient_is_refused(
    writes: Writes, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(gradient_tree, "SMALL_BYTES", 24)  # biases
    model = network()

    def hook(gradient: torch.Tensor) -> None:
        del gradient
        writes(model)

    weight: Any = model.get_parameter("0.weight")
    weight.register_hook(hook)  # the bias behind it has its gradient by then

    with pytest.raises(UsageError, match=WRITTEN):
        compute(model, num_slots=1)


def test_small_gradients_are_looked_at_in_the_first_steps_only(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setattr(gradient_tree, "SMALL_BYTES", 24)
    model = network()

    sums = compute(model)
    hooks = []
    for _ in range(3):
        hooks.append(bool(model[2].bias._post_accumulate_grad_hooks))
        sums.begin(1)

    assert hooks == [True, True, False]


def test_a_gradient_that_is_put_there_before_a_micro_batch_is_refused() -> None:
    with pytest.raises(UsageError, match=WRITTEN):
        compute(network(), replace, num_slots=2)


def test_a_hook_that_looks_at_a_lent_sum_changes_nothing() -> None:
    model = network()
    weight: Any = model.get_parameter("0.weight")
    seen: list[torch.Tensor | None] = []
    weight.register_hook(lambda _: seen.append(weight.grad))

    compute(model)

    assert [one is None for one in seen] == [True, False, True, False]


@pytest.mark.parametrize("num_slots", [5, 8, 11])
def test_sums_in_one_buffer_count_their_own_writes(num_slots: int) -> None:
    compute(network(), num_slots=num_slots)


def test_a_gradient_of_its_own_has_its_own_memory() -> None:
    model = nn.Linear(3, 2)
    model(torch.ones(1, 3)).sum().backward()

    assert all(has_own_memory(p.grad) for p in model.parameters() if p.grad is not None)


def test_gradients_that_share_memory_have_none_of_their_own() -> None:
    a, b = nn.Parameter(torch.zeros(2, 2)), nn.Parameter(torch.zeros(2, 2))
    torch.autograd.backward(((a.view(4) + b.view(4)) * torch.randn(4)).sum())

    assert a.grad is not None
    assert not has_own_memory(a.grad)


def test_a_gradient_that_is_kept_elsewhere_has_none_of_its_own() -> None:
    model = nn.Linear(3, 2, bias=False)
    model(torch.ones(1, 3)).sum().backward()
    assert model.weight.grad is not None
    kept = model.weight.grad.view(-1)

    assert not has_own_memory(model.weight.grad)
    del kept
    assert has_own_memory(model.weight.grad)


def test_hooks_on_accumulated_gradients_are_seen() -> None:
    model = nn.Linear(3, 2)
    assert not is_watched(model.weight)

    model.weight.register_post_accumulate_grad_hook(lambda _: None)  # type: ignore[no-untyped-call]

    assert is_watched(model.weight)
