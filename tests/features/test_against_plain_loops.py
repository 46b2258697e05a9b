"""Each feature, trained by a session alone in its process, does what a plain loop does.

The twin of a block is trained without pliant: it accumulates ``loss * weight / total`` over the
same micro-batches, and the gradient that this gives is compared with the session's.  Then the twin
takes over the session's gradient and is stepped as anybody would do it: weights must be equal, bit
for bit.  So what is compared is the arithmetic of a step, not how far two roundings drift apart.
"""

from __future__ import annotations

import math
from typing import Any

import pytest
import torch
from tests.engine import models
from tests.features import catalogue
from tests.features.feature import GLOBAL_BATCH, MICRO_BATCH, NUM_SAMPLES, Block, Feature, built
from torch.optim.lr_scheduler import ReduceLROnPlateau

STEPS = 6
"""More than an epoch, whose last step is short."""

Gradients = dict[str, torch.Tensor]

FEATURES = [
    feature
    for features in catalogue.GROUPS.values()
    for feature in features
    if feature.build is not None and not feature.is_random
]


@pytest.mark.parametrize("feature", FEATURES, ids=lambda feature: feature.name)
def test_a_session_does_what_a_plain_loop_does(feature: Feature) -> None:
    block, twin = built(feature), built(feature)
    captured: Gradients = {}
    for optimizer in block.optimizers:
        optimizer.register_step_pre_hook(lambda *_: captured.update(gradients_of(block)))
    with block.session(shuffle=False) as session:
        for step in session.steps(STEPS):
            captured.clear()
            for batch in step:
                step.backward(block.compute(batch), weight=block.weigh(batch))
            loss, expected, sizes = accumulate(twin, step.index)

            assert step.loss == pytest.approx(loss, rel=feature.tolerance)
            if all(gradient.isfinite().all() for gradient in expected.values()):
                assert_close(captured, expected, sizes, feature.tolerance)
                update(twin, captured, step.loss)
            else:
                assert captured == {}  # skipped
            assert_equal_weights(block, twin)
            follow_buffers(block, twin)
            block.tail(step.index)
            twin.tail(step.index)


def micro_batches(twin: Block, step: int) -> list[tuple[Any, int]]:
    """Return what a plain loop over the data in its order computes in a step, and their sizes."""
    data: Any = twin.dataset or models.Points(NUM_SAMPLES)
    start = step * GLOBAL_BATCH % (NUM_SAMPLES + -NUM_SAMPLES % GLOBAL_BATCH)
    stop = min(start + GLOBAL_BATCH, NUM_SAMPLES)
    parts = [range(at, min(at + MICRO_BATCH, stop)) for at in range(start, stop, MICRO_BATCH)]
    return [(twin.collate_fn([data[i] for i in part]), len(part)) for part in parts]


def accumulate(twin: Block, step: int) -> tuple[float, Gradients, dict[str, float]]:
    """Return the weighted mean loss of a step, its gradient, and the size of what was added up."""
    start = {name: buffer.clone() for name, buffer in twin.model.named_buffers()}
    parts = []
    for batch, size in micro_batches(twin, step):
        for name, buffer in start.items():  # a copy: graphs of earlier ones still live
            set_buffer(twin.model, name, buffer.clone())
        weight = twin.weigh(batch)
        parts.append((twin.compute(batch), size if weight is None else weight))
    total = sum(weight for _, weight in parts)
    gradients: Gradients = {}
    sizes: dict[str, float] = {}
    for loss, weight in parts:
        if weight:
            torch.autograd.backward(loss * (weight / total))
        for name, gradient in gradients_of(twin).items():
            gradients[name] = gradient + gradients.get(name, 0.0)
            sizes[name] = float(gradient.norm()) + sizes.get(name, 0.0)
        twin.model.zero_grad(set_to_none=True)
    for name, parameter in twin.model.named_parameters():
        parameter.grad = gradients.get(name)
    torch.nn.utils.clip_grad_norm_(
        twin.model.parameters(), twin.arguments.get("max_grad_norm", math.inf)
    )
    twin.model.zero_grad(set_to_none=True)
    mean = sum(float(loss.detach()) * weight for loss, weight in parts if weight) / total
    return mean, gradients, sizes


def gradients_of(block: Block) -> Gradients:
    named = block.model.named_parameters()
    return {name: p.grad.clone() for name, p in named if p.grad is not None}


def assert_close(
    found: Gradients, expected: Gradients, sizes: dict[str, float], tolerance: float
) -> None:
    """Gradients of slots may cancel each other, so errors are relative to what was added up."""
    assert found.keys() == expected.keys()
    for name, gradient in expected.items():
        error = float((found[name].to(gradient.dtype) - gradient).norm())
        assert error <= tolerance * sizes[name], name


def update(twin: Block, gradients: Gradients, loss: float) -> None:
    """Step as a plain loop does."""
    for name, parameter in twin.model.named_parameters():
        parameter.grad = gradients.get(name)
    for optimizer in twin.optimizers:
        optimizer.step()
    for scheduler in twin.schedulers:
        if isinstance(scheduler, ReduceLROnPlateau):
            scheduler.step(loss)
        else:
            scheduler.step()
    twin.model.zero_grad(set_to_none=True)


def assert_equal_weights(block: Block, twin: Block) -> None:
    there = dict(twin.model.named_parameters())
    different = [n for n, p in block.model.named_parameters() if not torch.equal(p, there[n])]
    assert different == []


def follow_buffers(block: Block, twin: Block) -> None:
    """Give the twin the session's buffers, which move once a step and not once a micro-batch."""
    for name, buffer in block.model.named_buffers():
        set_buffer(twin.model, name, buffer.clone())


def set_buffer(model: torch.nn.Module, name: str, value: torch.Tensor) -> None:
    path, _, key = name.rpartition(".")
    setattr(model.get_submodule(path), key, value)
