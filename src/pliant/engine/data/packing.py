"""Packing: a micro-batch on its way from a loader process to its worker, as bytes.

Owns the format, which is pickle with the memory of tensors as it is.  Must not know who sends what.
"""

from __future__ import annotations

import io
import pickle
from typing import Any

import numpy as np
import torch

from pliant.engine.device import host


def pack(batch: Any) -> bytes:
    """Return a batch as bytes, for its way from a loader process to its worker.

    Torch would send tensors by file descriptor or shared memory, which leave a socket in the
    temporary directory or a file in ``/dev/shm`` when a process is killed, and need a large
    ``/dev/shm`` in containers.  Bytes through the pipe leave nothing.
    For processes of one worker only: it is pickle.
    """
    stream = io.BytesIO()
    _Packer(stream, protocol=5).dump(batch)
    return stream.getvalue()


def unpack(packed: bytes) -> Any:
    """Return the batch that ``pack`` got."""
    return pickle.loads(packed)  # noqa: S301  # from this worker's own child


class _Packer(pickle.Pickler):
    """Writes a tensor's memory as it is; torch's own way makes an archive of each."""

    def reducer_override(self, value: Any) -> Any:
        if type(value) is not torch.Tensor or value.layout is not torch.strided:
            return NotImplemented
        if value.requires_grad or not host.is_here(value) or value.is_quantized:
            return NotImplemented
        if value.is_conj() or value.is_neg():
            value = value.resolve_conj().resolve_neg()
        order = sorted(range(value.dim()), key=lambda axis: -value.stride(axis))
        dense = value.permute(order).contiguous().reshape(-1).view(torch.uint8)
        return _rebuild, (dense.numpy(), value.dtype, tuple(value.shape), tuple(order))


def _rebuild(
    memory: np.ndarray[Any, Any], dtype: torch.dtype, shape: tuple[int, ...], order: tuple[int, ...]
) -> torch.Tensor:
    dense = torch.from_numpy(memory).view(dtype).reshape([shape[axis] for axis in order])
    return dense.permute([order.index(axis) for axis in range(len(order))])
