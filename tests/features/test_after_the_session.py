"""A session takes away what it brought, and nothing else."""

from __future__ import annotations

import threading

import pytest
import torch
from tests.features import catalogue
from tests.features.feature import Block, Feature, built

HOOKED = [
    feature
    for feature in catalogue.GROUPS["structure"]
    if feature.name in ("your own hooks", "spectral_norm, old style", "pruned weights")
]


def hooks_of(block: Block) -> list[list[str]]:
    """List every hook that is in the parameters, modules and optimizers of a block."""
    holders = [*block.model.parameters(), *block.model.modules(), *block.optimizers]
    kinds = sorted({kind for holder in holders for kind in vars(holder) if kind.endswith("_hooks")})
    kinds += ["_backward_hooks", "_post_accumulate_grad_hooks"]  # of tensors, which have slots
    return [
        [f"{kind} {hook}" for kind in kinds for hook in (getattr(holder, kind, None) or {})]
        for holder in holders
    ]


@pytest.mark.parametrize("feature", HOOKED, ids=lambda feature: feature.name)
def test_hooks_and_settings_are_as_before(feature: Feature) -> None:
    block = built(feature)
    before = hooks_of(block), torch.get_num_threads(), threading.active_count()

    with block.session() as session:
        for step in session.steps(2):
            for batch in step:
                step.backward(block.compute(batch))
        inside = hooks_of(block)

    assert (hooks_of(block), torch.get_num_threads(), threading.active_count()) == before
    assert inside != before[0]
    assert any(before[0])
