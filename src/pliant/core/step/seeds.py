"""Seeds: one number for each place where random numbers are drawn.

Owns the hash from coordinates, such as (seed, epoch, position), to a seed.  Must not know what a
coordinate means, nor torch or numpy: whoever draws random numbers seeds with what it gets here.
"""

from __future__ import annotations

import hashlib
from operator import index


def mix(*coordinates: int | str) -> int:
    """Hash coordinates to a seed below 2**32: torch's CPU generator uses no higher bits.

    Equal on every machine and in every release; pinned by a test.  Any integer type counts as the
    integer it stands for.
    """
    return int.from_bytes(_digest(coordinates, 4), "little")


def keys(*coordinates: int | str) -> tuple[int, ...]:
    """Hash coordinates to eight independent 64-bit numbers."""
    digest = _digest(coordinates, 64)
    return tuple(int.from_bytes(digest[at : at + 8], "little") for at in range(0, 64, 8))


def _digest(coordinates: tuple[int | str, ...], num_bytes: int) -> bytes:
    plain = tuple(part if isinstance(part, str) else index(part) for part in coordinates)
    return hashlib.blake2b(repr(plain).encode(), digest_size=num_bytes).digest()
