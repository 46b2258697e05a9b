"""What ``session.save`` writes of a model of which each worker of a replica has a part."""

from __future__ import annotations

import json
import os
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
import torch
from tests.live.prompt import run_together
from torch import nn

from pliant.core.errors import ConfigError
from pliant.engine.sharding.stages import Stages
from pliant.engine.state.training_state import State
from pliant.engine.state.whole_weights import take_initial_weights

SCRIPT = Path(__file__).with_name("writing.py")


@pytest.mark.timeout(180)
def test_two_workers_write_what_one_would_of_a_model_that_is_whole(tmp_path: Path) -> None:
    commands = [(SCRIPT, tmp_path, rank) for rank in (0, 1)]

    both = run_together(*commands, cwd=tmp_path, environment=os.environ)

    refused = (
        "two stages of the model have 'bias', and session.save writes one; give the layers of each "
        "stage the names that they have in the whole model"
    )
    first = ["sharded: the same file", "staged: the same weights", refused]
    first += ["No space left on device", "File exists", "large: held as mapped"]
    assert [one.stdout.splitlines()[-6:] for one in both] == [first, [refused]], both


def of(model: nn.Module) -> tuple[State, torch.optim.Optimizer]:
    optimizer = torch.optim.Adam(model.parameters())
    state = State(
        model=model,
        local_buffers=frozenset(),
        optimizers=[optimizer],
        schedulers=[],
        scaler=None,
        extra={},
    )
    return state, optimizer


@pytest.fixture
def whole() -> nn.Sequential:
    return nn.Sequential(nn.Linear(4, 3), nn.Linear(3, 2))


class Two(Stages):
    """Of which the other has the first layer."""

    def gather_texts(self, text: str) -> list[str]:
        return [json.dumps(["0.weight", "0.bias"]), text]


def second_stage() -> nn.ModuleDict:
    return nn.ModuleDict({"1": nn.Linear(3, 2)})


def test_a_stage_takes_its_layers_and_nobody_else_leaves_any(
    tmp_path: Path, whole: nn.Sequential
) -> None:
    torch.save(whole.state_dict(), path := tmp_path / "weights.pt")
    stage = second_stage()

    take_initial_weights(path, of(stage)[0], Two())

    assert all(map(torch.equal, stage.parameters(), whole[1].parameters()))
    with pytest.raises(ConfigError, match="Unexpected key"):
        take_initial_weights(path, of(second_stage())[0], Stages())


def test_states_of_optimizers_are_in_memory_of_their_own(
    tmp_path: Path, whole: nn.Sequential
) -> None:
    states = {name: {"exp_avg": torch.ones_like(p)} for name, p in whole.named_parameters()}
    kept = {"pliant_initial": 1, "model": whole.state_dict(), "optim": states}
    torch.save(kept, path := tmp_path / "weights.pt")
    state, optimizer = of(second_stage())

    take_initial_weights(path, state, Two())

    assert len(optimizer.state) == 2
    for entries in optimizer.state.values():
        entries["exp_avg"].mul_(2)
    again = torch.load(path)["optim"]["1.bias"]["exp_avg"]
    assert torch.equal(again, torch.ones(2))


def test_a_tensor_of_another_shape_is_told(tmp_path: Path, whole: nn.Sequential) -> None:
    torch.save({"1.weight": torch.zeros(9), "1.bias": torch.zeros(2)}, path := tmp_path / "w.pt")

    with pytest.raises(ConfigError, match=r"size mismatch for 1\.weight"):
        take_initial_weights(path, of(second_stage())[0], Two())


@pytest.mark.parametrize("wrap", [dict, lambda w: {"pliant_initial": 1, "model": w, "optim": {}}])
def test_weights_that_no_stage_has_are_told(
    tmp_path: Path, whole: nn.Sequential, wrap: Callable[[dict[str, Any]], dict[str, Any]]
) -> None:
    """As with stages that have fewer layers in all than the file."""
    more = {**whole.state_dict(), "2.weight": torch.zeros(2)}
    torch.save(wrap(more), path := tmp_path / "weights.pt")

    with pytest.raises(ConfigError, match=r"Unexpected key.*2\.weight|has '2\.weight', which this"):
        take_initial_weights(path, of(second_stage())[0], Two())
