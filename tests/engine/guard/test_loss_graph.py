"""A loss goes back to the model, and to nothing that another replica would not have."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import pytest
import torch
from tests.engine import models
from torch import nn

import pliant

Loss = Callable[[torch.Tensor], torch.Tensor]


class Kept:
    """A tensor that travels."""

    def __init__(self, tensor: torch.Tensor, copies: bool) -> None:
        self.tensor, self.copies = tensor, copies

    def state_dict(self) -> dict[str, torch.Tensor]:
        tensor = self.tensor.detach()
        return {"tensor": tensor.clone() if self.copies else tensor}

    def load_state_dict(self, state: dict[str, torch.Tensor]) -> None:
        self.tensor.detach().copy_(state["tensor"])


def train(
    per_slot: Callable[[Any, torch.Tensor, torch.Tensor], object],
    tail: Callable[[], object] = lambda: None,
    steps: int = 3,
    **more: Any,
) -> None:
    torch.manual_seed(0)
    model = nn.Linear(4, 3)
    with pliant.Session(
        model=model,
        optimizer=torch.optim.SGD(model.parameters(), lr=0.1),
        dataset=models.Points(40),
        global_batch_size=8,
        micro_batch_size=2,
        **more,
    ) as session:
        for step in session.steps(steps):
            for points, labels in step:
                per_slot(step, model(points), labels)
            tail()


def cross(step: Any, out: torch.Tensor, labels: torch.Tensor) -> None:
    step.backward(nn.functional.cross_entropy(out, labels))


def test_a_micro_batch_may_be_passed_over() -> None:
    def some(step: Any, out: torch.Tensor, labels: torch.Tensor) -> None:
        if out.sum() > 0:
            cross(step, out, labels)

    train(some)


def outside(tensor: torch.Tensor) -> Callable[[Any, torch.Tensor, torch.Tensor], object]:
    def call(step: Any, out: torch.Tensor, labels: torch.Tensor) -> None:
        step.backward(nn.functional.cross_entropy(out * tensor, labels))

    return call


def learn(tensor: torch.Tensor) -> Callable[[], object]:
    @torch.no_grad()
    def tail() -> None:
        if tensor.grad is not None:
            tensor.sub_(0.1 * tensor.grad)

    return tail


@pytest.mark.parametrize("copies", [True, False])
def test_one_that_travels_may_change(copies: bool) -> None:
    tensor = torch.ones(1, requires_grad=True)

    train(outside(tensor), learn(tensor), extra_state=Kept(tensor, copies))


def test_one_that_stays_as_it_is_and_one_of_this_micro_batch_only_are_nobodys_business() -> None:
    tensor = torch.ones(1, requires_grad=True)

    train(outside(tensor), steps=5)
    train(lambda *args: outside(torch.ones(1, requires_grad=True))(*args), steps=5)
