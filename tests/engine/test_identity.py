"""What must be equal for two runs to be, bit for bit, is said before they train together."""

from __future__ import annotations

import pytest
import torch
from tests.engine import models
from torch import nn

import pliant


def test_the_instruction_set_of_torchs_kernels_is_part_of_a_run(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    """Seen where /proc was hidden: other kernels, other bits, exit code 0."""
    model = nn.Linear(4, 3)
    session = pliant.Session(
        model=model,
        optimizer=torch.optim.SGD(model.parameters(), lr=0.1),
        dataset=models.Points(20),
        global_batch_size=8,
        micro_batch_size=2,
    )
    with session:
        monkeypatch.setattr(torch.backends.cpu, "get_cpu_capability", lambda: "AVX2")
        assert ("kernels", "AVX2") in session._parts.identity()
