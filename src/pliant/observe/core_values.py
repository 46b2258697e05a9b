"""Core values as a log has them, and back: what the core was told, and what it knew.

Owns the form, which follows from the types of the fields: a table is a list of pairs, one of
several kinds of values says which under ``is``.  What a value leaves out of comparisons or keeps
out of its repr is not written; a field that is missing has its default, one that is unknown does
not matter.  What is read may be anything: it becomes a value of the type asked for, or a
``ValueError`` that says where.  Knows nothing of what a value means.
"""

from __future__ import annotations

import math
import types
from collections.abc import Callable
from dataclasses import dataclass, fields, is_dataclass
from enum import Enum
from functools import cache
from typing import Any, Literal, NewType, Union, get_args, get_origin, get_type_hints

from pliant.core.commands import type_name
from pliant.core.job.state import (
    Budget,
    Checkpoints,
    Ending,
    History,
    Job,
    Loss,
    Nodes,
    Offer,
    Registration,
    Sizing,
    Start,
    Stragglers,
)
from pliant.core.membership.state import Orders, PhaseWait, Trouble
from pliant.core.table import Table
from pliant.observe.log import number, plain, whole

WHICH = "is"
"""Beside the fields of one of several values: its kind."""

_PARTS: dict[type, dict[str, str]] = {
    Nodes: {"devices": "nodes", "unheard": "unheard_nodes"},
    Sizing: {"requested": "wished"},
    Offer: {"replicas": "offered", "reason": "offer_reason", "notice_s": "offer_notice_s"},
    Stragglers: {"look_s": "slow_look_s", "replaced": "replaced_slow"},
    Budget: {},
    Start: {"by_s": "start_by_s"},
    Ending: {},
    Registration: {"by_s": "register_by_s"},
    Checkpoints: {"exist": "has_checkpoints", "may_exist": "may_have_checkpoints"},
    History: {},
    Orders: {},
    PhaseWait: {},
    Trouble: {},
}
"""Parts of a value, written among its own fields: a log has no name for a part.  What a log calls
a field otherwise."""

_KEYS: dict[type, dict[str, str]] = {
    Job: {"phase": "stage"},
    Loss: {"signature": "likeness"},
    **_PARTS,
}
"""Fields that a log has by another key than their name."""


def written(kind: Any, value: Any) -> Any:
    """Return a value of this type as JSON has it."""
    return _form_of(kind).write(value)


def value_of(kind: Any, data: Any) -> Any:
    """Return the value of this type that was written.

    Raises:
        ValueError: it is none; the sentence begins with the field.
    """
    return _form_of(kind).read(data)


@dataclass(frozen=True, slots=True)
class _Form:
    """How values of one type are written, and read."""

    write: Callable[[Any], Any]
    read: Callable[[Any], Any]


@cache
def _form_of(kind: Any) -> _Form:
    origin, inner = get_origin(kind), get_args(kind)
    if isinstance(kind, NewType):
        return _form_of(kind.__supertype__)
    if origin in (types.UnionType, Union):
        return _union(inner)
    if origin is tuple:
        return _tuple(inner)
    if origin is Literal:
        return _Form(plain, lambda data: _one_word(data, inner))
    if origin is frozenset:
        return _set(_form_of(inner[0]))
    if origin is Table:
        return _table(_form_of(inner[0]), _form_of(inner[1]))
    if isinstance(kind, type) and issubclass(kind, Enum):
        return _Form(lambda value: value.value, lambda data: kind(_TEXT.read(data)))
    if is_dataclass(kind):
        return _Form(_writer(kind), _reader(kind))
    return _SIMPLE[kind]


def _union(kinds: tuple[Any, ...]) -> _Form:
    """None or one kind of value; or one of several, which says which."""
    some = [kind for kind in kinds if kind is not types.NoneType]
    form = _form_of(some[0]) if len(some) == 1 else _one_of(some)
    if len(some) == len(kinds):
        return form
    return _Form(
        lambda value: None if value is None else form.write(value),
        lambda data: None if data is None else form.read(data),
    )


def _one_of(kinds: list[Any]) -> _Form:
    known = {type_name(kind): kind for kind in kinds}

    def write(value: Any) -> Any:
        kind: Any = type(value)
        return {WHICH: type_name(kind), **_form_of(kind).write(value)}

    def read(data: Any) -> Any:
        kind = known.get(_TEXT.read(data.get(WHICH))) if isinstance(data, dict) else None
        if kind is None:
            raise ValueError(f"none of {len(known)} kinds of values")
        return _form_of(kind).read({key: item for key, item in data.items() if key != WHICH})

    return _Form(write, read)


def _tuple(kinds: tuple[Any, ...]) -> _Form:
    if len(kinds) == 2 and kinds[1] is Ellipsis:
        form = _form_of(kinds[0])
        return _Form(
            lambda value: [form.write(item) for item in value],
            lambda data: tuple(form.read(item) for item in _list(data)),
        )
    forms = tuple(map(_form_of, kinds))

    def read(data: Any) -> Any:
        if len(_list(data)) != len(forms):
            raise ValueError(f"{len(data)} values where {len(forms)} belong together")
        return tuple(form.read(item) for form, item in zip(forms, data, strict=True))

    return _Form(
        lambda value: [form.write(item) for form, item in zip(forms, value, strict=True)], read
    )


def _set(form: _Form) -> _Form:
    return _Form(
        lambda value: sorted(form.write(item) for item in value),
        lambda data: frozenset(form.read(item) for item in _list(data)),
    )


def _table(key: _Form, item: _Form) -> _Form:
    return _Form(
        lambda value: [[key.write(one), item.write(other)] for one, other in value.items()],
        lambda data: Table(
            {key.read(one): item.read(other) for one, other in map(_pair, _list(data))}
        ),
    )


def _writer(kind: Any) -> Callable[[Any], Any]:
    forms = _forms(kind)

    def write(value: Any) -> dict[str, Any]:
        found: dict[str, Any] = {}
        for name, (key, form) in forms.items():
            data = form.write(getattr(value, name))
            found.update(data if key is None else {key: data})
        return found

    return write


def _reader(kind: Any) -> Callable[[Any], Any]:
    forms = _forms(kind)

    def read(data: Any) -> Any:
        if not isinstance(data, dict):
            raise ValueError(f"no {type_name(kind)}")  # noqa: TRY004 - of data, as all here
        values = {}
        for name, (key, form) in forms.items():
            if key is None:
                values[name] = form.read(data)
            elif key in data:
                try:
                    values[name] = form.read(data[key])
                except ValueError as error:
                    raise ValueError(f"{key}: {error}") from None
        try:
            return kind(**values)
        except TypeError as error:  # a field without a default is missing
            raise ValueError(f"no whole {type_name(kind)}: {error}") from None

    return read


def _forms(kind: Any) -> dict[str, tuple[str | None, _Form]]:
    """Return by which key each field of a class is written, and how; None: among the others."""
    hints, other = get_type_hints(kind), _KEYS.get(kind, {})
    return {
        one.name: (
            None if hints[one.name] in _PARTS else other.get(one.name, one.name),
            _form_of(hints[one.name]),
        )
        for one in fields(kind)
        if one.compare and one.repr
    }


def _list(data: Any) -> list[Any]:
    if not isinstance(data, list):
        raise ValueError(f"{str(data)[:40]!r} is no list")  # noqa: TRY004
    return data


def _pair(data: Any) -> list[Any]:
    if len(_list(data)) != 2:
        raise ValueError("no pair of key and value")
    return _list(data)


def _one_word(data: Any, words: tuple[Any, ...]) -> Any:
    if data not in words:
        raise ValueError(f"{str(data)[:40]!r} is none of {', '.join(map(str, words))}")
    return data


def _simple(read: Callable[[Any], Any], what: str) -> _Form:
    """Return the form of values that JSON has; ``read`` returns None for others."""

    def checked(data: Any) -> Any:
        if (found := read(data)) is None:
            raise ValueError(f"{str(data)[:40]!r} is {what}")
        return found

    return _Form(plain, checked)


def _real(data: Any) -> float | None:
    found = number(data)
    return None if found is None or math.isnan(found) else found


_TEXT = _simple(lambda data: data if isinstance(data, str) else None, "no text")
_SIMPLE = {
    str: _TEXT,
    int: _simple(whole, "no whole number"),
    float: _simple(_real, "no number"),
    bool: _simple(lambda data: data if isinstance(data, bool) else None, "neither true nor false"),
}
