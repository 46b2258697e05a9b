"""PyTorch's index of a checkpoint, ``.metadata``: what entries there are and where they lie.

Owns its form, as classes of ``torch.distributed.checkpoint`` pickle it: public ones, except for
``_StorageInfo``, which says where in a file an entry lies.  Those classes are named here, never
imported; a test has plain PyTorch read what this writes, and the reverse (seen on torch 2.13).
Must not know storage.
"""

from __future__ import annotations

import math
import pickle
from collections.abc import Iterable, Iterator, Mapping
from dataclasses import dataclass, field, replace
from typing import Any

import torch

from pliant.checkpoint.dcp import layout
from pliant.checkpoint.dcp.layout import Piece, Spec, path_of
from pliant.checkpoint.dcp.manifest import Chunk, Item
from pliant.checkpoint.dcp.pickles import Pairs, Record, UnknownNameError, read, write
from pliant.checkpoint.failures import DamagedError, UntrustedError
from pliant.engine.local_tensors import TensorPart
from pliant.engine.state.tagged_codec import DTYPES

_METADATA = "torch.distributed.checkpoint.metadata"
_STORED_AT = "torch.distributed.checkpoint.filesystem._StorageInfo"

_NAMES = {
    *(
        f"{_METADATA}.{name}"
        for name in (
            *("Metadata", "MetadataIndex", "StorageMeta"),
            *("BytesStorageMetadata", "ChunkStorageMetadata", "TensorStorageMetadata"),
            *("TensorProperties", "_MEM_FORMAT_ENCODING"),
        )
    ),
    _STORED_AT,
    "torch.Size",
    "torch.serialization._get_layout",
    "builtins.getattr",  # names a member of an enumeration; Python 3.11.0 to 3.11.3 wrote it so
    "__builtin__.getattr",
    "collections.OrderedDict",
    "pathlib.PosixPath",
    "pathlib._local.PosixPath",
    *(f"torch.{name}" for name in DTYPES),
}
"""What an index that ``torch.distributed.checkpoint`` wrote is made of."""


def dump_index(items: Iterable[Item]) -> bytes:
    """Return ``.metadata`` for these items."""
    items = list(items)
    metadata = _object(
        "Metadata",
        state_dict_metadata=Pairs([(item.name, _entry_of(item)) for item in items]),
        planner_data=Pairs([(item.name, tuple(item.path)) for item in items]),
        storage_data=Pairs([place for item in items for place in _places_of(item)]),
        storage_meta=None,
        version="1.0.0",
    )
    return write(metadata)


def load_index(data: bytes, place: str, *, trust: bool = False) -> tuple[Item, ...]:
    """Return the items of anybody's ``.metadata``, by name.

    If it needs more than an index does, and is trusted, it is unpickled: runs any code it names.

    Raises:
        UntrustedError: it needs more, and is not trusted.
    """
    try:
        try:
            index = _plain(read(data, _NAMES))
        except UnknownNameError as error:
            if not trust:
                raise UntrustedError(
                    f"{place} names {error}, which no index needs; reading it may run code of "
                    "whoever wrote it, allow that with trust if you know them"
                ) from error
            index = _plain(read(_without_more(data), _NAMES))
        return tuple(_items(index))
    except UntrustedError:
        raise
    except Exception as error:  # whatever malformed bytes lead to
        what = "it is no index of torch.distributed.checkpoint"
        raise DamagedError(f"{place} is damaged: {what}") from error


_Index = tuple[Mapping[str, Any], Mapping[str, Any], Mapping[tuple[str, Any], Chunk]]
"""Entries by name: ``None`` for an object, else (dtype, shape, boxes); paths; where they lie."""


def _items(index: _Index) -> Iterator[Item]:
    entries, paths, places = index
    for name, entry in sorted(entries.items()):
        path = tuple(paths.get(name) or path_of(name))
        if entry is None:
            yield Item(name=name, path=path, kind="object", chunks=(places[name, None],))
            continue
        dtype, shape, boxes = entry
        chunks = tuple(
            replace(places[name, offsets], offsets=offsets, sizes=sizes) for offsets, sizes in boxes
        )
        yield Item(name=name, path=path, kind="tensor", dtype=dtype, shape=shape, chunks=chunks)


def _plain(value: Any) -> _Index:
    """Return the index that a record describes."""
    fields = _fields(value, f"{_METADATA}.Metadata")
    entries = {_of(str, n): _read_entry(e) for n, e in _pairs(fields["state_dict_metadata"])}
    places = {}
    for key, info in _pairs(fields["storage_data"]):
        index = _fields(key, f"{_METADATA}.MetadataIndex")
        offset = index.get("offset")
        at = _fields(info, _STORED_AT)
        places[_of(str, index["fqn"]), None if offset is None else _size(offset)] = _chunk(
            _of(str, at["relative_path"]),
            _of(int, at["offset"]),
            _of(int, at["length"]),
            at.get("transform_descriptors"),
        )
    return entries, _read_paths(fields.get("planner_data")), places


def _without_more(data: bytes) -> bytes:
    """Unpickle an index, whatever code that runs, and pickle what PyTorch reads of it."""
    found = pickle.loads(data)  # noqa: S301 - trusted
    from torch.distributed.checkpoint.metadata import Metadata

    paths = found.planner_data if isinstance(found.planner_data, dict) else None
    return pickle.dumps(Metadata(found.state_dict_metadata, paths, found.storage_data))


def _read_entry(value: Any) -> Any:
    if _of(Record, value).name == f"{_METADATA}.BytesStorageMetadata":
        return None
    fields = _fields(value, f"{_METADATA}.TensorStorageMetadata")
    boxes = []
    for chunk in _of(list, fields["chunks"]):
        box = _fields(chunk, f"{_METADATA}.ChunkStorageMetadata")
        boxes.append((_size(box["offsets"]), _size(box["sizes"])))
    properties = _of(Record, fields["properties"])
    if properties.name != f"{_METADATA}.TensorProperties":
        raise TypeError(properties.name)
    dtype = _of(Record, _of(tuple, properties.state)[0]).name.removeprefix("torch.")
    if dtype not in DTYPES:
        raise TypeError(dtype)
    return dtype, _size(fields["size"]), boxes


def _read_paths(value: Any) -> dict[str, tuple[str | int, ...]]:
    """Return where items lie in the nested dict; an index of another planner says nothing."""
    found: dict[str, tuple[str | int, ...]] = {}
    for name, path in value.items if type(value) is Pairs else ():
        if type(name) is str and type(path) is tuple and all(type(p) in (str, int) for p in path):
            found[name] = path
    return found


def _chunk(file: str, offset: int, length: int, transforms: Any) -> Chunk:
    if transforms:
        raise ValueError("entries that are compressed or encrypted")
    if "/" in file or file in ("", ".", "..") or offset < 0 or length < 0:
        raise ValueError(file)
    return Chunk(file=file, offset=offset, length=length)


def _fields(value: Any, name: str) -> dict[str, Any]:
    record = _of(Record, value)
    if record.name != name:
        raise TypeError(record.name)
    return {_of(str, key): item for key, item in _pairs(record.state)}


def _size(value: Any) -> tuple[int, ...]:
    record = _of(Record, value)
    (numbers,) = record.arguments
    if record.name != "torch.Size" or type(numbers) not in (tuple, list):
        raise TypeError(record.name)
    sizes = tuple(_of(int, number) for number in numbers)
    if any(not 0 <= size < 1 << 63 for size in sizes):
        raise ValueError(sizes)
    return sizes


def _pairs(value: Any) -> list[tuple[Any, Any]]:
    items: list[tuple[Any, Any]] = _of(Pairs, value).items
    return items


def _of(kind: type, value: Any) -> Any:
    if type(value) is not kind:
        raise TypeError(f"{type(value).__name__} for {kind.__name__}")
    return value


def _object(name: str, **fields: Any) -> Record:
    return Record(f"{_METADATA}.{name}", (), Pairs(list(fields.items())), is_call=False)


def _entry_of(item: Item) -> Record:
    if item.kind == "object":
        return Record(f"{_METADATA}.BytesStorageMetadata", (), is_call=False)
    layout = Record("torch.serialization._get_layout", ("torch.strided",))
    contiguous = Record(f"{_METADATA}._MEM_FORMAT_ENCODING", (0,))
    state = (Record(f"torch.{item.dtype}"), layout, False, contiguous, False)
    return _object(
        "TensorStorageMetadata",
        properties=Record(f"{_METADATA}.TensorProperties", (), state, is_call=False),
        size=_size_of(item.shape),
        chunks=[
            _object("ChunkStorageMetadata", offsets=_size_of(c.offsets), sizes=_size_of(c.sizes))
            for c in item.chunks
        ],
    )


def _places_of(item: Item) -> Iterator[tuple[Record, Record]]:
    for number, chunk in enumerate(item.chunks):
        is_tensor = item.kind == "tensor"
        key = _object(
            "MetadataIndex",
            fqn=item.name,
            offset=_size_of(chunk.offsets) if is_tensor else None,
            index=number if is_tensor else None,
        )
        fields = {"relative_path": chunk.file, "offset": chunk.offset, "length": chunk.length}
        yield key, Record(_STORED_AT, (), Pairs(list(fields.items())), is_call=False)


def _size_of(sizes: tuple[int, ...]) -> Record:
    return Record("torch.Size", (tuple(sizes),))


@dataclass(frozen=True, slots=True, kw_only=True)
class Contents:
    """What a checkpoint is to hold; equal on every member, apart from where memory lies, and from
    which part of a tensor that is sharded over workers lies here."""

    tensors: Mapping[str, torch.Tensor]
    """Any strided tensor; it is only read, and must not change until its share is written."""
    objects: Mapping[str, Any] = field(default_factory=dict)
    """Small plain values; rank 0 writes them."""
    held: Mapping[Piece, torch.Tensor] = field(default_factory=dict)
    """Copies of pieces, written in place of what ``tensors`` hold there."""
    parts: Mapping[str, TensorPart] = field(default_factory=dict)
    """Which part of each tensor this is that the workers of a replica have in parts."""
    num_workers: int = 1
    """Of each replica; all of them write."""

    def pieces(self, *, rank: int, num_shares: int) -> list[Piece]:
        """Return what one of those who write has to."""
        specs = {}
        for name, tensor in self.tensors.items():
            part = self.parts.get(name)
            if part is None:
                specs[name] = Spec(tuple(tensor.shape), tensor.itemsize)
            elif part.is_first and (tensor.numel() or not math.prod(part.shape)):
                specs[name] = Spec(tuple(tensor.shape), tensor.itemsize, part.begins)
        return layout.share_of(
            specs, rank=rank, num_shares=num_shares, num_workers=self.num_workers
        )

    def memory_of(self, piece: Piece) -> torch.Tensor:
        """Return what lies here of a piece."""
        if (held := self.held.get(piece)) is not None:
            return held
        part = self.parts.get(piece.name)
        return self.tensors[piece.name][piece.box(None if part is None else part.begins)]

    def shape_of(self, name: str) -> tuple[int, ...]:
        """Return the shape of the whole tensor."""
        part = self.parts.get(name)
        return tuple(self.tensors[name].shape) if part is None else part.shape
