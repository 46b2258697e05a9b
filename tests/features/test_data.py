"""Datasets of unusual sizes and manners."""

from __future__ import annotations

from typing import Any

import psutil
import pytest
import torch
from tests.engine import models
from torch import nn
from torch.utils.data import Dataset

import pliant


class Numbers(Dataset[Any]):
    """As many samples as asked for, none of which is kept."""

    def __init__(self, size: int) -> None:
        self.size = size
        self.seen: list[int] = []

    def __len__(self) -> int:
        return self.size

    def __getitem__(self, index: int) -> torch.Tensor:
        self.seen.append(index)
        return torch.full((4,), index / self.size)


def train(dataset: Any, steps: int, **arguments: Any) -> pliant.Session:
    model = nn.Linear(4, 1)
    optimizer = torch.optim.SGD(model.parameters(), lr=0.1)
    arguments = {"global_batch_size": 4, "micro_batch_size": 2, **arguments}
    with pliant.Session(model=model, optimizer=optimizer, dataset=dataset, **arguments) as session:
        for step in session.steps(steps):
            for batch in step:
                points = batch[0] if isinstance(batch, list) else batch
                step.backward(model(points).square().mean())
    return session


def test_five_samples_are_seen_once_in_every_epoch() -> None:
    dataset = Numbers(5)
    train(dataset, 6)  # three epochs of two steps, the second of one sample

    seen = dataset.seen[2:]  # two were fetched to see whether they are alike
    assert [sorted(seen[epoch * 5 : epoch * 5 + 5]) for epoch in range(3)] == [[0, 1, 2, 3, 4]] * 3


def test_a_thousand_million_samples_take_no_memory() -> None:
    dataset = Numbers(10**9)
    train(dataset, 2)
    before = psutil.Process().memory_info().rss

    session = train(dataset, 50)

    assert session.steps_per_epoch == 250_000_000
    assert len(set(dataset.seen)) > 200  # all over the place
    assert psutil.Process().memory_info().rss - before < 20e6


class Broken(models.Points):
    """Says that it has more samples than it has."""

    def __len__(self) -> int:
        return 24

    def __getitem__(self, index: int) -> Any:
        if index >= 20:
            raise IndexError(f"there is no sample {index}")
        return super().__getitem__(index)


@pytest.mark.parametrize("num_workers", [0, 1])
def test_an_error_of_the_dataset_comes_out_as_it_is(num_workers: int) -> None:
    with pytest.raises(IndexError, match="there is no sample 2"):
        train(Broken(20), 6, num_workers=num_workers)


def test_the_length_of_the_dataset_is_part_of_a_runs_identity() -> None:
    identity = dict(train(Numbers(5), 1)._parts.identity())

    assert identity["dataset_samples"] == "5"


def test_what_a_sampler_draws_is_part_of_a_runs_identity() -> None:
    def identity(**arguments: Any) -> dict[str, str]:
        return dict(train(Numbers(9), 1, **arguments)._parts.identity())

    plain, one, other = (
        identity(**arguments)
        for arguments in ({}, {"sampler": range(5, 9)}, {"sampler": range(4, 8)})
    )

    assert plain["sampler"] == "none"
    assert (one["sampler"], one["num_draws"], one["dataset_samples"]) == ("range", "4", "9")
    assert one["first_draws"] != other["first_draws"]
