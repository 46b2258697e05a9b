"""What a session does on the test accelerator, beside the CPU; run by ``test_sessions``."""

from __future__ import annotations

import tempfile
import traceback
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


def waits_of_a_step(name: str, number: int = 3, **options: Any) -> Counter[str]:
    """Return which lines of the package wait for the device in a step of one replica."""
    case = models.build(name, randomness=False, **options)
    sim.move(case, "sim")
    counted: list[Counter[str]] = []
    with case.session() as session, sim.install().waits() as all_so_far:
        for step in session.steps(number + 1):
            for batch in step:
                loss, weight = case.compute(batch)
                step.backward(loss, weight=weight)
            counted.append(Counter(all_so_far))
    waits = counted[number] - counted[number - 1]
    return Counter({line: number for line, number in waits.items() if "src/pliant" in line})


def check_a_step_waits_twice_for_the_device() -> None:
    if not sim.install().is_async():
        return  # then every copy is a wait
    for name in ("gpt", "cnn", "moe"):
        waits = waits_of_a_step(name)
        assert waits.total() <= 2, (name, waits)


def check_a_step_with_a_scaler_waits_four_times_at_most() -> None:
    if not sim.install().is_async():
        return
    for number in (1, 3):  # the scaled loss overflows in the first two
        waits = waits_of_a_step("gpt", number, is_scaled=True)
        assert waits.total() <= 4, (number, waits)


class Shaken(nn.Module):
    """Has a buffer of each kind."""

    seen: torch.Tensor
    total: torch.Tensor
    most: torch.Tensor

    def __init__(self) -> None:
        super().__init__()
        self.norm, self.out = nn.BatchNorm1d(4), nn.Linear(4, 3)
        self.register_buffer("seen", torch.zeros(2, dtype=torch.int64))
        self.register_buffer("total", torch.zeros(2))
        self.register_buffer("most", torch.zeros(2))

    def forward(self, points: torch.Tensor) -> torch.Tensor:
        self.seen += 1
        self.total += points.detach().sum()
        self.most.copy_(torch.maximum(self.most, points.detach().amax()))
        scores: torch.Tensor = self.out(self.norm(points))
        return scores


BUFFERS = {"total": "sum", "most": "max"}

ROWS: dict[str, dict[str, Any]] = {
    "plain": {},
    "clip": {"max_grad_norm": 0.01},
    "scaler": {"scale": 2.0**127},
    "scaler and clip": {"scale": 2.0**127, "max_grad_norm": 0.01},
    "nan": {"nan_at": 2},
    "nan and clip": {"nan_at": 2, "max_grad_norm": 0.01},
    "nan, skipped": {"nan_at": 2, "on_nonfinite": "skip"},
    "nan and scaler": {"nan_at": 2, "scale": 4.0},
    "nan, skipped with a scaler": {"nan_at": 2, "on_nonfinite": "skip", "scale": 4.0},
}


def digest_of_row(
    device: str, *, scale: float | None = None, nan_at: int | None = None, **options: Any
) -> str:
    """Train; on a device nothing may be read from a vote to the end of its commit."""
    pliant.seed(3)
    model = Shaken().to(device)
    with pliant.Session(
        model=model,
        optimizer=torch.optim.AdamW(model.parameters(), lr=0.01, foreach=True),
        scaler=None if scale is None else torch.amp.GradScaler("cpu", init_scale=scale),
        dataset=models.Points(44),
        global_batch_size=12,
        micro_batch_size=2,
        buffers=BUFFERS,
        **options,
    ) as session:
        if device != "cpu":
            forbid_reads_behind_the_vote(session)
        for step in session.steps(6):
            for points, labels in step:
                spoilt = points * torch.nan if step.index == nan_at else points
                loss = functional.cross_entropy(model(spoilt.to(device)), labels.to(device))
                step.backward(loss)
        return session.state_digest()


def forbid_reads_behind_the_vote(session: pliant.Session) -> None:
    training, forbid = session._training, sim.install().forbid_reads
    decide, commit = training.membership.decide, training.commit_voted

    def decide_and_forbid(*arguments: Any) -> Any:
        forbid(True)
        return decide(*arguments)

    def commit_and_allow(decision: Any) -> None:
        try:
            commit(decision)
        finally:
            forbid(False)

    training.membership.decide = decide_and_forbid  # type: ignore[assignment,method-assign]
    training.commit_voted = commit_and_allow  # type: ignore[method-assign]


def check_nothing_is_read_behind_the_vote() -> None:
    for name, row in ROWS.items():
        try:
            on_device = digest_of_row("sim", **row)
        except RuntimeError as error:
            raise AssertionError(f"{name}: {error}") from error
        assert on_device == digest_of_row("cpu", **row), name


def check_a_device_that_fails_says_so_and_nothing_hides_it() -> None:
    """The last check: nothing works on that device from here on.

    The buffers of this model are put back at the end, on the device.
    """
    case = models.build("cnn", randomness=False)
    sim.move(case, "sim:1")
    try:
        with case.session() as session:
            for step in session.steps(4):
                for batch in step:
                    if step.index == 2:
                        sim.install().fail(1, "fell off")
                    loss, weight = case.compute(batch)
                    step.backward(loss, weight=weight)
    except RuntimeError as error:
        found = error
    frames = [frame.f_code.co_name for frame, _ in traceback.walk_tb(found.__traceback__)]
    assert "fell off" in str(found)
    assert "_release" not in frames, frames


if __name__ == "__main__":
    checks.main(globals())
