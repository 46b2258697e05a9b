"""A WebSocket on which a thousand can talk: messages go straight to who takes them, and out.

Owns the short way: what was read is handed over in the same turn of the event loop, without a task
that wakes for it and without a pause of the reading after each message, and a frame that goes to
many is made once.  What a frame is, pings, fragments, limits and the close stay with uvicorn and
``websockets``.  Knows nothing of what is said.
"""

from __future__ import annotations

import asyncio
from collections import deque
from collections.abc import Callable
from typing import Any

from fastapi import WebSocket
from websockets.frames import Frame, Opcode

from pliant.http.connections import EndableSocket

AT_ONCE = 64
"""Messages of one connection that are taken in one turn of the event loop."""

_NAME = "direct_socket"

OnMessage = Callable[[bytes], None]


def frame_of(text: str) -> bytes:
    """Return the frame that carries a text to a client; the same for every one."""
    return Frame(Opcode.TEXT, text.encode()).serialize(mask=False)


class DirectSocket(EndableSocket):
    """One connection; an app finds its own by ``direct``."""

    def __init__(self, config: Any, server_state: Any, app_state: dict[str, Any]) -> None:
        super().__init__(config, server_state, {**app_state, _NAME: self})
        self._on_message: OnMessage | None = None
        self._waiting: deque[bytes] = deque()

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


def direct(socket: WebSocket) -> DirectSocket:
    """Return the connection under an app's WebSocket, once it was accepted."""
    found: DirectSocket = socket.scope["state"][_NAME]
    return found


def _ignore(_data: bytes) -> None:
    """Take a message for nothing."""
