"""Autograd details: what torch knows of a gradient and has no public name for.

Owns two looks, each of which says no where torch does not tell: then sums are made as if it were
so, with the same bits, and more slowly.  Seen to work with torch 2.11 and 2.15.
"""

from __future__ import annotations

import torch

_OWN_AND_ITS_WRAPPER = 2
"""Whoever asks a storage how many hold it holds it, too."""


def has_own_memory(tensor: torch.Tensor) -> bool:
    """Return whether nothing else is known to have this tensor's memory.

    Autograd may give two parameters views of one storage (the two addends of ``a.view(n) +
    b.view(n)``), and a function or a hook of the script may keep what it has returned.
    """
    count = getattr(torch._C, "_storage_Use_Count", None)  # noqa: SLF001  # see the module's text
    if count is None:
        return False
    return bool(count(tensor.untyped_storage()._cdata) == _OWN_AND_ITS_WRAPPER)  # noqa: SLF001


def is_watched(parameter: torch.Tensor) -> bool:
    """Return whether somebody has hooks that look at this parameter's accumulated gradient."""
    return bool(getattr(parameter, "_post_accumulate_grad_hooks", True))
