"""A schedule of torch runs a micro-batch, on one worker as well, and what it lacks is told."""

from __future__ import annotations

import os
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest
import torch
from tests.live.prompt import run_typed
from torch import nn

import pliant
from pliant.core.errors import UsageError
from pliant.engine.sharding.stages import Stages, run_schedule, shapes_of

ONE_STAGE = Path(__file__).with_name("one_stage.py")


class Schedule:
    """Stands for one of torch: two chunks, one after the other."""

    scale_grads = True

    def __init__(self, model: nn.Module, *, has_loss: bool = True) -> None:
        self.model = model
        self.has_loss = has_loss

    def step(self, batch: torch.Tensor, losses: list[torch.Tensor]) -> None:
        for chunk in batch.chunk(2):
            loss = self.model(chunk).square().mean()
            loss.backward()
            if self.has_loss:
                losses.append(loss)


class _Counting:
    """Counts the runs of a schedule in each micro-batch."""

    scale_grads = True

    def __init__(self, schedule: Schedule, runs: list[int]) -> None:
        self._schedule, self._runs = schedule, runs

    def step(self, *args: Any, **options: Any) -> None:
        self._runs[-1] += 1
        self._schedule.step(*args, **options)


def train(given: Any, *, is_short: bool = False, **more: Any) -> None:
    model = more.pop("model", nn.Linear(4, 3))
    with pliant.Session(
        model=model,
        optimizer=torch.optim.SGD(model.parameters(), lr=0.1),
        dataset=torch.zeros(7 if is_short else 8, 4),
        global_batch_size=4,
        micro_batch_size=2,
        **more,
    ) as session:
        for step in session.steps(2):
            for batch in step:
                step.pipeline(given, batch)


def test_what_is_no_schedule_is_told() -> None:
    with pytest.raises(UsageError, match=r"such as Schedule1F1B, got Linear$"):
        train(nn.Linear(4, 3))


def test_a_schedule_without_a_loss_is_told() -> None:
    model = nn.Linear(4, 3)
    with pytest.raises(UsageError, match="has given no loss on any worker"):
        train(Schedule(model, has_loss=False), model=model)


def test_a_batch_that_the_chunks_do_not_divide_is_refused() -> None:
    schedule = Schedule(nn.Linear(4, 3))
    schedule._n_microbatches = 4  # type: ignore[attr-defined]

    with pytest.raises(UsageError, match=r"shape \[2, 4\], which the 4 chunks of the"):
        train(schedule, model=schedule.model)


def test_an_evaluation_makes_the_next_pipeline_rehearse_again() -> None:
    model = nn.Linear(4, 3)
    schedule, runs = Schedule(model), []
    with pliant.Session(
        model=model,
        optimizer=torch.optim.SGD(model.parameters(), lr=0.1),
        dataset=torch.zeros(8, 4),
        global_batch_size=2,
        micro_batch_size=2,
    ) as session:
        for step in session.steps(3):
            for batch in step:
                runs.append(0)
                step.pipeline(_Counting(schedule, runs), batch)
            if step.index == 1:
                session.evaluate(torch.zeros(4, 4), lambda x: model(x).square().mean())

    assert runs == [2, 1, 2]


def test_a_schedule_and_a_scaler_are_refused() -> None:
    with pytest.raises(UsageError, match=r"step.pipeline with scaler= is not possible"):
        train(Schedule(nn.Linear(4, 3)), scaler=torch.amp.GradScaler("cpu"))


def test_a_stage_alone_has_no_backward() -> None:
    stages = Stages()
    stages.refuse_backward()
    stages.is_several = True

    with pytest.raises(UsageError, match=r"call step.pipeline\(schedule, inputs, target=...\)"):
        stages.refuse_backward()


def test_the_loss_is_as_the_schedule_scales_gradients() -> None:
    def step(losses: list[torch.Tensor]) -> None:
        losses += [torch.tensor(1.0), torch.tensor(2.0)]

    assert run_schedule(SimpleNamespace(step=step, scale_grads=True), (), {}) == 1.5
    assert run_schedule(SimpleNamespace(step=step, scale_grads=False), (), {}) == 3.0


@pytest.mark.timeout(180)
def test_one_stage_ends_with_the_weights_of_a_plain_loop(tmp_path: Path) -> None:
    done = run_typed(ONE_STAGE, cwd=tmp_path, environment=os.environ)

    assert done.stdout.splitlines() == ["equal"] * 2, done.stderr


def several(monkeypatch: pytest.MonkeyPatch) -> tuple[Stages, list[torch.dtype]]:
    """Return one of two stages, the other of which says the same, and the types of what is sent."""
    stages, sent = Stages(), []

    def gathered(values: torch.Tensor) -> torch.Tensor:
        sent.append(values.dtype)
        return torch.stack([values, values])

    stages.is_several = True
    monkeypatch.setattr(stages, "_gathered", gathered)
    return stages, sent


def test_norms_of_stages_travel_in_one_type(monkeypatch: pytest.MonkeyPatch) -> None:
    """A bfloat16 stage beside one with float32 norms sent 2 bytes where 4 were waited for."""
    stages, sent = several(monkeypatch)

    norms = [stages.joint_norm(torch.tensor(3.0, dtype=t)) for t in (torch.bfloat16, torch.float32)]

    assert set(sent) == {torch.float64}
    assert float(norms[0]) == float(norms[1]) == pytest.approx(18**0.5)


def test_a_micro_batch_of_another_shape_is_told(monkeypatch: pytest.MonkeyPatch) -> None:
    """Of a smaller one the next stage would see the rest of the one before."""
    stages, _ = several(monkeypatch)
    batch = torch.zeros(8, 16)

    for _ in range(2):
        stages.check_shapes(shapes_of((batch, "mode")))
    with pytest.raises(UsageError, match=r"of the shapes \[3, 16\], and of \[8, 16\] before"):
        stages.check_shapes(shapes_of((batch[:3], "mode")))


def test_one_stage_takes_micro_batches_of_any_shape() -> None:
    model = nn.Linear(4, 3)

    train(Schedule(model), model=model, is_short=True)
