"""A WebSocket on which a thousand can talk: messages go straight to who takes them, and out.

Owns the short way: what was read is handed over in the same turn of the event loop, without a task
that wakes for it and without a pause of the reading after each message, and a frame that goes to
many is made once.  A message in one frame of text, as all that agents say, is read here; with the
first frame that is anything else the connection goes over to ``websockets``: to pings, fragments,
what is too large and the close.  Knows nothing of what is said.
"""

from __future__ import annotations

import asyncio
from collections import deque
from collections.abc import Callable
from typing import Any

from fastapi import WebSocket
from uvicorn.protocols.websockets.websockets_sansio_impl import WebSocketsSansIOProtocol
from websockets.frames import Frame, Opcode
from websockets.protocol import State

try:
    from websockets.speedups import apply_mask
except ImportError:  # a platform without its C extension
    from websockets.utils import apply_mask

AT_ONCE = 64
"""Messages of one connection that are taken in one turn of the event loop."""

_NAME = "direct_socket"

_TEXT = 0x81
"""First byte of a message of text in one frame."""

_MASKED = 0x80
_NO_MASK = bytes(4)
_LONG, _LONGER = 126, 127
"""Sizes that stand for two, or eight, bytes of size that follow."""

OnMessage = Callable[[bytes], None]


def frame_of(message: bytes, *, is_text: bool = True) -> bytes:
    """Return the frame that carries a message to a client; the same for every one."""
    return Frame(Opcode.TEXT if is_text else Opcode.BINARY, message).serialize(mask=False)


class DirectSocket(WebSocketsSansIOProtocol):
    """One connection; an app finds its own by ``direct``.

    It can be ended while its other side is closing it, which takes TLS a while.  Who asks for one
    in a way that ``websockets`` does not read is cut off: nobody else would answer or end that
    connection, and it does not count among those that have limits.
    """

    def __init__(self, config: Any, server_state: Any, app_state: dict[str, Any]) -> None:
        super().__init__(config, server_state, {**app_state, _NAME: self})
        self._on_message: OnMessage | None = None
        self._waiting: deque[bytes] = deque()
        self._is_plain = True
        """Whether nothing came since the handshake but messages in one frame of text."""

        self._begun = bytearray()
        """Of the next such message what has come of it."""

    @property
    def num_unsent(self) -> int:
        """Bytes that were sent and that the kernel has not taken yet."""
        closing = self.transport.is_closing()  # then one with TLS may have no buffer to ask for
        return 0 if closing else self.transport.get_write_buffer_size()

    def send_frame(self, frame: bytes) -> None:
        """Send a frame, after those before; nothing happens where the connection has ended."""
        if not (self.disconnected or self.close_sent or self.transport.is_closing()):
            self.transport.write(frame)

    async def hand_over(self, on_message: OnMessage) -> None:
        """Hand over each message as it is read, those that wait first; return at the end of all."""
        ends = []
        while not self.queue.empty():
            event: Any = self.queue.get_nowait()
            if event["type"] == "websocket.receive":
                text, data = event.get("text"), event.get("bytes")
                self._waiting.append(data if text is None else text.encode())
            else:
                ends.append(event)
        self._on_message = on_message
        try:
            self._hand_on()
            while not ends:
                ends = [await self.queue.get()]
            while self._waiting:  # it was said before the end
                await asyncio.sleep(0)
        finally:
            self._on_message = None
            self._waiting.clear()

    def hang_up(self) -> None:
        """Let ``hand_over`` return; what comes now is not taken."""
        self.queue.put_nowait({"type": "websocket.disconnect", "code": 1006})
        if self._on_message is not None:
            self._on_message = _ignore
            self._waiting.clear()

    def cut_off(self) -> None:
        """End the connection of one that does not read: it would not read a close, either."""
        self.transport.abort()

    def data_received(self, data: bytes) -> None:
        """Take what was read: messages in one frame of text here, and all else as it comes."""
        if self._is_plain and self.handshake_initiated:
            data = self._take_plain(data)
            if self._waiting and not self.read_paused:
                self._hand_on()
        if data:
            super().data_received(data)
            if not self.handshake_initiated:
                self.transport.abort()

    def connection_lost(self, exc: Exception | None) -> None:
        """Take note of the end; a transport with TLS cannot be asked for anything any more."""
        self.read_paused = False
        super().connection_lost(exc)

    def shutdown(self) -> None:
        """End the connection."""
        if not self.handshake_initiated:
            self.transport.abort()
        elif self.conn.state is State.CLOSING:
            self.transport.close()
        else:
            super().shutdown()

    def _take_plain(self, data: bytes) -> bytes:
        """Take the messages in one frame of text, up to something else; return the rest."""
        read: bytes | bytearray = data
        if self._begun:
            self._begun += data
            read = self._begun
        at, self._is_plain = 0, self.conn.state is State.OPEN
        while self._is_plain and len(read) - at > 1:
            found = _plain_payload(read, at)
            if found is None or found[1] - found[0] > self.config.ws_max_size:
                self._is_plain = False
                break
            begin, end = found
            if end > len(read):
                break
            payload, mask = bytes(read[begin:end]), bytes(read[begin - 4 : begin])
            self.curr_msg_data_type = "text"
            self.frames = [payload if mask == _NO_MASK else apply_mask(payload, mask)]
            self.send_receive_event_to_app()
            at = end
        if not self._is_plain:
            rest, self._begun = bytes(read[at:]), bytearray()
            return rest
        if read is data:
            self._begun += data[at:]
        else:
            del self._begun[:at]
        return b""

    def handle_events(self) -> None:
        """Take what was read."""
        super().handle_events()
        if self._waiting and not self.read_paused:
            self._hand_on()

    def send_receive_event_to_app(self) -> None:
        """Take one message."""
        if self._on_message is None:
            super().send_receive_event_to_app()
            return
        frames, self.frames = self.frames, []
        if not self.close_sent:
            self._waiting.append(frames[0] if len(frames) == 1 else b"".join(frames))

    def _hand_on(self) -> None:
        """Hand over what waits; of much the rest in the next turn, before more is read."""
        for _ in range(min(len(self._waiting), AT_ONCE)):
            if self._waiting and self._on_message is not None:  # who takes one may have enough
                self._on_message(self._waiting.popleft())
        if bool(self._waiting) != self.read_paused and not self.disconnected:
            self.read_paused = bool(self._waiting)
            (self.transport.pause_reading if self.read_paused else self.transport.resume_reading)()
        if self._waiting:
            self.loop.call_soon(self._hand_on)


def _plain_payload(read: bytes | bytearray, at: int) -> tuple[int, int] | None:
    """Return where the payload of a message in one frame of text begins and ends; None: it is none.

    What has come of it may end anywhere from its third byte on.
    """
    if read[at] != _TEXT or read[at + 1] < _MASKED:
        return None
    size, begin = read[at + 1] - _MASKED, at + 6
    if size >= _LONG:
        begin += 2 if size == _LONG else 8
        if len(read) < begin:
            return begin, begin
        size = int.from_bytes(read[at + 2 : begin - 4], "big")
    return begin, begin + size


def direct(socket: WebSocket) -> DirectSocket:
    """Return the connection under an app's WebSocket, once it was accepted."""
    found: DirectSocket = socket.scope["state"][_NAME]
    return found


def _ignore(_data: bytes) -> None:
    """Take a message for nothing."""
