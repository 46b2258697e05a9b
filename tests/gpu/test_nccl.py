"""NCCL itself, as far as one GPU shows it."""

from __future__ import annotations

import pytest
from tests.gpu.here import on_gpu, told

pytestmark = on_gpu


def test_nccl_exchanges_between_two_ranks_of_one_gpu() -> None:
    pytest.importorskip("nccl.core", reason="nccl4py is not installed")

    found = told("-m", "tests.gpu.nccl_pair", within_s=90)

    assert found["sums"] == {"0": 2048.0, "1": 1024.0}
