"""A nan or inf in a loss or a gradient is told, and a step that has one can change nothing."""

from __future__ import annotations

import math
from typing import Any

import pytest
import torch
from tests.engine import models
from torch import nn

import pliant
from pliant.core.errors import UsageError
from pliant.engine.data.loading import Schedule
from pliant.engine.worker.reporter import Printer
from pliant.wire.messages import Committed

BAD = 2
"""The step that has a nan."""

Told = tuple[list[str], list[Committed]]
"""Notes, commits."""


@pytest.fixture
def told(monkeypatch: pytest.MonkeyPatch) -> Told:
    notes: list[str] = []
    commits: list[Committed] = []
    monkeypatch.setattr(Printer, "noted", lambda self, text, **_: notes.append(text))
    monkeypatch.setattr(Printer, "committed", lambda self, commit: commits.append(commit))
    return notes, commits


def train(
    on_nonfinite: Any,
    *,
    factor: float = math.nan,
    gradient_only: bool = False,
    spoiled: tuple[int, ...] = (BAD,),
    **arguments: Any,
) -> list[str]:
    """Train with one bad micro-batch in these steps; return a digest of the state after each."""
    pliant.seed(3)
    last = nn.Linear(8, 3)
    model = nn.Sequential(nn.Linear(4, 8), nn.BatchNorm1d(8), last)
    optimizer = torch.optim.Adam(model.parameters(), lr=0.1)
    if "scaler" in arguments:
        arguments["scaler"] = torch.amp.GradScaler("cpu", growth_interval=100)
    digests = []
    with pliant.Session(
        model=model,
        optimizer=optimizer,
        dataset=models.Points(20),
        global_batch_size=8,
        micro_batch_size=2,
        scheduler=torch.optim.lr_scheduler.StepLR(optimizer, 1, gamma=0.5),
        on_nonfinite=on_nonfinite,
        **arguments,
    ) as session:
        for step in session.steps(5):
            for number, (points, labels) in enumerate(step):
                is_bad = step.index in spoiled and number == 1
                if is_bad and not gradient_only:
                    points = points * factor
                loss = nn.functional.cross_entropy(model(points), labels)
                if is_bad and gradient_only:  # 0 here, and its derivative is infinite
                    loss = loss + (last.bias.sum() * 0.0).sqrt()
                step.backward(loss)
            digests.append(state_of(session))
    return digests


def state_of(session: pliant.Session) -> str:
    """Return a digest of the state without the number of steps."""
    return session._parts.state.digest(0)


@pytest.mark.parametrize("factor", [math.nan, math.inf])
@pytest.mark.parametrize("more", [{}, {"max_grad_norm": 1.0}, {"scaler": None}])
def test_a_skipped_step_counts_and_changes_nothing(
    told: Told, factor: float, more: dict[str, Any]
) -> None:
    digests = train("skip", factor=factor, **more)

    assert digests[BAD] == digests[BAD - 1]
    assert len(set(digests)) == 4
    notes, commits = told
    assert [(c.step, c.nonfinite, c.is_skipped) for c in commits if c.nonfinite] == [
        (BAD, "the loss is nan", True)
    ]
    assert [note for note in notes if "nan" in note] == [
        f"the loss is nan at step {BAD} in micro-batch 1 (samples {samples()}): the step counts "
        "and changes nothing"
    ]


def samples() -> str:
    schedule = Schedule(
        size=20, global_batch_size=8, micro_batch_size=2, seed=3, shuffle=True, drop_last=False
    )
    request = schedule.request(BAD, 1)
    assert request is not None
    return ", ".join(map(str, request.samples))


@pytest.mark.parametrize("more", [{}, {"max_grad_norm": 1.0}])
def test_a_gradient_that_is_not_finite_is_seen_though_the_loss_is(
    told: Told, more: dict[str, Any]
) -> None:
    digests = train("skip", gradient_only=True, **more)

    assert digests[BAD] == digests[BAD - 1]
    assert [c.nonfinite for c in told[1] if c.nonfinite] == ["the gradient is not finite"]


def test_a_skipped_step_has_the_norm_of_its_gradient_all_the_same(told: Told) -> None:
    norms = {clip: skipped_norm(clip) for clip in (None, 1e9)}

    assert norms[None] == pytest.approx(norms[1e9], rel=1e-6)
    assert [(c.is_skipped, c.grad_norm) for c in told[1]] == [(True, None), (True, norms[1e9])]


def skipped_norm(max_grad_norm: float | None) -> float:
    """Return ``step.grad_norm`` of a step whose loss is infinite, and whose gradient is not."""
    pliant.seed(3)
    model = nn.Linear(4, 3)
    with pliant.Session(
        model=model,
        optimizer=torch.optim.SGD(model.parameters(), lr=0.1),
        dataset=models.Points(20),
        global_batch_size=8,
        micro_batch_size=2,
        on_nonfinite="skip",
        max_grad_norm=max_grad_norm,
    ) as session:
        for step in session.steps(1):
            for points, labels in step:
                step.backward(nn.functional.cross_entropy(model(points), labels) + math.inf)
            return step.grad_norm
    raise AssertionError("no step")


def test_a_scaled_gradient_that_overflows_is_the_scalers(
    told: Told,
) -> None:
    train("stop", gradient_only=True, scaler=None)

    assert [c.nonfinite for c in told[1]] == [""] * 5


def test_a_warning_comes_once_for_steps_in_a_row_and_training_goes_on(
    told: Told,
) -> None:
    digests = train("warn")

    assert len(set(digests)) == 5
    notes, commits = told
    (note,) = [note for note in notes if "nan" in note]
    assert "training goes on with it; Session(on_nonfinite=...) can stop or skip" in note
    assert [bool(commit.nonfinite) for commit in commits] == [False, False, True, True, True]
    assert not any(commit.is_skipped for commit in commits)


def test_skipped_steps_far_apart_are_told_each(told: Told) -> None:
    train("skip", spoiled=(1, 3))

    assert len([note for note in told[0] if "nan" in note]) == 2


def test_a_stop_ends_the_run_before_the_step(told: Told) -> None:
    with pytest.raises(UsageError, match=r"^the loss is nan at step 2 in micro-batch 1 \(samples"):
        train("stop")

    assert [commit.step for commit in told[1]] == [0, 1]


def test_a_step_without_a_backward_is_no_nan(told: Told) -> None:
    model = nn.Linear(4, 3)
    with pliant.Session(
        model=model,
        optimizer=torch.optim.SGD(model.parameters(), lr=0.1),
        dataset=models.Points(20),
        global_batch_size=8,
        micro_batch_size=2,
        on_nonfinite="stop",
    ) as session:
        for step in session.steps(2):
            for points, _ in step:
                step.backward(model(points).sum() * math.nan, weight=0.0)

    assert [commit.nonfinite for commit in told[1]] == ["", ""]
