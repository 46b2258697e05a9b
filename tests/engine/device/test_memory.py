"""Memory that lasts is asked for in large pages, is no more than asked for, and is given back."""

from __future__ import annotations

import gc
from pathlib import Path

import pytest
import torch

from pliant.engine.device.memory import LARGE_BYTES, lasting

needs_large_pages = pytest.mark.skipif(
    not Path("/sys/kernel/mm/transparent_hugepage").is_dir(), reason="no large pages here"
)


def in_large_pages() -> list[range]:
    """Return what memory here is asked for in large pages."""
    found = []
    for line in Path("/proc/self/smaps").read_text().splitlines():
        word, _, rest = line.partition(" ")
        if "-" in word:
            begin, end = (int(part, 16) for part in word.split("-"))
        elif word == "VmFlags:":
            found += [range(begin, end)] * ("hg" in rest.split())
    return found


@needs_large_pages
@pytest.mark.parametrize("more", [0, 1000])
def test_all_of_it_but_what_would_fill_no_page_is_in_large_pages(more: int) -> None:
    memory = lasting(3 * LARGE_BYTES // 4 + more, torch.float32)

    start = memory.data_ptr()
    (advised,) = (where for where in in_large_pages() if start in where)

    assert start % LARGE_BYTES == 0
    assert advised.start == start
    assert advised.stop == start + 3 * LARGE_BYTES


@needs_large_pages
def test_it_is_given_back_with_the_last_tensor_over_it() -> None:
    memory = lasting(LARGE_BYTES, torch.complex64)
    part = memory[5:7]
    place = memory.data_ptr()

    del memory
    gc.collect()
    part.fill_(1.0)
    is_kept = any(place in where for where in in_large_pages())
    del part
    gc.collect()

    assert is_kept
    assert not any(place in where for where in in_large_pages())


@pytest.mark.parametrize("dtype", [torch.float32, torch.float64, torch.complex64, torch.uint8])
@pytest.mark.parametrize("numel", [0, 7, LARGE_BYTES - 1, LARGE_BYTES + 1])
def test_it_has_the_elements_that_were_asked_for_and_no_more(
    numel: int, dtype: torch.dtype
) -> None:
    memory = lasting(numel, dtype).fill_(1)

    assert (memory.shape, memory.dtype) == ((numel,), dtype)
    assert memory.is_contiguous()
    assert memory.untyped_storage().nbytes() == numel * dtype.itemsize
    assert bool((memory == 1).all())
