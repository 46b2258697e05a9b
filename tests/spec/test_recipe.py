"""What a recipe may say: each contradiction gets one sentence."""

from __future__ import annotations

import json
from typing import Any

import pytest

from pliant.core.errors import ConfigError
from pliant.spec.load import check
from pliant.spec.recipe import MODULE, Recipe

LEAST: dict[str, Any] = {"data": {"train": "a.jsonl"}, "training": {"steps": 5}}


def read(**fields: Any) -> Recipe:
    return check(Recipe, {**LEAST, **fields}, source="job.yaml")


@pytest.mark.parametrize(
    ("fields", "sentence"),
    [
        ({"model": {"size": "8b", "family": "gpt-oss"}}, "8b is no size of gpt-oss; it has tiny"),
        (
            {"data": {"train": "a", "evaluate": "b"}, "evaluation": {"harness": "hx"}},
            "evaluation.harness hx names no function; write MODULE:FUNCTION",
        ),
        ({"training": {}}, "training.steps or training.epochs: give one of the two"),
        ({"training": {"steps": 1, "epochs": 1}}, "training.steps or training.epochs: give one"),
        (
            {"training": {"steps": 1, "globalBatchSize": 8, "microBatchSize": 3}},
            "training.microBatchSize 3 does not divide globalBatchSize 8",
        ),
        ({"preference": {}}, "preference is of task dpo, and the task is pretrain"),
        ({"evaluation": {}}, "evaluation needs data.evaluate"),
        ({"export": {"path": "x", "merge": True}}, "export.merge is of adapters"),
        ({"task": "dpo", "preference": {"reference": "adapter"}}, "reference adapter needs lora"),
        ({"lora": {"experts": True, "dropout": 0.1}}, "lora.dropout is not there for experts"),
        ({"lora": {"experts": True}}, "lora.experts is of mixtures of experts"),
        ({"task": "dpo", "data": {"train": "a", "packing": "bfd"}}, "bfd is not for pairs"),
        ({"checkpoint": {"path": "c", "every": "soon"}}, "checkpoint.every: "),
        (
            {
                "model": {"family": "gpt-oss"},
                "lora": {"experts": True},
                "export": {"path": "x", "merge": True},
            },
            "export.merge is not there for adapters of experts",
        ),
        ({"data": {"trian": "a"}}, "did you mean train?"),
    ],
)
def test_each_contradiction_gets_one_sentence(fields: dict[str, Any], sentence: str) -> None:
    with pytest.raises(ConfigError) as refused:
        read(**fields)

    assert sentence in str(refused.value)


def test_its_workers_get_what_the_file_gives_and_no_more() -> None:
    recipe = read(task="sft", model={"family": "gpt-oss"})

    flag, module, text = recipe.command()

    assert (flag, module) == ("-m", MODULE)
    assert json.loads(text) == {**LEAST, "task": "sft", "model": {"family": "gpt-oss"}}
    assert check(Recipe, json.loads(text), source="the recipe") == recipe
