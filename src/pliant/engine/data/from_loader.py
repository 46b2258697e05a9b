"""From a loader: what a script says in a DataLoader, as the arguments of a session.

Owns which attribute of a DataLoader becomes what, and the refusal, with the line to write, of those
that a session cannot keep.  Nothing that was set is passed over: it is taken, told, or refused.
Must not know steps, slots or replicas.

    dataset, collate_fn, num_workers, prefetch_factor, timeout, worker_init_fn    taken as they are
    batch_size            micro_batch_size, unless the session has its own
    drop_last             of the global batch
    shuffle, sampler      the order: see ``draws``
    batch_sampler         the order, if its batches are micro-batches
    persistent_workers    always so; in_order as well
    pin_memory, generator where it seeds nothing: told, of no consequence
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator
from dataclasses import dataclass
from typing import Any

from torch.utils.data import (
    BatchSampler,
    DataLoader,
    IterableDataset,
    RandomSampler,
    SequentialSampler,
)

from pliant.core.errors import ConfigError
from pliant.engine.guard.script_calls import has_own_iterator

Collate = Callable[[list[Any]], Any]

PREFETCHED = 2
"""Micro-batches that each loader process fetches ahead, unless a DataLoader says otherwise."""

_PLAIN = "pass its dataset=, collate_fn= and num_workers= to the session"


@dataclass(frozen=True, slots=True, kw_only=True)
class DataArguments:
    """What a session is told of its data."""

    dataset: Any
    collate_fn: Collate | None = None
    micro_batch_size: int | None = None
    sampler: Iterable[Any] | None = None
    shuffle: bool = True
    drop_last: bool = False
    num_workers: int = 0
    prefetch_factor: int = PREFETCHED
    timeout_s: float = 0.0
    worker_init_fn: Callable[[int], object] | None = None
    notes: tuple[str, ...] = ()
    """What of a DataLoader has no consequence."""


def data_arguments(
    dataset: Any,
    *,
    collate_fn: Collate | None,
    micro_batch_size: int | None,
    sampler: Iterable[Any] | None,
    shuffle: bool | None,
    drop_last: bool | None,
    num_workers: int | None,
) -> DataArguments:
    """Return what the arguments of a session say; None is what was not given.

    Raises:
        ConfigError: a DataLoader, or the arguments beside it, say what a session cannot do.
    """
    if sampler is not None and shuffle is not None:
        raise ConfigError("sampler= and shuffle= both say the order of the samples; leave out one")
    given: dict[str, Any] = {
        "collate_fn": collate_fn,
        "micro_batch_size": micro_batch_size,
        "sampler": sampler,
        "shuffle": shuffle,
        "drop_last": drop_last,
        "num_workers": num_workers,
    }
    given = {name: value for name, value in given.items() if value is not None}
    if not isinstance(dataset, DataLoader):
        return DataArguments(dataset=dataset, **given)
    if order := given.keys() & {"sampler", "shuffle"}:
        raise ConfigError(
            f"dataset= is a DataLoader, which says the order of the samples, and so does "
            f"{min(order)}=; leave that out, or pass the dataset alone"
        )
    _check(dataset)
    return DataArguments(**(_said_by(dataset, given.get("micro_batch_size")) | given))


def evaluation_arguments(loader: DataLoader[Any]) -> DataArguments:
    """Return what a loader says of an evaluation, whose order and processes do not matter.

    Raises:
        ConfigError: it would leave out samples, or give some of them twice.
    """
    _check(loader)
    order, size, drop_last = _order(loader, loader.batch_size or 1)  # 1: no number would do
    if drop_last or "sampler" in order:
        what = "drop_last=True" if drop_last else "a sampler of its own"
        raise ConfigError(
            f"the DataLoader to evaluate on has {what}, and session.evaluate takes each sample "
            "once; pass its dataset, or a Subset of it"
        )
    return DataArguments(
        dataset=loader.dataset, collate_fn=loader.collate_fn, micro_batch_size=size
    )


def _check(loader: DataLoader[Any]) -> None:
    """Refuse a loader that does what a session would not do."""
    name = type(loader).__name__
    if isinstance(loader.dataset, IterableDataset):
        raise ConfigError(
            "the DataLoader's dataset is a stream (IterableDataset); a session fetches samples by "
            "index: read it into a list first, DataLoader(list(dataset), ...), or into a file that "
            "is indexed"
        )
    if has_own_iterator(loader):
        raise ConfigError(
            f"{name} is a DataLoader with an __iter__ of its own, which a session would not run; "
            f"{_PLAIN}, or a plain DataLoader"
        )
    if loader.batch_sampler is None:
        raise ConfigError(
            "the DataLoader has batch_size=None: its dataset makes whole batches, and a session "
            "makes them of samples; pass a dataset of single samples and the batch_size"
        )
    context = getattr(loader, "multiprocessing_context", None)
    method = context.get_start_method() if context is not None else "fork"
    if loader.num_workers and method != "fork":
        raise ConfigError(
            f"the DataLoader starts its processes by {method!r}, and those of a session are "
            "forked; leave out multiprocessing_context="
        )


def _said_by(loader: DataLoader[Any], micro_batch_size: int | None) -> dict[str, Any]:
    """Return the arguments that a loader gives."""
    order, size, drop_last = _order(loader, micro_batch_size)
    return {
        "dataset": loader.dataset,
        "collate_fn": loader.collate_fn,
        "micro_batch_size": size,
        "drop_last": drop_last,
        "num_workers": loader.num_workers,
        "prefetch_factor": loader.prefetch_factor or PREFETCHED,
        "timeout_s": loader.timeout,
        "worker_init_fn": loader.worker_init_fn,
        "notes": _notes(loader, is_shuffled=order.get("shuffle", True)),
        **order,
    }


def _order(
    loader: DataLoader[Any], micro_batch_size: int | None
) -> tuple[dict[str, Any], int | None, bool]:
    """Return the order as arguments, the samples of a batch, and whether the rest is left out."""
    batches: Any = loader.batch_sampler
    if type(batches) is not BatchSampler:
        size = micro_batch_size or getattr(batches, "batch_size", None)
        if not isinstance(size, int):
            raise ConfigError(
                f"the DataLoader's {type(batches).__name__} does not say how many samples its "
                "batches have; say micro_batch_size="
            )
        return {"sampler": MicroBatches(batches, size)}, size, False
    sampler: Any = batches.sampler
    if _is_of(SequentialSampler, sampler, loader.dataset):
        order: dict[str, Any] = {"shuffle": False}
    elif _is_of(RandomSampler, sampler, loader.dataset) and _is_plain(sampler):
        order = {"shuffle": True}
    else:
        order = {"sampler": sampler}
    return order, batches.batch_size, batches.drop_last


def _is_of(kind: type, sampler: Any, dataset: Any) -> bool:
    """Whether it is exactly such a sampler, of this dataset."""
    return type(sampler) is kind and getattr(sampler, "data_source", None) is dataset


def _is_plain(sampler: RandomSampler) -> bool:
    """Whether it permutes all samples, by a generator that the script has no other use for."""
    is_permutation = not sampler.replacement and sampler.num_samples == len(sampler.data_source)
    return is_permutation and sampler.generator is None


def _notes(loader: DataLoader[Any], *, is_shuffled: bool) -> tuple[str, ...]:
    notes = []
    if loader.pin_memory:
        notes.append("pin_memory of the DataLoader is of no use on the CPU, and left out")
    if loader.generator is not None and not is_shuffled:
        notes.append(
            "generator of the DataLoader seeds nothing here: random numbers of a sample are seeded "
            "by its place in the epoch"
        )
    return tuple(notes)


class MicroBatches:
    """The indices that a batch sampler gives one after another; its batches are micro-batches."""

    def __init__(self, batches: Iterable[Any], size: int) -> None:
        self.batches = batches
        self.size = size
        self.name_of_sampler = type(batches).__name__

    def __iter__(self) -> Iterator[Any]:
        is_short = False
        for batch in self.batches:
            members = list(batch)
            if is_short or len(members) > self.size:
                raise ConfigError(
                    f"{self.name_of_sampler} gives batches of other sizes than "
                    f"micro_batch_size={self.size} before the end of an epoch; a session's "
                    "micro-batches have one size: let it drop or fill short batches, or say the "
                    "order alone, sampler=[sample for batch in batches for sample in batch]"
                )
            is_short = len(members) < self.size
            yield from members

    def set_epoch(self, epoch: int) -> None:
        """Tell the batch sampler, which may be no sampler to look into (a list of batches)."""
        if callable(tell := getattr(self.batches, "set_epoch", None)):
            tell(epoch)
