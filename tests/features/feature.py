"""A feature: one thing that people write around a model, as a small block that can be trained.

Owns what a block consists of and how several are trained as one: a single elastic job then proves
all features of a group at once, and a digest per block names the one that failed.  Must not know
any particular feature.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Mapping
from dataclasses import dataclass, field
from typing import Any, TypeVar

import torch
from tests.engine import models
from torch import nn
from torch.nn import functional
from torch.utils.data import Dataset, default_collate

import pliant
from pliant.engine.state.training_state import State

Batch = Any
Collate = Callable[[list[Any]], Any]

SEED = 11
NUM_SAMPLES = 44
GLOBAL_BATCH = 12
MICRO_BATCH = 2
"""Six slots a step, so that three replicas own two each; four in the last step of an epoch."""


@dataclass
class Sharding:
    """Whether features are built with their models under ``fully_shard``."""

    mesh: Any = None


sharding = Sharding()


def nothing(step: int) -> None:
    """Do nothing in the tail."""


@dataclass(kw_only=True)
class Block:
    """A model with everything that trains it."""

    model: nn.Module
    optimizers: list[torch.optim.Optimizer]
    schedulers: list[Any] = field(default_factory=list)
    loss: Callable[[Batch], torch.Tensor] | None = None
    """Mean loss of a micro-batch; None: cross entropy of the points."""
    weight: Callable[[Batch], float] | None = None
    """What a micro-batch counts; None: its number of samples."""
    tail: Callable[[int], None] = nothing
    extra: dict[str, Any] = field(default_factory=dict)
    """Objects with a state of their own."""
    buffers: dict[str, str] = field(default_factory=dict)
    """Rules of its buffers."""
    dataset: Dataset[Any] | None = None
    """Its data; None: the points."""
    collate_fn: Collate = default_collate
    arguments: dict[str, Any] = field(default_factory=dict)
    """Further arguments of the session."""

    def compute(self, batch: Batch) -> torch.Tensor:
        """Return the mean loss of a micro-batch."""
        if self.loss is not None:
            return self.loss(batch)
        points, labels = batch
        return functional.cross_entropy(self.model(points), labels)

    def weigh(self, batch: Batch) -> float | None:
        """Return what a micro-batch counts; None: its number of samples."""
        return None if self.weight is None else self.weight(batch)

    def session(self, **more: Any) -> pliant.Session:
        """Return a session that trains this block."""
        arguments = {
            "dataset": self.dataset or models.Points(NUM_SAMPLES),
            "collate_fn": self.collate_fn,
            "global_batch_size": GLOBAL_BATCH,
            "micro_batch_size": MICRO_BATCH,
            **self.arguments,
            **more,
        }
        return pliant.Session(
            model=self.model,
            optimizer=self.optimizers,
            scheduler=self.schedulers,
            extra_state=self.extra,
            buffers=self.buffers,
            **arguments,
        )

    def digest(self) -> str:
        """Return a hash of all that was trained."""
        state = State(
            model=self.model,
            local_buffers=frozenset(),
            optimizers=self.optimizers,
            schedulers=self.schedulers,
            scaler=self.arguments.get("scaler"),
            extra=self.extra,
        )
        return state.digest(0)


@dataclass(frozen=True, kw_only=True)
class Feature:
    """A row of the page, and how it is shown that the row is true."""

    name: str
    build: Callable[[], Block] | None = None
    """Makes the block that is trained; None where ``proof`` names a test."""
    note: str = ""
    """For the page: what to know about it, in a line."""
    result: str = "exact"
    """Or ``fast``; what is refused is in the table of refusals."""
    proof: str = ""
    """The test that shows it, ``file::name``; empty: that of its group."""
    is_alone: bool = False
    """Whether its arguments are of a whole session, so that it keeps out of its group's job."""
    is_random: bool = False
    """Whether its forward draws random numbers, which a plain loop would draw differently."""
    tolerance: float = 1e-6
    """How far a gradient may be from that of a plain loop, relative to its norm."""


def built(feature: Feature) -> Block:
    """Seed, then build the feature's block."""
    if feature.build is None:
        raise ValueError(f"{feature.name} is shown by {feature.proof}")
    pliant.seed(SEED)
    return feature.build()


class Beside(Dataset[Any]):
    """Several datasets of one length: an item is a list of an item of each."""

    def __init__(self, datasets: list[Any]) -> None:
        self.datasets = datasets

    def __len__(self) -> int:
        return NUM_SAMPLES

    def __getitem__(self, index: int) -> list[Any]:
        return [dataset[index] for dataset in self.datasets]


class BesideByLists(Beside):
    """The same with a dataset among them that is fetched a list of items at a time."""

    def __getitems__(self, indices: list[int]) -> list[Any]:
        columns = [
            dataset.__getitems__(indices)
            if hasattr(dataset, "__getitems__")
            else [dataset[index] for index in indices]
            for dataset in self.datasets
        ]
        return [list(row) for row in zip(*columns, strict=True)]


def together(blocks: Mapping[str, Block]) -> Block:
    """Return one block of many: losses are added, weights multiplied, the rest put side by side.

    Blocks stand in a list: names of features are for people, and may hold dots.
    """
    every = list(blocks.values())
    weights = [number for number, block in enumerate(every) if block.weight is not None]
    points = models.Points(NUM_SAMPLES)
    datasets: list[Any] = [block.dataset or points for block in every]
    is_listed = any(hasattr(dataset, "__getitems__") for dataset in datasets)

    def collate(items: list[Any]) -> list[Batch]:
        columns = zip(*items, strict=True)
        return [block.collate_fn(list(c)) for block, c in zip(every, columns, strict=True)]

    def loss(batches: list[Batch]) -> torch.Tensor:
        losses = [block.compute(batch) for block, batch in zip(every, batches, strict=True)]
        return torch.stack([loss.double() for loss in losses]).sum()

    def weight(batches: list[Batch]) -> float:
        return math.prod(every[number].weigh(batches[number]) or 0.0 for number in weights)

    def tail(step: int) -> None:
        for block in every:
            block.tail(step)

    return Block(
        model=nn.ModuleList([block.model for block in every]),
        optimizers=[optimizer for block in every for optimizer in block.optimizers],
        schedulers=[scheduler for block in every for scheduler in block.schedulers],
        loss=loss,
        weight=weight if weights else None,
        tail=tail,
        extra={
            f"{name}: {key}": part
            for name, block in blocks.items()
            for key, part in block.extra.items()
        },
        buffers={
            f"{number}.{name}": rule
            for number, block in enumerate(every)
            for name, rule in block.buffers.items()
        },
        dataset=BesideByLists(datasets) if is_listed else Beside(datasets),
        collate_fn=collate,
        arguments={key: value for block in every for key, value in block.arguments.items()},
    )


def train(
    features: list[Feature],
    steps: int,
    *,
    on_session: Callable[[pliant.Session], None] = lambda session: None,
    on_tail: Callable[[pliant.Session, Any], None] = lambda session, step: None,
    **arguments: Any,
) -> dict[str, str]:
    """Train all these features together; return a digest for each, and "" for the whole run."""
    blocks = {feature.name: built(feature) for feature in features if feature.build is not None}
    whole = together(blocks)
    pliant.seed(SEED)
    with whole.session(**arguments) as session:
        on_session(session)
        for step in session.steps(steps):
            for batch in step:
                step.backward(whole.compute(batch), weight=whole.weigh(batch))
            whole.tail(step.index)
            on_tail(session, step)
        return {"": session.state_digest()} | {
            name: block.digest() for name, block in blocks.items()
        }


# --- what several groups build with -------------------------------------------------


M = TypeVar("M", bound=nn.Module)


def network(dtype: torch.dtype = torch.float32) -> nn.Sequential:
    """Return the model that most features train."""
    return shaped(nn.Sequential(nn.Linear(4, 6), nn.Tanh(), nn.Linear(6, 3)).to(dtype))


def shaped(model: M) -> M:
    """Return a model as it is before an optimizer gets its parameters: sharded, if that was said.

    One without a forward of its own is sharded layer by layer.
    """
    if sharding.mesh is not None:
        from torch.distributed.fsdp import fully_shard  # takes a second to import

        has_forward = not isinstance(model, nn.ModuleList | nn.ModuleDict)
        for module in [model] if has_forward else model.children():
            fully_shard(module, mesh=sharding.mesh["shard"])
    return model


def adam(model: nn.Module) -> list[torch.optim.Optimizer]:
    """Return an optimizer with enough state to go wrong."""
    return [torch.optim.Adam(model.parameters(), lr=1e-2)]
