"""Messages as bytes: one JSON object with version, type and incarnation, checked to the last field.

Owns the envelope ``{"v": 9, "type": "prepare", "incarnation": 3, ...fields}`` and its check.
Knows nothing of sockets.  What cannot be read is an answer, not an exception: ``decode`` returns
a ``Refusal`` with its reason; the caller counts it and goes on, and nothing changes.

A message is accepted if it has exactly the fields of its type, with exactly their types, at
every depth, and within the bounds of ``wire.bounds``.  Nothing is converted and nothing extra is
ignored, so that a mistake on one side cannot become a default on the other.
"""

from __future__ import annotations

import functools
import json
import re
from collections.abc import Iterable
from dataclasses import dataclass
from typing import Any, get_args

import pydantic_core
from pydantic import TypeAdapter, ValidationError

from pliant.core.commands import Command, Prepare, Reform, Switch
from pliant.core.events import Event, WorkerEvent
from pliant.core.printable import in_one_line
from pliant.core.values import Incarnation, Order
from pliant.wire.bounds import MOST, excess, fields_of, names_of
from pliant.wire.messages import (
    AgentNote,
    CoordinatorNote,
    FollowerNote,
    JoinHosts,
    Note,
    WorkerNote,
)

VERSION = 10
"""Raised when the meaning of a message changes; both sides must agree exactly."""

MAX_MESSAGE_BYTES = 1 << 20
"""Largest message, in bytes.  An order with 1,000 members takes about 60 kB."""

Message = Event | Command | Note

EVENTS: frozenset[type] = frozenset(get_args(Event))
WORKER_EVENTS: frozenset[type] = frozenset(get_args(WorkerEvent))
COMMANDS: frozenset[type] = frozenset(get_args(Command))
WORKER_NOTES: frozenset[type] = frozenset(get_args(WorkerNote))
FOLLOWER_NOTES: frozenset[type] = frozenset(get_args(FollowerNote))
AGENT_NOTES: frozenset[type] = frozenset(get_args(AgentNote))
COORDINATOR_NOTES: frozenset[type] = frozenset(get_args(CoordinatorNote))

_ENVELOPE = ("v", "type", "incarnation")
TWICE = ": given twice, and not alike"
"""Of a field: which of both counts is not for a sender to choose."""

_SECRET = re.compile(r"([0-9a-f]{64})?")


@dataclass(frozen=True, slots=True, kw_only=True)
class Envelope:
    """A message as it arrived, with the incarnation of the coordinator it belongs to."""

    message: Message
    incarnation: Incarnation


@dataclass(frozen=True, slots=True, kw_only=True)
class Refusal:
    """Why bytes are no message.  A value: refused, counted, without effect."""

    reason: str


def type_name(kind: type) -> str:
    """Name a message type on the wire: ``StartReplica`` is ``start_replica``."""
    return re.sub(r"(?<=[a-z0-9])(?=[A-Z])", "_", kind.__name__).lower()


TYPES: dict[str, type] = {
    type_name(kind): kind
    for kind in EVENTS | COMMANDS | WORKER_NOTES | AGENT_NOTES | COORDINATOR_NOTES
}
"""Every message by its name on the wire."""

_names = {kind: name for name, kind in TYPES.items()}
_encoder = json.JSONEncoder(separators=(",", ":"), ensure_ascii=False, default=fields_of)
_adapter = functools.cache(TypeAdapter)


class _Orders:
    """The newest order as text: with a thousand members it takes milliseconds, and many hear it."""

    def __init__(self) -> None:
        self._known: tuple[Order | None, str] = (None, "")

    def text(self, order: Order) -> str:
        known, text = self._known
        if known is not order:
            text = _encoder.encode(order)
            self._known = order, text
        return text


_orders = _Orders()


def encode(message: Message, incarnation: Incarnation) -> bytes:
    """Turn a message into UTF-8 JSON.  NaN and infinities are written as JavaScript does."""
    envelope = {"v": VERSION, "type": _names[type(message)], "incarnation": incarnation}
    fields = fields_of(message)
    if isinstance(message, Prepare | Switch | Reform):
        del fields["order"]
        body = f'{_encoder.encode(envelope | fields)[:-1]},"order":{_orders.text(message.order)}}}'
    else:
        body = _encoder.encode(envelope | fields)
    return body.encode("utf-8", "replace")  # a traceback may hold lone surrogates


def decode(data: bytes | str, allowed: Iterable[type] | None = None) -> Envelope | Refusal:
    """Read one message.

    Args:
        data: one JSON object.
        allowed: types the sender may send; ``None`` means all.
    """
    if len(data) > MAX_MESSAGE_BYTES:
        return Refusal(reason=f"{len(data)} bytes; at most {MAX_MESSAGE_BYTES} are read")
    try:
        fields = pydantic_core.from_json(data)
    except ValueError as error:
        return Refusal(reason=f"no JSON: {error}")
    if not isinstance(fields, dict):
        return Refusal(reason=f"a JSON {type(fields).__name__}, not an object")
    version, name, incarnation = (fields.pop(key, None) for key in _ENVELOPE)
    if type(version) is not int or version != VERSION:
        return Refusal(reason=f"version {version!r:.40}; this side speaks {VERSION}")
    kind = TYPES.get(name) if isinstance(name, str) else None
    if kind is None:
        return Refusal(reason=f"unknown type {name!r:.40}")
    if allowed is not None and kind not in allowed:
        return Refusal(reason=f"{name} is not for this side to say")
    if type(incarnation) is not int or not 0 <= incarnation <= MOST:
        return Refusal(reason=f"incarnation {incarnation!r:.40} of {name}")
    return _body(kind, fields, data, Incarnation(incarnation))


def _body(
    kind: type, fields: dict[str, Any], data: bytes | str, incarnation: Incarnation
) -> Envelope | Refusal:
    """Check the fields of one type.

    Strict validation of JSON, not of Python values: only there is an array a tuple.  pydantic
    cannot forbid extra fields of plain dataclasses, those of the envelope among them, so the value
    is compared with what was received.
    """
    try:
        message = _adapter(kind).validate_json(data, strict=True)
    except ValidationError as error:
        first = error.errors(include_url=False, include_input=False)[0]
        where = ".".join(str(part) for part in first["loc"])
        return Refusal(reason=in_one_line(f"{type_name(kind)}.{where}: {first['msg']}"))
    except ValueError as error:
        return Refusal(reason=f"{type_name(kind)}: {error}")
    known = fields_of(message)
    difference = _difference(fields, known)
    if difference is not None:
        return Refusal(reason=in_one_line(f"{type_name(kind)}{difference}"))
    if (found := excess(known)) is not None:
        return Refusal(reason=f"{type_name(kind)}.{found}")
    if isinstance(message, Prepare | Reform | JoinHosts) and not _SECRET.fullmatch(message.secret):
        return Refusal(reason=f"{type_name(kind)}.secret: not 64 lower-case hexadecimal digits")
    return Envelope(message=message, incarnation=incarnation)


def _difference(received: Any, known: Any) -> str | None:
    """Name the first field that was received and is unknown, or the other way round."""
    if isinstance(received, dict):
        if not isinstance(known, dict) and names_of(type(known)) is None:
            return TWICE
        there = known if isinstance(known, dict) else fields_of(known)
        for key in received.keys() ^ there.keys():
            return f".{key!s:.40}: " + ("unknown field" if key in received else "missing field")
        for key, value in received.items():
            if (inner := _difference(value, there[key])) is not None:
                return f".{key}{inner}"
    elif isinstance(received, list):
        if not isinstance(known, list | tuple):
            return TWICE
        for i, (one, other) in enumerate(zip(received, known, strict=False)):
            if (inner := _difference(one, other)) is not None:
                return f"[{i}]{inner}"
    return None
