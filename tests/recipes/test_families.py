"""Geometries, and what is estimated from them, beside what is published."""

from __future__ import annotations

from typing import Any

import pytest

from pliant.recipes.estimate import estimate
from pliant.recipes.families import GEOMETRIES, GPT2, GPT_OSS, LLAMA, geometry
from pliant.spec.load import check
from pliant.spec.recipe import SIZES, Recipe

PUBLISHED = {
    (LLAMA, "1b"): 1_235_814_400,
    (LLAMA, "3b"): 3_212_749_824,
    (LLAMA, "8b"): 8_030_261_248,
    (LLAMA, "70b"): 70_553_706_496,
    (GPT_OSS, "20b"): 20_914_757_184,
    (GPT_OSS, "120b"): 116_829_156_672,
    (GPT2, "124m"): 124_439_808,
    (GPT2, "355m"): 354_823_168,
    (GPT2, "774m"): 774_030_080,
    (GPT2, "1.5b"): 1_557_611_200,
}
"""Parameters, by the index files of the published weights; of GPT-2 by the weights themselves."""

TINY = {(LLAMA, "tiny"), (GPT_OSS, "tiny"), (GPT2, "tiny")}


NAMES = {LLAMA: "LlamaForCausalLM", GPT_OSS: "GptOssForCausalLM", GPT2: "GPT2LMHeadModel"}


def recipe(**fields: Any) -> Recipe:
    least = {"data": {"train": "a.jsonl", "sequenceLength": 2048}, "training": {"steps": 1}}
    return check(Recipe, {**least, **fields}, source="job.yaml")


def test_the_geometries_have_as_many_parameters_as_is_published() -> None:
    assert {name: one.parameters() for name, one in GEOMETRIES.items()} == PUBLISHED
    named = {(family, size) for family, sizes in SIZES.items() for size in sizes}
    assert named - GEOMETRIES.keys() == TINY


@pytest.mark.frameworks
@pytest.mark.parametrize("name", [*PUBLISHED, *sorted(TINY)])
def test_the_models_have_as_many_parameters_as_the_arithmetic(name: tuple[str, str]) -> None:
    import torch
    import transformers

    sizes = geometry(*name, vocabulary=262)
    kind: Any = getattr(transformers, NAMES[name[0]])
    config = kind.config_class
    with torch.device("meta"):
        model = kind(config(**sizes.config()))

    assert sum(one.numel() for one in model.parameters()) == sizes.parameters()


def test_adapters_of_all_linear_layers_have_as_many_parameters_as_peft_says() -> None:
    found = estimate(recipe(model={"size": "8b"}, lora={"rank": 16}))

    assert found.trained == 41_943_040


def test_slots_say_how_many_replicas_have_something_to_do() -> None:
    training = {"steps": 1, "globalBatchSize": 24, "microBatchSize": 2}

    found = estimate(recipe(training=training))

    assert (found.slots, found.even_sizes) == (12, (1, 2, 3, 4, 6, 12))
