"""Draws: what a sampler gives in each epoch, made a function of the run's seed and the epoch.

Owns the seeding of whatever a sampler draws from (the global generators, generators that it keeps,
``set_epoch``), and the refusal of one that gives other draws when it is asked again: a replica that
joins, and a run that is resumed, draw every epoch anew and must get the same.  Must not know slots,
replicas or who computes what.

A distributed sampler is taken for all replicas at once: a session divides the draws itself.
"""

from __future__ import annotations

import copy
from array import array
from collections.abc import Iterable, Iterator
from contextlib import contextmanager
from itertools import islice
from operator import index
from typing import Any

import numpy as np
import torch
from torch.utils.data import DistributedSampler

from pliant.core.errors import ConfigError, UsageError
from pliant.core.step import order
from pliant.engine import randomness

MAX_DRAWS_PER_SAMPLE = 100
"""In an epoch, of a sampler without a length: what gives more has no end."""

MAX_DEPTH = 3
"""Samplers in samplers, and the generators that these keep."""

KEPT_EPOCHS = 2
"""The epoch that is trained on, and the next, which loader processes fetch ahead."""


class Draws:
    """Of one sampler over one dataset."""

    def __init__(self, sampler: Iterable[Any], *, num_samples: int, seed: int) -> None:
        """``num_samples``: of the dataset; ``seed``: of the run.

        Raises:
            ConfigError: it is no sampler, or gives other draws when an epoch is asked for again.
        """
        self.name = getattr(sampler, "name_of_sampler", type(sampler).__name__)
        if not hasattr(sampler, "__iter__"):
            raise ConfigError(f"sampler must give indices one by one (__iter__), got {self.name}")
        self._sampler = _of_all_replicas(sampler, self.name)
        self._num_samples = num_samples
        self._seed = seed
        self._generators = [(one, _number_of(one)) for one in _generators(self._sampler)]
        self._epochs: dict[int, array[int]] = {}
        first = self._draw(0)
        self.size = len(first)
        """Draws in an epoch."""
        self._draw(1)
        if any(self._draw(0) != first for _ in range(2)):  # one that goes to and fro needs two
            raise ConfigError(
                f"{self.name} gives other draws when it is asked for epoch 0 again, so a replica "
                "that joins could not draw what the others drew; let it draw from the global "
                "generators of torch, numpy or random, from a generator in one of its attributes, "
                "or by set_epoch(epoch)"
            )
        self._epochs[0] = first
        self.first_digest = order.digest(first)
        """Of all draws of epoch 0."""

    def of(self, epoch: int) -> array[int]:
        """Return the samples that are drawn in an epoch, in their order.

        Raises:
            UsageError: they are not as many as in the first epoch.
        """
        if epoch not in self._epochs:
            drawn = self._draw(epoch)
            if len(drawn) != self.size:
                raise UsageError(
                    f"{self.name} gave {len(drawn)} draws in epoch {epoch} and {self.size} in "
                    "epoch 0; let every epoch have as many"
                )
            while len(self._epochs) >= KEPT_EPOCHS:
                del self._epochs[min(self._epochs)]
            self._epochs[epoch] = drawn
        return self._epochs[epoch]

    def _draw(self, epoch: int) -> array[int]:
        with randomness.preserved(), _seeded(self._generators, self._seed, epoch):
            randomness.seed_place("draws", self._seed, epoch)
            for one in _parts(self._sampler, MAX_DEPTH):
                set_epoch = getattr(one, "set_epoch", None)
                if callable(set_epoch):
                    set_epoch(epoch)
            return self._listed()

    def _listed(self) -> array[int]:
        most = _length(self._sampler)
        if most is None:
            most = MAX_DRAWS_PER_SAMPLE * max(self._num_samples, 1)
        drawn = array("q")
        for value in islice(self._sampler, most + 1):
            try:
                sample = index(value)
            except TypeError:
                raise ConfigError(
                    f"{self.name} gave {value!r}; it must give the indices of samples one by one, "
                    "whole numbers"
                ) from None
            if not 0 <= sample < self._num_samples:
                raise ConfigError(
                    f"{self.name} gave {sample}, and the samples of the dataset are 0 to "
                    f"{self._num_samples - 1}"
                )
            drawn.append(sample)
        if len(drawn) > most:
            raise ConfigError(
                f"{self.name} gave more than {most} draws in an epoch; an epoch must end (and "
                "len() of the sampler, if it has one, be its draws)"
            )
        return drawn


def _length(sampler: Any) -> int | None:
    try:
        return len(sampler)
    except (TypeError, NotImplementedError):
        return None


def _of_all_replicas(sampler: Any, name: str) -> Any:
    """Return what gives the draws of all replicas, where a sampler gives those of one."""
    if type(sampler).__iter__ is DistributedSampler.__iter__:
        whole = copy.copy(sampler)
        whole.num_replicas, whole.rank = 1, 0
        whole.num_samples = whole.total_size = len(whole.dataset)
        return whole
    for one in _parts(sampler, MAX_DEPTH):
        for count in ("num_replicas", "world_size"):
            share = getattr(one, count, 1)
            if isinstance(share, int) and share > 1:
                raise ConfigError(
                    f"{name} gives one of {share} replicas its share ({count}={share}); a session "
                    f"divides the draws itself: make it with {count}=1"
                )
    return sampler


def _parts(sampler: Any, depth: int) -> Iterator[Any]:
    """Iterate over a sampler and the samplers that it draws from."""
    yield sampler
    if depth:
        for value in _attributes(sampler).values():
            if hasattr(value, "__iter__") and not hasattr(value, "__getitem__"):
                yield from _parts(value, depth - 1)


def _generators(sampler: Any) -> list[Any]:
    """Return the generators that it and the samplers in it keep, each once."""
    kept = [value for one in _parts(sampler, MAX_DEPTH) for value in _attributes(one).values()]
    return list({id(one): one for one in kept if isinstance(one, randomness.GENERATORS)}.values())


def _attributes(holder: Any) -> dict[str, Any]:
    return dict(getattr(holder, "__dict__", {}))


def _number_of(generator: Any) -> int:
    """Return a number that two generators made alike have in common, however often drawn from.

    Of torch's the seed, which it remembers; of others the state that they are handed over in.
    """
    if isinstance(generator, torch.Generator):
        return generator.initial_seed()
    return order.mix(repr(randomness.state_of(generator)))


def _set_state(generator: Any, state: Any) -> None:
    match generator:
        case torch.Generator() | np.random.RandomState():
            generator.set_state(state)
        case np.random.Generator():
            generator.bit_generator.state = state
        case _:
            generator.setstate(state)


def _seed(generator: Any, number: int) -> None:
    match generator:
        case torch.Generator():
            generator.manual_seed(number)
        case np.random.Generator():
            kind: Any = type(generator.bit_generator)
            generator.bit_generator.state = kind(number).state
        case _:
            generator.seed(number)


@contextmanager
def _seeded(generators: list[tuple[Any, int]], seed: int, epoch: int) -> Iterator[None]:
    """Seed a sampler's own generators for an epoch; afterwards they are as they were."""
    states = [randomness.state_of(one) for one, _ in generators]
    try:
        for one, number in generators:
            _seed(one, order.mix("sampler", seed, epoch, number))
        yield
    finally:
        for (one, _), state in zip(generators, states, strict=True):
            if state is not None:
                _set_state(one, state)
