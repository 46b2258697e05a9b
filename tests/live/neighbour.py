"""A hostile neighbour: attacks ports of this machine until its standard input ends.

    python neighbour.py WORDS       a JSON object, see ``Neighbour``; on standard output first
                                    the user it is, at the end what it did and what it got

It is the user ``nobody`` where it may become that.  It attacks what it is told, and nobody else who
listens here.  Needs nothing but Python; knows how a handshake begins.
"""

from __future__ import annotations

import contextlib
import json
import os
import pwd
import resource
import selectors
import socket
import ssl
import struct
import sys
import threading
import time
from collections import Counter, deque
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import IO

NUM_IDLE = 1100
NUM_IN_BURST = 5000
MAX_OPEN = 200
"""Connections that one way of attacking keeps open, but for the idle ones."""

_TABLES = (("/proc/net/tcp", socket.AF_INET), ("/proc/net/tcp6", socket.AF_INET6))
_LISTENS = "0A"

Address = tuple[str, int]


def become_nobody() -> str:
    """Be the user ``nobody`` if this may; return who this is."""
    with contextlib.suppress(PermissionError, KeyError):
        nobody = pwd.getpwnam("nobody")
        os.setgroups([])
        os.setgid(nobody.pw_gid)
        os.setuid(nobody.pw_uid)
    return pwd.getpwuid(os.getuid()).pw_name


def listening() -> Iterator[Address]:
    """Find who listens on this machine, as everybody can."""
    for path, family in _TABLES:
        for line in Path(path).read_bytes().decode().splitlines()[1:]:
            _, local, _, state = line.split(maxsplit=4)[:4]
            if state == _LISTENS:
                address, port = local.split(":")
                words = struct.unpack(f">{len(address) // 8}I", bytes.fromhex(address))
                yield (
                    socket.inet_ntop(family, struct.pack(f"={len(words)}I", *words)),
                    int(port, 16),
                )


def hello(generation: int = 2, peer: int = 1, rank: int = 0) -> bytes:
    """Return the begin of a handshake by who does not know the secret."""
    return os.urandom(8) + struct.pack("<QII", generation, peer, rank) + os.urandom(64)


class Neighbour:
    """Attacks in several ways at once, each on a thread of its own."""

    def __init__(
        self,
        ways: list[str],
        known: list[Address],
        recorded: str = "",
    ) -> None:
        """``known``: addresses to attack; ``recorded``: what a member once said, in hex."""
        self.counts: Counter[str] = Counter()
        self.heard = b""
        self._ways = ways
        self._targets: list[Address] = [(host, port) for host, port in known]
        self._recorded = bytes.fromhex(recorded)
        self._over = threading.Event()

    def attack_until(self, over: Callable[[], object]) -> None:
        """Go on until ``over`` returns."""
        todo = [(each, getattr(self, f"_{each}")) for each in self._ways]
        threads = [threading.Thread(target=self._again, args=each) for each in todo]
        for thread in threads:
            thread.start()
        over()
        self._over.set()
        for thread in threads:
            thread.join()

    def hear_of(self, targets: IO[bytes]) -> None:
        """Attack what each line names (a JSON array of address and port), too; until they end."""
        for line in targets:
            host, port = json.loads(line)
            self._targets.append((host, port))

    def _again(self, way: str, attack: Callable[[], object]) -> None:
        held: deque[socket.socket] = deque()
        try:
            while not self._over.is_set():
                result = attack()
                if isinstance(result, socket.socket):
                    held.append(result)
                    self.counts[way] += 1
                if len(held) > (NUM_IDLE if way == "idle" else MAX_OPEN):
                    self._hang_up(held.popleft())
        finally:
            for sock in held:
                self._hang_up(sock)

    def _connected(self, says: bytes = b"") -> socket.socket | None:
        """Return a connection to one of the targets; the next one each time."""
        if not self._targets:
            time.sleep(0.002)
            return None
        self.counts["tries"] += 1
        host, port = self._targets[self.counts["tries"] % len(self._targets)]
        sock = socket.socket(socket.AF_INET6 if ":" in host else socket.AF_INET)
        sock.setblocking(False)
        try:
            if sock.connect_ex((host, port)) and not _is_connected(sock):
                raise ConnectionRefusedError
            if says:
                sock.send(says)
        except OSError:
            sock.close()
            return None
        return sock

    def _hang_up(self, sock: socket.socket) -> None:
        with contextlib.suppress(OSError):
            self.heard += sock.recv(4096)
        sock.close()

    # --- ways of attacking ------------------------------------------------------------------

    def _idle(self) -> socket.socket | None:
        return self._connected()

    def _garbage(self) -> socket.socket | None:
        return self._connected(os.urandom(2048))

    def _hello(self) -> socket.socket | None:
        """Begin a handshake of TLS, and leave it at that."""
        said = ssl.MemoryBIO()
        context = ssl.create_default_context()
        end = context.wrap_bio(ssl.MemoryBIO(), said, server_hostname="gpu1")
        with contextlib.suppress(ssl.SSLWantReadError):
            end.do_handshake()
        return self._connected(said.read())

    def _head(self) -> socket.socket | None:
        return self._connected(b"GET /v1/status HTTP/1.1\r\nHost: x\r\nX: ")

    def _ask(self) -> socket.socket | None:
        """Ask, and connect as an agent, with a token of its own making."""
        begin = b"Host: x\r\nAuthorization: Bearer %s\r\n" % os.urandom(16).hex().encode()
        upgrade = b"Upgrade: websocket\r\nConnection: Upgrade\r\nSec-WebSocket-Version: 13\r\n"
        key = b"Sec-WebSocket-Key: dGhlIHNhbXBsZSBub25jZQ==\r\n\r\n"
        said = (
            b"POST /v1/stop HTTP/1.1\r\n" + begin + b"Content-Length: 99999\r\n\r\n{",
            b"GET /v1/status HTTP/1.1\r\n" + begin + b"\r\n",
            b"GET /v1/agents HTTP/1.1\r\n" + begin + upgrade + key,
        )
        return self._connected(said[self.counts["tries"] % len(said)])

    def _half(self) -> socket.socket | None:
        return self._connected(hello()[:50])

    def _wrong(self) -> socket.socket | None:
        return self._connected(hello())

    def _replay(self) -> socket.socket | None:
        return self._connected(self._recorded)

    def _drip(self) -> socket.socket | None:
        sock = self._connected()
        if sock is not None:
            with contextlib.suppress(OSError):
                for byte in hello()[:3]:
                    sock.send(bytes([byte]))
                    self._over.wait(1)
        return sock

    def _burst(self) -> None:
        opened = []
        for _ in range(NUM_IN_BURST):
            if (sock := self._connected()) is not None:
                opened.append(sock)
            if self._over.is_set():
                break
        self.counts["burst"] += len(opened)
        for sock in opened:
            self._hang_up(sock)

    def _steal(self) -> None:
        """Try to have the port of somebody else."""
        for host, port in list(self._targets):
            self.counts["steal"] += take(host, port)
        time.sleep(0.001)


def take(host: str, port: int) -> int:
    """Return in how many of all possible ways this process can listen on a port of others."""
    taken = 0
    family = socket.AF_INET6 if ":" in host else socket.AF_INET
    for address in (host, "::" if ":" in host else "0.0.0.0"):
        for options in ((), (socket.SO_REUSEADDR,), (socket.SO_REUSEPORT,), _BOTH):
            with socket.socket(family) as sock, contextlib.suppress(OSError):
                for option in options:
                    sock.setsockopt(socket.SOL_SOCKET, option, 1)
                sock.bind((address, port))
                taken += 1
                sock.listen()
                taken += 1
    return taken


_BOTH = (socket.SO_REUSEADDR, socket.SO_REUSEPORT)


def _is_connected(sock: socket.socket) -> bool:
    """Wait a moment for a connection that is under way: the queue of the other side is full."""
    with selectors.DefaultSelector() as selector:
        selector.register(sock, selectors.EVENT_WRITE)
        return bool(selector.select(0.05)) and not sock.getsockopt(
            socket.SOL_SOCKET, socket.SO_ERROR
        )


def main() -> None:
    _, hard = resource.getrlimit(resource.RLIMIT_NOFILE)
    resource.setrlimit(resource.RLIMIT_NOFILE, (hard, hard))
    user = become_nobody()
    neighbour = Neighbour(**json.loads(sys.argv[1]))
    sys.stdout.write(f"{user}\n")
    sys.stdout.flush()
    neighbour.attack_until(lambda: neighbour.hear_of(sys.stdin.buffer))
    found = {"counts": neighbour.counts, "heard": neighbour.heard.hex()}
    sys.stdout.write(json.dumps(found) + "\n")


if __name__ == "__main__":
    main()
