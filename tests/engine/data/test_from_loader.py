"""What a script says in a DataLoader is done, told, or refused."""

from __future__ import annotations

from itertools import chain
from typing import Any

import pytest
import torch
from tests.engine import models
from torch import nn
from torch.utils.data import (
    BatchSampler,
    DataLoader,
    RandomSampler,
    SequentialSampler,
    Subset,
    SubsetRandomSampler,
    get_worker_info,
)

import pliant
from pliant.core.errors import ConfigError
from pliant.engine.data.from_loader import DataArguments, data_arguments, evaluation_arguments

POINTS = models.Points(20)


def said(dataset: Any, **given: Any) -> DataArguments:
    nothing = dict.fromkeys(
        ("collate_fn", "micro_batch_size", "sampler", "shuffle", "drop_last", "num_workers")
    )
    return data_arguments(dataset, **{**nothing, **given})


def trained(dataset: Any, steps: int = 5, **more: Any) -> tuple[str, list[list[float]]]:
    """Train alone; return the digest, and the points of each micro-batch."""
    pliant.seed(3)
    model = nn.Linear(4, 3)
    optimizer = torch.optim.SGD(model.parameters(), lr=0.1)
    arguments = {"model": model, "optimizer": optimizer, "dataset": dataset, **more}
    seen = []
    with pliant.Session(global_batch_size=8, **arguments) as session:
        for step in session.steps(steps):
            for points, labels in step:
                seen.append(points[:, 0].tolist())
                step.backward(nn.functional.cross_entropy(model(points), labels))
        return session.state_digest(), seen


def test_a_loader_gives_what_its_parts_give() -> None:
    loader = DataLoader(POINTS, batch_size=4, shuffle=True, drop_last=True)

    assert trained(loader) == trained(POINTS, micro_batch_size=4, drop_last=True)


def test_a_loader_without_shuffle_goes_in_order() -> None:
    _, seen = trained(DataLoader(POINTS, batch_size=2), steps=3)

    assert list(chain(*seen)) == POINTS.points[:, 0].tolist()


def test_the_sampler_of_a_loader_says_the_order() -> None:
    sampler = SubsetRandomSampler(range(5, 17))

    digest, seen = trained(DataLoader(POINTS, batch_size=2, sampler=sampler), steps=2)

    assert sorted(chain(*seen)) == sorted(POINTS.points[5:17, 0].tolist())
    assert digest == trained(POINTS, steps=2, micro_batch_size=2, sampler=sampler)[0]


def test_a_shuffle_by_the_scripts_own_generator_follows_its_seed() -> None:
    def made(seed: int) -> DataLoader[Any]:
        generator = torch.Generator().manual_seed(seed)
        return DataLoader(POINTS, batch_size=2, shuffle=True, generator=generator)

    assert trained(made(1)) == trained(made(1))
    assert trained(made(1)) != trained(made(2))


def test_batches_of_a_batch_sampler_are_micro_batches() -> None:
    batches = [[0, 1], [18, 19], [4, 5], [2, 3], [7]]

    _, seen = trained(DataLoader(POINTS, batch_sampler=batches), steps=2, micro_batch_size=2)

    assert seen == [POINTS.points[batch, 0].tolist() for batch in batches]


def test_a_batch_sampler_of_torch_is_its_sampler() -> None:
    batches = BatchSampler(RandomSampler(POINTS), 4, drop_last=True)

    found = said(DataLoader(POINTS, batch_sampler=batches))

    assert (found.micro_batch_size, found.shuffle, found.drop_last) == (4, True, True)
    assert found.sampler is None


def test_an_order_over_another_length_is_drawn() -> None:
    sampler = SequentialSampler(Subset(POINTS, range(8)))

    assert said(DataLoader(POINTS, batch_size=2, sampler=sampler)).sampler is sampler
    assert said(DataLoader(POINTS, sampler=RandomSampler(POINTS, num_samples=9))).sampler


def test_what_a_session_says_itself_goes_before_the_loader() -> None:
    loader = DataLoader(POINTS, batch_size=4, num_workers=2, prefetch_factor=5, timeout=9.0)

    found = said(loader, micro_batch_size=2, num_workers=1, drop_last=True)

    assert (found.micro_batch_size, found.num_workers, found.drop_last) == (2, 1, True)
    assert (found.prefetch_factor, found.timeout_s) == (5, 9.0)


def test_what_has_no_consequence_is_told(capsys: pytest.CaptureFixture[str]) -> None:
    loader = DataLoader(POINTS, batch_size=2, pin_memory=True, generator=torch.Generator())

    trained(loader, steps=1)

    told = capsys.readouterr().err
    assert "pin_memory of the DataLoader is of no use on the CPU" in told
    assert "generator of the DataLoader seeds nothing here" in told


class Opened(models.Points):
    """Is made ready in each loader process."""

    shift: float | None = None

    def __getitem__(self, index: int) -> Any:
        assert self.shift is not None
        assert get_worker_info().dataset is self  # type: ignore[union-attr]
        point, label = super().__getitem__(index)
        return point + self.shift, label


def open_dataset(worker: int) -> None:
    dataset: Any = get_worker_info().dataset  # type: ignore[union-attr]
    dataset.shift = 2.0 + 0 * worker


def test_a_worker_init_fn_makes_ready_each_loader_process() -> None:
    loader = DataLoader(
        Opened(20),
        batch_size=4,
        num_workers=2,
        worker_init_fn=open_dataset,
        timeout=60.0,
        persistent_workers=True,
    )

    _, seen = trained(loader, steps=3)

    assert list(chain(*seen)) == (POINTS.points[:, 0] + 2.0).tolist()


def test_an_evaluation_of_batches_of_ones_own_is_refused_whatever_their_size() -> None:
    loader = DataLoader(models.Points(4), batch_sampler=[[0, 1]])

    with pytest.raises(ConfigError, match="the DataLoader to evaluate on has a sampler of its own"):
        evaluation_arguments(loader)


def test_a_loader_is_taken_while_another_session_has_been_open() -> None:
    """A session puts its own ``__iter__`` into DataLoader; that is none of the loader's own."""
    trained(DataLoader(POINTS, batch_size=2), steps=1)

    assert trained(DataLoader(POINTS, batch_size=2), steps=1)
