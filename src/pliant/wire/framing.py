"""Frames on a byte stream: four bytes of length, big-endian, then the message.

Owns cutting a stream into messages, whatever the pieces it arrives in.  Knows nothing of what
a message says, and does no I/O: a reader feeds it bytes.  The WebSocket has frames of its own.
"""

from __future__ import annotations

from collections.abc import Iterator

from pliant.wire.codec import MAX_MESSAGE_BYTES

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
