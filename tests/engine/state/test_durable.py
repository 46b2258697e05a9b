"""What a session's state is called outside of it, and that it comes back as it was."""

from __future__ import annotations

import json
from collections.abc import Callable, Mapping
from typing import Any

import pytest
import torch
from torch import nn
from torch.distributed.checkpoint import state_dict as dcp

from pliant.core.errors import ConfigError
from pliant.engine.local_tensors import TensorPart
from pliant.engine.sharding.stages import Stages
from pliant.engine.state import durable
from pliant.engine.state.durable import CheckpointDamaged, StagedDescriber
from pliant.engine.state.saving import restore
from pliant.engine.state.training_state import State


class Net(nn.Module):
    def __init__(self, width: int = 4) -> None:
        super().__init__()
        self.body = nn.Sequential(nn.Linear(3, width), nn.BatchNorm1d(width))
        self.head = nn.Linear(width, 3)
        self.tied = self.head
        self.register_buffer("scratch", torch.arange(2.0), persistent=False)

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        out: torch.Tensor = self.head(self.body(x))
        return out


class Average:
    """A moving average of a model that the user keeps, and a count."""

    def __init__(self, model: nn.Module) -> None:
        self.model = model
        self.values: dict[Any, Any] = {"mean": torch.zeros(3), "seen": 0, 7: (1, float("inf"))}

    def state_dict(self) -> dict[Any, Any]:
        return {**self.values, "now": self.model.state_dict()["head.weight"]}

    def load_state_dict(self, state: dict[Any, Any]) -> None:
        self.values = {key: state[key] for key in ("mean", "seen", 7)}


class Kept:
    """A reader of what was described: a checkpoint in memory."""

    def __init__(self, document: bytes, tensors: Mapping[str, torch.Tensor]) -> None:
        self.text = document
        self.tensors = {name: tensor.clone() for name, tensor in tensors.items()}

    def document(self) -> bytes:
        return self.text

    def read(self, into: Mapping[str, torch.Tensor], parts: Mapping[str, TensorPart]) -> None:
        assert not parts
        for name, target in into.items():
            if name not in self.tensors or self.tensors[name].shape != target.shape:
                raise CheckpointDamaged(f"{name} is not there")
            target.copy_(self.tensors[name])


class Run:
    """A model with all that belongs to it, trained for some steps."""

    def __init__(self, seed: int, steps: int, width: int = 4) -> None:
        torch.manual_seed(seed)
        self.model = Net(width)
        self.optimizer = torch.optim.AdamW(self.model.parameters(), lr=0.1)
        self.scheduler = torch.optim.lr_scheduler.MultiStepLR(self.optimizer, [1, 3])
        self.average = Average(self.model)
        self.state = State(
            model=self.model,
            local_buffers=frozenset(),
            optimizers=[self.optimizer],
            schedulers=[self.scheduler],
            scaler=None,
            extra={"": self.average},
        )
        self.train(steps)

    def train(self, steps: int) -> None:
        for _ in range(steps):
            self.model(torch.randn(5, 3)).square().mean().backward()
            self.optimizer.step()
            self.optimizer.zero_grad()
            self.scheduler.step()
            self.average.values["seen"] += 1
            self.average.values["mean"] += 1

    def keep(self, committed: int = 4, calls: int = 1) -> Kept:
        return Kept(*durable.Describer(self.state).describe(committed=committed, calls=calls))


def test_tensors_have_the_names_that_plain_pytorch_gives_them() -> None:
    run = Run(seed=1, steps=2)
    names = set(run.keep().tensors)
    model = {f"model.{name}" for name in dcp.get_model_state_dict(run.model)}
    states = dcp.get_optimizer_state_dict(run.model, run.optimizer)["state"]
    optim = {f"optim.state.{name}.{key}" for name, kept in states.items() for key in kept}  # type: ignore[union-attr]

    assert model | optim <= names | set(run.state.spelled().aliases)
    assert names - model - optim == {"buffers.scratch", "extra.mean"}


def test_one_that_described_often_says_what_a_new_one_says(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setattr("pliant.engine.state.tagged_codec.LARGE", 1)
    monkeypatch.setattr("pliant.engine.state.durable.LARGE", 1)
    run = Run(seed=1, steps=1)
    describer = durable.Describer(run.state)
    changes: list[Callable[[], object]] = [
        lambda: None,
        lambda: run.train(2),
        lambda: run.model.register_buffer("late", torch.zeros(3)),
        lambda: run.model.register_buffer("late", torch.ones(4)),
        lambda: run.average.values.update(more=torch.ones(2)),
        lambda: run.optimizer.state[run.model.head.weight].update(more=torch.ones(2)),
        lambda: run.optimizer.state.clear(),
        lambda: setattr(run.model.head.weight, "data", torch.zeros(4, 3).t()),
    ]
    for change in changes:
        change()
        document, tensors = describer.describe(committed=1, calls=0)
        monkeypatch.setattr(run.state, "_views", {})
        anew, alike = durable.Describer(run.state).describe(committed=1, calls=0)

        assert document == anew
        assert list(tensors) == list(alike)
        for one, other in zip(tensors.values(), alike.values(), strict=True):
            assert one.data_ptr() == other.data_ptr()
            assert torch.equal(one, other)


def test_tied_weights_have_one_tensor_and_a_further_name() -> None:
    run = Run(seed=1, steps=0)

    assert run.state.spelled().aliases == {
        "model.tied.weight": "model.head.weight",
        "model.tied.bias": "model.head.bias",
    }
    assert "model.tied.weight" not in run.keep().tensors


def test_no_tensor_is_copied_and_what_extra_state_holds_of_the_model_is_the_models() -> None:
    run = Run(seed=1, steps=1)
    _, tensors = durable.Describer(run.state).describe(committed=1, calls=0)

    assert tensors["model.head.weight"].data_ptr() == run.model.head.weight.data_ptr()
    assert sum(tensor.shape == (3, 4) for tensor in tensors.values()) == 3  # weight, two moments


def test_what_was_kept_comes_back_bit_for_bit() -> None:
    run, other = Run(seed=1, steps=4), Run(seed=2, steps=1)

    restore(other.state, run.keep(committed=4), committed=4)

    assert other.state.digest(4) == run.state.digest(4)
    assert other.average.values[7] == (1, float("inf"))
    assert other.scheduler.get_last_lr() == run.scheduler.get_last_lr()


def test_every_replica_describes_the_same_state_alike() -> None:
    one, other = Run(seed=1, steps=3), Run(seed=1, steps=3)

    assert list(one.keep().tensors) == list(other.keep().tensors)
    assert one.keep().text == other.keep().text


def test_another_model_is_refused_before_anything_is_written() -> None:
    run, other = Run(seed=1, steps=2, width=8), Run(seed=2, steps=1)
    before = other.state.digest(0)

    with pytest.raises(ConfigError, match=r"'body.0.weight' is float32 \(8, 3\) in the checkpoint"):
        restore(other.state, run.keep(), committed=4)

    assert other.state.digest(0) == before


def test_a_tensor_more_or_less_in_the_model_is_named() -> None:
    run, other = Run(seed=1, steps=2), Run(seed=2, steps=1)
    run.model.register_buffer("late", torch.zeros(1))

    with pytest.raises(ConfigError, match="checkpoint's model has 'late', which this script's"):
        restore(other.state, run.keep(), committed=4)
    with pytest.raises(ConfigError, match="script's model has 'late', which the checkpoint's"):
        restore(run.state, other.keep(), committed=4)


@pytest.mark.parametrize(
    ("change", "sentence"),
    [
        ({"schedulers": []}, "the checkpoint has 1 schedulers, and this script has 0"),
        ({"scaler": torch.amp.GradScaler("cpu")}, "only this script has a scaler"),
        ({"extra": {}}, "only the checkpoint has extra_state$"),
        ({"extra": None}, "only this script has extra_state named 'ema'"),
    ],
)
def test_what_a_script_has_got_or_lost_since_is_named(
    change: dict[str, Any], sentence: str
) -> None:
    run, other = Run(seed=1, steps=2), Run(seed=2, steps=1)
    parts: dict[str, Any] = {
        "optimizers": [other.optimizer],
        "schedulers": [other.scheduler],
        "scaler": None,
        "extra": {"": other.average},
        **change,
    }
    if parts["extra"] is None:
        parts["extra"] = {"": other.average, "ema": other.average}
    state = State(model=other.model, local_buffers=frozenset(), **parts)
    before = state.digest(0)

    with pytest.raises(ConfigError, match=sentence):
        restore(state, run.keep(), committed=4)
    assert state.digest(0) == before


@pytest.mark.parametrize(
    "text",
    [
        b"",
        b"[]",
        b'{"version": 1}',
        b'{"version": 1, "committed": 1, "calls": 0, "tensors": [["x"]], "state": ""}',
        b'{"version": 1, "committed": 1, "calls": 0, "tensors": [], "state": "{}"}',
    ],
)
def test_a_document_that_is_none_is_damage(text: bytes) -> None:
    with pytest.raises(CheckpointDamaged, match="its document cannot be read"):
        restore(Run(seed=1, steps=0).state, Kept(text, {}), committed=1)


def test_a_checkpoint_of_another_step_than_its_name_says_is_damage() -> None:
    run, other = Run(seed=1, steps=2), Run(seed=2, steps=1)
    before = other.state.digest(0)

    with pytest.raises(CheckpointDamaged, match="it holds step 4, and should hold 6"):
        restore(other.state, run.keep(committed=4), committed=6)
    assert other.state.digest(0) == before


def test_a_tensor_that_is_missing_is_damage() -> None:
    run = Run(seed=1, steps=2)
    kept = run.keep()
    del kept.tensors["extra.mean"]

    with pytest.raises(CheckpointDamaged, match=r"extra\.mean"):
        restore(Run(seed=2, steps=0).state, kept, committed=4)


def test_a_document_of_a_newer_version_asks_for_it() -> None:
    kept = Run(seed=1, steps=0).keep()
    kept.text = json.dumps({**json.loads(kept.text), "version": 99}).encode()

    with pytest.raises(ConfigError, match="newer pliant"):
        restore(Run(seed=2, steps=0).state, kept, committed=4)


def test_a_run_begins_with_the_weights_and_moments_of_another() -> None:
    run, other = Run(seed=1, steps=3), Run(seed=2, steps=0)
    weights = {name: tensor.clone() for name, tensor in run.model.state_dict().items()}
    states = {
        name: {key: value.clone() for key, value in run.optimizer.state[parameter].items()}
        for name, parameter in run.model.named_parameters()
    }
    other.model.load_state_dict(weights)
    other.state.begin_with(weights, states)

    parameter = other.model.head.weight
    assert torch.equal(parameter, run.model.head.weight)
    assert torch.equal(
        other.optimizer.state[parameter]["exp_avg"],
        run.optimizer.state[run.model.head.weight]["exp_avg"],
    )
    with pytest.raises(ConfigError, match=r"has no 'body\.0\.bias'"):
        other.state.begin_with({k: v for k, v in weights.items() if ".bias" not in k}, {})
    with pytest.raises(ConfigError, match="has 'strange'"):
        other.state.begin_with({**weights, "strange": torch.zeros(1)}, {})


class Both(Stages):
    """One of two stages, in one process: it hears what the other has said before."""

    def __init__(self, number: int, said: dict[int, str]) -> None:
        super().__init__()
        self.coordinates = (number,)
        self._said = said

    def gather_texts(self, text: str) -> list[str]:
        self._said[self.coordinates[0]] = text
        return [self._said.get(number, text) for number in range(2)]


def stage(number: int) -> State:
    model = nn.ModuleDict({str(number): nn.Linear(2, 2)})
    model.register_buffer("angles", torch.full((3,), float(number)), persistent=False)
    return State(
        model=model,
        local_buffers=frozenset(),
        optimizers=[torch.optim.SGD(model.parameters())],
        schedulers=[],
        scaler=None,
        extra={},
    )


def test_a_buffer_that_two_stages_have_under_one_name_is_kept_for_each() -> None:
    """As the angles of rotary embeddings, of which each stage of a transformer has its own."""
    said: dict[int, str] = {}
    describers = [StagedDescriber(stage(number), {}, Both(number, said)) for number in range(2)]

    for describer in describers * 2:
        _, tensors = describer.describe(committed=0, calls=0)
        assert tensors.keys() == describer.parts.keys()

    first, second = (
        {name for name, part in describer.parts.items() if part.is_first}
        for describer in describers
    )
    assert not first & second
    assert {name for name in first | second if "angles" in name} == {
        "stages.0.buffers.angles",
        "stages.1.buffers.angles",
    }
    assert "model.0.weight" in first
