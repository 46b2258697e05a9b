"""What a session does on the test accelerator, beside the CPU; run by ``test_sessions``."""

from __future__ import annotations

import tempfile
from collections import Counter
from pathlib import Path
from typing import Any

import torch
from tests.accelerator import checks, sim
from tests.engine import models
from torch import nn
from torch.nn import functional
from torch.nn.attention import SDPBackend, sdpa_kernel

import pliant


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


class Halves(nn.Module):
    """A model in two halves, each of which may be somewhere else."""

    def __init__(self) -> None:
        super().__init__()
        self.first, self.norm, self.last = nn.Linear(4, 6), nn.BatchNorm1d(6), nn.Linear(6, 3)
        self.wheres = ("cpu", "cpu")

    def move(self, first: str, last: str) -> None:
        self.wheres = first, last
        self.first.to(first)
        self.norm.to(last)
        self.last.to(last)

    def forward(self, points: torch.Tensor) -> torch.Tensor:
        first, last = self.wheres
        hidden = self.first(points.to(first)).tanh()
        scores: torch.Tensor = self.last(self.norm(hidden.to(last)))
        return scores


def digest_of_halves(first: str, last: str) -> str:
    pliant.seed(3)
    model = Halves()
    model.move(first, last)
    optimizer = torch.optim.AdamW(model.parameters(), lr=0.01, foreach=True)
    with pliant.Session(
        model=model,
        optimizer=optimizer,
        dataset=models.Points(44),
        global_batch_size=12,
        micro_batch_size=2,
        max_grad_norm=1.0,
    ) as session:
        for step in session.steps(6):
            for points, labels in step:
                scores = model(points)
                step.backward(functional.cross_entropy(scores, labels.to(scores.device)))
        return session.state_digest()


def check_a_model_on_two_devices_and_partly_on_the_host() -> None:
    alone = digest_of_halves("cpu", "cpu")
    assert digest_of_halves("sim:0", "sim:1") == alone
    assert digest_of_halves("cpu", "sim:1") == alone
    assert digest_of_halves("sim:0", "cpu") == alone


def check_saved_weights_are_read_where_there_is_no_accelerator() -> None:
    path = Path(tempfile.mkdtemp()) / "weights.pt"
    case = models.build("gpt", randomness=False)
    sim.move(case, "sim")
    models.train(case, 2, on_end=lambda session: session.save(path))
    weights, own = torch.load(path, weights_only=True), case.model.state_dict()
    path.unlink()
    path.parent.rmdir()
    assert {value.device.type for value in weights.values()} == {"cpu"}
    assert all(torch.equal(weights[name], own[name].cpu()) for name in own)
    places = [value.data_ptr() for value in weights.values()]
    assert len(set(places)) < len(places), "tied weights are written once"


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
