"""A function of the user's measures the model, and changes nothing of the training."""

from __future__ import annotations

import math
from pathlib import Path
from typing import Any

import pytest
import torch
from tests.integrations.playing import alone
from tests.recipes.test_runs import PRETRAINING, command, exported, write_data
from torch import nn

from pliant.core.errors import ConfigError
from pliant.recipes.harness import harness_of, measured

HARNESS = """
import torch
from pathlib import Path

def score(model, tokenizer):
    torch.rand(7)
    with Path("scores").open("a") as scores:
        scores.write(f"{model.training} {torch.is_grad_enabled()}\\n")
    return {"words": len(tokenizer("the cat")["input_ids"])}

NUMBER = 7
"""


def test_it_leaves_modes_and_random_numbers_as_they_were() -> None:
    model = nn.Sequential(nn.Dropout(0.5), nn.Linear(2, 2))
    model[1].eval()
    torch.manual_seed(3)
    before = torch.get_rng_state()

    def score(model: nn.Module, tokenizer: Any) -> dict[str, float]:
        assert not model.training
        return {"mean": float(model(torch.ones(1, 2)).mean() * 0 + torch.rand(1) * 0 + 2)}

    assert measured("m:score", score, model, None) == {"mean": 2.0}
    assert torch.equal(before, torch.get_rng_state())
    assert [module.training for module in model.modules()] == [True, True, False]


@pytest.mark.parametrize("found", [None, {"a": "b"}, {1: 2.0}, [1.0]])
def test_what_is_no_dict_of_numbers_is_refused(found: Any) -> None:
    with pytest.raises(ConfigError, match="return a dict of numbers by name"):
        measured("m:score", lambda model, tokenizer: found, nn.Linear(1, 1), None)


def test_a_value_that_is_no_number_ends_no_training() -> None:
    found = measured("m:score", lambda model, tokenizer: {"a": math.nan}, nn.Linear(1, 1), None)

    assert math.isnan(found["a"])


@pytest.mark.parametrize(
    ("named", "why"),
    [
        ("nowhere:score", "is not there: No module named 'nowhere'"),
        ("own_harness:no", "is not there: module 'own_harness' has no attribute 'no'"),
        ("own_harness:NUMBER", "is no function"),
    ],
)
def test_what_is_not_there_is_said_before_anything_trains(
    named: str, why: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.chdir(tmp_path)
    monkeypatch.syspath_prepend(tmp_path)
    (tmp_path / "own_harness.py").write_text(HARNESS)

    with pytest.raises(ConfigError, match=why):
        harness_of(named)


@pytest.mark.slow
@pytest.mark.timeout(300)
def test_a_recipe_is_measured_and_ends_with_the_same_weights(tmp_path: Path) -> None:
    pytest.importorskip("transformers")
    training = {**PRETRAINING["training"], "steps": 30}  # type: ignore[dict-item]
    for place, more in (("plain", {}), ("measured", {"harness": "own_harness:score"})):
        write_data(tmp_path / place)
        (tmp_path / place / "own_harness.py").write_text(HARNESS)
        evaluation = {"everySteps": 10, **more}
        alone(
            tmp_path / place,
            *command({**PRETRAINING, "training": training, "evaluation": evaluation}),
        )

    assert exported(tmp_path / "plain/model") == exported(tmp_path / "measured/model")
    assert (tmp_path / "measured/scores").read_text() == "False False\n" * 3
