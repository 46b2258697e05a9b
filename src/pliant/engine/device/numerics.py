"""Numerics: how this machine rounds, in a word that two replicas can compare.

Which kernels torch, MKL and oneDNN choose is said nowhere in full: they go by the processor, by
MKL_CBWR, MKL_ENABLE_INSTRUCTIONS, ONEDNN_MAX_CPU_ISA, ONEDNN_DEFAULT_FPMATH_MODE and
ATEN_CPU_CAPABILITY, and with several threads by OMP_DYNAMIC and OMP_THREAD_LIMIT, too.  Each of
these was seen to change bits; so it is computed with them, and what comes out is compared.  Owns
what is computed.  Must not know who compares.

Not seen: kernels that none of these operations uses, and those of torch.compile.
"""

from __future__ import annotations

import hashlib
from collections.abc import Iterator
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


def _digest() -> str:
    hasher = hashlib.blake2b(digest_size=6)
    for result in _results():
        flat = result.detach().reshape(-1)
        hasher.update(flat.view(torch.uint8).numpy().tobytes())
    return hasher.hexdigest()


def _results() -> Iterator[torch.Tensor]:
    """Compute what differed under at least one of the settings, small and of every library."""
    image, kernel = (_numbers(*shape).requires_grad_() for shape in ((2, 8, 12, 12), (12, 8, 3, 3)))
    image_convolved = F.conv2d(image, kernel, padding=1)  # oneDNN
    yield image_convolved
    yield from torch.autograd.grad(F.gelu(image_convolved).sum(), (image, kernel))
    yield _numbers(64, 64) @ _numbers(64, 64).T  # MKL
    yield _numbers(10_000) @ _numbers(10_000)  # MKL, by threads
    yield torch.exp(_numbers(1000))
    yield _numbers(128, 512).to(_HALF) @ _numbers(512, 96).to(_HALF)  # oneDNN, AMX
    yield F.softmax(_numbers(50, 333), 1)  # torch's own from here on
    yield F.layer_norm(_numbers(16, 130), (130,))
    yield _numbers(100_000).sum()  # by threads


def _numbers(*shape: int) -> torch.Tensor:
    """Return numbers from -2 to 2 that are the same everywhere: one rounding each.

    By numpy, in one thread: on a loaded machine each operation of several threads waits for all.
    """
    size = torch.Size(shape).numel()
    whole = (np.arange(size, dtype=np.int64) * 7919 + 104_729) % 2003 - 1001
    numbers = torch.empty(
        size, dtype=torch.float32, device=host.LOCATION
    )  # aligned as torch's own are
    np.divide(whole.astype(np.float32), np.float32(500), out=numbers.numpy())
    return numbers.reshape(shape)
