"""Reading PyTorch's index, which is a pickle, without running what it says.

Owns a small machine for the operations that an index needs, and the list of names that it may use.
Must not know storage.

Python's own unpickler calls what a pickle names; even with an allow-list a hostile one can set
attributes of the classes on it, ask for a memo of 60 GB, or overflow the stack by hashing a tuple a
million deep.  This machine calls nothing: a class and its arguments become a ``_Record``, a
dictionary a list of pairs, and only then is the result, checked piece by piece, made into an index.
"""

from __future__ import annotations

import io
import pickle
import pickletools
from collections.abc import Callable, Iterable
from dataclasses import dataclass
from typing import Any

import torch
from torch.distributed.checkpoint import metadata as dcp

from pliant.checkpoint.errors import DamagedError, UntrustedError

_INDEX = "torch.distributed.checkpoint.metadata"

_NAMES = {
    *(
        f"{_INDEX}.{name}"
        for name in (
            "BytesStorageMetadata",
            "ChunkStorageMetadata",
            "Metadata",
            "MetadataIndex",
            "StorageMeta",
            "TensorProperties",
            "TensorStorageMetadata",
            "_MEM_FORMAT_ENCODING",
        )
    ),
    "torch.distributed.checkpoint.filesystem._StorageInfo",
    "torch.Size",
    "torch.serialization._get_layout",
    "collections.OrderedDict",
    "pathlib.PosixPath",
    "pathlib._local.PosixPath",
    *(str(value) for value in vars(torch).values() if isinstance(value, torch.dtype)),
}
"""What an index that ``torch.distributed.checkpoint`` wrote is made of."""

_DTYPES = {str(v): v for v in vars(torch).values() if isinstance(v, torch.dtype)}


@dataclass(frozen=True, slots=True)
class StoredAt:
    """Where an entry lies; ``transforms`` if the bytes are not the archive itself."""

    relative_path: str
    offset: int
    length: int
    transform_descriptors: bool = False


def load_index(data: bytes, place: str, *, trust: bool = False) -> dcp.Metadata:
    """Return the index in ``data``; the places of its entries are ``StoredAt``.

    Args:
        data: the bytes of ``.metadata``.
        place: how people call them.
        trust: if it needs more than an index does, unpickle it: runs any code that it names.

    Raises:
        UntrustedError: it needs more, and is not trusted.
        DamagedError: it is no index.
    """
    try:
        return _metadata(_run(data))
    except _UnknownNameError as error:
        if not trust:
            raise UntrustedError(
                f"{place} names {error}, which no index needs; reading it may run code of whoever "
                "wrote it, allow that with trust if you know them"
            ) from error
    except Exception as error:  # whatever malformed bytes lead to
        raise _no_index(place) from error
    try:
        found = pickle.loads(data)  # noqa: S301 - trusted by the caller
    except Exception as error:
        raise _no_index(place) from error
    if not isinstance(found, dcp.Metadata):
        raise _no_index(place)
    return found


class _UnknownNameError(Exception):
    """A name that no index needs."""


@dataclass(eq=False, slots=True)
class _Record:
    """An object that the pickle describes: nothing is called."""

    name: str
    arguments: tuple[Any, ...] = ()
    state: Any = None


@dataclass(eq=False, slots=True)
class _Pairs:
    """A dictionary, of keys that need not be hashable."""

    items: list[tuple[Any, Any]]


class _Mark:
    """Where a run of values on the stack begins."""


_MARK = _Mark()


class _Machine:
    """The stack and memo of one pickle."""

    def __init__(self) -> None:
        self.stack: list[Any] = []
        self.memo: dict[int, Any] = {}

    def values(self) -> list[Any]:
        """Take what is above the last mark."""
        found = []
        while (value := self.stack.pop()) is not _MARK:
            found.append(value)
        return found[::-1]

    def last(self, count: int) -> tuple[Any, ...]:
        """Take the last few values."""
        if len(self.stack) < count:
            raise IndexError(count)
        found = tuple(self.stack[-count:])
        del self.stack[-count:]
        return found

    def pair(self, values: Iterable[Any]) -> None:
        target = self.stack[-1]
        found = list(values)
        for item in zip(found[::2], found[1::2], strict=True):
            target.items.append(item)

    def extend(self, values: Iterable[Any]) -> None:
        target = self.stack[-1]
        if type(target) is not list:
            raise TypeError(target)
        target.extend(values)

    def name(self, module: Any, name: Any) -> None:
        full = f"{module}.{name}"
        if full not in _NAMES:
            raise _UnknownNameError(full)
        self.stack.append(_Record(full))

    def call(self) -> None:
        kind, arguments = self.last(2)
        if type(kind) is not _Record or type(arguments) is not tuple or kind.arguments:
            raise TypeError(kind)
        self.stack.append(
            _Pairs([]) if kind.name == "collections.OrderedDict" else _Record(kind.name, arguments)
        )

    def build(self) -> None:
        (state,) = self.last(1)
        self.stack[-1].state = state


def _push(machine: _Machine, value: Any) -> None:
    machine.stack.append(value)


_OPERATIONS: dict[str, Callable[[_Machine, Any], None]] = {
    **dict.fromkeys(("PROTO", "FRAME"), lambda _machine, _value: None),
    **dict.fromkeys(
        ("BININT", "BININT1", "BININT2", "LONG1", "LONG4", "BINFLOAT", "BINUNICODE",
         "SHORT_BINUNICODE", "BINUNICODE8", "BINBYTES", "SHORT_BINBYTES"),
        _push,
    ),
    "NONE": lambda machine, _: _push(machine, None),
    "NEWTRUE": lambda machine, _: _push(machine, True),
    "NEWFALSE": lambda machine, _: _push(machine, False),
    "MARK": lambda machine, _: _push(machine, _MARK),
    "EMPTY_TUPLE": lambda machine, _: _push(machine, ()),
    "EMPTY_LIST": lambda machine, _: _push(machine, []),
    "EMPTY_DICT": lambda machine, _: _push(machine, _Pairs([])),
    "TUPLE": lambda machine, _: _push(machine, tuple(machine.values())),
    "TUPLE1": lambda machine, _: _push(machine, machine.last(1)),
    "TUPLE2": lambda machine, _: _push(machine, machine.last(2)),
    "TUPLE3": lambda machine, _: _push(machine, machine.last(3)),
    "APPEND": lambda machine, _: machine.extend(machine.last(1)),
    "APPENDS": lambda machine, _: machine.extend(machine.values()),
    "SETITEM": lambda machine, _: machine.pair(machine.last(2)),
    "SETITEMS": lambda machine, _: machine.pair(machine.values()),
    "GLOBAL": lambda machine, value: machine.name(*value.split(" ", 1)),
    "STACK_GLOBAL": lambda machine, _: machine.name(*machine.last(2)),
    "NEWOBJ": lambda machine, _: machine.call(),
    "REDUCE": lambda machine, _: machine.call(),
    "BUILD": lambda machine, _: machine.build(),
    "MEMOIZE": lambda machine, _: machine.memo.__setitem__(len(machine.memo), machine.stack[-1]),
    **dict.fromkeys(
        ("BINPUT", "LONG_BINPUT"),
        lambda machine, value: machine.memo.__setitem__(value, machine.stack[-1]),
    ),
    **dict.fromkeys(
        ("BINGET", "LONG_BINGET"), lambda machine, value: _push(machine, machine.memo[value])
    ),
}  # fmt: skip


def _run(data: bytes) -> Any:
    machine = _Machine()
    for operation, value, _ in pickletools.genops(io.BytesIO(data)):
        if operation.name == "STOP":
            return machine.stack.pop()
        _OPERATIONS[operation.name](machine, value)
    raise EOFError


def _metadata(value: Any) -> dcp.Metadata:
    fields = _fields(value, f"{_INDEX}.Metadata")
    return dcp.Metadata(
        state_dict_metadata={
            _of(str, name): _entry(entry) for name, entry in _pairs(fields["state_dict_metadata"])
        },
        planner_data=_paths(fields.get("planner_data")),
        storage_data={_key(key): _stored(at) for key, at in _pairs(fields["storage_data"])},
    )


def _entry(value: Any) -> dcp.BytesStorageMetadata | dcp.TensorStorageMetadata:
    if _of(_Record, value).name == f"{_INDEX}.BytesStorageMetadata":
        return dcp.BytesStorageMetadata()
    fields = _fields(value, f"{_INDEX}.TensorStorageMetadata")
    chunks = []
    for chunk in _of(list, fields["chunks"]):
        box = _fields(chunk, f"{_INDEX}.ChunkStorageMetadata")
        chunks.append(dcp.ChunkStorageMetadata(_size(box["offsets"]), _size(box["sizes"])))
    properties = _of(_Record, fields["properties"])
    if properties.name != f"{_INDEX}.TensorProperties":
        raise TypeError(properties.name)
    dtype = _DTYPES[_of(_Record, _of(tuple, properties.state)[0]).name]
    return dcp.TensorStorageMetadata(
        dcp.TensorProperties(dtype=dtype), _size(fields["size"]), chunks
    )


def _key(value: Any) -> dcp.MetadataIndex:
    fields = _fields(value, f"{_INDEX}.MetadataIndex")
    offset = fields.get("offset")
    return dcp.MetadataIndex(_of(str, fields["fqn"]), None if offset is None else _size(offset))


def _stored(value: Any) -> StoredAt:
    fields = _fields(value, "torch.distributed.checkpoint.filesystem._StorageInfo")
    return StoredAt(
        _of(str, fields["relative_path"]),
        _of(int, fields["offset"]),
        _of(int, fields["length"]),
        bool(fields.get("transform_descriptors")),
    )


def _paths(value: Any) -> dict[str, tuple[str | int, ...]]:
    """Return where the entries lie in the nested dict; an index of another planner says nothing."""
    found: dict[str, tuple[str | int, ...]] = {}
    for name, path in value.items if type(value) is _Pairs else ():
        if type(name) is str and type(path) is tuple and all(type(p) in (str, int) for p in path):
            found[name] = path
    return found


def _fields(value: Any, name: str) -> dict[str, Any]:
    record = _of(_Record, value)
    if record.name != name:
        raise TypeError(record.name)
    return {_of(str, key): item for key, item in _pairs(record.state)}


def _size(value: Any) -> torch.Size:
    record = _of(_Record, value)
    if record.name != "torch.Size":
        raise TypeError(record.name)
    (numbers,) = record.arguments
    if type(numbers) not in (tuple, list):
        raise TypeError(numbers)
    sizes = [_of(int, number) for number in numbers]
    if any(not 0 <= size < 1 << 63 for size in sizes):
        raise ValueError(sizes)
    return torch.Size(sizes)


def _pairs(value: Any) -> list[tuple[Any, Any]]:
    return _of(_Pairs, value).items  # type: ignore[no-any-return]


def _of(kind: type, value: Any) -> Any:
    if type(value) is not kind:
        raise TypeError(f"{type(value).__name__} for {kind.__name__}")
    return value


def _no_index(place: str) -> DamagedError:
    return DamagedError(f"{place} is damaged: it is no index of torch.distributed.checkpoint")
