"""Real text that every Python has: the documentation topics behind ``help("LOOPING")``.

Owns the data set of the demo and the examples, about half a megabyte of English prose and code
without a download.  Knows nothing of models.
"""

from __future__ import annotations

from importlib import import_module

import torch
from torch import Tensor
from torch.utils.data import Dataset

from pliant.core.errors import ConfigError

MODULE = "pydoc_data.topics"


def python_topics() -> bytes:
    """Return all documentation topics, in alphabetical order.

    Raises:
        ConfigError: this Python was packaged without them.
    """
    try:
        topics: dict[str, str] = import_module(MODULE).topics
    except ImportError:
        raise ConfigError(
            f"this Python has no {MODULE}, which the demo learns from; use a python.org build,"
            " or install your system's complete Python package"
        ) from None
    return "\n\n".join(topics[name] for name in sorted(topics)).encode()


class NextByte(Dataset[tuple[Tensor, Tensor]]):
    """Windows of a text that do not overlap: (bytes, the same bytes shifted by one)."""

    def __init__(self, text: bytes, context: int) -> None:
        self._tokens = torch.frombuffer(bytearray(text), dtype=torch.uint8)
        self._context = context

    def __len__(self) -> int:
        return max(len(self._tokens) - 1, 0) // self._context

    def __getitem__(self, index: int) -> tuple[Tensor, Tensor]:
        start = index * self._context
        window = self._tokens[start : start + self._context + 1].long()
        return window[:-1], window[1:]
