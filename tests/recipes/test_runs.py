"""Recipes whose replicas come and go end with the weights of one alone."""

from __future__ import annotations

import json
import random
from importlib.util import find_spec
from pathlib import Path
from typing import Any

import pytest
import yaml
from tests.integrations.playing import alone, elastic, files
from tests.live.prompt import typed
from tests.processes.test_cli import environment, pliant, wait_for

from pliant.recipes.families import geometry
from pliant.spec.load import check
from pliant.spec.recipe import Recipe

pytestmark = [
    pytest.mark.processes,
    pytest.mark.slow,
    pytest.mark.timeout(400),
    pytest.mark.skipif(find_spec("transformers") is None, reason="pip install transformers peft"),
]

WORDS = [
    "the",
    "cat",
    "sat",
    "on",
    "a",
    "mat",
    "and",
    "saw",
    "that",
    "red",
    "dog",
    "run",
    "far",
    "over",
    "hills",
]

PRETRAINING = {
    "data": {"train": "texts.jsonl", "sequenceLength": 48, "evaluate": "texts.jsonl"},
    "training": {"steps": 120, "globalBatchSize": 6, "learningRate": 0.01, "warmupSteps": 9},
    "evaluation": {"everySteps": 40},
}
CHATS: dict[str, Any] = {
    "task": "sft",
    "model": {"family": "gpt-oss"},
    "lora": {"rank": 4, "experts": True},
    "data": {"train": "chats.jsonl", "sequenceLength": 48},
    "training": {"steps": 120, "globalBatchSize": 6, "learningRate": 0.01},
}
PREFERENCES = {
    "task": "dpo",
    "data": {"train": "pairs.jsonl", "sequenceLength": 48},
    "training": {"steps": 120, "globalBatchSize": 6, "learningRate": 0.001},
}
OF_GPT2 = {**CHATS, "model": {"family": "gpt2"}, "lora": {"rank": 4}}
RECIPES: dict[str, dict[str, Any]] = {
    "pretraining": PRETRAINING,
    "chats": CHATS,
    "preferences": PREFERENCES,
    "gpt2": OF_GPT2,
}
STORED = {**PREFERENCES, "preference": {"reference": "stored"}}


def write_data(directory: Path) -> None:
    draw = random.Random(0)
    texts = [" ".join(draw.choices(WORDS, k=draw.randint(3, 30))) for _ in range(80)]
    rows: dict[str, list[dict[str, Any]]] = {
        "texts": [{"text": text} for text in texts],
        "chats": [
            {"messages": [{"role": "user", "content": w}, {"role": "assistant", "content": w * 2}]}
            for w in WORDS * 4
        ],
        "pairs": [{"prompt": f"say {w}", "chosen": w, "rejected": "no"} for w in WORDS * 2],
    }
    directory.mkdir(exist_ok=True)
    for name, all_of_it in rows.items():
        lines = "".join(json.dumps(row) + "\n" for row in all_of_it)
        (directory / f"{name}.jsonl").write_text(lines)


def command(fields: dict[str, Any]) -> list[str]:
    given = {"export": {"path": "model"}, **fields}
    return check(Recipe, given, source="job.yaml").command()


def exported(directory: Path) -> dict[str, bytes]:
    return {name: (directory / name).read_bytes() for name in files(directory)}


@pytest.mark.parametrize("name", [*RECIPES, "stored"])
def test_replicas_come_and_go(name: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    for place in ("alone", "elastic"):
        write_data(tmp_path / place)
    words = command(STORED if name == "stored" else RECIPES[name])
    alone(tmp_path / "alone", *words)

    job = elastic(tmp_path / "elastic", monkeypatch, *words)

    assert exported(tmp_path / "alone/model") == exported(tmp_path / "elastic/model"), job.said()


@pytest.mark.frameworks
@pytest.mark.parametrize("name", list(RECIPES))
def test_replicas_of_two_workers_share_the_model(name: str, tmp_path: Path) -> None:
    fields: dict[str, Any] = {**RECIPES[name]}
    if "lora" in fields:
        fields["lora"] = {"rank": 4, "dropout": 0.1}
    for place, workers in (("alone", 1), ("sharded", 2)):
        write_data(tmp_path / place)
        write_job(tmp_path / place / "job.yaml", fields, workers)
        done = pliant(tmp_path / place, "run", "--max", str(workers), "job.yaml")
        assert done.returncode == 0, done.stderr

    assert exported(tmp_path / "alone/model") == exported(tmp_path / "sharded/model")


@pytest.mark.frameworks
def test_workers_share_an_embedding_that_is_the_output_layer_too(tmp_path: Path) -> None:
    from transformers import LlamaConfig, LlamaForCausalLM

    sizes = geometry("llama", "tiny", 300).config() | {"tie_word_embeddings": True}
    LlamaForCausalLM(LlamaConfig(**sizes)).save_pretrained(tmp_path / "tied")
    training = {**PRETRAINING["training"], "steps": 30}  # type: ignore[dict-item]
    model = {"weights": str(tmp_path / "tied"), "tokenizer": "bytes"}
    for place, workers in (("alone", 1), ("sharded", 2)):
        write_data(tmp_path / place)
        fields = {**PRETRAINING, "model": model, "training": training}
        write_job(tmp_path / place / "job.yaml", fields, workers)
        done = pliant(tmp_path / place, "run", "--max", str(workers), "job.yaml")
        assert done.returncode == 0, done.stderr

    assert exported(tmp_path / "alone/model") == exported(tmp_path / "sharded/model")


@pytest.mark.frameworks
def test_a_recipe_is_suspended_and_goes_on_at_another_size(tmp_path: Path) -> None:
    fields = {**CHATS, "checkpoint": {"path": "kept", "every": "20steps"}}
    for place in ("alone", "elastic"):
        write_data(tmp_path / place)
        write_job(tmp_path / place / "job.yaml", fields, 1)
    assert pliant(tmp_path / "alone", "run", "--max", "1", "job.yaml").returncode == 0
    here = tmp_path / "elastic"
    with typed(
        "pliant", "run", "--max", "2", "job.yaml", cwd=here, environment=environment(here)
    ) as run:
        wait_for(here, "r1,r2", state="training")
        assert pliant(here, "suspend").returncode == 0
        assert run.ended().returncode == 3
    resumed = pliant(here, "run", "--resume", "--max", "3", "job.yaml")

    assert resumed.returncode == 0, resumed.stderr
    assert exported(tmp_path / "alone/model") == exported(here / "model")


def write_job(path: Path, fields: dict[str, Any], workers: int) -> None:
    document = {
        "apiVersion": "pliant.dev/v1alpha1",
        "kind": "ElasticJob",
        "metadata": {"name": "recipe"},
        "spec": {
            "recipe": {**fields, "export": {"path": "model"}},
            "workersPerReplica": workers,
        },
    }
    path.write_text(yaml.safe_dump(document))
