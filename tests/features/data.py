"""Datasets and collate functions as people write them."""

from __future__ import annotations

import random
from collections.abc import Callable
from dataclasses import dataclass
from typing import Any, NamedTuple

import numpy as np
import torch
from tests.engine import models
from tests.features.feature import NUM_SAMPLES, Batch, Block, Collate, Feature, adam, network
from torch import nn
from torch.nn import functional
from torch.utils.data import (
    ConcatDataset,
    Dataset,
    Subset,
    TensorDataset,
    WeightedRandomSampler,
    default_collate,
)

HISTORY = "tests/features/test_any_history.py"
OWN = "tests/features/test_data.py"
SESSIONS = "tests/processes/test_elastic_session.py"
DRAWS = "tests/engine/data/test_draws.py"
DRAWN = "tests/processes/test_drawn.py"
TAKEN = "tests/engine/data/test_from_loader.py"
LOADER = "tests/engine/data/test_loading.py"


def fed(
    dataset: Callable[[], Dataset[Any]],
    unpack: Callable[[Batch], tuple[torch.Tensor, torch.Tensor]] = lambda batch: batch,
    collate_fn: Collate = default_collate,
    dropout: float = 0.0,
    **arguments: Any,
) -> Callable[[], Block]:
    """Return what builds a network that is fed from this dataset."""

    def build() -> Block:
        model = nn.Sequential(nn.Dropout(dropout), network())

        def loss(batch: Batch) -> torch.Tensor:
            points, labels = unpack(batch)
            return functional.cross_entropy(model(points), labels)

        return Block(
            model=model,
            optimizers=adam(model),
            loss=loss,
            dataset=dataset(),
            collate_fn=collate_fn,
            arguments=arguments,
        )

    return build


class Mapped(models.Points):
    """The points, each changed by a function."""

    def __init__(self, change: Callable[[torch.Tensor, torch.Tensor], Any]) -> None:
        super().__init__(NUM_SAMPLES)
        self.change = change

    def __getitem__(self, index: int) -> Any:
        return self.change(*super().__getitem__(index))


@dataclass
class Example:
    """An item that only its script knows how to collate."""

    point: torch.Tensor
    label: torch.Tensor


class Pair(NamedTuple):
    """An item with names."""

    point: torch.Tensor
    label: torch.Tensor


def collate_examples(examples: list[Example]) -> Example:
    return Example(
        torch.stack([example.point for example in examples]),
        torch.stack([example.label for example in examples]),
    )


def noisy(point: torch.Tensor, label: torch.Tensor) -> Any:
    """Augment with random numbers of all three kinds."""
    shift = random.random() + float(np.random.rand())
    return point + 0.1 * torch.randn(4) + 0.1 * shift, label


def noisy_collate(items: list[Any]) -> Any:
    points, labels = default_collate(items)
    return points * (1 + 0.1 * torch.rand(1)) + random.random() * np.random.rand(), labels


class Listed(models.Points):
    """Fetches a list of items at a time, with random numbers."""

    def __init__(self) -> None:
        super().__init__(NUM_SAMPLES)

    def __getitems__(self, indices: list[int]) -> Any:
        rows = torch.tensor(indices)
        noise = torch.randn(len(indices), 4) * np.random.rand()
        return list(zip(self.points[rows] + 0.1 * noise, self.labels[rows], strict=True))


def halves() -> Dataset[Any]:
    points = models.Points(NUM_SAMPLES)
    whole = TensorDataset(points.points, points.labels)
    turned = list(reversed(range(NUM_SAMPLES)))
    return ConcatDataset([Subset(whole, turned[:20]), Subset(whole, turned[20:])])


def without_the_third(items: list[Any]) -> Any:
    """Leave out the samples of one class, as long as there are others."""
    kept = [item for item in items if int(item[1]) != 2]
    return default_collate(kept or items)


def leaving_out() -> Block:
    block = fed(lambda: Mapped(lambda *item: item), collate_fn=without_the_third)()
    block.weight = lambda batch: float(len(batch[1]))
    return block


def drawn() -> Block:
    """Of 44 samples draw 50, by a generator of the script's own."""
    block = fed(lambda: models.Points(NUM_SAMPLES))()
    weights = [float(number % 3) for number in range(NUM_SAMPLES)]
    generator = torch.Generator().manual_seed(2)
    block.arguments["sampler"] = WeightedRandomSampler(weights, 50, generator=generator)
    return block


FEATURES = [
    Feature(
        name="datasets that return dicts",
        build=fed(
            lambda: Mapped(lambda point, label: {"x": point, "y": int(label), "text": "a"}),
            lambda batch: (batch["x"], batch["y"]),
        ),
    ),
    Feature(
        name="datasets that return nested tuples and numpy arrays",
        build=fed(
            lambda: Mapped(lambda point, label: ((point.numpy(), 1.5), [int(label)])),
            lambda batch: (batch[0][0], batch[1][0]),
        ),
    ),
    Feature(
        name="datasets that return named tuples",
        build=fed(lambda: Mapped(Pair), lambda batch: (batch.point, batch.label)),
    ),
    Feature(
        name="datasets that return objects",
        build=fed(
            lambda: Mapped(Example), lambda batch: (batch.point, batch.label), collate_examples
        ),
        note="with a `collate_fn` that knows them",
    ),
    Feature(name="TensorDataset, Subset, ConcatDataset", build=fed(halves)),
    Feature(
        name="random augmentation",
        build=fed(lambda: Mapped(noisy), dropout=0.2),
        note="with the global generators of torch, numpy and `random`",
        is_random=True,
    ),
    Feature(
        name="a random collate_fn",
        build=fed(lambda: Mapped(lambda *item: item), collate_fn=noisy_collate),
        note="with the global generators",
        is_random=True,
    ),
    Feature(
        name="__getitems__",
        build=fed(Listed, drop_last=True),
        note="random numbers are seeded by micro-batch",
        is_alone=True,
        is_random=True,
    ),
    Feature(
        name="a sampler",
        build=drawn,
        note="`sampler=`, or that of a DataLoader: WeightedRandomSampler, RandomSampler, "
        "SubsetRandomSampler, DistributedSampler, any with `set_epoch`; each draw counts once",
        is_alone=True,
        is_random=True,
    ),
    Feature(
        name="samplers of every kind",
        note="draw the same in every epoch on a replica that begins later",
        proof=f"{DRAWS}::test_who_begins_later_draws_the_same_in_every_epoch",
    ),
    Feature(
        name="a sampler, a kill, a resume at another size",
        note="`pliant audit` proves that each draw counts once",
        proof=f"{DRAWN}::test_each_draw_counts_once_through_a_join_a_kill_and_a_resume",
    ),
    Feature(
        name="a DataLoader",
        note="`dataset=loader`: dataset, collate_fn, workers, batch_size, drop_last, order",
        proof=f"{TAKEN}::test_a_loader_gives_what_its_parts_give",
    ),
    Feature(
        name="a DataLoader with a batch sampler",
        note="its batches are the micro-batches; all but the last of an epoch have one size",
        proof=f"{TAKEN}::test_batches_of_a_batch_sampler_are_micro_batches",
    ),
    Feature(
        name="worker_init_fn, prefetch_factor, timeout",
        note="of a DataLoader; `get_worker_info().dataset` is your dataset",
        proof=f"{TAKEN}::test_a_worker_init_fn_makes_ready_each_loader_process",
    ),
    Feature(
        name="pin_memory, persistent_workers of a DataLoader",
        note="of no use on the CPU, which is told; always so",
        proof=f"{TAKEN}::test_what_has_no_consequence_is_told",
    ),
    Feature(
        name="a DataLoader for `session.evaluate`",
        note="its dataset, collate_fn and batch_size",
        proof="tests/engine/test_evaluation.py::test_a_loader_is_evaluated_as_its_dataset",
    ),
    Feature(
        name="a collate_fn that leaves out samples",
        build=leaving_out,
        note="say `step.backward(loss, weight=len(labels))`, else the mean counts all samples",
    ),
    Feature(
        name="drop_last",
        note="`drop_last=True`",
        proof=f"{HISTORY}::test_joins_kills_and_drains_leave_no_trace_in_any_feature",
    ),
    Feature(
        name="a short last batch",
        note="fewer samples, weighted as such",
        proof=f"{HISTORY}::test_joins_kills_and_drains_leave_no_trace_in_any_feature",
    ),
    Feature(
        name="num_workers from 0 to 3",
        note="another number on every replica; they stay for the whole session",
        proof=f"{HISTORY}::test_joins_kills_and_drains_leave_no_trace_in_any_feature",
    ),
    Feature(
        name="a dataset of five samples",
        proof=f"{OWN}::test_five_samples_are_seen_once_in_every_epoch",
    ),
    Feature(
        name="a dataset of 10^9 samples",
        note="an order of its own in every epoch, in memory that does not grow",
        proof=f"{OWN}::test_a_thousand_million_samples_take_no_memory",
    ),
    Feature(
        name="a dataset that raises",
        note="the replica ends with the dataset's own error, and is replaced",
        proof=f"{OWN}::test_an_error_of_the_dataset_comes_out_as_it_is",
    ),
    Feature(
        name="a dataset with a generator of its own",
        result="warned",
        note="its draws depend on who fetched what",
        proof=f"{LOADER}::test_a_dataset_with_a_generator_of_its_own_is_warned_about",
    ),
    Feature(
        name="a dataset that a tail changes",
        note="as `extra_state`, fetched without loader processes: `examples/curriculum.py`",
        proof=f"{SESSIONS}::test_a_dataset_that_a_tail_changes_reaches_a_joiner_or_is_told",
    ),
    Feature(
        name="a dataset that a tail changes behind the session's back",
        result="warned",
        note="a joiner names the attributes that differ; caches and counters are left alone",
        proof=f"{SESSIONS}::test_a_dataset_that_a_tail_changes_reaches_a_joiner_or_is_told",
    ),
    Feature(
        name="a dataset of another length on a joiner",
        result="refused",
        note="with both numbers; the run goes on without it",
        proof=f"{OWN}::test_the_length_of_the_dataset_is_part_of_a_runs_identity",
    ),
]
