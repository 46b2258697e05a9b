"""A storage that stops at a chosen operation, as a crash or a failing disk would."""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import Any

from pliant.checkpoint.failures import StorageError, Trouble
from pliant.checkpoint.store.base import Data, Sink, Storage


class CrashError(BaseException):
    """The process ends here: nothing may catch it."""


@dataclass
class Fuse:
    """Counts changes to the storage; blows at one of them, and stays blown."""

    blows_at: int = 1 << 30
    error: BaseException = field(default_factory=CrashError)
    count: int = 0

    def burn(self) -> bool:
        """Count one change; return whether it is the one that is cut short."""
        if self.count > self.blows_at:
            raise self.error
        self.count += 1
        return self.count > self.blows_at


class FaultyStorage:
    """Passes everything on until its fuse blows; a large write is cut in the middle."""

    def __init__(self, inner: Storage, fuse: Fuse) -> None:
        self._inner = inner
        self._fuse = fuse

    def __getattr__(self, name: str) -> Any:
        return getattr(self._inner, name)

    def write(self, path: str, data: bytes) -> None:
        self._change()
        self._inner.write(path, data)
        self._change()

    def create(self, path: str, data: bytes) -> bool:
        self._change()
        return self._inner.create(path, data)

    def exchange(self, path: str, data: bytes, *, expected: bytes) -> bool:
        self._change()
        return self._inner.exchange(path, data, expected=expected)

    def remove(self, path: str) -> None:
        """A crash in the middle leaves some of the files."""
        for entry in self._inner.entries(path):
            self._change()
            self._inner.remove(f"{path}/{entry.name}")
        self._change()
        self._inner.remove(path)

    def sink(self, path: str) -> Sink:
        self._change()
        return _FaultySink(self._inner.sink(path), self._fuse)

    def _change(self) -> None:
        if self._fuse.burn():
            raise self._fuse.error


class _FaultySink:
    def __init__(self, inner: Sink, fuse: Fuse) -> None:
        self._inner = inner
        self._fuse = fuse

    def write(self, data: Data, /) -> int:
        if self._fuse.burn():
            self._inner.write(memoryview(data).cast("B")[: len(data) // 2])
            raise self._fuse.error
        return self._inner.write(data)

    def close(self) -> None:
        if self._fuse.burn():
            raise self._fuse.error
        self._inner.close()

    def abandon(self) -> None:
        self._inner.abandon()


def full(place: str) -> StorageError:
    """Return what a full storage raises."""
    return StorageError(place, Trouble.FULL, "No space left on device", doing="written")
