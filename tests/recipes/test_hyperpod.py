"""Recipe files of HyperPod become job files; nothing that they say is dropped in silence."""

from __future__ import annotations

from copy import deepcopy
from pathlib import Path
from typing import Any

import pytest
import yaml
from tests.processes.test_cli import pliant

from pliant.core.errors import ConfigError
from pliant.recipes.hyperpod import converted
from pliant.spec.job import ElasticJob
from pliant.spec.load import parse


def of_size(nodes: int, **arguments: Any) -> dict[str, Any]:
    given = {"learning_rate": 3e-4, "train_batch_size": 64, **arguments}
    return {"trainer": {"num_nodes": nodes}, "training_config": {"training_args": given}}


UNEVEN = {"use_uneven_batch": True, "small_local_batch_size": 2, "large_local_batch_size": 3}
THEIRS: dict[str, Any] = {
    "display_name": "a recipe",
    "run": {"name": "gpt-oss-20b.mine", "results_dir": "${base}/${.name}"},
    "trainer": {"devices": 4, "num_nodes": 1},
    "elastic_policy": {
        "is_elastic": False,
        "min_nodes": 1,
        "max_nodes": 8,
        "scaling_timeout": 300,
        "graceful_shutdown_timeout": 450,
    },
    "scale_config": {
        1: of_size(1, micro_train_batch_size=4),
        2: of_size(2, micro_train_batch_size=2),
        6: of_size(6, uneven_batch=UNEVEN),
    },
    "training_config": {
        "model_config": {
            "model_name_or_path": "",
            "attn_implementation": "eager",
            "peft_config": {
                "peft_type": "lora",
                "r": 8,
                "lora_alpha": 16,
                "lora_dropout": 0.1,
                "target_modules": "all-linear",
                "use_dora": True,
            },
        },
        "datasets": {
            "train_data": {"file_path": "/data/chats.jsonl"},
            "val_data": {"file_path": ""},
            "train_val_split_ratio": 0.9,
        },
        "training_args": {
            "trainer_type": "sft",
            "learning_rate": 1e-4,
            "lr_warmup_ratio": 0.1,
            "lr_scheduler": "cosine",
            "adam_betas": [0.9, 0.95],
            "train_batch_size": 8,
            "max_epochs": 5,
            "max_len": 4096,
            "max_norm": 1.0,
            "packing_samples": True,
            "gradient_checkpointing": True,
            "label_smoothing": 0.1,
            "unheard_of": 3,
            "strategy": {"fsdp_config": {"sharding_strategy": "HYBRID_SHARD"}},
        },
    },
}


def test_each_field_is_carried_over_or_named() -> None:
    job, notes = converted(THEIRS, source="theirs.yaml")

    spec = job["spec"]
    assert spec["workersPerReplica"] == 4
    assert spec["elasticPolicy"] == {
        "minReplicas": 1,
        "maxReplicas": 6,
        "replicaDiscreteValues": [1, 2, 6],
        "scalingTimeoutInSeconds": 300,
        "gracefulShutdownTimeoutInSeconds": 450,
    }
    assert spec["recipe"]["training"] == {
        "learningRate": 3e-4,
        "warmupRatio": 0.1,
        "schedule": "cosine",
        "betas": [0.9, 0.95],
        "maxGradNorm": 1.0,
        "epochs": 5,
        "globalBatchSize": 64,
    }
    assert spec["recipe"]["lora"] == {"rank": 8, "alpha": 16, "dropout": 0.1}
    assert spec["recipe"]["data"] == {
        "train": "/data/chats.jsonl",
        "sequenceLength": 4096,
        "packing": "bfd",
    }
    said = "\n".join(notes)
    for words in (
        "is_elastic is false; the job is elastic",
        "learning_rate is 0.0003, as at every size of scale_config; training_args has 0.0001",
        "train_batch_size is 64",
        "slots divide a global batch evenly",
        "replace REPLACE-ME by a directory with the weights",
        "train_val_split_ratio 0.9",
        "use_dora True is not carried over",
        "label_smoothing 0.1 is not carried over: it changes what is learned",
        "training_args.unheard_of is not carried over",
        "files go to results/gpt-oss-20b.mine",
        "HYBRID_SHARD",
    ):
        assert words in said, said


def test_what_no_recipe_can_be_made_of_is_refused() -> None:
    other = deepcopy(THEIRS)
    other["scale_config"][6]["training_config"]["training_args"]["learning_rate"] = 1e-5
    with pytest.raises(ConfigError, match="has another learning_rate at each size"):
        converted(other, source="theirs.yaml")
    classes = {"trainer": {"_target_": "nemo.Trainer"}, "training_config": {}}
    with pytest.raises(ConfigError, match="names classes of NeMo or Megatron"):
        converted(classes, source="theirs.yaml")
    other = deepcopy(THEIRS)
    other["run"]["name"] = "qwen"
    with pytest.raises(ConfigError, match="names neither family"):
        converted(other, source="theirs.yaml")
    other = deepcopy(THEIRS)
    other["training_config"]["training_args"]["trainer_type"] = "grpo"
    with pytest.raises(ConfigError, match="has trainer_type grpo"):
        converted(other, source="theirs.yaml")


def test_the_command_prints_a_job_file(tmp_path: Path) -> None:
    (tmp_path / "theirs.yaml").write_text(yaml.safe_dump(THEIRS))
    done = pliant(tmp_path, "convert", str(tmp_path / "theirs.yaml"))

    assert done.returncode == 0, done.stderr
    assert parse(ElasticJob, done.stdout, source="converted").spec.recipe is not None
    assert "theirs.yaml: elastic_policy.is_elastic is false" in done.stderr
