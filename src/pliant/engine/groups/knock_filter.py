"""Knock filter: the kernel drops what strangers say to a listener, before anybody is woken by it.

Owns a program for the kernel (socket(7), bpf(4)).  Must not know what a knock is but for how it
begins, or who listens.

It looks at packets one by one, of connections that nobody has accepted yet: those that say nothing
pass, and those that begin with one of some words.  It is there to be quick with a flood; who a
connection is from is for the handshake to prove.  What it drops, the sender's kernel sends again.
"""

from __future__ import annotations

import contextlib
import ctypes
import socket
import struct
from collections.abc import Collection

WORD_BYTES = 8

_SO_ATTACH_FILTER, _SO_DETACH_FILTER = 26, 27
"""Linux 2.2; not in Python's ``socket``."""

_TO_X, _LOAD_BYTE, _LOAD_WORD_AT_X, _LOAD_LENGTH = 0x07, 0x30, 0x40, 0x80
_AND, _SHIFT_RIGHT, _IF_EQUAL, _IF_GREATER_THAN_X, _IF_ANY_OF = 0x54, 0x74, 0x15, 0x2D, 0x45
_FIN = 0x01
_PASS, _DROP = (0x06, 0, 0, 0xFFFFFFFF), (0x06, 0, 0, 0)

_HEAD = [
    (_LOAD_BYTE, 0, 0, 12),  # its upper half is the length of the TCP header, in words
    (_AND, 0, 0, 0xF0),
    (_SHIFT_RIGHT, 0, 0, 2),
    (_TO_X, 0, 0, 0),
    (_LOAD_LENGTH, 0, 0, 0),
    (_IF_GREATER_THAN_X, 4, 0, 0),
    (_LOAD_BYTE, 0, 0, 13),
    (_IF_ANY_OF, 1, 0, _FIN),
    _PASS,  # it says nothing
    _DROP,  # it ends what has not begun: else the kernel would hand it over
]


def let_in(listener: socket.socket, words: Collection[bytes]) -> None:
    """Have the kernel drop what begins otherwise; in place of the words before, if there were."""
    code = list(_HEAD)
    for word in words:
        first, second = struct.unpack(">II", word)
        code += [
            (_LOAD_WORD_AT_X, 0, 0, 0),
            (_IF_EQUAL, 0, 3, first),
            (_LOAD_WORD_AT_X, 0, 0, 4),
            (_IF_EQUAL, 0, 1, second),
            _PASS,
        ]
    code.append(_DROP)
    program = ctypes.create_string_buffer(b"".join(struct.pack("HBBI", *line) for line in code))
    where = struct.pack("HP", len(code), ctypes.addressof(program))
    with contextlib.suppress(OSError):  # a kernel that refuses it wakes us for everybody
        listener.setsockopt(socket.SOL_SOCKET, _SO_ATTACH_FILTER, where)


def hear_all(accepted: socket.socket) -> None:
    """Have the kernel drop nothing more of an accepted connection: it has its listener's filter."""
    with contextlib.suppress(OSError):
        accepted.setsockopt(socket.SOL_SOCKET, _SO_DETACH_FILTER, 0)
