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
from collections.abc import Callable
from functools import cache

import numpy as np
import torch
from torch.nn import functional as F  # noqa: N812  # its usual name

from pliant.core.errors import ConfigError
from pliant.engine.device import host

_HALF = torch.bfloat16
_HERE = torch.device(host.LOCATION)

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
    words = {word_of_device(_HERE) for _ in range(1 if threads == 1 else TIMES)}
    if len(words) > 1:
        raise ConfigError(
            f"with threads={threads} torch gives other results here from one time to the next: it "
            "gets fewer threads than it asked for; unset OMP_DYNAMIC and OMP_THREAD_LIMIT, or "
            "leave threads=1"
        )
    return words.pop()


def word_of_device(where: torch.device) -> str:
    """Return a digest of what is computed there, and the names of what torch cannot compute.

    Waits for the device once.  Draws no random numbers.
    """
    found: list[torch.Tensor] = []
    missing: list[str] = []
    with torch.enable_grad(), torch.autocast(where.type, enabled=False):
        for name, compute in _OPERATIONS.items():
            try:
                found += [one.detach().reshape(-1).view(torch.uint8) for one in compute(where)]
            except (torch.OutOfMemoryError, torch.AcceleratorError):
                raise
            except RuntimeError:  # no kernel of it for this device
                missing.append(f" without {name}")
        whole = host.copy_of(torch.cat(found))
    word = hashlib.blake2b(host.bytes_of(whole), digest_size=6).hexdigest()
    return "".join((word, *missing))


def _convolution(where: torch.device) -> list[torch.Tensor]:
    shapes = ((2, 8, 12, 12), (12, 8, 3, 3))
    image, kernel = (_numbers(where, *shape).requires_grad_() for shape in shapes)
    convolved = F.conv2d(image, kernel, padding=1)
    return [convolved, *torch.autograd.grad(F.gelu(convolved).sum(), (image, kernel))]


_OPERATIONS: dict[str, Callable[[torch.device], list[torch.Tensor]]] = {
    "convolution": _convolution,  # oneDNN
    "product": lambda at: [_numbers(at, 64, 64) @ _numbers(at, 64, 64).T],  # MKL
    "inner product": lambda at: [_numbers(at, 10_000) @ _numbers(at, 10_000)],  # MKL, by threads
    "exp": lambda at: [torch.exp(_numbers(at, 1000))],
    "bfloat16 product": lambda at: [
        _numbers(at, 128, 512).to(_HALF) @ _numbers(at, 512, 96).to(_HALF)  # oneDNN, AMX
    ],
    "softmax": lambda at: [F.softmax(_numbers(at, 50, 333), 1)],  # torch's own from here on
    "layer_norm": lambda at: [F.layer_norm(_numbers(at, 16, 130), (130,))],
    "sum": lambda at: [_numbers(at, 100_000).sum()],  # by threads
}
"""What differed under at least one of the settings, small and of every library."""


def _numbers(where: torch.device, *shape: int) -> torch.Tensor:
    """Return numbers from -2 to 2 that are the same everywhere: one rounding each.

    By numpy, in one thread: on a loaded machine each operation of several threads waits for all.
    """
    size = torch.Size(shape).numel()
    whole = (np.arange(size, dtype=np.int64) * 7919 + 104_729) % 2003 - 1001
    numbers = torch.empty(size, dtype=torch.float32, device=_HERE)  # aligned as torch's own are
    np.divide(whole.astype(np.float32), np.float32(500), out=numbers.numpy())
    if where != _HERE:
        numbers = numbers.pin_memory().to(where, non_blocking=True)
    return numbers.reshape(shape)
