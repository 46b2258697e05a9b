"""A step is made of the micro-batches that the session hands out, and of nothing else."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from itertools import cycle, islice
from typing import Any

import pytest
import torch
from tests.engine import models
from torch import nn
from torch.utils.data import DataLoader, WeightedRandomSampler

import pliant
from pliant.core.errors import UsageError

MADE_ELSEWHERE = "made before this micro-batch"

Loop = Callable[[pliant.Session, nn.Module], None]


def train(loop: Loop, dataset: Any = None) -> None:
    model = nn.Linear(4, 3)
    with pliant.Session(
        model=model,
        optimizer=torch.optim.SGD(model.parameters(), lr=0.1),
        dataset=models.Points(20) if dataset is None else dataset,
        global_batch_size=8,
        micro_batch_size=2,
    ) as session:
        loop(session, model)


def loss_of(model: nn.Module, batch: Any) -> torch.Tensor:
    points, labels = batch
    return nn.functional.cross_entropy(model(points), labels)


def endless(loader: DataLoader[Any]) -> Iterator[Any]:
    while True:
        yield from loader


def weighted() -> DataLoader[Any]:
    sampler = WeightedRandomSampler([1.0] * 19 + [9.0], 20)
    return DataLoader(models.Points(20), batch_size=2, sampler=sampler)


@pytest.mark.parametrize("source", [iter, cycle, endless])
@pytest.mark.parametrize("num_workers", [0, 1])
def test_a_loop_over_a_loader_of_its_own_is_refused(
    source: Callable[[Any], Iterator[Any]], num_workers: int
) -> None:
    own = source(DataLoader(models.Points(20), batch_size=2, num_workers=num_workers))

    def loop(session: pliant.Session, model: nn.Module) -> None:
        for step in session.steps(3):
            for _ in step:
                step.backward(loss_of(model, next(own)))

    with pytest.raises(UsageError, match=MADE_ELSEWHERE):
        train(loop)


@pytest.mark.parametrize("is_first", [True, False])
def test_a_loader_zipped_with_the_step_is_refused(is_first: bool) -> None:
    def loop(session: pliant.Session, model: nn.Module) -> None:
        for step in session.steps(3):
            both = (weighted(), step) if is_first else (step, weighted())
            for batches in zip(*both, strict=False):
                step.backward(loss_of(model, batches[not is_first]))

    with pytest.raises(UsageError, match=MADE_ELSEWHERE):
        train(loop)


def test_a_loader_zipped_with_the_steps_is_refused() -> None:
    def loop(session: pliant.Session, model: nn.Module) -> None:
        for step, batch in zip(session.steps(3), weighted(), strict=False):
            for _ in step:
                step.backward(loss_of(model, batch))

    with pytest.raises(UsageError, match="made before step 0"):
        train(loop)


def test_a_new_loader_over_the_sessions_dataset_is_refused_in_a_step() -> None:
    dataset = models.Points(20)

    def loop(session: pliant.Session, model: nn.Module) -> None:
        for step in session.steps(3):
            for _ in step:
                step.backward(loss_of(model, next(iter(DataLoader(dataset, batch_size=2)))))

    with pytest.raises(UsageError, match="over the session's own dataset"):
        train(loop, dataset)


def test_a_loader_that_is_read_anew_for_each_micro_batch_is_left_alone() -> None:
    """Support sets and the like: every replica sees the same at the same micro-batch."""
    others = DataLoader(models.Points(8), batch_size=2, shuffle=True)

    def loop(session: pliant.Session, model: nn.Module) -> None:
        for step in session.steps(3):
            for batch in step:
                aside = sum(loss_of(model, other) for other in others)
                step.backward(loss_of(model, batch) + aside)

    train(loop)


def test_loaders_are_free_in_the_tail_and_around_the_session() -> None:
    held_out = iter(DataLoader(models.Points(20)))

    def loop(session: pliant.Session, model: nn.Module) -> None:
        for step in session.steps(3):
            for batch in step:
                step.backward(loss_of(model, batch))
            next(held_out)
            assert len(list(weighted())) == 10

    train(loop)
    train(loop)
    next(held_out)


def test_a_dataset_may_read_from_a_loader() -> None:
    class Streamed(models.Points):
        def __init__(self) -> None:
            super().__init__(20)
            self.source = cycle(DataLoader(models.Points(20)))

        def __getitem__(self, index: int) -> Any:
            next(self.source)
            return super().__getitem__(index)

    def loop(session: pliant.Session, model: nn.Module) -> None:
        for step in session.steps(2):
            for batch in step:
                step.backward(loss_of(model, batch))

    train(loop, Streamed())


# --- the ways not to draw what a step has ----------------------------------------------


def test_a_step_that_nobody_draws_from_says_what_to_write() -> None:
    def loop(session: pliant.Session, model: nn.Module) -> None:
        for _ in session.steps(3):
            pass

    with pytest.raises(UsageError, match=r"step 0 was passed over.*write `for batch in step:`"):
        train(loop)


def test_a_part_of_the_micro_batches_is_no_step() -> None:
    def loop(session: pliant.Session, model: nn.Module) -> None:
        for step in session.steps(3):
            for batch in islice(step, 4):  # all four, but not to the end
                step.backward(loss_of(model, batch))

    with pytest.raises(UsageError, match="the loop over step 0 was left before its end"):
        train(loop)


def test_an_iterator_of_a_former_step_gives_nothing() -> None:
    def loop(session: pliant.Session, model: nn.Module) -> None:
        former = None
        for step in session.steps(3):
            if former is not None:
                assert list(former) == []
            former = iter(step)
            for batch in former:
                step.backward(loss_of(model, batch))

    train(loop)


@pytest.mark.parametrize("when", ["head", "tail"])
def test_a_backward_without_a_micro_batch_is_refused(when: str) -> None:
    batch = next(iter(DataLoader(models.Points(20), batch_size=2)))

    def loop(session: pliant.Session, model: nn.Module) -> None:
        for step in session.steps(3):
            drawn = list(step) if when == "tail" else []
            assert len(drawn) in (0, 4)
            step.backward(loss_of(model, batch))

    with pytest.raises(UsageError, match=r"step\.backward was called outside of the loop"):
        train(loop)
