"""Messages as bytes: one JSON object with version, type and incarnation, checked to the last field.

Owns the envelope ``{"v": 11, "type": "prepare", "incarnation": 3, ...fields}`` and its check.
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
from collections.abc import Collection, Iterable
from dataclasses import dataclass, replace
from typing import Any, get_args

import pydantic_core
from pydantic import TypeAdapter, ValidationError

from pliant.core.commands import Command, Prepare, Reform, Switch, type_name
from pliant.core.events import Event, Prepared, Progressed, Switched, WorkerEvent
from pliant.core.text import in_one_line
from pliant.core.values import Incarnation, Order, ReplicaId
from pliant.wire.bounds import MOST, excess, fields_of, names_of
from pliant.wire.messages import (
    AgentNote,
    Committed,
    CoordinatorNote,
    FollowerNote,
    JoinHosts,
    Note,
    WorkerNote,
)

VERSION = 11
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


# --- what a thousand replicas say in the same words, but for names and times
#
# A message is told from another one by its bytes alone, where nothing in them but one name differs
# from a message that ``decode`` has taken, and of a commit when it was and how long the step took.

_REPEATED = (Prepared, Switched, Progressed, Committed)
"""What all members say of one order, or of one step; flat, so that there is one name in each."""

_NAME = re.compile(rb'[{,]"replica":"(r[1-9][0-9]{0,14})"')
_WHEN = re.compile(rb',"mono_s":((?:0|[1-9][0-9]{0,8})\.[0-9]{1,20}),')
_HOW_LONG = re.compile(rb',"step_s":((?:0|[1-9][0-9]{0,8})\.[0-9]{1,20}),')
_KEYS = (b'"replica"', b'"mono_s"', b'"step_s"')
_OWN = b"\0"
"""Stands for what is its sender's own: no JSON has it as it is."""

_MOST_KNOWN = 64
"""Wordings: some orders, and steps with some kinds of progress; the others are read anew."""


class SameWords:
    """Reads messages, and knows again those that differ from one that it has read by the name."""

    def __init__(self, allowed: Collection[type]) -> None:
        """``allowed``: the types that the senders may send."""
        self._allowed = frozenset(allowed)
        self._known: dict[bytes, Any] = {}

    def read(self, data: bytes) -> Message | Refusal:
        """Read one message; as ``decode`` does, sooner."""
        found = _NAME.search(data)
        if found is None:
            return _message_of(decode(data, self._allowed))
        begin, end = found.span(1)
        own: dict[str, Any] = {"replica": ReplicaId(found[1].decode())}
        words = data[:begin] + _OWN + data[end:]
        if (when := _WHEN.search(words)) and (long := _HOW_LONG.search(words, when.end(1))):
            own |= {"mono_s": float(when[1]), "step_s": float(long[1])}
            between = words[when.end(1) : long.start(1)]
            words = words[: when.start(1)] + _OWN + between + _OWN + words[long.end(1) :]
        if (known := self._known.get(words)) is not None:
            message: Message = replace(known, **own)
            return message
        message_or_not = _message_of(decode(data, self._allowed))
        if isinstance(message_or_not, _REPEATED) and _names_once(data):
            if len(self._known) == _MOST_KNOWN:
                self._known.clear()
            self._known[words] = message_or_not
        return message_or_not


def _names_once(data: bytes) -> bool:
    """Whether what is its sender's own is there once, in plain letters: of two the last counts."""
    return all(data.count(key) <= 1 for key in _KEYS) and b"\\" not in data


def _message_of(received: Envelope | Refusal) -> Message | Refusal:
    return received if isinstance(received, Refusal) else received.message
