"""What a thousand replicas say in the same words, but for their names: checked once.

Owns that a message is told from another one by its bytes alone, where nothing in them but one name
differs from a message that ``decode`` has taken.  Knows nothing of what is said.
"""

from __future__ import annotations

import re
from collections.abc import Collection
from typing import Any

from pliant.core.copies import changed
from pliant.core.events import Prepared, Progressed, Switched
from pliant.core.values import ReplicaId
from pliant.wire.codec import Envelope, Message, Refusal, decode

_REPEATED = (Prepared, Switched, Progressed)
"""What all members say of one order, or of one step; flat, so that there is one name in each."""

_NAME = re.compile(rb'[{,]"replica":"(r[1-9][0-9]{0,14})"')
_KEY = b'"replica"'
_NO_NAME = b"\0"
"""Stands for the name: no JSON has it as it is."""

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
        words = data[:begin] + _NO_NAME + data[end:]
        name = ReplicaId(found[1].decode())
        if (known := self._known.get(words)) is not None:
            message: Message = changed(known, replica=name)
            return message
        message_or_not = _message_of(decode(data, self._allowed))
        if isinstance(message_or_not, _REPEATED) and _names_once(data):
            if len(self._known) == _MOST_KNOWN:
                self._known.clear()
            self._known[words] = message_or_not
        return message_or_not


def _names_once(data: bytes) -> bool:
    """Whether there is one name, in plain letters: of two the last would count."""
    return data.count(_KEY) == 1 and b"\\" not in data


def _message_of(received: Envelope | Refusal) -> Message | Refusal:
    return received if isinstance(received, Refusal) else received.message
