"""What torch tells of a gradient without a public name; seen to work with torch 2.11 and 2.15."""

from __future__ import annotations

import torch
from torch import nn

from pliant.engine.reduce.autograd_details import has_own_memory, is_watched


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
