"""A recipe trained without pliant: what anybody would write, one step at a time.

Owns the numbers that a session's step is compared with.  Imports nothing of pliant.

A step is computed by the plain side from its own weights; then it takes the session's gradient,
once that was found to be right, and makes the update with its own optimizers.  So both sides have
the same bits at the start of every step, and what is compared is the arithmetic of one step.
"""

from __future__ import annotations

import random
from collections.abc import Mapping
from dataclasses import dataclass, field

import numpy as np
import torch
from tests.fuzz import workload
from tests.fuzz.generator import Recipe

TOLERANCE = {
    torch.float64: 1e-12,
    torch.float32: 1e-6,
    torch.complex64: 1e-6,
    torch.bfloat16: 8e-3,
}
"""Relative error of a gradient by its parameter's type: a bfloat16 gradient is rounded to it."""


@dataclass(slots=True, kw_only=True)
class Expected:
    """What a step must give."""

    loss: float = float("nan")
    weight: float = 0.0
    gradients: dict[str, torch.Tensor] = field(default_factory=dict)
    magnitudes: dict[str, float] = field(default_factory=dict)
    """Sum of the norms of a gradient's terms: what its rounding errors are measured against."""

    buffers: dict[str, torch.Tensor] = field(default_factory=dict)


class PlainLoop:
    """One training run; everything drawn at its start is what a session with this seed draws."""

    def __init__(self, recipe: Recipe) -> None:
        torch.manual_seed(recipe.seed)
        np.random.seed(recipe.seed)
        random.seed(recipe.seed)
        self.recipe = recipe
        self.work = workload.build(recipe)
        self.model = self.work.model
        self.parameters = dict(self.model.named_parameters())
        self.rules = self.work.buffers()

    def compute(self, step: int, *, scale: float = 1.0) -> Expected:
        """Return loss, gradient and buffers of one step; changes nothing."""
        recipe = self.recipe
        start = {name: b.detach().clone() for name, b in self.model.named_buffers()}
        ends: list[dict[str, torch.Tensor]] = []
        expected = Expected()
        for indexes in workload.batches(
            recipe.data, recipe.micro_batch_size, recipe.num_slots * recipe.micro_batch_size, step
        ):
            self._set_buffers(start)
            torch.clear_autocast_cache()
            loss, weight = self.work.loss(workload.collated(self.work, indexes))
            weight = len(indexes) if weight is None else weight
            if loss is None or not weight:
                continue
            with torch.autocast("cpu", enabled=False):
                torch.autograd.backward(loss * scale)
            ends.append({name: b.detach().clone() for name, b in self.model.named_buffers()})
            self._add(expected, float(loss.detach()), weight, scale)
        self._set_buffers(start)
        if ends:
            expected.buffers = {name: self._moved(name, start[name], ends) for name in start}
            expected.loss /= expected.weight
            for name in expected.gradients:
                expected.gradients[name] /= expected.weight
                expected.magnitudes[name] /= expected.weight
            self._clip(expected)
        return expected

    def follow(self, gradients: Mapping[str, torch.Tensor], loss: float | None) -> None:
        """Make the update that these gradients lead to; without a loss no scheduler moves."""
        for name, gradient in gradients.items():
            self.parameters[name].grad = gradient.clone()
        with torch.autocast("cpu", enabled=False):
            for optimizer in self.work.optimizers:
                optimizer.step()
            for scheduler in self.work.schedulers:
                if loss is None:
                    continue
                if isinstance(scheduler, torch.optim.lr_scheduler.ReduceLROnPlateau):
                    scheduler.step(loss)
                else:
                    scheduler.step()
        self.model.zero_grad(set_to_none=True)

    @torch.no_grad()
    def take(self, other: torch.nn.Module) -> None:
        """Take all weights and buffers of another model."""
        for mine, theirs in zip(self.model.parameters(), other.parameters(), strict=True):
            mine.copy_(theirs)
        self._set_buffers({name: b.clone() for name, b in other.named_buffers()})

    def _add(self, expected: Expected, loss: float, weight: float, scale: float) -> None:
        """Add a micro-batch's terms in the widest type there is, and clear the gradients."""
        total = 0.0 if expected.weight == 0 else expected.loss
        expected.loss = total + loss * weight
        expected.weight += weight
        for name, parameter in self.parameters.items():
            if parameter.grad is None:
                continue
            wide = torch.complex128 if parameter.is_complex() else torch.float64
            term = parameter.grad.to(wide) * (weight / scale)
            parameter.grad = None
            expected.gradients[name] = expected.gradients.get(name, torch.zeros_like(term)) + term
            size = float(torch.linalg.vector_norm(term))
            expected.magnitudes[name] = expected.magnitudes.get(name, 0.0) + size

    def _clip(self, expected: Expected) -> None:
        if self.recipe.max_grad_norm is None or not expected.gradients:
            return
        norm = float(torch.nn.utils.get_total_norm(list(expected.gradients.values())))
        factor = self.recipe.max_grad_norm / (norm + 1e-6)
        if factor > 1.0:  # nan is not, and stays
            return
        for name in expected.gradients:
            expected.gradients[name] *= factor
            expected.magnitudes[name] *= factor

    def _set_buffers(self, values: Mapping[str, torch.Tensor]) -> None:
        """Give the model copies: graphs of earlier micro-batches may hold what it had."""
        for name, value in values.items():
            path, _, key = name.rpartition(".")
            setattr(self.model.get_submodule(path), key, value.clone())

    def _moved(
        self, name: str, start: torch.Tensor, ends: list[dict[str, torch.Tensor]]
    ) -> torch.Tensor:
        """Return where a buffer must be after the step."""
        found = [end[name] for end in ends]
        rule = self.rules.get(name)
        if rule == "sum":
            return start + sum((end - start for end in found), torch.zeros_like(start))
        if rule == "max":
            return torch.stack(found).amax(0)
        if not (start.is_floating_point() or start.is_complex()) or rule == "local":
            return found[-1]
        wide = torch.complex128 if start.is_complex() else torch.float64
        return torch.stack([end.to(wide) for end in found]).mean(0)
