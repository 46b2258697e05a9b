"""A road between an agent and its coordinator on which messages are lost and repeated."""

from __future__ import annotations

import json
import threading
from collections.abc import Callable
from contextlib import suppress

from tests.processes.apart import Road
from websockets.exceptions import WebSocketException
from websockets.sync.client import connect
from websockets.sync.connection import Connection
from websockets.sync.server import ServerConnection, serve

Copies = Callable[[str, int], int]
"""How often a message arrives: of its type, and the how manieth of that type it is, from 1."""


class LossyRoad(Road):
    """Carries messages, each as often as the test says."""

    def __init__(self, copies: Copies) -> None:
        self.port = 0
        self.is_open = True
        self.lost: list[str] = []
        self._copies = copies
        self._seen: dict[str, int] = {}
        self._lock = threading.Lock()
        self._connections: list[Connection] = []
        self._server = serve(self._take, "127.0.0.1", 0, max_size=None)
        self._thread = threading.Thread(target=self._server.serve_forever, daemon=True)
        self._thread.start()

    @property
    def url(self) -> str:
        return f"http://127.0.0.1:{self._server.socket.getsockname()[1]}"

    def close(self) -> None:
        self._break()
        self._server.shutdown()
        self._thread.join(10)

    def _break(self) -> None:
        for connection in self._connections:
            with suppress(OSError):
                connection.socket.close()

    def _take(self, agent: ServerConnection) -> None:
        if not self.is_open or not self.port or agent.request is None:
            return
        token = agent.request.headers["Authorization"]
        url = f"ws://127.0.0.1:{self.port}{agent.request.path}"
        with (
            suppress(OSError, WebSocketException),
            connect(
                url, additional_headers={"Authorization": token}, proxy=None, max_size=None
            ) as coordinator,
        ):
            self._connections += [agent, coordinator]
            down = threading.Thread(target=self._carry, args=(coordinator, agent), daemon=True)
            down.start()
            self._carry(agent, coordinator)
            down.join(10)

    def _carry(self, source: Connection, sink: Connection) -> None:
        with suppress(OSError, WebSocketException):
            for text in source:
                kind = json.loads(text)["type"]
                with self._lock:
                    self._seen[kind] = number = self._seen.get(kind, 0) + 1
                    copies = self._copies(kind, number)
                    self.lost += [kind] * (not copies)
                for _ in range(copies):
                    sink.send(text)
        with suppress(OSError, WebSocketException):
            sink.close()
