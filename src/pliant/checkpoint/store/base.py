"""Storage: the few operations that durable state needs of a place that keeps bytes.

Owns what a storage must be able to do, and the values that go with it.  ``directory`` and
``objects`` do it; ``open`` chooses.  Must not know what the bytes are.

Paths are relative to the root, with ``/``.  Every failure is a ``StorageError`` that names the
whole place; what is absent is a ``MissingError``.
"""

from __future__ import annotations

import math
from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Any, Protocol

from pliant.core.errors import ConfigError

Data = bytes | bytearray | memoryview


@dataclass(frozen=True, slots=True)
class StorageEntry:
    """One name in a listing; a directory counts as 0 bytes."""

    name: str
    num_bytes: int
    is_directory: bool = False
    age_s: float = field(default=math.inf, compare=False)
    """Since it was written, in seconds, where the storage says so."""


class Sink(Protocol):
    """A file being written; it is there, whole and durable, once ``close`` has returned."""

    def write(self, data: Data, /) -> int:
        """Add bytes; they are taken before this returns."""

    def close(self) -> None:
        """Make everything durable."""

    def abandon(self) -> None:
        """Give up: what was written need not stay.  Never raises; allowed after ``close``."""


class Storage(Protocol):
    """One checkpoint root."""

    @property
    def has_one_winner(self) -> bool:
        """Whether of several ``create`` or ``exchange`` at one moment at most one succeeds."""

    def place(self, path: str = "") -> str:
        """Return how people call a path."""

    def read(self, path: str) -> bytes:
        """Return a whole file."""

    def read_range(self, path: str, offset: int, length: int) -> Data:
        """Return up to ``length`` bytes, which are the caller's own: fewer where the file ends."""

    def write(self, path: str, data: bytes) -> None:
        """Put a small file in place: all of it or, after a crash, what was there before."""

    def create(self, path: str, data: bytes) -> bool:
        """Put a small file where there is none; false, and nothing changed, if there is one."""

    def exchange(self, path: str, data: bytes, *, expected: bytes) -> bool:
        """Replace a small file that is as expected; false, and nothing changed, if it is not."""

    def sink(self, path: str) -> Sink:
        """Begin a large file."""

    def entries(self, path: str = "") -> list[StorageEntry]:
        """Return what is directly in a directory, by name; nothing if it is not there."""

    def remove(self, path: str) -> None:
        """Remove a file or a directory with all in it; nothing happens if it is not there."""


def sizes_in(storage: Storage, path: str) -> dict[str, int]:
    """Return how many bytes each file that is directly in a directory has."""
    return {entry.name: entry.num_bytes for entry in storage.entries(path)}


@dataclass(frozen=True, slots=True, kw_only=True)
class StorageOptions:
    """How a place is reached."""

    fsspec: Mapping[str, Any] = field(default_factory=dict)
    """Passed to the file system: keys, ``endpoint_url``, ``project``, ..."""

    timeout_s: float = 60.0
    """Longest wait for one operation, or one 16 MiB part, on an object store.  A part at 1 MB/s
    takes 17 s."""

    def __post_init__(self) -> None:
        if not self.timeout_s > 0:
            raise ConfigError(f"timeout_s={self.timeout_s} must be more than 0")
