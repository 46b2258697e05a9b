"""A TCP proxy that breaks connections: cuts them in the middle, slows them, or lets them hang."""

from __future__ import annotations

import socket
import struct
import threading
from collections.abc import Iterator
from contextlib import contextmanager, suppress

_BODY = b"<Error><Code>AccessDenied</Code><Message>Access Denied</Message></Error>"
_DENIED = (
    b"HTTP/1.1 403 Forbidden\r\nContent-Type: application/xml\r\nConnection: close\r\n"
    b"Content-Length: %d\r\n\r\n%s" % (len(_BODY), _BODY)
)


class Proxy:
    """Between a client and a server on loopback; counts what clients send."""

    def __init__(self, endpoint: str) -> None:
        host, _, port = endpoint.removeprefix("http://").partition(":")
        self._target = (host, int(port))
        self._listener = socket.create_server(("127.0.0.1", 0))
        self._open: list[socket.socket] = []
        self._threads: list[threading.Thread] = []
        self._ended = threading.Event()
        self._lock = threading.Lock()
        self.cut_after: int | None = None
        """Reset connections once so many more bytes came from clients; ``None``: never."""
        self.num_cuts_left = 0
        self.num_cuts = 0
        self.bytes_per_s: float | None = None
        self.is_hung = False
        self.is_denied = False
        """Answer everything as S3 does when a permission was taken away."""
        self._start(self._accept)

    @property
    def endpoint(self) -> str:
        host, port = self._listener.getsockname()
        return f"http://{host}:{port}"

    def cut(self, *, after: int, times: int = 1) -> None:
        """Reset the connection after so many bytes, so many times."""
        with self._lock:
            self.cut_after, self.num_cuts_left = after, times
            self._after = after

    def close(self) -> None:
        self._ended.set()
        with suppress(OSError):
            self._listener.shutdown(socket.SHUT_RDWR)
        self._listener.close()
        with self._lock:
            for connection in self._open:
                with suppress(OSError):
                    connection.shutdown(socket.SHUT_RDWR)
        for thread in self._threads:
            thread.join(5)
        for connection in self._open:
            connection.close()

    def _start(self, target: object, *arguments: object) -> None:
        thread = threading.Thread(target=target, args=arguments, daemon=True)  # type: ignore[arg-type]
        self._threads.append(thread)
        thread.start()

    def _accept(self) -> None:
        while not self._ended.is_set():
            try:
                client, _ = self._listener.accept()
                server = socket.create_connection(self._target)
            except OSError:
                return
            with self._lock:
                self._open += [client, server]
            self._start(self._pump, client, server, True)
            self._start(self._pump, server, client, False)

    def _pump(self, source: socket.socket, target: socket.socket, from_client: bool) -> None:
        with suppress(OSError):
            while data := source.recv(65536):
                if from_client and self._is_cut(len(data)):
                    for end in (source, target):
                        linger = struct.pack("ii", 1, 0)  # close sends a reset
                        end.setsockopt(socket.SOL_SOCKET, socket.SO_LINGER, linger)
                        end.shutdown(socket.SHUT_RD)
                        end.close()
                    return
                if self.is_denied and from_client:
                    source.sendall(_DENIED)
                    source.shutdown(socket.SHUT_WR)
                    while source.recv(65536):  # what else the client has to say
                        pass
                    return
                if self.is_hung:
                    self._ended.wait()
                    return
                if self.bytes_per_s is not None and from_client:
                    self._ended.wait(len(data) / self.bytes_per_s)
                target.sendall(data)
        with suppress(OSError):
            target.shutdown(socket.SHUT_WR)

    def _is_cut(self, num_bytes: int) -> bool:
        with self._lock:
            if self.cut_after is None or self.num_cuts_left == 0:
                return False
            self.cut_after -= num_bytes
            if self.cut_after > 0:
                return False
            self.num_cuts_left -= 1
            self.num_cuts += 1
            self.cut_after = self._after
            return True


@contextmanager
def proxy(endpoint: str) -> Iterator[Proxy]:
    """Run a proxy for a while."""
    found = Proxy(endpoint)
    try:
        yield found
    finally:
        found.close()
