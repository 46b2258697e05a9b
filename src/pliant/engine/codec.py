"""Codec: plain Python values to bytes and back, tensors by reference.

Owns a tagged JSON form that keeps what JSON loses: non-string keys, tuples, sets, Counter,
OrderedDict, inf and nan, bytes, dtypes, torch.Size, complex, numpy scalars.
Never pickles; an unsupported type is refused by its path.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

import torch


class CodecError(Exception):
    """A value that cannot travel, named by its path: ``state['x'][2] is a Foo``."""


@dataclass(frozen=True, slots=True)
class TensorRef:
    """Stands for tensor number ``index`` of the stream in a decoded document."""

    index: int


def encode(value: Any, *, name: str = "state") -> tuple[bytes, list[torch.Tensor]]:
    """Return the document and the tensors that it refers to; one tensor met twice is one entry.

    Raises:
        CodecError: a value of unsupported type, with its path starting at ``name``.
    """
    raise NotImplementedError


def decode(document: bytes, tensors: Sequence[Any] | None = None) -> Any:
    """Rebuild the value; tensors are taken from ``tensors``, or left as ``TensorRef``."""
    raise NotImplementedError
