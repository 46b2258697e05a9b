"""Data: which samples each slot holds, and how they get here.

Owns the order of samples (``Schedule``: step and slot to positions and samples) and the loader
that fetches slots ahead through the stock DataLoader (``SlotLoader``).  Must not know who owns
what or why it changed: it is told which slots will be wanted, in order.

The loader has one endless iterator over all epochs.  What it fetched is kept by (step, slot), so
prefetched slots survive a change of ownership if they are still wanted; what nobody wants any
more is dropped when its step is over.  The sampler is asked for a request whenever a loader
worker is free; when it has none, it gives ``None``, which costs a worker nothing.
"""

from __future__ import annotations

import io
import os
import pickle
import warnings
from collections.abc import Callable, Iterator, Sequence, Sized
from dataclasses import dataclass
from functools import partial
from itertools import count, islice
from typing import Any, NamedTuple, Protocol, cast

import numpy as np
import torch
from torch.utils.data import DataLoader, Dataset, IterableDataset, default_collate

from pliant.core.errors import ConfigError, UsageError
from pliant.core.step import order
from pliant.engine.data import randomness
from pliant.machine.processes import die_with_parent

Collate = Callable[[list[Any]], Any]


class Samples(Protocol):
    """A map-style dataset: of torch, of a library that has its own, or a list or tensor."""

    def __getitem__(self, index: int, /) -> Any:
        """Return one sample."""


class BatchRequest(NamedTuple):
    """One slot's worth of samples."""

    step: int
    slot: int
    epoch: int
    positions: range
    samples: tuple[int, ...]


class Fetched(NamedTuple):
    """What a request brought."""

    request: BatchRequest
    batch: Any
    num_items: int
    is_packed: bool


@dataclass(frozen=True, slots=True, kw_only=True)
class Schedule:
    """Which samples every slot of every step holds; a function of these numbers alone."""

    size: int
    """Samples of the dataset."""

    global_batch_size: int
    micro_batch_size: int
    seed: int
    shuffle: bool
    drop_last: bool

    def __post_init__(self) -> None:
        if self.size < self.global_batch_size:
            raise ConfigError(
                f"the dataset has {self.size} samples, fewer than one global batch of "
                f"global_batch_size={self.global_batch_size}; give it more, or a smaller batch"
            )

    @property
    def steps_per_epoch(self) -> int:
        """Steps of one pass over the data; the last may be short unless ``drop_last``."""
        full, rest = divmod(self.size, self.global_batch_size)
        return full + (rest > 0 and not self.drop_last)

    def num_samples(self, step: int) -> int:
        """Return how many samples ``step`` consumes."""
        start = step % self.steps_per_epoch * self.global_batch_size
        return min(self.global_batch_size, self.size - start)

    def request(self, step: int, slot: int) -> BatchRequest | None:
        """Return what ``slot`` of ``step`` holds; None if it lies behind a short last batch."""
        epoch, step_of_epoch = divmod(step, self.steps_per_epoch)
        start = step_of_epoch * self.global_batch_size + slot * self.micro_batch_size
        positions = range(start, min(start + self.micro_batch_size, self.size))
        if not positions:
            return None
        if not self.shuffle:
            return BatchRequest(step, slot, epoch, positions, tuple(positions))
        key = order.key(self.seed, epoch)
        samples = tuple(order.permute(at, size=self.size, key=key) for at in positions)
        return BatchRequest(step, slot, epoch, positions, samples)


class SlotLoader:
    """Fetches slots, ahead of need where loader workers are asked for."""

    def __init__(
        self,
        dataset: Samples,
        schedule: Schedule,
        *,
        num_slots: int,
        collate_fn: Collate | None,
        num_workers: int,
    ) -> None:
        self._schedule = schedule
        self._num_slots = num_slots
        self._plan: Iterator[BatchRequest] = iter(())
        self._in_flight: set[tuple[int, int]] = set()
        self._ready: dict[tuple[int, int], Fetched] = {}
        slots = _Slots(dataset, schedule.seed, collate_fn or default_collate)
        self._loader = DataLoader(
            slots,
            batch_size=None,
            sampler=(self._next_request() for _ in count()),  # when a loader worker is free
            num_workers=num_workers,
            collate_fn=lambda fetched: fetched,
            worker_init_fn=partial(_start_loader_worker, os.getpid(), slots),
            generator=torch.Generator(),  # else making the iterator draws from the default one
            multiprocessing_context="fork" if num_workers else None,
            prefetch_factor=2 if num_workers else None,
        )
        self._iterator: Iterator[Fetched | None] | None = None

    def open(self) -> None:
        """Start the loader workers; before the first process group is connected."""
        self._iterator = iter(self._loader)

    def want(self, step: int, slots: Sequence[int]) -> None:
        """From now on ask for these slots of ``step``, then of the steps after it."""
        self._plan = self._requests(step, tuple(slots))

    def take_batch(self, request: BatchRequest) -> Any:
        """Return the batch of a wanted slot; waits for it if it is not here yet.

        Raises:
            UsageError: the dataset did not return one item for each index.
        """
        key = request.step, request.slot
        if self._iterator is None:
            raise RuntimeError("the loader was not opened")
        while key not in self._ready:
            try:
                fetched = next(self._iterator)
            except StopIteration as error:  # from an endless iterator: it would end the user's loop
                raise RuntimeError("the dataset or collate_fn raised StopIteration") from error
            if fetched is not None:
                found = fetched.request.step, fetched.request.slot
                self._in_flight.discard(found)
                self._ready[found] = fetched
        fetched = self._ready.pop(key)
        if fetched.num_items != len(request.samples):
            raise UsageError(
                f"the dataset's __getitems__ returned {fetched.num_items} items for "
                f"{len(request.samples)} indices; return one for each"
            )
        return unpack(fetched.batch) if fetched.is_packed else fetched.batch

    def forget(self, before: int) -> None:
        """Drop what was fetched for steps before this one."""
        for key in [key for key in self._ready if key[0] < before]:
            del self._ready[key]

    def close(self) -> None:
        """End the loader workers."""
        self._ready.clear()
        iterator, self._iterator = self._iterator, None
        shutdown = getattr(iterator, "_shutdown_workers", None)
        if shutdown is not None:  # dropping the iterator does the same, but only when collected
            shutdown()

    def _requests(self, step: int, slots: tuple[int, ...]) -> Iterator[BatchRequest]:
        while True:
            for slot in slots:
                request = self._schedule.request(step, slot)
                if request is not None:
                    yield request
            step += 1

    def _next_request(self) -> BatchRequest | None:
        for request in islice(self._plan, 2 * self._num_slots):
            key = request.step, request.slot
            if key not in self._in_flight and key not in self._ready:
                self._in_flight.add(key)
                return request
        return None


class _Slots(Dataset["Fetched | None"]):
    """The user's dataset, fetched a slot at a time with the random numbers of that slot."""

    def __init__(self, dataset: Samples, seed: int, collate_fn: Collate) -> None:
        self._dataset = dataset
        self._seed = seed
        self._collate_fn = collate_fn
        self._fetch_all = getattr(dataset, "__getitems__", None)

    def check(self) -> None:
        """Warn if the dataset draws random numbers that cannot be seeded."""
        warn_if_random(self._dataset, self._seed)

    def __getitem__(self, request: BatchRequest | None) -> Fetched | None:
        if request is None:
            return None
        if self._fetch_all is not None:
            randomness.seed_place("collate", self._seed, request.step, request.slot)
            items = self._fetch_all(list(request.samples))
        else:
            items = []
            for position, sample in zip(request.positions, request.samples, strict=True):
                randomness.seed_place("item", self._seed, request.epoch, position)
                items.append(self._dataset[sample])
            randomness.seed_place("collate", self._seed, request.step, request.slot)
        batch = self._collate_fn(items)
        if torch.utils.data.get_worker_info() is None:
            return Fetched(request, batch, len(items), is_packed=False)
        return Fetched(request, pack(batch), len(items), is_packed=True)


def _start_loader_worker(parent: int, slots: _Slots, worker: int) -> None:
    """Make a loader worker die with its worker, however that one ends; the first checks the data.

    Not the worker itself: what a dataset opens at its first item, the loader workers would share,
    and two of them would read from one place in one file.
    """
    die_with_parent(parent, code=0)
    if worker == 0:
        slots.check()


def check_dataset(dataset: object) -> int:
    """Return the dataset's length.

    Raises:
        ConfigError: it is not map-style: no length, or items only in its own order.
    """
    if isinstance(dataset, IterableDataset) or not hasattr(dataset, "__getitem__"):
        raise ConfigError(
            "dataset must be map-style (__len__ and __getitem__): its samples are fetched by index"
        )
    try:
        return len(cast("Sized", dataset))
    except TypeError as error:
        raise ConfigError("dataset must have a length (__len__)") from error


def warn_if_random(dataset: Any, seed: int) -> None:
    """Fetch one item twice with the same random numbers, and warn if it differs.

    A generator of the dataset's own cannot be reseeded: its draws depend on who fetched what.
    """
    with randomness.preserved():
        randomness.seed_place("item", seed, 0, 0)
        first = dataset[0]
        randomness.seed_place("item", seed, 0, 0)
        again = dataset[0]
    if not _is_same(first, again):
        warnings.warn(
            f"{type(dataset).__name__}[0] gave two different items although torch, numpy and "
            "random were seeded alike: results will depend on which replica fetches what. Draw "
            "random numbers from the global generators, not from one of the dataset's own.",
            stacklevel=4,
        )


def _is_same(first: Any, again: Any) -> bool:
    if isinstance(first, torch.Tensor):
        return isinstance(again, torch.Tensor) and torch.equal(
            torch.nan_to_num(first), torch.nan_to_num(again)
        )
    if isinstance(first, dict):
        return first.keys() == again.keys() and all(_is_same(first[k], again[k]) for k in first)
    if isinstance(first, tuple | list):
        return len(first) == len(again) and all(map(_is_same, first, again))
    if hasattr(first, "tobytes"):  # numpy
        return bool(first.tobytes() == again.tobytes())
    if isinstance(first, str | bytes | int | float | bool):
        return first == again or (first != first and again != again)  # nan
    return True  # an object of the user's: nothing can be said


def pack(batch: Any) -> bytes:
    """Return a batch as bytes, for its way from a loader process to its worker.

    Torch would send tensors by file descriptor or shared memory, which leave a socket in the
    temporary directory or a file in ``/dev/shm`` when a process is killed, and need a large
    ``/dev/shm`` in containers.  Bytes through the pipe leave nothing.
    For processes of one worker only: it is pickle.
    """
    stream = io.BytesIO()
    _Packer(stream, protocol=5).dump(batch)
    return stream.getvalue()


def unpack(packed: bytes) -> Any:
    """Return the batch that ``pack`` got."""
    return pickle.loads(packed)  # noqa: S301  # from this worker's own child


class _Packer(pickle.Pickler):
    """Writes a tensor's memory as it is; torch's own way makes an archive of each."""

    def reducer_override(self, value: Any) -> Any:
        if type(value) is not torch.Tensor or value.layout is not torch.strided:
            return NotImplemented
        if value.requires_grad or value.device.type != "cpu" or value.is_quantized:
            return NotImplemented
        if value.is_conj() or value.is_neg():
            value = value.resolve_conj().resolve_neg()
        order = sorted(range(value.dim()), key=lambda axis: -value.stride(axis))
        dense = value.permute(order).contiguous().reshape(-1).view(torch.uint8)
        return _rebuild, (dense.numpy(), value.dtype, tuple(value.shape), tuple(order))


def _rebuild(
    memory: np.ndarray[Any, Any], dtype: torch.dtype, shape: tuple[int, ...], order: tuple[int, ...]
) -> torch.Tensor:
    dense = torch.from_numpy(memory).view(dtype).reshape([shape[axis] for axis in order])
    return dense.permute([order.index(axis) for axis in range(len(order))])
