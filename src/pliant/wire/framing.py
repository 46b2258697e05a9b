"""Frames on a byte stream: four bytes of length, big-endian, then the message.

Owns cutting a stream into messages, whatever the pieces it arrives in.  Knows nothing of what
a message says, and does no I/O: a reader feeds it bytes.  The WebSocket has frames of its own.

Also owns when a message is packed: an order with a thousand members goes to a thousand agents.
Nothing is unpacked beyond the largest message there is, whoever packed it.  Only agents unpack:
what they say is short, and a coordinator takes no packed message.  On a WebSocket a packed message
is a binary one, and every other one is text.

The length of what is packed tells of what is in it, also under TLS.  Of the secret of a generation
it tells nothing to go by: it is in one order and its repetitions, and the next one has another.
"""

from __future__ import annotations

import zlib
from collections.abc import Iterable, Iterator

from pliant.wire.codec import MAX_MESSAGE_BYTES, Envelope, Refusal, decode

_HEADER_BYTES = 4


class FrameError(Exception):
    """The stream announces a frame beyond the limit; nothing after it can be trusted."""


def frame(message: bytes) -> bytes:
    """Put the length in front of a message."""
    return len(message).to_bytes(_HEADER_BYTES, "big") + message


class Unframer:
    """Collects bytes and gives back whole messages."""

    def __init__(self) -> None:
        self._buffer = bytearray()

    def feed(self, data: bytes) -> Iterator[bytes]:
        """Yield the messages that ``data`` completes.

        Raises:
            FrameError: a length beyond ``MAX_MESSAGE_BYTES``; the stream must be closed.
        """
        self._buffer += data
        while len(self._buffer) >= _HEADER_BYTES:
            length = int.from_bytes(self._buffer[:_HEADER_BYTES], "big")
            if length > MAX_MESSAGE_BYTES:
                raise FrameError(f"a frame of {length} bytes; at most {MAX_MESSAGE_BYTES}")
            end = _HEADER_BYTES + length
            if len(self._buffer) < end:
                return
            message = bytes(self._buffer[_HEADER_BYTES:end])
            del self._buffer[:end]
            yield message


# --- large messages in fewer bytes

PACKED_FROM = 4096
"""Smaller messages go as they are, in bytes: some 70 members fit in three packets."""

_LEVEL = 1
"""Of zlib: 55 kB become 13 kB in 0.2 ms; level 6 makes 12 kB of them in 3 ms."""


def packed(message: bytes) -> bytes | None:
    """Return a message as it is sent if it is large; None: it goes as it is."""
    return zlib.compress(message, _LEVEL) if len(message) >= PACKED_FROM else None


def decode_packed(data: bytes | str, allowed: Iterable[type] | None = None) -> Envelope | Refusal:
    """Read one message as it came over a WebSocket: one in bytes is packed."""
    message = unpacked(data) if isinstance(data, bytes) else data
    return message if isinstance(message, Refusal) else decode(message, allowed)


def unpacked(data: bytes) -> bytes | Refusal:
    """Return the message that was packed; of what is larger than any no more is unpacked."""
    unpacking = zlib.decompressobj()
    try:
        message = unpacking.decompress(data, MAX_MESSAGE_BYTES + 1)
    except zlib.error as error:
        return Refusal(reason=f"no packed message: {error}")
    if len(message) > MAX_MESSAGE_BYTES:
        return Refusal(reason=f"more than {MAX_MESSAGE_BYTES} bytes, packed; no more are read")
    if not unpacking.eof or unpacking.unused_data:
        return Refusal(reason="no packed message: it does not end where it should")
    return message
