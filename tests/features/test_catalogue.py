"""The catalogue is whole: what torch has is in it, and what it says is shown."""

from __future__ import annotations

import inspect
from pathlib import Path

import torch
from tests.features import catalogue, optimizers
from tests.features.feature import built

ROOT = Path(__file__).resolve().parents[2]
ALL = [feature for features in catalogue.GROUPS.values() for feature in features]
REFUSED = {"LBFGS", "SparseAdam"}
"""See ``refusals``."""


def test_every_optimizer_of_torch_is_in_the_catalogue() -> None:
    named = {name: getattr(torch.optim, name) for name in torch.optim.__all__}
    everything = {name for name, kind in named.items() if inspect.isclass(kind)} - {"Optimizer"}

    blocks = [built(feature) for feature in optimizers.FEATURES if feature.build is not None]
    used = {type(optimizer).__name__ for block in blocks for optimizer in block.optimizers}

    assert everything - used == REFUSED


def test_every_scheduler_of_torch_is_in_the_catalogue() -> None:
    everything = set(torch.optim.lr_scheduler.__all__) - {"LRScheduler"} | {"SWALR"}

    blocks = [built(feature) for feature in optimizers.FEATURES if feature.build is not None]
    used = {type(scheduler).__name__ for block in blocks for scheduler in block.schedulers}

    assert everything - used == set()


def test_every_feature_has_its_own_name() -> None:
    names = [feature.name for feature in ALL]

    assert sorted(names) == sorted(set(names))


def test_every_feature_is_trained_or_names_a_test_that_is_there() -> None:
    for feature in ALL:
        if feature.build is None:
            path, _, name = feature.proof.partition("::")
            assert f"def {name}(" in (ROOT / path).read_text(), feature.name
