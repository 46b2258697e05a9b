"""Host memory: the bytes of tensors that are there, and tensors over bytes.

Owns the only views of a tensor's memory.  Sockets, files and hashes take bytes in host memory, also
where a worker computes on an accelerator.
"""

from __future__ import annotations

import mmap

import torch

LOCATION = "cpu"
"""Where ``torch.load`` puts what it reads, and where small tensors of bytes are."""


def is_here(tensor: torch.Tensor) -> bool:
    """Whether a tensor is dense and in host memory."""
    return tensor.layout is torch.strided and tensor.device.type == LOCATION


def copy_of(tensor: torch.Tensor) -> torch.Tensor:
    """Return the tensor if it is in host memory, else a copy that is; complete on return."""
    return tensor if tensor.device.type == LOCATION else tensor.detach().to(LOCATION)


def bytes_of(tensor: torch.Tensor) -> memoryview:
    """View the memory of a contiguous tensor in host memory."""
    return tensor.detach().view(-1).view(torch.uint8).numpy().data


def tensor_of(data: bytearray | mmap.mmap, dtype: torch.dtype = torch.uint8) -> torch.Tensor:
    """Return a flat tensor over writable memory, which it keeps."""
    return torch.frombuffer(data, dtype=dtype)


def address_of(tensor: torch.Tensor) -> int:
    """Return where a tensor's first number is; for comparing, on any device."""
    return tensor.data_ptr()


def storage_of(tensor: torch.Tensor) -> int:
    """Return where the storage of a tensor begins; for comparing, on any device."""
    return tensor.untyped_storage().data_ptr()
