"""Pickles as data: reading and writing them without running what they say.

Owns a small machine for the operations that an index of tensors needs, and the same operations to
write one.  Must not know what a pickle means.

Python's own unpickler calls what a pickle names; even with an allow-list a hostile one can set
attributes of the classes on it, ask for a memo of 60 GB, or overflow the stack by hashing a tuple a
million deep.  This machine calls nothing: a class and its arguments become a ``Record``, a
dictionary ``Pairs`` of keys that need not be hashable.  And whoever writes an index this way need
not import ``torch.distributed.checkpoint``, which takes seconds while others train.
"""

from __future__ import annotations

import io
import pickle
import pickletools
import struct
from collections.abc import Callable, Collection, Iterable, Sequence
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
    machine = _Machine(names)
    for operation, value, _ in pickletools.genops(io.BytesIO(data)):
        if operation.name == "STOP":
            return machine.stack.pop()
        _OPERATIONS[operation.name](machine, value)
    raise EOFError


def write(value: Any) -> bytes:
    """Return the pickle that builds a value of plain values, records and pairs."""
    writer = _Writer()
    writer.put(value)
    return pickle.PROTO + b"\x02" + b"".join(writer.parts) + pickle.STOP


class _Mark:
    """Where a run of values on the stack begins."""


_MARK = _Mark()


class _Machine:
    """The stack and memo of one pickle."""

    def __init__(self, names: Collection[str]) -> None:
        self._names = names
        self.stack: list[Any] = []
        self.memo: dict[int, Any] = {}

    def push(self, value: Any) -> None:
        self.stack.append(value)

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

    def pair(self, values: Sequence[Any]) -> None:
        target = self.stack[-1]
        target.items.extend(zip(values[::2], values[1::2], strict=True))

    def extend(self, values: Iterable[Any]) -> None:
        target = self.stack[-1]
        if type(target) is not list:
            raise TypeError(target)
        target.extend(values)

    def name(self, module: Any, name: Any) -> None:
        full = f"{module}.{name}"
        if full not in self._names:
            raise UnknownNameError(full)
        self.push(Record(full))

    def call(self) -> None:
        kind, arguments = self.last(2)
        if type(kind) is not Record or type(arguments) is not tuple or kind.arguments is not None:
            raise TypeError(kind)
        is_dict = kind.name == "collections.OrderedDict"
        self.push(Pairs([]) if is_dict else Record(kind.name, arguments))

    def build(self) -> None:
        (state,) = self.last(1)
        self.stack[-1].state = state

    def memoize(self, number: int) -> None:
        self.memo[number] = self.stack[-1]


_OPERATIONS: dict[str, Callable[[_Machine, Any], None]] = {
    **dict.fromkeys(("PROTO", "FRAME"), lambda _machine, _value: None),
    **dict.fromkeys(
        (
            *("BININT", "BININT1", "BININT2", "LONG1", "LONG4", "BINFLOAT"),
            *("BINUNICODE", "SHORT_BINUNICODE", "BINUNICODE8", "BINBYTES", "SHORT_BINBYTES"),
        ),
        _Machine.push,
    ),
    "NONE": lambda machine, _: machine.push(None),
    "NEWTRUE": lambda machine, _: machine.push(True),
    "NEWFALSE": lambda machine, _: machine.push(False),
    "MARK": lambda machine, _: machine.push(_MARK),
    "EMPTY_TUPLE": lambda machine, _: machine.push(()),
    "EMPTY_LIST": lambda machine, _: machine.push([]),
    "EMPTY_DICT": lambda machine, _: machine.push(Pairs([])),
    "TUPLE": lambda machine, _: machine.push(tuple(machine.values())),
    "TUPLE1": lambda machine, _: machine.push(machine.last(1)),
    "TUPLE2": lambda machine, _: machine.push(machine.last(2)),
    "TUPLE3": lambda machine, _: machine.push(machine.last(3)),
    "APPEND": lambda machine, _: machine.extend(machine.last(1)),
    "APPENDS": lambda machine, _: machine.extend(machine.values()),
    "SETITEM": lambda machine, _: machine.pair(machine.last(2)),
    "SETITEMS": lambda machine, _: machine.pair(machine.values()),
    "GLOBAL": lambda machine, value: machine.name(*value.split(" ", 1)),
    "STACK_GLOBAL": lambda machine, _: machine.name(*machine.last(2)),
    "NEWOBJ": lambda machine, _: machine.call(),
    "REDUCE": lambda machine, _: machine.call(),
    "BUILD": lambda machine, _: machine.build(),
    "MEMOIZE": lambda machine, _: machine.memoize(len(machine.memo)),
    **dict.fromkeys(("BINPUT", "LONG_BINPUT"), _Machine.memoize),
    **dict.fromkeys(
        ("BINGET", "LONG_BINGET"), lambda machine, value: machine.push(machine.memo[value])
    ),
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
