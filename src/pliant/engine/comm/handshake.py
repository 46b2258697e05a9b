"""Handshake: two members of a generation prove to each other that they know its secret.

Owns the bytes of it, as generators that say when they wait: for reading or for writing.  Must not
know how many connections there are, when one is given up, or what a greeting is for.

    connector                                                      acceptor
        hello: a word of the generation, who to whom,
               a nonce, HMAC(secret, ...)               ------------>   a stranger is sent away here
        <------------  heard: HMAC(secret, hello); with TLS only
        <============= TLS 1.3 from here on, if the job wants it =============>
        <------------  answer: a nonce, HMAC(secret, hello, nonce)
        proof: HMAC(secret, hello, nonce, greeting), greeting  ----->
        <------------  welcome: HMAC(secret, hello, nonce, greeting), greeting

Challenge and response with HMAC (RFC 2104) over SHA-256, as in ISO/IEC 9798-4.  Nothing is said to
who has not said hello properly, or plays back a hello; every text names its direction, so none can
be sent back.  What travels later is protected by TLS alone.  TLS begins once the hello was heard:
of several connections to one member only the first that is heard goes on into TLS.
"""

from __future__ import annotations

import hashlib
import hmac
import os
import socket
import ssl
import struct
from collections.abc import Callable, Generator
from dataclasses import dataclass, field
from typing import TypeVar

from pliant.machine.tls import TlsContexts

READ, WRITE = 1, 2
"""What a step of a handshake waits for."""

SECRET_BYTES = 32
MAX_GREETING_BYTES = 16 << 20
"""Largest greeting: that of a reference to a member with another model describes every weight."""

_WORD_BYTES = 8
_NONCE_BYTES = 32
_MAC_BYTES = 32
_WHO = struct.Struct("<8sQII")
_LENGTH = struct.Struct("<I")
_HELLO_BYTES = _WHO.size + _NONCE_BYTES + _MAC_BYTES

T = TypeVar("T")
Steps = Generator[int, None, T]
"""Yields what it waits for; returns what came of it."""


class HandshakeFailed(Exception):  # noqa: N818
    """The other side does not know the secret, speaks otherwise, or is gone."""


@dataclass(slots=True)
class Handshake:
    """One connection on its way to be a member's."""

    sock: socket.socket
    generation: int
    secret: bytes = field(repr=False)
    size: int
    """Number of members."""

    rank: int
    """Of this member."""

    tls: TlsContexts | None = None

    hellos: set[bytes] = field(default_factory=set)
    """All hellos that have come to this member in this generation."""

    peer: int | None = None
    """Of the other one: known from the start where this side connects, else after its hello."""

    is_known: bool = False
    """The other side has shown that it knows the secret, or plays back who does."""

    def admit(self, peer: int, hello: bytes) -> None:
        """Take note of who is at the other end; a hello that has come before is a recorded one."""
        if hello in self.hellos:
            raise HandshakeFailed("a hello that has come before")
        self.hellos.add(hello)
        self.peer = peer

    def encrypt(self, *, is_server: bool) -> Steps[None]:
        """Go on in TLS, if the job wants it."""
        if self.tls is None:
            return
        self.sock.getpeername()  # raises if that end is gone: wrapping would lose the descriptor
        context = self.tls.server if is_server else self.tls.client
        self.sock = sock = context.wrap_socket(
            self.sock, server_side=is_server, do_handshake_on_connect=False
        )
        while True:
            try:
                sock.do_handshake()
            except ssl.SSLWantReadError:
                yield READ
            except ssl.SSLWantWriteError:
                yield WRITE
            else:
                return

    def mac(self, what: bytes, *texts: bytes) -> bytes:
        """Prove to know the secret."""
        return hmac.new(self.secret, b"\0".join((what, *texts)), hashlib.sha256).digest()

    def check(self, found: bytes, what: bytes, *texts: bytes) -> None:
        """Make sure that the other side knows it."""
        if not hmac.compare_digest(found, self.mac(what, *texts)):
            raise HandshakeFailed("the other side does not know the secret of the generation")
        self.is_known = True


def word_of(secret: bytes) -> bytes:
    """Return the 8 bytes with which every hello of a generation begins; they prove nothing."""
    return hmac.digest(secret, b"pliant/1", "sha256")[:_WORD_BYTES]


def connecting(handshake: Handshake, greeting: bytes) -> Steps[bytes]:
    """Prove to the acceptor that this is a member; return its greeting."""
    yield WRITE
    if error := handshake.sock.getsockopt(socket.SOL_SOCKET, socket.SO_ERROR):
        raise OSError(error, os.strerror(error))
    who = _WHO.pack(
        word_of(handshake.secret), handshake.generation, handshake.rank, handshake.peer or 0
    )
    who += os.urandom(_NONCE_BYTES)
    hello = who + handshake.mac(b"knock", who)
    yield from _write(handshake.sock, hello)
    if handshake.tls is not None:
        handshake.check((yield from _read(handshake.sock, _MAC_BYTES)), b"heard", hello)
    yield from handshake.encrypt(is_server=False)
    answer = yield from _read(handshake.sock, _NONCE_BYTES + _MAC_BYTES)
    nonce, proof = answer[:_NONCE_BYTES], answer[_NONCE_BYTES:]
    handshake.check(proof, b"answer", hello, nonce)
    proof = handshake.mac(b"proof", hello, nonce, greeting)
    yield from _write(handshake.sock, proof + _LENGTH.pack(len(greeting)) + greeting)
    return (yield from _read_greeting(handshake, b"welcome", hello, nonce))


def accepting(handshake: Handshake, greet: Callable[[bytes], bytes]) -> Steps[bytes]:
    """Find out who connects and whether it is a member; return its greeting.

    ``greet`` gets the other side's greeting and returns the own.  ``handshake.peer`` is set as soon
    as the other side has said hello properly.
    """
    hello = yield from _read(handshake.sock, _HELLO_BYTES)
    who, proof = hello[:-_MAC_BYTES], hello[-_MAC_BYTES:]
    handshake.check(proof, b"knock", who)
    _, generation, peer, rank = _WHO.unpack_from(who)
    if (generation, rank) != (handshake.generation, handshake.rank):
        raise HandshakeFailed("a hello that was meant for somebody else")
    if not handshake.rank < peer < handshake.size:
        raise HandshakeFailed(f"rank {peer} does not connect to rank {handshake.rank}")
    handshake.admit(peer, hello)
    if handshake.tls is not None:
        yield from _write(handshake.sock, handshake.mac(b"heard", hello))
    yield from handshake.encrypt(is_server=True)
    nonce = os.urandom(_NONCE_BYTES)
    yield from _write(handshake.sock, nonce + handshake.mac(b"answer", hello, nonce))
    theirs = yield from _read_greeting(handshake, b"proof", hello, nonce)
    own = greet(theirs)
    proof = handshake.mac(b"welcome", hello, nonce, own)
    yield from _write(handshake.sock, proof + _LENGTH.pack(len(own)) + own)
    return theirs


def _read_greeting(handshake: Handshake, what: bytes, *texts: bytes) -> Steps[bytes]:
    head = yield from _read(handshake.sock, _MAC_BYTES + _LENGTH.size)
    (length,) = _LENGTH.unpack_from(head, _MAC_BYTES)
    if length > MAX_GREETING_BYTES:
        raise HandshakeFailed(f"a greeting of {length} bytes")
    greeting = yield from _read(handshake.sock, length)
    handshake.check(head[:_MAC_BYTES], what, *texts, greeting)
    return greeting


def _write(sock: socket.socket, data: bytes) -> Steps[None]:
    view = memoryview(data)
    while view:
        try:
            view = view[sock.send(view) :]
        except (BlockingIOError, ssl.SSLWantWriteError):
            yield WRITE
        except ssl.SSLWantReadError:
            yield READ


def _read(sock: socket.socket, count: int) -> Steps[bytes]:
    """Read so many bytes and not one more: what follows belongs to somebody else."""
    data = bytearray()
    while len(data) < count:
        try:
            piece = sock.recv(min(count - len(data), 1 << 16))
        except (BlockingIOError, ssl.SSLWantReadError):
            yield READ
            continue
        except ssl.SSLWantWriteError:
            yield WRITE
            continue
        if not piece:
            raise HandshakeFailed("the other side closed the connection")
        data += piece
    return bytes(data)
