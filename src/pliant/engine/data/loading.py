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
import textwrap
import threading
import time
import warnings
from collections.abc import Callable, Iterator, Sequence, Sized
from dataclasses import dataclass
from functools import partial
from itertools import count, islice
from typing import Any, NamedTuple, Protocol, TypeVar, cast

import numpy as np
import torch
from torch.utils.data import DataLoader, Dataset, IterableDataset, default_collate
from torch.utils.data._utils import worker as torch_worker
from torch.utils.data._utils.collate import collate_tensor_fn, default_collate_fn_map

from pliant.core.errors import ConfigError, UsageError
from pliant.core.step import order
from pliant.engine import randomness
from pliant.engine.data.draws import Draws
from pliant.engine.data.from_loader import PREFETCHED, Collate
from pliant.engine.device import host
from pliant.engine.guard.samples import SampleWords, word_of_item, words_of_samples
from pliant.machine.descriptors import shortage
from pliant.machine.processes import die_with_parent

T = TypeVar("T")

SHORT_S, RETRY_S = 15.0, 0.1
"""How long a slot is fetched again where descriptors, room or memory are short, and how often."""

MAX_REASON_CHARACTERS = 300
"""Of what ``default_collate`` says: it may show whole tensors."""


_SAMPLES = "samples"
"""A request: say what some of them are."""


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
    """As bytes, if a loader process has fetched it."""
    num_items: int
    failure: str = ""
    """What ``default_collate`` says of items that it cannot make a batch of."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Schedule:
    """Which samples every slot of every step holds; a function of these numbers alone."""

    size: int
    """Samples of an epoch: those of the dataset, or the draws of a sampler."""

    global_batch_size: int
    micro_batch_size: int
    seed: int
    shuffle: bool
    drop_last: bool
    draws: Draws | None = None
    """In place of the order that ``seed`` and ``shuffle`` give."""

    def __post_init__(self) -> None:
        if self.size < self.global_batch_size:
            what = "the dataset has" if self.draws is None else f"{self.draws.name} gives"
            raise ConfigError(
                f"{what} {self.size} samples, fewer than one global batch of "
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
        if self.draws is not None:
            samples = tuple(self.draws.of(epoch)[positions.start : positions.stop])
            return BatchRequest(step, slot, epoch, positions, samples)
        if not self.shuffle:
            return BatchRequest(step, slot, epoch, positions, tuple(positions))
        key = order.key(self.seed, epoch)
        samples = tuple(order.permute(at, size=self.size, key=key) for at in positions)
        return BatchRequest(step, slot, epoch, positions, samples)

    def draws_digest(self, step: int) -> str:
        """Return a hash of what a sampler draws for ``step``; empty without one."""
        if self.draws is None:
            return ""
        epoch, step_of_epoch = divmod(step, self.steps_per_epoch)
        start = step_of_epoch * self.global_batch_size
        return order.digest(self.draws.of(epoch)[start : start + self.global_batch_size])


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
        prefetch_factor: int = PREFETCHED,
        timeout_s: float = 0.0,
        worker_init_fn: Callable[[int], object] | None = None,
        is_compared: bool = False,
    ) -> None:
        """``is_compared``: ``samples`` will be asked for."""
        self._schedule = schedule
        self._num_slots = num_slots
        self._dataset = dataset
        self._size = check_dataset(dataset)
        self._epoch = -1
        self._plan: Iterator[BatchRequest] = iter(())
        self._in_flight: set[tuple[int, int]] = set()
        self._ready: dict[tuple[int, int], Fetched] = {}
        self._is_told = num_workers > 0 and is_compared
        """The first loader process says first what some samples are."""
        slots = _Slots(dataset, schedule.seed, collate_fn or default_collate)
        self._loader = DataLoader(
            slots,
            batch_size=None,
            sampler=(self._next_request() for _ in count()),  # when a loader worker is free
            num_workers=num_workers,
            collate_fn=lambda fetched: fetched,
            worker_init_fn=partial(
                _start_loader_worker, os.getpid(), dataset, schedule.seed, worker_init_fn
            ),
            generator=torch.Generator(),  # else making the iterator draws from the default one
            multiprocessing_context="fork" if num_workers else None,
            prefetch_factor=prefetch_factor if num_workers else None,
            timeout=timeout_s if num_workers else 0,
        )
        self._iterator: Iterator[Fetched | SampleWords | None] | None = None

    def open(self) -> None:
        """Start the loader workers; before the first process group is connected.

        Samples are in host memory, whatever default device the script has set: torch draws a seed
        there, which a forked process cannot.
        """
        with torch.device(host.LOCATION):
            self._iterator = iter(self._loader)

    def samples(self) -> SampleWords:
        """Return a few samples in words, once they are fetched; once, after ``open``."""
        if self._iterator is None or not self._loader.num_workers:
            return words_of_samples(self._dataset, self._schedule.seed)
        words = next(self._iterator)
        return words if isinstance(words, dict) else {}

    def want(self, step: int, slots: Sequence[int]) -> None:
        """From now on ask for these slots of ``step``, then of the steps after it."""
        self._plan = self._requests(step, tuple(slots))

    def take_batch(self, request: BatchRequest) -> Any:
        """Return the batch of a wanted slot; waits for it if it is not here yet.

        Raises:
            UsageError: the dataset did not return one item for each index, or they make no batch.
        """
        key = request.step, request.slot
        if self._iterator is None:
            raise RuntimeError("the loader was not opened")
        while key not in self._ready:
            try:
                fetched = next(self._iterator)
            except StopIteration as error:  # from an endless iterator: it would end the user's loop
                raise RuntimeError("the dataset or collate_fn raised StopIteration") from error
            if isinstance(fetched, Fetched):
                found = fetched.request.step, fetched.request.slot
                self._in_flight.discard(found)
                self._ready[found] = fetched
        fetched = self._ready.pop(key)
        if fetched.failure:
            samples = textwrap.shorten(", ".join(map(str, request.samples)), 100)
            raise UsageError(
                f"default_collate cannot make a micro-batch of the samples {samples}: "
                f"{fetched.failure}; say how with collate_fn="
            )
        if fetched.num_items != len(request.samples):
            raise UsageError(
                f"the dataset's __getitems__ returned {fetched.num_items} items for "
                f"{len(request.samples)} indices; return one for each"
            )
        return unpack(fetched.batch) if self._loader.num_workers else fetched.batch

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
        for worker in getattr(iterator, "_workers", ()):
            if worker.is_alive():  # stuck; under an agent it does not heed SIGTERM
                worker.kill()

    def _requests(self, step: int, slots: tuple[int, ...]) -> Iterator[BatchRequest]:
        while True:
            for slot in slots:
                request = self._schedule.request(step, slot)
                if request is not None:
                    yield request
            step += 1

    def _next_request(self) -> BatchRequest | str | None:
        if self._is_told:
            self._is_told = False
            return _SAMPLES
        for request in islice(self._plan, 2 * self._num_slots):
            key = request.step, request.slot
            if key not in self._in_flight and key not in self._ready:
                if request.epoch != self._epoch:
                    self._epoch = request.epoch
                    self._check_length()
                self._in_flight.add(key)
                return request
        return None

    def _check_length(self) -> None:
        """See that the dataset is as long as it was: the order of an epoch depends on it.

        Raises:
            UsageError: it is not.
        """
        size = len(cast("Sized", self._dataset))
        if size != self._size:
            raise UsageError(
                f"the dataset has {size} samples now and had {self._size} when the session was "
                "made, and the order of an epoch depends on it; let it keep its length, or draw "
                "from a part of it with sampler="
            )


class _Slots(Dataset["Fetched | SampleWords | None"]):
    """The user's dataset, fetched a slot at a time with the random numbers of that slot."""

    def __init__(self, dataset: Samples, seed: int, collate_fn: Collate) -> None:
        self._dataset = dataset
        self._seed = seed
        self._collate_fn = collate_fn
        self._fetch_all = getattr(dataset, "__getitems__", None)

    def __getitem__(self, request: BatchRequest | str | None) -> Fetched | SampleWords | None:
        match request:
            case None:
                return None
            case str():
                return words_of_samples(self._dataset, self._seed)
            case _:
                return _patiently(lambda: self._fetch(request))

    def _fetch(self, request: BatchRequest) -> Fetched:
        if self._fetch_all is not None:
            randomness.seed_place("collate", self._seed, request.step, request.slot)
            items = self._fetch_all(list(request.samples))
        else:
            items = []
            for position, sample in zip(request.positions, request.samples, strict=True):
                randomness.seed_place("item", self._seed, request.epoch, position)
                items.append(self._dataset[sample])
            randomness.seed_place("collate", self._seed, request.step, request.slot)
        try:
            batch = self._collate_fn(items)
        except (TypeError, RuntimeError, KeyError, AttributeError) as error:
            if self._collate_fn is not default_collate or shortage(error) is not None:
                raise
            return Fetched(request, None, len(items), _said_by(error))
        is_here = torch.utils.data.get_worker_info() is None
        return Fetched(request, batch if is_here else pack(batch), len(items))


def _start_loader_worker(
    parent: int,
    dataset: Samples,
    seed: int,
    worker_init_fn: Callable[[int], object] | None,
    worker: int,
) -> None:
    """Make a loader worker die with its worker, however that one ends; the first checks the data.

    Not the worker itself: what a dataset opens at its first item, the loader workers would share,
    and two of them would read from one place in one file.
    """
    die_with_parent(parent, code=0)
    default_collate_fn_map[torch.Tensor] = _stacked
    info = torch.utils.data.get_worker_info()
    object.__setattr__(info, "dataset", dataset)  # the script's, as ever; it takes no assignment
    if worker_init_fn is not None:
        worker_init_fn(worker)
    if worker == 0:
        warn_if_random(dataset, seed)


def _patiently(fetch: Callable[[], T]) -> T:
    """Fetch, and again for a while where this machine is short of something."""
    until_s = time.monotonic() + SHORT_S
    while True:
        try:
            return fetch()
        except Exception as error:
            if shortage(error) is None or time.monotonic() > until_s:
                raise
        threading.Event().wait(RETRY_S)


def _stacked(batch: Sequence[torch.Tensor], *, collate_fn_map: Any = None) -> Any:
    """Stack as torch does outside of loader processes: not in /dev/shm, as batches go as bytes."""
    info, torch_worker._worker_info = torch_worker._worker_info, None  # noqa: SLF001
    try:
        return collate_tensor_fn(batch, collate_fn_map=collate_fn_map)
    finally:
        torch_worker._worker_info = info  # noqa: SLF001


def _said_by(error: Exception) -> str:
    """Return the first sentence of an error."""
    text = str(error).strip().splitlines() or [""]
    return textwrap.shorten(f"{type(error).__name__}: {text[0]}", MAX_REASON_CHARACTERS).rstrip(".")


def check_dataset(dataset: object) -> int:
    """Return the dataset's length.

    Raises:
        ConfigError: it is not map-style: no length, or items only in its own order.
    """
    if isinstance(dataset, IterableDataset) or not hasattr(dataset, "__getitem__"):
        raise ConfigError(
            "dataset must be map-style (__len__ and __getitem__): its samples are fetched by "
            f"index, got {type(dataset).__name__}; read a stream into a list first, "
            "dataset=list(stream), or into a file that is indexed"
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
        items = [_patiently(lambda: _first_item(dataset, seed)) for _ in range(2)]
    if len(set(map(word_of_item, items))) > 1:
        warnings.warn(
            f"{type(dataset).__name__}[0] gave two different items although torch, numpy and "
            "random were seeded alike: results will depend on which replica fetches what. Draw "
            "random numbers from the global generators, not from one of the dataset's own.",
            stacklevel=4,
        )


def _first_item(dataset: Any, seed: int) -> Any:
    randomness.seed_place("item", seed, 0, 0)
    return dataset[0]


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
        if value.requires_grad or not host.is_here(value) or value.is_quantized:
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
