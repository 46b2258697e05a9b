"""What a session does on the test accelerator, beside the CPU; run by ``test_sessions``."""

from __future__ import annotations

from typing import Any

from tests.accelerator import checks, sim
from tests.engine import models
from torch.nn.attention import SDPBackend, sdpa_kernel


def digest(name: str, device: str, steps: int = 6, **arguments: Any) -> str:
    case = models.build(name, randomness=False)
    if device != "cpu":
        sim.move(case, device)
    with sdpa_kernel(SDPBackend.MATH):
        return models.train(case, steps, **arguments)


def check_gpt() -> None:
    assert digest("gpt", "cpu") == digest("gpt", "sim")


def check_convolutions_and_batch_norm() -> None:
    assert digest("cnn", "cpu") == digest("cnn", "sim")


def check_mixture_of_experts() -> None:
    assert digest("moe", "cpu") == digest("moe", "sim")


if __name__ == "__main__":
    checks.main(globals())
