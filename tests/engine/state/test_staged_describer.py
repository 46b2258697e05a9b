"""The states of stages become one, in which each tensor is one stage's."""

from __future__ import annotations

import torch
from torch import nn

from pliant.engine.sharding.stages import Stages
from pliant.engine.state.staged_describer import StagedDescriber
from pliant.engine.state.training_state import State


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
