"""Numerics: how this machine rounds, in a word that two replicas can compare.

Which kernels torch, MKL and oneDNN choose is said nowhere in full: they go by the processor, by
MKL_CBWR, MKL_ENABLE_INSTRUCTIONS, ONEDNN_MAX_CPU_ISA, ONEDNN_DEFAULT_FPMATH_MODE and
ATEN_CPU_CAPABILITY, and with several threads by OMP_DYNAMIC and OMP_THREAD_LIMIT, too.  Each of
these was seen to change bits; so it is computed with them, and what comes out is compared.  The
same is computed on an accelerator.  Owns what is computed.  Must not know who compares.

Not seen: kernels that none of these operations uses, and those of torch.compile.
"""

from __future__ import annotations

import hashlib
from collections.abc import Callable, Iterator
from functools import cache

import numpy as np
import torch
from torch.nn import functional as F  # noqa: N812  # its usual name

from pliant.core.errors import ConfigError
from pliant.engine.device import host

_HALF = torch.bfloat16

TIMES = 4
"""With several threads: where OMP_THREAD_LIMIT=1 stood, 54 of 60 results differed."""


@cache
def word_of_numerics(threads: int) -> str:
    """Return a digest of some results, the same wherever torch rounds alike; 10 to 50 ms, once.

    With several threads seconds, where other processes keep the cores busy.

    ``threads``: those that torch has now.  Draws no random numbers.

    Raises:
        ConfigError: the same computation gives other results from one time to the next.
    """
    with torch.enable_grad(), torch.autocast(host.LOCATION, enabled=False):
        words = {_digest() for _ in range(1 if threads == 1 else TIMES)}
    if len(words) > 1:
        raise ConfigError(
            f"with threads={threads} torch gives other results here from one time to the next: it "
            "gets fewer threads than it asked for; unset OMP_DYNAMIC and OMP_THREAD_LIMIT, or "
            "leave threads=1"
        )
    return words.pop()


def word_of_device(where: torch.device) -> str:
    """Return a digest of the same results on an accelerator, and which of them it cannot compute.

    Waits for the device once.  Draws no random numbers.

    Raises:
        RuntimeError: the device fails.
    """
    found: list[torch.Tensor] = []
    missing: list[str] = []
    with torch.enable_grad(), torch.autocast(where.type, enabled=False):
        for name, compute in _OPERATIONS.items():
            try:
                found += [_bytes(result) for result in compute(where)]
            except (torch.OutOfMemoryError, torch.AcceleratorError):
                raise
            except RuntimeError:  # torch has no kernel of it for this device
                missing.append(name)
    hasher = hashlib.blake2b(digest_size=6)
    if found:
        hasher.update(host.bytes_of(host.copy_of(torch.cat(found))))
    return " ".join((hasher.hexdigest(), *(f"without {name}" for name in missing)))


def _digest() -> str:
    hasher = hashlib.blake2b(digest_size=6)
    for result in _results():
        hasher.update(host.bytes_of(_bytes(result)))
    return hasher.hexdigest()


def _results() -> Iterator[torch.Tensor]:
    where = torch.device(host.LOCATION)
    for compute in _OPERATIONS.values():
        yield from compute(where)


def _bytes(result: torch.Tensor) -> torch.Tensor:
    return result.detach().reshape(-1).view(torch.uint8)


# --- what differed under at least one of the settings, small and of every library


def _convolution(where: torch.device) -> list[torch.Tensor]:
    shapes = ((2, 8, 12, 12), (12, 8, 3, 3))
    image, kernel = (_numbers(where, *shape).requires_grad_() for shape in shapes)
    convolved = F.conv2d(image, kernel, padding=1)  # oneDNN
    return [convolved, *torch.autograd.grad(F.gelu(convolved).sum(), (image, kernel))]


def _product(where: torch.device) -> list[torch.Tensor]:
    square, vector = _numbers(where, 64, 64), _numbers(where, 10_000)
    return [square @ square.T, vector @ vector]  # MKL, the second by threads


def _half_product(where: torch.device) -> list[torch.Tensor]:
    return [_numbers(where, 128, 512).to(_HALF) @ _numbers(where, 512, 96).to(_HALF)]  # AMX


_OPERATIONS: dict[str, Callable[[torch.device], list[torch.Tensor]]] = {
    "convolution": _convolution,
    "matrix product": _product,
    "exp": lambda where: [torch.exp(_numbers(where, 1000))],
    "bfloat16 matrix product": _half_product,
    "softmax": lambda where: [F.softmax(_numbers(where, 50, 333), 1)],  # torch's own from here on
    "layer_norm": lambda where: [F.layer_norm(_numbers(where, 16, 130), (130,))],
    "sum": lambda where: [_numbers(where, 100_000).sum()],  # by threads
}


def _numbers(where: torch.device, *shape: int) -> torch.Tensor:
    """Return numbers from -2 to 2 that are the same everywhere: one rounding each.

    By numpy, in one thread: on a loaded machine each operation of several threads waits for all.
    """
    size = torch.Size(shape).numel()
    whole = (np.arange(size, dtype=np.int64) * 7919 + 104_729) % 2003 - 1001
    numbers = torch.empty(
        size, dtype=torch.float32, device=host.LOCATION
    )  # aligned as torch's own are
    np.divide(whole.astype(np.float32), np.float32(500), out=numbers.numpy())
    if where.type != host.LOCATION:
        numbers = numbers.pin_memory().to(where, non_blocking=True)
    return numbers.reshape(shape)
