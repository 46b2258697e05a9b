"""Compares every step of a recipe, trained alone by a Session, with a plain PyTorch loop."""

from __future__ import annotations

from contextlib import redirect_stderr
from io import StringIO
from typing import Any

import torch
from tests.fuzz import script, workload
from tests.fuzz.generator import Recipe
from tests.fuzz.plain import TOLERANCE, Expected, PlainLoop

import pliant

LOSS_TOLERANCE = 1e-6

NUM_STEPS = 9
"""Steps that are compared: two epochs, with a short batch and a change of phase in most."""


def compare(recipe: Recipe) -> int:
    """Train the recipe without its random numbers; return how many gradients were compared.

    Raises:
        AssertionError: a loss, a gradient, a buffer, a weight or a learning rate is not that of
            the plain loop; says which and at what step.
    """
    with workload.process_of(recipe), redirect_stderr(StringIO()):  # what a session notes
        return _Comparison(recipe.quiet(num_steps=NUM_STEPS)).run()


class _Comparison:
    def __init__(self, recipe: Recipe) -> None:
        self.recipe = recipe
        self.plain = PlainLoop(recipe)
        pliant.seed(recipe.seed)
        self.work = workload.build(recipe)
        self.names = {id(p): name for name, p in self.work.model.named_parameters()}
        rules = workload.buffer_rules(recipe)
        self.local = {name for name, rule in rules.items() if rule == "local"}
        groups = [group for optimizer in self.work.optimizers for group in optimizer.param_groups]
        self.held = {self.names[id(p)] for group in groups for p in group["params"]}
        """Names of the parameters that an optimizer steps."""
        self.captured: dict[str, torch.Tensor] = {}
        self.compared = 0

    def run(self) -> int:
        recipe, work = self.recipe, self.work
        with script.session_of(work) as session, work.outside():
            for optimizer in work.optimizers:
                optimizer.register_step_pre_hook(self._capture)
            for until, action in [*recipe.phases, (recipe.num_steps, "nothing")]:
                for step in session.steps(until):
                    scale = work.scaler.get_scale() if work.scaler is not None else 1.0
                    expected = self.plain.compute(step.index, scale=scale)
                    self.captured.clear()
                    for batch in step:
                        loss, weight = work.loss(batch)
                        if loss is not None:
                            step.backward(loss, weight=weight)
                    with torch.autocast("cpu", enabled=False):
                        self._check(step, expected)
                for side in (work, self.plain.work):
                    side.change(action)
                self.plain.take(work.model)
        return self.compared

    def _capture(self, optimizer: torch.optim.Optimizer, *_: Any) -> None:
        for group in optimizer.param_groups:
            for parameter in group["params"]:
                if parameter.grad is not None:
                    self.captured[self.names[id(parameter)]] = parameter.grad.clone()

    def _check(self, step: Any, expected: Expected) -> None:
        where = f"step {step.index}"
        finite = all(bool(torch.isfinite(g).all()) for g in expected.gradients.values())
        self._check_loss(step.loss, expected, where)
        if finite or self.work.scaler is None:
            held = self.held & expected.gradients.keys()
            odd = sorted(self.captured.keys() ^ held)
            assert not odd, f"{where}: on one side only: {odd}"
            self._check_gradients(expected, where)
            if self.captured:
                self.plain.follow(self.captured, step.loss)
        else:  # a scaler skips each optimizer that meets an overflow, and no scheduler moves
            self.plain.follow(self._finite(), None)
        self._check_update(where)
        self._check_buffers(expected, where)
        self.plain.take(self.work.model)

    def _finite(self) -> dict[str, torch.Tensor]:
        """Return what was captured of the optimizers that have met no overflow."""
        found: dict[str, torch.Tensor] = {}
        for optimizer in self.work.optimizers:
            held = [self.names[id(p)] for group in optimizer.param_groups for p in group["params"]]
            part = {name: self.captured[name] for name in held if name in self.captured}
            if all(bool(torch.isfinite(gradient).all()) for gradient in part.values()):
                found |= part
        return found

    def _check_loss(self, loss: float, expected: Expected, where: str) -> None:
        if loss != loss or expected.loss != expected.loss:
            assert loss != loss, where
            assert expected.loss != expected.loss, where
            return
        assert abs(loss - expected.loss) <= LOSS_TOLERANCE * abs(expected.loss), where

    def _check_gradients(self, expected: Expected, where: str) -> None:
        for name in self.captured:
            gradient = expected.gradients[name]
            found = self.captured[name]
            if not bool(torch.isfinite(gradient).all()):
                assert not bool(torch.isfinite(found).all()), (where, name)
                continue
            error = float(torch.linalg.vector_norm(found.to(gradient.dtype) - gradient))
            tolerance = TOLERANCE[found.dtype]
            if self.recipe.max_grad_norm is not None:  # all share the norm's error
                tolerance = max(TOLERANCE[p.dtype] for p in self.plain.parameters.values())
            assert error <= tolerance * expected.magnitudes[name], (
                f"{where}: the gradient of {name} is off by {error:.3g}, "
                f"its terms have {expected.magnitudes[name]:.3g}"
            )
            self.compared += 1

    def _check_update(self, where: str) -> None:
        for name, mine in self.plain.parameters.items():
            theirs = self.work.model.get_parameter(name)
            assert _bits(mine) == _bits(theirs), f"{where}: {name} after the update"
        assert _rates(self.plain.work) == _rates(self.work), f"{where}: learning rates"

    def _check_buffers(self, expected: Expected, where: str) -> None:
        for name, buffer in self.work.model.named_buffers():
            if name in self.local or name not in expected.buffers:
                continue
            want = expected.buffers[name]
            close = torch.allclose(
                buffer.to(want.dtype), want, rtol=1e-6, atol=1e-6, equal_nan=True
            )
            assert close, f"{where}: buffer {name} is {buffer}, should be {want}"


def _rates(work: workload.Workload) -> list[float]:
    return [float(g["lr"]) for optimizer in work.optimizers for g in optimizer.param_groups]


def _bits(tensor: torch.Tensor) -> bytes:
    flat = tensor.detach().contiguous().reshape(-1)
    return flat.view(torch.uint8).numpy().tobytes() if flat.numel() else b""
