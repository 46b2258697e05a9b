"""What other libraries give a script, as a session gets it: it works, or is refused by name."""

from __future__ import annotations

import warnings
from collections.abc import Callable
from typing import Any

import pytest
import torch
from tests.engine import models
from torch import nn
from torch.utils.data import DataLoader, TensorDataset

import pliant
from pliant.core.errors import ConfigError, UsageError

pytestmark = [
    pytest.mark.frameworks,
    pytest.mark.timeout(120),
    pytest.mark.filterwarnings("ignore"),
]

POINTS = models.Points(44)


def trained(
    change: Callable[[nn.Module, torch.optim.Optimizer], dict[str, Any]],
    tail: Callable[[pliant.Session, Any], None] = lambda session, step: None,
) -> str:
    """Train a few steps with these arguments in place of the usual; return the digest."""
    pliant.seed(3)
    model = nn.Sequential(nn.Linear(4, 6), nn.Tanh(), nn.Linear(6, 3))
    optimizer = torch.optim.SGD(model.parameters(), lr=0.1)
    arguments: dict[str, Any] = {
        "model": model,
        "optimizer": optimizer,
        "dataset": POINTS,
        "global_batch_size": 12,
        "micro_batch_size": 2,
        **change(model, optimizer),
    }
    with pliant.Session(**arguments) as session:
        for step in session.steps(epochs=2):
            for batch in step:
                points, labels = batch.values() if isinstance(batch, dict) else batch
                step.backward(nn.functional.cross_entropy(model(points), labels))
            tail(session, step)
        return session.state_digest()


def prepared(one: Any) -> Any:
    accelerate = pytest.importorskip("accelerate", reason="pip install accelerate")
    return accelerate.Accelerator(cpu=True).prepare(one)


@pytest.mark.parametrize(
    ("change", "sentence"),
    [
        (
            lambda model, optimizer: {"optimizer": prepared(optimizer)},
            "AcceleratedOptimizer was prepared by Accelerate",
        ),
        (
            lambda model, optimizer: {
                "scheduler": prepared(torch.optim.lr_scheduler.StepLR(optimizer, 2))
            },
            "AcceleratedScheduler was prepared by Accelerate",
        ),
        (
            lambda model, optimizer: {"dataset": prepared(DataLoader(POINTS, batch_size=2))},
            "DataLoaderShard is a DataLoader with an __iter__ of its own",
        ),
    ],
)
def test_what_accelerate_has_prepared_is_refused_by_name(change: Any, sentence: str) -> None:
    with pytest.raises(ConfigError, match=sentence):
        trained(change)


def test_a_model_that_accelerate_has_prepared_is_the_model() -> None:
    assert trained(lambda model, optimizer: {"model": prepared(model)}) == trained(
        lambda model, optimizer: {}
    )


def schedule_of(optimizer: torch.optim.Optimizer) -> Any:
    scheduler = pytest.importorskip("timm.scheduler", reason="pip install timm")
    return scheduler.CosineLRScheduler(
        optimizer, t_initial=9, warmup_t=3, warmup_lr_init=0.01, t_in_epochs=False
    )


def test_a_schedule_of_timm_is_refused_with_the_line_to_write() -> None:
    with pytest.raises(ConfigError, match=r"write scheduler.step_update\(session.committed\)"):
        trained(lambda model, optimizer: {"scheduler": schedule_of(optimizer)})


def test_a_schedule_of_timm_in_the_tail_sets_the_learning_rate() -> None:
    schedules: list[Any] = []
    rates = []

    def change(model: nn.Module, optimizer: torch.optim.Optimizer) -> dict[str, Any]:
        schedules.append(schedule_of(optimizer))
        return {"extra_state": schedules[-1]}

    def tail(session: pliant.Session, step: Any) -> None:
        schedules[-1].step_update(session.committed)
        rates.append(schedules[-1].optimizer.param_groups[0]["lr"])

    assert trained(change, tail) == trained(change, tail)
    assert rates[0] < rates[3] > rates[6]


@pytest.mark.parametrize(
    ("name", "error"),
    [
        ("SAM", "SAM computes a step in two passes"),
        ("WSAM", "WSAM computes a step in two passes"),
        ("BSAM", "BSAM computes a step in two passes"),
        ("AdaHessian", r"AdaHessian.step\(\) failed in its first update"),
        ("SophiaH", r"SophiaH.step\(\) failed in its first update"),
        ("Lookahead", "Lookahead has 'base_optimizer' in its state_dict"),
        ("Shampoo", ""),
        ("ScheduleFreeAdamW", ""),
    ],
)
def test_optimizers_of_others_work_or_are_refused_by_name(name: str, error: str) -> None:
    library = pytest.importorskip("pytorch_optimizer", reason="pip install pytorch_optimizer")
    kind = getattr(library, name)

    def change(model: nn.Module, optimizer: torch.optim.Optimizer) -> dict[str, Any]:
        make: dict[str, Callable[[], Any]] = {
            "SAM": lambda: kind(model.parameters(), base_optimizer=torch.optim.SGD, lr=0.1),
            "WSAM": lambda: kind(model, model.parameters(), torch.optim.SGD, lr=0.1),
            "BSAM": lambda: kind(model.parameters(), num_data=44),
            "Lookahead": lambda: kind(optimizer),
        }
        return {"optimizer": make.get(name, lambda: kind(model.parameters()))()}

    if not error:
        assert trained(change) == trained(change)
        return
    with pytest.raises((ConfigError, UsageError), match=error):
        trained(change)


def test_a_dataset_of_hugging_face_gives_its_samples() -> None:
    datasets = pytest.importorskip("datasets", reason="pip install datasets")
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")
        columns = {"x": POINTS.points.tolist(), "y": POINTS.labels.tolist()}
        rows = datasets.Dataset.from_dict(columns).with_format("torch")

    plain = trained(lambda *_: {"dataset": TensorDataset(POINTS.points, POINTS.labels)})

    assert trained(lambda *_: {"dataset": rows}) == plain
    assert trained(lambda *_: {"dataset": rows, "num_workers": 2}) == plain


def test_a_stream_of_hugging_face_is_refused() -> None:
    datasets = pytest.importorskip("datasets", reason="pip install datasets")
    stream = datasets.Dataset.from_dict({"x": [1, 2, 3]}).to_iterable_dataset()

    with pytest.raises(ConfigError, match="read a stream into a list"):
        trained(lambda *_: {"dataset": stream})
