"""Each model trained by a Session does what a plain PyTorch loop does.

The plain side imports nothing of pliant: it accumulates ``loss * weight / total`` over the same
micro-batches.  Both sides start every step from the same weights, so that what is compared is the
arithmetic of a step and not how far two roundings drift apart.
"""

from __future__ import annotations

import copy
from typing import Any

import pytest
import torch
from tests.engine import models
from torch import nn

STEPS = 7


class PlainLoop:
    """One step of accumulation over micro-batches, as anybody would write it."""

    def __init__(self, name: str) -> None:
        torch.manual_seed(11)
        self.case = models.CASES[name](randomness=False)
        self.model = self.case.model
        self.epoch_steps = -(-len(self.case.dataset) // self.case.global_batch_size)

    def micro_batches(self, step: int) -> list[list[int]]:
        size = len(self.case.dataset)
        start = step % self.epoch_steps * self.case.global_batch_size
        stop = min(start + self.case.global_batch_size, size)
        micro = self.case.micro_batch_size
        return [list(range(at, min(at + micro, stop))) for at in range(start, stop, micro)]

    def run(self, step: int, weights: dict[str, Any]) -> tuple[float, dict[str, torch.Tensor]]:
        self.model.load_state_dict(weights)
        buffers = {name: b.clone() for name, b in self.model.named_buffers()}
        parts = []
        for indexes in self.micro_batches(step):
            items = [self.case.dataset[i] for i in indexes]
            batch = torch.utils.data.default_collate(items)
            for name, buffer in buffers.items():  # a copy: the graphs of earlier ones still live
                path, _, key = name.rpartition(".")
                setattr(self.model.get_submodule(path), key, buffer.clone())
            loss, weight = self.case.compute(batch)
            parts.append((loss, len(indexes) if weight is None else weight))
        total = sum(weight for _, weight in parts)
        for loss, weight in parts:
            if weight:
                torch.autograd.backward(loss * (weight / total))
        gradients = {n: p.grad for n, p in self.model.named_parameters() if p.grad is not None}
        self.model.zero_grad(set_to_none=True)
        mean = sum(float(loss.detach()) * weight for loss, weight in parts if weight) / total
        return mean, gradients


@pytest.mark.parametrize("name", sorted(models.CASES.keys() - {"drawn", "fed"}))  # have samplers
def test_gradients_and_losses_are_those_of_a_plain_loop(name: str) -> None:
    case = models.build(name, randomness=False)
    plain = PlainLoop(name)
    captured: dict[str, torch.Tensor] = {}

    def capture(*_: Any) -> None:
        named = case.model.named_parameters()
        captured.update({n: p.grad.clone() for n, p in named if p.grad is not None})

    compared = 0
    with case.session(shuffle=False, max_grad_norm=None) as session:
        case.optimizer.register_step_pre_hook(capture)
        for step in session.steps(STEPS):
            start = copy.deepcopy(case.model.state_dict())
            captured.clear()
            for batch in step:
                loss, weight = case.compute(batch)
                step.backward(loss, weight=weight)
            for there, here in zip(plain.model.parameters(), case.model.parameters(), strict=True):
                there.requires_grad_(here.requires_grad)
            expected_loss, expected = plain.run(step.index, start)

            assert step.loss == pytest.approx(expected_loss, rel=1e-6)
            assert captured.keys() == expected.keys()
            for key, gradient in expected.items():
                error = float((captured[key] - gradient).norm())
                assert error <= 1e-6 * float(gradient.norm()), key
                compared += 1
            if step.index == 4 and name == "frozen":
                case.model.get_submodule("0").requires_grad_(requires_grad=True)
    assert compared >= STEPS * 2


def test_batch_statistics_move_by_the_mean_of_what_the_slots_would_do_alone() -> None:
    torch.manual_seed(0)
    case = models.build("cnn", randomness=False)
    norm = case.model.get_submodule("1")
    assert isinstance(norm, nn.BatchNorm2d)
    alone = copy.deepcopy(case.model)
    means = []
    with case.session(shuffle=False) as session:
        for step in session.steps(1):
            for batch in step:
                copied = copy.deepcopy(alone)
                copied(batch[0].to(memory_format=torch.channels_last))
                means.append(copied.get_buffer("1.running_mean"))
                step.backward(case.compute(batch)[0])

    expected = torch.stack(means).double().mean(0)
    running_mean = norm.get_buffer("running_mean").double()
    torch.testing.assert_close(running_mean, expected, rtol=0, atol=1e-7)
    assert int(norm.get_buffer("num_batches_tracked")) == 1
