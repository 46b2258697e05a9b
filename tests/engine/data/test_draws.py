"""What a sampler draws is a function of the run's seed and the epoch."""

from __future__ import annotations

import random
from collections.abc import Callable, Iterator
from typing import Any

import numpy as np
import pytest
import torch
from tests.engine import models
from torch.utils.data import (
    DistributedSampler,
    RandomSampler,
    Sampler,
    SequentialSampler,
    SubsetRandomSampler,
    WeightedRandomSampler,
)

from pliant.core.errors import ConfigError
from pliant.engine.data.draws import Draws

SIZE = 20
POINTS = models.Points(SIZE)
WEIGHTS = [float(n % 3) for n in range(SIZE)]


def seeded(number: int) -> torch.Generator:
    return torch.Generator().manual_seed(number)


class Own(Sampler[int]):
    """Permutes by generators of its own, of numpy's old and new kind and of Python's."""

    def __init__(self) -> None:
        self.new = np.random.default_rng(3)
        self.old = np.random.RandomState(4)
        self.plain = random.Random(5)

    def __iter__(self) -> Iterator[int]:
        order = list(map(int, self.old.permutation(self.new.permutation(SIZE))))
        self.plain.shuffle(order)
        return iter(order)


class ByEpoch(Sampler[int]):
    """Knows its epoch by ``set_epoch``, as those of other libraries do."""

    epoch = 0

    def set_epoch(self, epoch: int) -> None:
        self.epoch = epoch

    def __iter__(self) -> Iterator[int]:
        return iter(torch.randperm(SIZE, generator=seeded(self.epoch)).tolist())


class Around(Sampler[int]):
    """Draws from another sampler, twice each."""

    def __init__(self, inner: Any) -> None:
        self.inner = inner

    def __iter__(self) -> Iterator[int]:
        return (index for index in self.inner for _ in range(2))


MAKE: dict[str, Callable[[], Any]] = {
    "weighted": lambda: WeightedRandomSampler(WEIGHTS, 30),
    "weighted, own generator": lambda: WeightedRandomSampler(WEIGHTS, 30, generator=seeded(1)),
    "replacement": lambda: RandomSampler(POINTS, replacement=True, num_samples=50),
    "more than there are": lambda: RandomSampler(POINTS, num_samples=33, generator=seeded(2)),
    "subset": lambda: SubsetRandomSampler(range(3, 15)),
    "distributed": lambda: DistributedSampler(POINTS, num_replicas=4, rank=3),
    "own generators": Own,
    "by epoch": ByEpoch,
    "around another": lambda: Around(SubsetRandomSampler(range(9), generator=seeded(3))),
}
FIXED: dict[str, Callable[[], Any]] = {
    "in order": lambda: SequentialSampler(POINTS),
    "a list": lambda: [3, 1, 4, 1, 5],
    "a tensor": lambda: torch.tensor([3, 1, 4]),
    "an array": lambda: np.array([3, 1, 4]),
}


def draws(sampler: Any, seed: int = 7) -> Draws:
    return Draws(sampler, num_samples=SIZE, seed=seed)


@pytest.mark.parametrize("make", MAKE.values(), ids=MAKE.keys())
def test_who_begins_later_draws_the_same_in_every_epoch(make: Callable[[], Any]) -> None:
    first, late = draws(make()), draws(make())
    torch.rand(3), np.random.rand(3), random.random()  # whatever happened in between

    earlier = [first.of(epoch) for epoch in range(5)]

    assert late.of(4) == earlier[4]
    assert first.of(1) == earlier[1]
    assert len({tuple(order) for order in earlier}) == 5
    assert first.first_digest == late.first_digest


@pytest.mark.parametrize("make", FIXED.values(), ids=FIXED.keys())
def test_an_order_that_is_always_the_same_is_kept(make: Callable[[], Any]) -> None:
    expected = [int(index) for index in make()]
    assert draws(make()).of(0).tolist() == draws(make()).of(3).tolist() == expected


@pytest.mark.parametrize("name", ["weighted", "subset", "own generators", "replacement"])
def test_the_seed_of_the_run_gives_other_draws(name: str) -> None:
    assert draws(MAKE[name](), seed=1).of(0) != draws(MAKE[name](), seed=2).of(0)


def test_the_seed_of_a_samplers_own_generator_counts() -> None:
    one, other = (SubsetRandomSampler(range(12), generator=seeded(n)) for n in (1, 2))

    assert draws(one).of(0) != draws(other).of(0)


def test_generators_are_afterwards_as_they_were() -> None:
    generator = seeded(1)
    torch.manual_seed(5), np.random.seed(5), random.seed(5)
    states = torch.get_rng_state(), np.random.get_state(), random.getstate(), generator.get_state()

    draws(WeightedRandomSampler(WEIGHTS, 30, generator=generator)).of(3)

    assert torch.equal(torch.get_rng_state(), states[0])
    assert np.array_equal(np.random.get_state()[1], states[1][1])  # type: ignore[index]
    assert random.getstate() == states[2]
    assert torch.equal(generator.get_state(), states[3])


def test_a_distributed_sampler_gives_the_draws_of_all_its_replicas() -> None:
    parts: list[Any] = [
        DistributedSampler(POINTS, num_replicas=4, rank=rank, seed=9) for rank in range(4)
    ]
    for part in parts:
        part.set_epoch(2)
    everyone = [index for group in zip(*parts, strict=True) for index in group]

    assert draws(parts[1]).of(2).tolist() == everyone


class ToAndFro(Sampler[int]):
    """Goes backwards every other time."""

    reverse = True

    def __iter__(self) -> Iterator[int]:
        self.reverse = not self.reverse
        return iter(range(SIZE)[:: -1 if self.reverse else 1])


@pytest.mark.parametrize(
    ("sampler", "sentence"),
    [
        (ToAndFro, "ToAndFro gives other draws when it is asked for epoch 0 again"),
        (lambda: iter([1, 2, 3]), "gives other draws when it is asked for epoch 0 again"),
        (lambda: [-1], "list gave -1, and the samples of the dataset are 0 to 19"),
    ],
)
def test_what_no_joiner_could_draw_is_refused(sampler: Any, sentence: str) -> None:
    with pytest.raises(ConfigError, match=sentence):
        draws(sampler())
