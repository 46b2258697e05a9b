"""PyTorch's distributed checkpoint format: its index and its archives.

Owns every use of classes that PyTorch keeps private: the one that says where in a file an entry
lies, in ``torch.distributed.checkpoint.filesystem`` (seen to work on torch 2.13; a test says so).
Must not know storage.

An entry is a ``torch.save`` archive of one box of a tensor, or of one object.  Archives are written
straight from the tensor's memory, so that a share costs no copy of it.
"""

from __future__ import annotations

import io
import pickle
from collections.abc import Iterable
from typing import IO, Any, Protocol, cast

import torch
from torch.distributed.checkpoint.metadata import (
    BytesStorageMetadata,
    ChunkStorageMetadata,
    Metadata,
    MetadataIndex,
    TensorProperties,
    TensorStorageMetadata,
)

from pliant.checkpoint.errors import DamagedError, UntrustedError
from pliant.checkpoint.layout import Piece, path_of
from pliant.checkpoint.manifest import Chunk, Item
from pliant.checkpoint.storage import Data
from pliant.checkpoint.unpickler import load_index

DTYPES = {
    str(value).removeprefix("torch."): value
    for value in vars(torch).values()
    if isinstance(value, torch.dtype)
}


class Writable(Protocol):
    """Where an archive goes."""

    def write(self, data: Data, /) -> int:
        """Take bytes."""

    def flush(self) -> None:
        """Called by ``torch.save`` at the end of an archive."""


def write_piece(tensor: torch.Tensor, piece: Piece, out: Writable) -> None:
    """Write one piece of a tensor as an archive of exactly that piece.

    The archive of a view would hold the whole storage behind it, so a new storage is laid over the
    piece's memory.  A piece that does not lie in one run, or on another device, is copied first.
    """
    box = tensor.detach()[
        tuple(slice(o, o + s) for o, s in zip(piece.offsets, piece.sizes, strict=True))
    ]
    box = box.cpu().resolve_conj().resolve_neg().contiguous()
    if box.numel() == 0:
        torch.save(torch.empty(piece.sizes, dtype=box.dtype), cast(IO[bytes], out))
        return
    memory = box.reshape(-1).view(torch.uint8).numpy()
    if not memory.flags.writeable:
        memory = memory.copy()
    flat = torch.frombuffer(memory.data, dtype=box.dtype)
    torch.save(flat.reshape(piece.sizes), cast(IO[bytes], out))


def write_object(value: Any, out: Writable) -> None:
    """Write one object as PyTorch does."""
    torch.save(value, cast(IO[bytes], out))


def read_archive(data: bytes | memoryview, place: str, *, trust: bool = False) -> Any:
    """Return the tensor or object of an archive; runs no code of it unless trusted.

    Raises:
        UntrustedError: it would have to.
        DamagedError: it is no archive.
    """
    try:
        return torch.load(io.BytesIO(data), map_location="cpu", weights_only=True)
    except pickle.UnpicklingError as error:
        if not trust:
            raise UntrustedError(
                f"{place} holds more than tensors and plain values, and reading it may run code of"
                " whoever wrote it; allow it with trust if you know them"
            ) from error
    except Exception as error:  # whatever a damaged archive makes of torch
        raise DamagedError(f"{place} is damaged: {_first_line(error)}") from error
    try:
        return torch.load(io.BytesIO(data), map_location="cpu", weights_only=False)
    except Exception as error:
        raise DamagedError(f"{place} is damaged: {_first_line(error)}") from error


def index_of(items: Iterable[Item]) -> bytes:
    """Return ``.metadata``: PyTorch's own index of these items."""
    entries: dict[str, Any] = {}
    places: dict[MetadataIndex, Any] = {}
    paths: dict[str, Any] = {}
    for item in items:
        paths[item.name] = tuple(item.path)
        if item.kind == "object":
            entries[item.name] = BytesStorageMetadata()
            places[MetadataIndex(item.name)] = _place(item.chunks[0])
            continue
        entries[item.name] = TensorStorageMetadata(
            properties=TensorProperties(dtype=DTYPES[item.dtype]),
            size=torch.Size(item.shape),
            chunks=[
                ChunkStorageMetadata(torch.Size(chunk.offsets), torch.Size(chunk.sizes))
                for chunk in item.chunks
            ],
        )
        for number, chunk in enumerate(item.chunks):
            places[MetadataIndex(item.name, chunk.offsets, number)] = _place(chunk)
    metadata = Metadata(
        state_dict_metadata=entries, planner_data=paths, storage_data=places, version="1.0.0"
    )
    return pickle.dumps(metadata, protocol=4)


def items_of(index: bytes, place: str, *, trust: bool = False) -> tuple[Item, ...]:
    """Read somebody's ``.metadata``.

    Raises:
        UntrustedError: it names more than an index needs.
        DamagedError: it is no index.
    """
    metadata = load_index(index, place, trust=trust)
    try:
        return tuple(_items(metadata))
    except Exception as error:  # entries that lie nowhere, files outside the checkpoint
        raise DamagedError(f"{place} is damaged: its entries do not fit together") from error


def _items(metadata: Metadata) -> Iterable[Item]:
    paths = metadata.planner_data if isinstance(metadata.planner_data, dict) else {}
    places = {}
    for index, info in metadata.storage_data.items():
        places[index.fqn, None if index.offset is None else tuple(index.offset)] = info
    for name, entry in sorted(metadata.state_dict_metadata.items()):
        path = tuple(paths.get(name) or path_of(name))
        if isinstance(entry, BytesStorageMetadata):
            yield Item(name=name, path=path, kind="object", chunks=(_chunk(places[name, None]),))
            continue
        chunks = []
        for box in entry.chunks:
            offsets, sizes = tuple(map(int, box.offsets)), tuple(map(int, box.sizes))
            chunks.append(_chunk(places[name, offsets], offsets, sizes))
        dtype = str(entry.properties.dtype).removeprefix("torch.")
        if dtype not in DTYPES:
            raise ValueError(dtype)
        shape = tuple(map(int, entry.size))
        yield Item(
            name=name, path=path, kind="tensor", dtype=dtype, shape=shape, chunks=tuple(chunks)
        )


def _place(chunk: Chunk) -> Any:
    from torch.distributed.checkpoint.filesystem import _StorageInfo

    return _StorageInfo(relative_path=chunk.file, offset=chunk.offset, length=chunk.length)


def _chunk(info: Any, offsets: tuple[int, ...] = (), sizes: tuple[int, ...] = ()) -> Chunk:
    file = str(info.relative_path)
    if "/" in file or file in ("", ".", ".."):
        raise ValueError(file)
    if getattr(info, "transform_descriptors", None):
        raise ValueError("transformed entries")
    return Chunk(
        file=file, offset=int(info.offset), length=int(info.length), offsets=offsets, sizes=sizes
    )


def _first_line(error: Exception) -> str:
    return (str(error).splitlines() or [type(error).__name__])[0][:200]
