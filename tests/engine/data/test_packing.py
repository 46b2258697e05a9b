"""A micro-batch comes out of a loader process as it was put in."""

from __future__ import annotations

from collections import namedtuple
from typing import Any

import numpy as np
import pytest
import torch

from pliant.engine.data.packing import pack, unpack

Pair = namedtuple("Pair", "x y")  # what data sets really return

TENSORS = [
    torch.randn(2, 3, 4, 5).to(memory_format=torch.channels_last),
    torch.randn(6)[::2],
    torch.randn(3, 1).expand(3, 4),
    torch.tensor(3),
    torch.empty(0, 4),
    torch.tensor([True, False]),
    torch.randn(4).to(torch.bfloat16),
    torch.randn(3, dtype=torch.complex64).conj(),
]


@pytest.mark.parametrize("tensor", TENSORS, ids=lambda tensor: f"{tensor.dtype}{tensor.layout}")
def test_a_tensor_keeps_values_type_and_order_of_memory(tensor: torch.Tensor) -> None:
    found = unpack(pack({"x": [tensor]}))["x"][0]

    assert found.dtype == tensor.dtype
    assert torch.equal(found.to_dense(), tensor.to_dense())
    if tensor.layout is torch.strided and tensor.dim() == 4:
        assert found.stride() == tensor.stride()


def test_other_values_travel_too() -> None:
    batch: Any = Pair(x={"text": "a", "n": np.arange(3)}, y=(1, None))

    found = unpack(pack(batch))

    assert isinstance(found, Pair)
    assert found.x["n"].tolist() == [0, 1, 2]
    assert found.y == (1, None)


def test_what_is_unpacked_can_be_written_to() -> None:
    found = unpack(pack(torch.zeros(3)))
    found += 1
    assert found.tolist() == [1, 1, 1]
