"""Reading a checkpoint: items by name, every byte checked on its way.

Owns the ways in: a published checkpoint of ours, or anybody's ``torch.distributed.checkpoint``
directory, written by any number of processes.  Must not know what the items mean.

Neighbouring entries are read together, and some reads are under way while earlier ones are put in
place: ``READS_AHEAD`` times 64 MiB of memory at most, beside the result.
"""

from __future__ import annotations

from collections import deque
from collections.abc import Collection, Iterable, Iterator, Mapping
from concurrent.futures import Future, ThreadPoolExecutor
from dataclasses import dataclass
from typing import Any

import torch

from pliant.checkpoint.dcp import layout
from pliant.checkpoint.dcp.archives import read_archive
from pliant.checkpoint.dcp.index import load_index
from pliant.checkpoint.dcp.manifest import Chunk, Item, Manifest, digest_of, load_manifest
from pliant.checkpoint.failures import DamagedError, MissingError
from pliant.checkpoint.store.base import Data, Storage
from pliant.core.errors import ConfigError
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
        DamagedError: it is not what was written.
    """
    path = f"{name}/{layout.MANIFEST}" if name else layout.MANIFEST
    return load_manifest(storage.read(path), storage.place(path))


def open_checkpoint(storage: Storage, name: str = "", *, trust: bool = False) -> StoredCheckpoint:
    """Return a checkpoint below a root; without a name the root is one itself.

    Reads the manifest, or the index if there is no manifest: a foreign checkpoint.

    Raises:
        MissingError: there is neither.
        DamagedError: manifest or index are not what was written.
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
    trust: bool = False,
) -> dict[str, Any]:
    """Return items by name, all of them by default.

    Args:
        checkpoint: from ``open_checkpoint``.
        names: which.
        into: tensors of any device to fill; of equal shape and type.  Others are made, on the CPU.
            After an exception they hold part of the checkpoint.
        trust: load objects that hold more than plain values: runs code that they name.

    Raises:
        ConfigError: there is no such item, or a tensor to fill does not fit.
        DamagedError: bytes are not what was written; names the item.
        UntrustedError: an object holds more than plain values, and is not trusted.
        StorageError: the storage refused.
    """
    into = into or {}
    wanted = list(checkpoint.items) if names is None else list(names)
    for name in wanted:
        if name not in checkpoint.items:
            raise ConfigError(f"{checkpoint.place} holds no {name}")
    found: dict[str, Any] = {}
    for name in wanted:
        item = checkpoint.items[name]
        if item.kind == "tensor":
            found[name] = _target(checkpoint, item, into.get(name))
    pairs = [
        (checkpoint.items[name], chunk)
        for name in wanted
        for chunk in checkpoint.items[name].chunks
    ]
    with torch.no_grad():
        for item, chunk, data in stream(checkpoint, pairs):
            if item.kind == "object":
                found[item.name] = decode(checkpoint, item, chunk, data, trust=trust)
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
    """Yield entries with their bytes, unchecked, in the order in which they lie.

    Raises:
        StorageError: the storage refused.
    """
    runs = _runs(sorted(pairs, key=lambda pair: (pair[1].file, pair[1].offset)))
    pool = ThreadPoolExecutor(READS_AHEAD, thread_name_prefix="checkpoint-read")
    under_way: deque[tuple[_Run, Future[Data]]] = deque()
    try:
        for run in runs:
            path = checkpoint.path(run.file)
            under_way.append(
                (run, pool.submit(checkpoint.storage.read_range, path, run.start, run.length))
            )
            if len(under_way) >= READS_AHEAD:
                yield from _entries_of(*under_way.popleft())
        while under_way:
            yield from _entries_of(*under_way.popleft())
    finally:
        pool.shutdown(wait=True, cancel_futures=True)


def check(checkpoint: StoredCheckpoint, item: Item, chunk: Chunk, data: memoryview) -> None:
    """Make sure that an entry's bytes are what was written.

    Raises:
        DamagedError: they are not.
    """
    place = checkpoint.storage.place(checkpoint.path(chunk.file))
    if len(data) != chunk.length:
        raise DamagedError(
            f"{item.name} is damaged: {place} ends at byte {chunk.offset + len(data)}, and it needs"
            f" up to {chunk.offset + chunk.length}"
        )
    if chunk.digest is not None and digest_of(data) != chunk.digest:
        raise DamagedError(
            f"{item.name} is damaged: the digest of bytes {chunk.offset} to"
            f" {chunk.offset + chunk.length} of {place} does not match"
        )


def decode(
    checkpoint: StoredCheckpoint, item: Item, chunk: Chunk, data: memoryview, *, trust: bool = False
) -> Any:
    """Return what an entry holds, after a check of its bytes.

    Raises:
        DamagedError: it is not what was written.
        UntrustedError: it needs code to run, and is not trusted.
    """
    check(checkpoint, item, chunk, data)
    place = f"{item.name} in {checkpoint.storage.place(checkpoint.path(chunk.file))}"
    value = read_archive(data, place, trust=trust)
    if item.kind == "tensor" and not (
        isinstance(value, torch.Tensor)
        and tuple(value.shape) == chunk.sizes
        and value.dtype == DTYPES[item.dtype]
    ):
        raise DamagedError(f"{place} is damaged: it is not the tensor that the index describes")
    return value


@dataclass(slots=True)
class _Run:
    """Neighbouring entries that are read at once."""

    file: str
    start: int
    length: int
    entries: list[tuple[Item, Chunk]]


def _runs(pairs: Iterable[tuple[Item, Chunk]]) -> Iterator[_Run]:
    run: _Run | None = None
    for item, chunk in pairs:
        end = chunk.offset + chunk.length
        if (
            run is not None
            and run.file == chunk.file
            and chunk.offset <= run.start + run.length
            and end - run.start <= layout.PIECE_BYTES
        ):
            run.length = max(run.length, end - run.start)
            run.entries.append((item, chunk))
            continue
        if run is not None:
            yield run
        run = _Run(chunk.file, chunk.offset, chunk.length, [(item, chunk)])
    if run is not None:
        yield run


def _entries_of(run: _Run, read: Future[Data]) -> Iterator[tuple[Item, Chunk, memoryview]]:
    data = memoryview(read.result())
    for item, chunk in run.entries:
        start = chunk.offset - run.start
        yield item, chunk, data[start : start + chunk.length]


def _target(checkpoint: StoredCheckpoint, item: Item, given: torch.Tensor | None) -> torch.Tensor:
    if given is None:
        return torch.empty(item.shape, dtype=DTYPES[item.dtype])
    if tuple(given.shape) != item.shape or given.dtype != DTYPES[item.dtype]:
        dtype = str(given.dtype).removeprefix("torch.")
        raise ConfigError(
            f"{item.name} is {item.dtype} {list(item.shape)} in {checkpoint.place} and"
            f" {dtype} {list(given.shape)} here"
        )
    return given.detach()


def _box(tensor: torch.Tensor, chunk: Chunk) -> torch.Tensor:
    return tensor[tuple(slice(o, o + s) for o, s in zip(chunk.offsets, chunk.sizes, strict=True))]


def _put(box: torch.Tensor, memory: memoryview) -> None:
    """Copy checked bytes straight into a tensor; they need not be aligned for its type."""
    there = torch.frombuffer(memory[: box.numel() * box.element_size()], dtype=torch.uint8)
    if box.is_contiguous() and box.device.type == "cpu":
        box.reshape(-1).view(torch.uint8).copy_(there)
        return
    between = torch.empty(box.shape, dtype=box.dtype)
    between.reshape(-1).view(torch.uint8).copy_(there)
    box.copy_(between)
