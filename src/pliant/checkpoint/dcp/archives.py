"""Archives: one box of a tensor, or one object, as ``torch.save`` writes it.

Owns that an archive is written straight from the tensor's memory, so that a share costs no copy of
it, and read without running anything of it.  Must not know storage or where archives lie.
"""

from __future__ import annotations

import io
import pickle
from typing import IO, Any, Protocol, cast

import torch

from pliant.checkpoint.failures import DamagedError, UntrustedError
from pliant.checkpoint.store.base import Data


class Writable(Protocol):
    """Where an archive goes."""

    def write(self, data: Data, /) -> int:
        """Take bytes."""

    def flush(self) -> None:
        """Called by ``torch.save`` at the end of an archive."""


def write_piece(box: torch.Tensor, out: Writable) -> None:
    """Write one piece of a tensor as an archive of exactly that piece.

    The archive of a view would hold the whole storage behind it, so a new storage is laid over the
    piece's memory.  A piece that does not lie in one run, or on another device, is copied first.
    """
    box = box.detach().cpu().resolve_conj().resolve_neg().contiguous()
    if box.numel() == 0:
        torch.save(torch.empty(box.shape, dtype=box.dtype), cast(IO[bytes], out))
        return
    memory = box.reshape(-1).view(torch.uint8).numpy()
    if not memory.flags.writeable:
        memory = memory.copy()
    flat = torch.frombuffer(memory.data, dtype=box.dtype)
    torch.save(flat.reshape(box.shape), cast(IO[bytes], out))


def write_object(value: Any, out: Writable) -> None:
    """Write one object as PyTorch does."""
    torch.save(value, cast(IO[bytes], out))


def read_archive(data: bytes | memoryview, place: str, *, trust: bool = False) -> Any:
    """Return the tensor or object of an archive; runs no code of it unless trusted.

    Raises:
        UntrustedError: it would have to.
        DamagedError: it is no archive.
    """
    try:
        return torch.load(io.BytesIO(data), map_location="cpu", weights_only=True)
    except pickle.UnpicklingError as error:
        if not trust:
            raise UntrustedError(
                f"{place} holds more than tensors and plain values, and reading it may run code of"
                " whoever wrote it; allow it with trust if you know them"
            ) from error
    except Exception as error:  # whatever a damaged archive makes of torch
        raise DamagedError(f"{place} is damaged: {_first_line(error)}") from error
    try:
        return torch.load(io.BytesIO(data), map_location="cpu", weights_only=False)
    except Exception as error:
        raise DamagedError(f"{place} is damaged: {_first_line(error)}") from error


def _first_line(error: Exception) -> str:
    return (str(error).splitlines() or [type(error).__name__])[0][:200]
