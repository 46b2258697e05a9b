"""Scratch: memory that the exchange of a bucket needs only while it runs.

Owns one piece of it, which grows.  Must not know what is put there.
"""

from __future__ import annotations

import torch

from pliant.engine.reduce.pages import lasting


class Scratch:
    """Memory for one bucket at a time."""

    def __init__(self) -> None:
        self._memory: torch.Tensor | None = None

    def provide(self, numel: int, dtype: torch.dtype) -> torch.Tensor:
        """Return so many elements, of any value; what was lent before is lost."""
        size = numel * dtype.itemsize
        if self._memory is None or self._memory.numel() < size:
            self._memory = lasting(size, torch.uint8)
        return self._memory[:size].view(dtype)
