"""Reading a checkpoint: items by name, every byte checked on its way.

Owns the ways in: a published checkpoint of ours, or anybody's ``torch.distributed.checkpoint``
directory, written by any number of processes.  Must not know what the items mean.

Neighbouring entries are read together, and some reads are under way while earlier ones are put in
place: ``READS_AHEAD`` times 64 MiB of memory at most, beside the result.
"""

from __future__ import annotations

import io
import pickle
from collections import deque
from collections.abc import Collection, Iterable, Iterator, Mapping
from concurrent.futures import Future, ThreadPoolExecutor
from dataclasses import dataclass
from typing import Any

import torch

from pliant.checkpoint.dcp import layout
from pliant.checkpoint.dcp.index import load_index
from pliant.checkpoint.dcp.manifest import Chunk, Item, Manifest, digest_of, load_manifest
from pliant.checkpoint.failures import DamagedError, MissingError, UntrustedError
from pliant.checkpoint.store.base import Data, Storage
from pliant.core.errors import ConfigError
from pliant.engine.local_tensors import TensorPart
from pliant.engine.state.tagged_codec import DTYPES

READS_AHEAD = 4
"""Reads under way at once: hides the latency of an object store; a disk needs fewer."""


@dataclass(frozen=True, slots=True, kw_only=True)
class StoredCheckpoint:
    """A checkpoint that can be read."""

    storage: Storage
    name: str
    manifest: Manifest | None
    """``None`` if it is not ours: there are no digests then."""
    items: Mapping[str, Item]

    @property
    def place(self) -> str:
        """How people call it."""
        return self.storage.place(self.name)

    def path(self, file: str) -> str:
        """Return where one of its files lies."""
        return f"{self.name}/{file}" if self.name else file

    @classmethod
    def of(
        cls, storage: Storage, name: str, items: Iterable[Item], manifest: Manifest | None = None
    ) -> StoredCheckpoint:
        """Return one by what it consists of."""
        named = {item.name: item for item in items}
        return cls(storage=storage, name=name, manifest=manifest, items=named)


def read_manifest(storage: Storage, name: str = "") -> Manifest:
    """Return the manifest of a checkpoint below a root; without a name, of the root itself.

    Raises:
        MissingError: it has none: it was never published, or is foreign.
    """
    path = f"{name}/{layout.MANIFEST}" if name else layout.MANIFEST
    return load_manifest(storage.read(path), storage.place(path))


def open_checkpoint(storage: Storage, name: str = "", *, trust: bool = False) -> StoredCheckpoint:
    """Return a checkpoint below a root; without a name the root is one itself.

    Reads the manifest, or the index if there is no manifest: a foreign checkpoint.

    Raises:
        MissingError: there is neither.
        UntrustedError: a foreign index needs more than an index does, and is not trusted.
        ConfigError: it is one of ours that was never published.
    """
    there = {entry.name for entry in storage.entries(name)}
    if layout.MANIFEST in there:
        manifest = read_manifest(storage, name)
        return StoredCheckpoint.of(storage, name, manifest.items, manifest)
    if any(layout.parse_share_file(file) for file in there):
        raise ConfigError(f"{storage.place(name)} was never finished: it has no {layout.MANIFEST}")
    path = f"{name}/{layout.METADATA}" if name else layout.METADATA
    if layout.METADATA not in there:
        raise MissingError(storage.place(path))
    items = load_index(storage.read(path), storage.place(path), trust=trust)
    for item in items:
        if not item.is_whole():
            raise DamagedError(f"{storage.place(path)} is damaged: {item.name} is not whole in it")
    return StoredCheckpoint.of(storage, name, items)


def load(
    checkpoint: StoredCheckpoint,
    names: Collection[str] | None = None,
    *,
    into: Mapping[str, torch.Tensor] | None = None,
    parts: Mapping[str, TensorPart] | None = None,
    trust: bool = False,
) -> dict[str, Any]:
    """Return items by name, all of them by default.

    Fills the tensors ``into``, of any device and of equal shape and type; others are made, on the
    CPU.  After an exception they hold part of the checkpoint.  Of those in ``parts`` only that part
    is read, however the checkpoint was divided.

    Raises:
        ConfigError: there is no such item, or a tensor to fill does not fit.
        UntrustedError: an object holds more than plain values, and loading it would run code that
            it names: ``trust`` allows that.
    """
    into, parts = into or {}, parts or {}
    wanted = []
    for name in checkpoint.items if names is None else names:
        if name not in checkpoint.items:
            raise ConfigError(f"{checkpoint.place} holds no {name}")
        wanted.append(checkpoint.items[name])
    found: dict[str, Any] = {
        item.name: _target(checkpoint, item, into.get(item.name), parts.get(item.name))
        for item in wanted
        if item.kind == "tensor"
    }
    pairs = [
        (item, chunk)
        for item in wanted
        for chunk in item.chunks
        if (part := parts.get(item.name)) is None or _common(chunk, part) is not None
    ]
    with torch.no_grad():
        for item, chunk, data in stream(checkpoint, pairs):
            if item.kind == "object":
                found[item.name] = decode(checkpoint, item, chunk, data, trust=trust)
                continue
            if (part := parts.get(item.name)) is not None:
                here, there = _common(chunk, part) or ((), ())
                value = decode(checkpoint, item, chunk, data, trust=trust)
                found[item.name][here].copy_(value[there])
                continue
            box = _box(found[item.name], chunk)
            if chunk.memory is None or data.readonly:
                box.copy_(decode(checkpoint, item, chunk, data, trust=trust))
            else:
                check(checkpoint, item, chunk, data)
                _put(box, data[chunk.memory :])
    return found


def stream(
    checkpoint: StoredCheckpoint, pairs: Iterable[tuple[Item, Chunk]]
) -> Iterator[tuple[Item, Chunk, memoryview]]:
    """Yield entries with their bytes, unchecked, in the order in which they lie."""
    runs = _runs(sorted(pairs, key=lambda pair: (pair[1].file, pair[1].offset)))
    pool = ThreadPoolExecutor(READS_AHEAD, thread_name_prefix="checkpoint-read")
    under_way: deque[tuple[_Run, Future[Data]]] = deque()
    try:
        for run in runs:
            where = checkpoint.path(run.file), run.start, run.length
            under_way.append((run, pool.submit(checkpoint.storage.read_range, *where)))
            if len(under_way) >= READS_AHEAD:
                yield from _entries_of(*under_way.popleft())
        while under_way:
            yield from _entries_of(*under_way.popleft())
    finally:
        pool.shutdown(wait=True, cancel_futures=True)


def check(checkpoint: StoredCheckpoint, item: Item, chunk: Chunk, data: memoryview) -> None:
    """Make sure that an entry's bytes are what was written."""
    place = checkpoint.storage.place(checkpoint.path(chunk.file))
    start, end = chunk.offset, chunk.offset + chunk.length
    wrong = None
    if len(data) != chunk.length:
        wrong = f"{place} ends at byte {start + len(data)}, and it needs up to {end}"
    elif chunk.digest is not None and digest_of(data) != chunk.digest:
        wrong = f"the digest of bytes {start} to {end} of {place} does not match"
    if wrong is not None:
        raise DamagedError(f"{item.name} is damaged: {wrong}")


def decode(
    checkpoint: StoredCheckpoint, item: Item, chunk: Chunk, data: memoryview, *, trust: bool = False
) -> Any:
    """Return what an entry holds, after a check of its bytes; runs no code of it unless trusted.

    Raises:
        UntrustedError: it would have to.
    """
    check(checkpoint, item, chunk, data)
    place = f"{item.name} in {checkpoint.storage.place(checkpoint.path(chunk.file))}"
    value = _unpacked(data, place, trust=trust)
    if item.kind == "tensor" and not (
        isinstance(value, torch.Tensor)
        and tuple(value.shape) == chunk.sizes
        and value.dtype == DTYPES[item.dtype]
    ):
        raise DamagedError(f"{place} is damaged: it is not the tensor that the index describes")
    return value


def _unpacked(data: memoryview, place: str, *, trust: bool) -> Any:
    try:
        try:
            return torch.load(io.BytesIO(data), map_location="cpu", weights_only=True)
        except pickle.UnpicklingError as error:
            if not trust:
                raise UntrustedError(
                    f"{place} holds more than tensors and plain values, and reading it may run code"
                    " of whoever wrote it; allow it with trust if you know them"
                ) from error
            return torch.load(io.BytesIO(data), map_location="cpu", weights_only=False)
    except UntrustedError:
        raise
    except Exception as error:  # whatever a damaged archive makes of torch
        first_line = (str(error).splitlines() or [type(error).__name__])[0][:200]
        raise DamagedError(f"{place} is damaged: {first_line}") from error


@dataclass(slots=True)
class _Run:
    """Neighbouring entries that are read at once."""

    file: str
    start: int
    length: int
    entries: list[tuple[Item, Chunk]]


def _runs(pairs: Iterable[tuple[Item, Chunk]]) -> list[_Run]:
    runs: list[_Run] = []
    for item, chunk in pairs:
        end = chunk.offset + chunk.length
        if (
            not runs
            or runs[-1].file != chunk.file
            or chunk.offset > runs[-1].start + runs[-1].length
            or end - runs[-1].start > layout.PIECE_BYTES
        ):
            runs.append(_Run(chunk.file, chunk.offset, chunk.length, []))
        runs[-1].length = max(runs[-1].length, end - runs[-1].start)
        runs[-1].entries.append((item, chunk))
    return runs


def _entries_of(run: _Run, read: Future[Data]) -> Iterator[tuple[Item, Chunk, memoryview]]:
    data = memoryview(read.result())
    for item, chunk in run.entries:
        start = chunk.offset - run.start
        yield item, chunk, data[start : start + chunk.length]


def _target(
    checkpoint: StoredCheckpoint, item: Item, given: torch.Tensor | None, part: TensorPart | None
) -> torch.Tensor:
    if given is None:
        return torch.empty(item.shape, dtype=DTYPES[item.dtype], device="cpu")
    shape = tuple(given.shape) if part is None else part.shape
    if shape != item.shape or given.dtype != DTYPES[item.dtype]:
        dtype = str(given.dtype).removeprefix("torch.")
        raise ConfigError(
            f"{item.name} is {item.dtype} {list(item.shape)} in {checkpoint.place} and"
            f" {dtype} {list(shape)} here"
        )
    return given.detach()


_Index = tuple[slice, ...]


def _common(chunk: Chunk, part: TensorPart) -> tuple[_Index, _Index] | None:
    """Return where in a part, and where in a chunk, lies what they have in common, if they do."""
    here, there = [], []
    boxes = zip(chunk.offsets, chunk.sizes, part.begins, part.sizes, strict=True)
    for offset, size, begin, length in boxes:
        first, last = max(offset, begin), min(offset + size, begin + length)
        if first >= last:
            return None
        here.append(slice(first - begin, last - begin))
        there.append(slice(first - offset, last - offset))
    return tuple(here), tuple(there)


def _box(tensor: torch.Tensor, chunk: Chunk) -> torch.Tensor:
    return tensor[tuple(slice(o, o + s) for o, s in zip(chunk.offsets, chunk.sizes, strict=True))]


def _put(box: torch.Tensor, memory: memoryview) -> None:
    """Copy checked bytes straight into a tensor; they need not be aligned for its type."""
    there = torch.frombuffer(memory[: box.nbytes], dtype=torch.uint8)
    is_direct = box.is_contiguous() and box.device.type == "cpu"
    target = box if is_direct else torch.empty(box.shape, dtype=box.dtype, device="cpu")
    target.reshape(-1).view(torch.uint8).copy_(there)
    if not is_direct:
        box.copy_(target)
