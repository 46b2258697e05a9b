"""What is stored of the model at the start takes its place, and is of this model and these data."""

from __future__ import annotations

import json
from importlib.util import find_spec
from pathlib import Path
from typing import Any

import pytest
import torch

import pliant
from pliant.core.errors import ConfigError
from pliant.recipes import reference
from pliant.recipes.models import build
from pliant.recipes.reference import remember
from pliant.recipes.samples import Pairs, collate_pairs
from pliant.recipes.tasks import Task
from pliant.recipes.tokens import tokenizer_of
from pliant.recipes.train import data_of
from pliant.spec.load import check
from pliant.spec.recipe import Recipe

pytestmark = [
    pytest.mark.slow,
    pytest.mark.skipif(find_spec("transformers") is None, reason="pip install transformers peft"),
]

PAIRS = [{"prompt": f"say {word}", "chosen": word, "rejected": "no"} for word in ("a", "be", "sea")]


@pytest.fixture(autouse=True)
def _here(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(tmp_path)
    monkeypatch.setattr("pliant.engine.worker.once._ended", set())
    Path("pairs.jsonl").write_text("".join(json.dumps(pair) + "\n" for pair in PAIRS))


def recipe(**fields: Any) -> Recipe:
    given = {
        "task": "dpo",
        "data": {"train": "pairs.jsonl"},
        "training": {"steps": 1, "seed": 3},
        "preference": {"reference": "stored"},
    }
    return check(Recipe, given | fields, source="job.yaml")


def remembered(wanted: Recipe, workers: int = 1) -> Pairs:
    pairs, _ = data_of(wanted, "pairs.jsonl", tokenizer_of(wanted))
    remember(wanted, pairs, "pairs.jsonl", tokenizer_of(wanted), workers)
    found: Pairs = pairs
    return found


def test_the_loss_is_that_beside_a_frozen_model() -> None:
    wanted = recipe()
    pairs = remembered(wanted)
    pliant.seed(3)
    frozen = build(wanted, tokenizer_of(wanted), 1).eval()
    pliant.seed(4)
    policy = build(wanted, tokenizer_of(wanted), 1)
    with_values = collate_pairs([pairs[0], pairs[2]])
    without = {name: part for name, part in with_values.items() if name != "reference"}

    stored = Task(wanted, None).loss(policy, with_values)
    beside = Task(wanted, frozen).loss(policy, without)

    torch.testing.assert_close(stored.loss, beside.loss, rtol=1e-5, atol=0)
    torch.testing.assert_close(stored.logged["margin"], beside.logged["margin"], rtol=1e-4, atol=0)


def test_values_are_computed_once_for_a_model_and_its_data(monkeypatch: pytest.MonkeyPatch) -> None:
    built = []

    def counted(*given: Any) -> Any:
        built.append(given)
        return build(*given)

    def again(wanted: Recipe) -> int:
        monkeypatch.setattr("pliant.engine.worker.once._ended", set())  # as in another run
        remembered(wanted)
        return len(built)

    monkeypatch.setattr(reference, "build", counted)

    assert again(recipe()) == 1
    assert again(recipe()) == 1
    assert again(recipe(training={"steps": 1, "seed": 4})) == 2  # other fresh weights
    for path in Path("recipe-cache").glob("reference-*.npy"):
        path.write_bytes(path.read_bytes()[:-1] + b"?")
    assert again(recipe()) == 3


def test_what_is_gone_in_the_middle_of_a_run_and_a_shared_model_are_refused() -> None:
    remembered(recipe())
    for path in Path("recipe-cache").glob("reference-*.npy"):
        path.unlink()

    with pytest.raises(ConfigError, match="are gone or damaged since the run began"):
        remembered(recipe())
    with pytest.raises(ConfigError, match="computes with a whole model, and workersPerReplica 2"):
        remembered(recipe(), workers=2)
