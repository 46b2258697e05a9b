"""What a thousand replicas say in the same words, but for their names and times: checked once.

Owns that a message is told from another one by its bytes alone, where nothing in them but one name
differs from a message that ``decode`` has taken, and of a commit when it was and how long the step
took.  Knows nothing of what is said.
"""

from __future__ import annotations

import re
from collections.abc import Collection
from dataclasses import replace
from typing import Any

from pliant.core.events import Prepared, Progressed, Switched
from pliant.core.values import ReplicaId
from pliant.wire.codec import Envelope, Message, Refusal, decode
from pliant.wire.messages import Committed

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
