"""Descriptors kept for what must not fail when a process has run out of them.

Owns a few open files that mean nothing.  Knows nothing of what they are lent for.
"""

from __future__ import annotations

import os
from collections.abc import Iterator
from contextlib import contextmanager


class SpareDescriptors:
    """So many descriptors that nobody else can take; given up with the object."""

    def __init__(self, number: int) -> None:
        self._number = number
        self._kept: list[int] = []
        self._take()

    @contextmanager
    def lent(self) -> Iterator[None]:
        """Let what is opened within have them; they are taken again as far as there are any."""
        self._give()
        try:
            yield
        finally:
            self._take()

    def __del__(self) -> None:
        self._give()

    def _give(self) -> None:
        while self._kept:
            os.close(self._kept.pop())

    def _take(self) -> None:
        while len(self._kept) < self._number:
            try:
                self._kept.append(os.open(os.devnull, os.O_RDONLY | os.O_CLOEXEC))
            except OSError:
                return
