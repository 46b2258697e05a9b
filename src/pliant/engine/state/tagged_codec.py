"""Tagged codec: plain Python values to bytes and back, tensors by reference.

Owns a tagged JSON form that keeps what JSON loses: non-string keys, tuples, sets, Counter,
OrderedDict, inf and nan, bytes, dtypes, torch.Size, complex, numpy values.  Plain JSON made
MultiStepLR silently stop decaying.  Must not know what the values mean.

Nothing is ever pickled or called by name: a document can only build values of the types below.
Types are matched exactly, so a subclass that would come back as its base is refused.  Equal
values give equal documents: members are set elements in the order of their encodings.

    None, True, 1, "a"        themselves          1 << 70      ["int", "0x400000000000000000"]
    1.5                       itself              nan, inf     ["float", "000000000000f87f"]
    [1, 2]                    ["list", 1, 2]      {1: 2}       ["dict", [1, 2]]
    a tensor                  ["tensor", 0]: number 0 of the tensors that come along
"""

from __future__ import annotations

import base64
import contextlib
import json
import math
import struct
import weakref
from collections import Counter, OrderedDict, defaultdict, deque
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np
import torch

from pliant.core.errors import ConfigError, PliantError

_MAX_DEPTH = 200
"""Deepest nesting; Python's own JSON reader gives up at about 1000."""

_SMALL_INT = 1 << 63

DTYPES = {
    str(value).removeprefix("torch."): value
    for value in vars(torch).values()
    if isinstance(value, torch.dtype)
}

WORDS = {dtype: word for word, dtype in DTYPES.items()}

_FACTORIES: dict[str, Any] = {
    "none": None,
    **{kind.__name__: kind for kind in (bool, dict, float, int, list, set, str, tuple)},
}


LARGE = 16
"""Entries from which on a dict is worth a look whether it is the one from before."""

ValuePath = tuple[Any, ...]
"""``(name,)``, or a step from another path: ``(path, key)``, ``(path, key, "key")`` to the key.

Training waits for a document, and few paths are ever read.
"""


class CodecError(ConfigError):
    """A value that cannot travel, named by its path: ``state['x'][2] is a Foo``."""


class DocumentError(PliantError):
    """Bytes that no encoder of this version wrote."""


@dataclass(frozen=True, slots=True)
class TensorRef:
    """Stands for tensor number ``index`` of the stream in a decoded document."""

    index: int


def encode(
    value: Any, *, name: str = "state", shared: bool = True, memory: Memory | None = None
) -> tuple[bytes, list[torch.Tensor]]:
    """Return the document and the tensors that it refers to.

    One tensor met twice is one entry; unless ``shared`` is false: then the document says nothing
    of which tensors are the same object.  A ``memory`` of the value before, most of which may be
    the same, changes nothing but time.

    Raises:
        CodecError: a value of unsupported type, with its path, which starts at ``name``.
    """
    encoder = _Encoder(shared=shared, memory=memory)
    form = encoder.encode(value, (name,), 0)
    if memory is not None:
        memory.remember(form, encoder.known, encoder.tensors)
    return _dump(form).encode(), encoder.tensors


def decode(document: bytes, tensors: Sequence[Any] | None = None) -> Any:
    """Rebuild the value; tensors are taken from ``tensors``, or left as ``TensorRef``.

    Raises:
        DocumentError: not something that ``encode`` gave, or it refers to a missing tensor.
    """
    try:
        return _Decoder(tensors).decode(json.loads(document))
    except (ValueError, TypeError, KeyError, IndexError, struct.error, RecursionError) as error:
        raise DocumentError(f"not a document of this version: {error}") from error


def _dump(form: Any) -> str:
    return json.dumps(form, separators=(",", ":"), allow_nan=False)


def _said(path: ValuePath) -> str:
    match path:
        case (parent, key):
            return f"{_said(parent)}[{key!r}]"
        case (parent, key, _):
            return f"{_said(parent)} key {key!r}"
        case _:
            return str(path[0])


def _refusal(path: ValuePath, why: str) -> CodecError:
    return CodecError(f"{_said(path)} {why}")


class _Encoder:
    """One document in the making."""

    def __init__(self, *, shared: bool, memory: Memory | None = None) -> None:
        self.tensors: list[torch.Tensor] = []
        self.known: dict[ValuePath, Known] = {}
        self._shared = shared
        self._memory = memory
        self._index_of: dict[int, int] = {}

    def encode(self, value: Any, path: ValuePath, depth: int) -> Any:
        if depth > _MAX_DEPTH:
            raise _refusal(path, f"is nested deeper than {_MAX_DEPTH} levels, or in itself")
        kind = type(value)
        if value is None or kind is bool or kind is str:
            return value
        if kind is int:
            return value if -_SMALL_INT <= value < _SMALL_INT else ["int", hex(value)]
        if kind is float:
            return value if math.isfinite(value) else ["float", struct.pack("<d", value).hex()]
        if isinstance(value, torch.Tensor):
            return ["tensor", self._tensor(value, path)]
        if kind in _SEQUENCES:
            return [_SEQUENCES[kind], *self._each(value, path, depth)]
        if kind in _SETS:
            return [_SETS[kind], *sorted(self._each(value, path, depth), key=_dump)]
        if kind in _MAPPINGS:
            if kind is dict and self._memory is not None and len(value) >= LARGE:
                return self._large(value, path, depth, self._memory)
            return [_MAPPINGS[kind], *self._pairs(value, path, depth)]
        return self._other(value, path, depth)

    def _large(self, value: dict[Any, Any], path: ValuePath, depth: int, memory: Memory) -> Any:
        """Encode a dict as it was encoded before, if it is the same."""
        before = len(self.tensors)
        found = memory.recall(value, path, self.tensors)
        if found is not None:
            known, new = found
            self._index_of.update((id(tensor), n) for n, tensor in enumerate(new, before))
            self.tensors += new
            self.known[path] = known
            return known.form
        form = [_MAPPINGS[dict], *self._pairs(value, path, depth)]
        with contextlib.suppress(UnfitError):
            self.known[path] = Known(freeze(value), form, before, len(self.tensors))
        return form

    def _other(self, value: Any, path: ValuePath, depth: int) -> Any:
        kind = type(value)
        if kind is defaultdict:
            for tag, factory in _FACTORIES.items():
                if value.default_factory is factory:
                    return ["defaultdict", tag, *self._pairs(value, path, depth)]
            raise _refusal(path, "is a defaultdict with a factory that cannot travel")
        if kind is deque:
            return ["deque", value.maxlen, *self._each(value, path, depth)]
        if kind in (np.ndarray, np.bool_) or isinstance(value, np.generic):
            return self._numpy(value, path)
        if kind in _SIMPLE:
            tag, write = _SIMPLE[kind]
            return [tag, write(value)]
        raise _refusal(
            path,
            f"is a {kind.__module__}.{kind.__qualname__}, which cannot travel to another "
            "replica; keep plain values, containers, tensors or numpy arrays",
        )

    def _each(self, values: Any, path: ValuePath, depth: int) -> list[Any]:
        return [self.encode(item, (path, index), depth + 1) for index, item in enumerate(values)]

    def _pairs(self, mapping: Any, path: ValuePath, depth: int) -> list[list[Any]]:
        return [
            [
                self.encode(key, (path, key, "key"), depth + 1),
                self.encode(item, (path, key), depth + 1),
            ]
            for key, item in mapping.items()
        ]

    def _tensor(self, tensor: torch.Tensor, path: ValuePath) -> int:
        if type(tensor) not in (torch.Tensor, torch.nn.Parameter, torch.nn.Buffer):
            kind = type(tensor).__name__
            raise _refusal(path, f"is a {kind}, a kind of tensor that cannot travel")
        is_strided = tensor.layout is torch.strided
        if not is_strided or tensor.is_meta or tensor.is_quantized:
            raise _refusal(path, "is a sparse, quantized or meta tensor, which cannot travel")
        if not self._shared or id(tensor) not in self._index_of:
            self._index_of[id(tensor)] = len(self.tensors)
            self.tensors.append(tensor)
        return self._index_of[id(tensor)]

    def _numpy(self, value: Any, path: ValuePath) -> Any:
        if value.dtype.hasobject or value.dtype.kind not in "biufcSU":
            raise _refusal(path, f"is a numpy value of dtype {value.dtype}, which cannot travel")
        data = _pack_bytes(value.tobytes())
        if type(value) is np.ndarray:
            return ["ndarray", value.dtype.str, list(value.shape), data]
        return ["numpy", value.dtype.str, data]


class _Decoder:
    """One document being read."""

    def __init__(self, tensors: Sequence[Any] | None) -> None:
        self._tensors = tensors

    def decode(self, form: Any) -> Any:
        if not isinstance(form, list):
            if isinstance(form, dict):
                raise DocumentError("not a document of this version: an object")
            return form
        tag, *rest = form
        if tag in _CONTAINERS:
            return _CONTAINERS[tag]([self.decode(item) for item in rest])
        if tag in _PAIRED:
            return _PAIRED[tag](dict(self._pairs(rest)))  # of pairs a Counter would count them
        if tag == "defaultdict":
            return defaultdict(_FACTORIES[rest[0]], self._pairs(rest[1:]))
        if tag == "deque":
            return deque([self.decode(item) for item in rest[1:]], maxlen=rest[0])
        if tag == "tensor":
            return self._tensor(*rest)
        if tag == "ndarray":
            dtype, shape, data = rest
            flat = np.frombuffer(_unpack_bytes(data), dtype=_numpy_dtype(dtype))
            return flat.reshape(shape).copy()
        if tag == "numpy":
            dtype, data = rest
            return np.frombuffer(_unpack_bytes(data), dtype=_numpy_dtype(dtype), count=1)[0]
        return _READERS[tag](*rest)

    def _pairs(self, forms: list[Any]) -> list[tuple[Any, Any]]:
        return [(self.decode(key), self.decode(value)) for key, value in forms]

    def _tensor(self, index: int) -> Any:
        if type(index) is not int or index < 0:
            raise DocumentError(f"not a document of this version: tensor {index!r}")
        return TensorRef(index) if self._tensors is None else self._tensors[index]


def _numpy_dtype(text: str) -> np.dtype[Any]:
    dtype = np.dtype(text)
    if dtype.hasobject:
        raise DocumentError(f"not a document of this version: numpy dtype {text!r}")
    return dtype


def _unpack_bytes(text: str) -> bytes:
    return base64.b64decode(text, validate=True)


def _pack_bytes(value: bytes | bytearray) -> str:
    return base64.b64encode(value).decode()


_SEQUENCES: dict[type, str] = {list: "list", tuple: "tuple", torch.Size: "size"}
_SETS: dict[type, str] = {set: "set", frozenset: "frozenset"}
_MAPPINGS: dict[type, str] = {dict: "dict", OrderedDict: "odict", Counter: "counter"}
_CONTAINERS = {tag: kind for kind, tag in (_SEQUENCES | _SETS).items()}
_PAIRED = {tag: kind for kind, tag in _MAPPINGS.items()}
_SIMPLE: dict[type, tuple[str, Callable[[Any], Any]]] = {
    bytes: ("bytes", _pack_bytes),
    bytearray: ("bytearray", _pack_bytes),
    complex: ("complex", lambda value: struct.pack("<dd", value.real, value.imag).hex()),
    range: ("range", lambda value: [value.start, value.stop, value.step]),
    torch.dtype: ("dtype", WORDS.__getitem__),
    torch.device: ("device", str),
}
_READERS: dict[str, Callable[..., Any]] = {
    "int": lambda text: int(text, 16),
    "float": lambda text: struct.unpack("<d", bytes.fromhex(text))[0],
    "bytes": _unpack_bytes,
    "bytearray": lambda text: bytearray(_unpack_bytes(text)),
    "complex": lambda text: complex(*struct.unpack("<dd", bytes.fromhex(text))),
    "range": lambda bounds: range(*bounds),
    "dtype": lambda text: DTYPES[text],
    "device": torch.device,
}


# --- what the last document was made of -------------------------------------------------


@dataclass(frozen=True, slots=True)
class Known:
    """One dict of a value, as it was encoded."""

    frozen: _Frozen
    form: Any
    before: int
    """Tensors met before it, and with it."""
    after: int


class Memory:
    """What the last document of a value was made of.

    Between two checkpoints most of a state is the same objects, changed in place.  A large dict of
    plain values and tensors that holds the same ones as before, after the same tensors as before,
    has the same form.  Keeps no tensor alive.
    """

    def __init__(self) -> None:
        self.form: Any = None
        """The last document, parsed; what is the same as before is the same object."""
        self._known: dict[ValuePath, Known] = {}
        self._tensors: list[weakref.ref[torch.Tensor]] = []

    def remember(
        self, form: Any, known: dict[ValuePath, Known], tensors: list[torch.Tensor]
    ) -> None:
        """Remember a document instead of the one before."""
        self.form = form
        self._known = known
        self._tensors = list(map(weakref.ref, tensors))

    def recall(
        self, value: Any, path: ValuePath, tensors: list[torch.Tensor]
    ) -> tuple[Known, list[torch.Tensor]] | None:
        """Return how ``value`` was encoded, and the tensors that are new in it.

        ``None`` if anything in it or before it is different.
        """
        known = self._known.get(path)
        if (
            known is None
            or known.before != len(tensors)
            or not all(ref() is tensor for ref, tensor in zip(self._tensors, tensors, strict=False))
            or not _is_same(value, known.frozen)
        ):
            return None
        new = [ref() for ref in self._tensors[known.before : known.after]]
        return known, [tensor for tensor in new if tensor is not None]


_Frozen = Any
"""A dict as ``(keys, frozen values)``, a tensor as a weak reference, a plain value as itself."""

_PLAIN = (bool, int, str, type(None))
"""Not floats: some are equal and have other bits."""


class UnfitError(Exception):
    """Something that is neither plain, nor a tensor, nor a dict of such with names for keys."""


def freeze(value: Any) -> _Frozen:
    """Return what a value can be compared with later, though it is changed meanwhile."""
    if type(value) is dict and all(type(key) is str for key in value):
        return tuple(value), tuple(map(freeze, value.values()))
    if isinstance(value, torch.Tensor):
        return weakref.ref(value)
    if type(value) in _PLAIN:
        return value
    raise UnfitError


def _is_same(value: Any, frozen: _Frozen) -> bool:
    kind = type(frozen)
    if kind is tuple:
        keys, values = frozen
        return (
            type(value) is dict
            and tuple(value) == keys
            and all(map(_is_same, value.values(), values))
        )
    if kind is weakref.ref:
        return frozen() is value
    return type(value) is kind and bool(value == frozen)
