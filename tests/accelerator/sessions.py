"""What a session does on the test accelerator, beside the CPU; run by ``test_sessions``."""

from __future__ import annotations

from collections import Counter
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


def waits_of_a_step(name: str, **options: Any) -> Counter[str]:
    """Return which lines of the package wait for the device in a step of one replica."""
    case = models.build(name, randomness=False, **options)
    sim.move(case, "sim")
    counted: list[Counter[str]] = []
    with case.session() as session, sim.install().waits() as all_so_far:
        for step in session.steps(4):
            for batch in step:
                loss, weight = case.compute(batch)
                step.backward(loss, weight=weight)
            counted.append(Counter(all_so_far))
    waits = counted[3] - counted[2]
    return Counter({line: number for line, number in waits.items() if "src/pliant" in line})


def check_a_step_waits_twice_for_the_device() -> None:
    if not sim.install().is_async():
        return  # then every copy is a wait
    for name in ("gpt", "cnn", "moe"):
        waits = waits_of_a_step(name)
        assert waits.total() == 2, (name, waits)


if __name__ == "__main__":
    checks.main(globals())
