"""Pickles as data: reading and writing them without running what they say.

Owns a reader for the operations that an index of tensors needs, and the same operations to write
one.  Must not know what a pickle means.

Python's unpickler calls what a pickle names; even with an allow-list a hostile one can set
attributes of the classes on it, ask the one in C for a memo of 60 GB, or overflow the stack by
hashing a tuple a million deep.  This reader is the one in Python, and calls nothing: a class and
its arguments become a ``Record``, a dictionary ``Pairs`` of keys that need not be hashable.  And
whoever writes an index this way need not import ``torch.distributed.checkpoint``, which takes
seconds while others train.
"""

from __future__ import annotations

import io
import pickle
import struct
from collections.abc import Collection, Iterable
from dataclasses import dataclass
from typing import Any


class UnknownNameError(Exception):
    """A pickle uses a name that is not among those expected."""


@dataclass(eq=False, slots=True)
class Record:
    """An object as a pickle describes it: a name, perhaps called, perhaps given a state."""

    name: str
    arguments: tuple[Any, ...] | None = None
    state: Any = None
    is_call: bool = True
    """How it is made when written: by a call, or by ``__new__`` (protocol 2)."""


@dataclass(eq=False, slots=True)
class Pairs:
    """A dictionary."""

    items: list[tuple[Any, Any]]


def read(data: bytes, names: Collection[str]) -> Any:
    """Return what a pickle describes, as plain values, records and pairs.

    Raises:
        UnknownNameError: it uses a name that is not in ``names``.
        Exception: of any kind, if it is malformed or needs an operation that is not known.
    """
    return _Reader(data, names).load()


def write(value: Any) -> bytes:
    """Return the pickle that builds a value of plain values, records and pairs."""
    writer = _Writer()
    writer.put(value)
    return pickle.PROTO + b"\x02" + b"".join(writer.parts) + pickle.STOP


_OPERATIONS = (
    *("PROTO", "FRAME", "STOP", "NONE", "NEWTRUE", "NEWFALSE", "BINFLOAT"),
    *("BININT", "BININT1", "BININT2", "LONG1", "LONG4"),
    *("BINUNICODE", "SHORT_BINUNICODE", "BINUNICODE8", "BINBYTES", "SHORT_BINBYTES"),
    *("MARK", "EMPTY_TUPLE", "TUPLE", "TUPLE1", "TUPLE2", "TUPLE3"),
    *("EMPTY_LIST", "APPEND", "APPENDS", "GLOBAL", "STACK_GLOBAL"),
    *("MEMOIZE", "BINPUT", "LONG_BINPUT", "BINGET", "LONG_BINGET"),
)
"""What an index needs of what ``pickle`` calls so, beside calls and dictionaries."""

_IN_PYTHON: Any = pickle._Unpickler  # noqa: SLF001
_KEPT = {code: _IN_PYTHON.dispatch[code] for code in (getattr(pickle, n)[0] for n in _OPERATIONS)}


class _Reader(_IN_PYTHON):  # type: ignore[misc]
    """Python's unpickler with these operations only, and with calls and keys that are kept."""

    def __init__(self, data: bytes, names: Collection[str]) -> None:
        super().__init__(io.BytesIO(data))
        self._names = names

    def find_class(self, module: str, name: str) -> Record:
        full = f"{module}.{name}"
        if full not in self._names:
            raise UnknownNameError(full)
        return Record(full)

    def _call(self) -> None:
        arguments, kind = self.stack.pop(), self.stack.pop()
        if type(kind) is not Record or type(arguments) is not tuple or kind.arguments is not None:
            raise TypeError(kind)
        is_dict = kind.name == "collections.OrderedDict"
        self.append(Pairs([]) if is_dict else Record(kind.name, arguments))

    def _build(self) -> None:
        state = self.stack.pop()
        self.stack[-1].state = state

    def _empty_dict(self) -> None:
        self.append(Pairs([]))

    def _pair(self) -> None:
        value, key = self.stack.pop(), self.stack.pop()
        self.stack[-1].items.append((key, value))

    def _pairs(self) -> None:
        values = self.pop_mark()
        self.stack[-1].items.extend(zip(values[::2], values[1::2], strict=True))

    dispatch = {  # noqa: RUF012 - as in its base
        **_KEPT,
        pickle.REDUCE[0]: _call,
        pickle.NEWOBJ[0]: _call,
        pickle.BUILD[0]: _build,
        pickle.EMPTY_DICT[0]: _empty_dict,
        pickle.SETITEM[0]: _pair,
        pickle.SETITEMS[0]: _pairs,
    }


class _Writer:
    """One pickle in the making; names are written once."""

    def __init__(self) -> None:
        self.parts: list[bytes] = []
        self._names: dict[str, int] = {}

    def put(self, value: Any) -> None:
        match value:
            case None:
                self.parts.append(pickle.NONE)
            case bool():
                self.parts.append(pickle.NEWTRUE if value else pickle.NEWFALSE)
            case int():
                data = pickle.encode_long(value)
                self.parts += [pickle.LONG1, struct.pack("<B", len(data)), data]
            case str():
                data = value.encode("utf-8", "surrogatepass")
                self.parts += [pickle.BINUNICODE, struct.pack("<I", len(data)), data]
            case tuple():
                self.parts.append(pickle.MARK)
                self._each(value)
                self.parts.append(pickle.TUPLE)
            case list():
                self.parts += [pickle.EMPTY_LIST, pickle.MARK]
                self._each(value)
                self.parts.append(pickle.APPENDS)
            case Pairs(items=items):
                self.parts += [pickle.EMPTY_DICT, pickle.MARK]
                for pair in items:
                    self._each(pair)
                self.parts.append(pickle.SETITEMS)
            case Record():
                self._record(value)
            case _:
                raise TypeError(type(value))

    def _each(self, values: Iterable[Any]) -> None:
        for value in values:
            self.put(value)

    def _record(self, record: Record) -> None:
        if record.name in self._names:
            self.parts += [pickle.LONG_BINGET, struct.pack("<I", self._names[record.name])]
        else:
            number = self._names[record.name] = len(self._names)
            module, _, name = record.name.rpartition(".")
            self.parts += [pickle.GLOBAL, f"{module}\n{name}\n".encode()]
            self.parts += [pickle.LONG_BINPUT, struct.pack("<I", number)]
        if record.arguments is not None:
            self.put(record.arguments)
            self.parts.append(pickle.REDUCE if record.is_call else pickle.NEWOBJ)
        if record.state is not None:
            self.put(record.state)
            self.parts.append(pickle.BUILD)
