"""Recipe files of SageMaker HyperPod as job files with a recipe.

Owns which of their fields become which of ours, and that each other one that says something is
named.  A node of theirs, which shards the model over its devices (HYBRID_SHARD), is a replica.

Source of the field names: the recipes of aws/sagemaker-hyperpod-recipes with an ``elastic_policy``.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from typing import Any

from pliant.core.errors import ConfigError
from pliant.core.text import in_words
from pliant.recipes.families import GPT_OSS, LLAMA
from pliant.spec.job import ElasticJob
from pliant.spec.load import check

UNKNOWN = "REPLACE-ME"
"""Stands for what the file leaves to a launcher, and a recipe needs."""

TRAINING = {
    "learning_rate": "learningRate",
    "lr_warmup_ratio": "warmupRatio",
    "lr_scheduler": "schedule",
    "weight_decay": "weightDecay",
    "adam_betas": "betas",
    "max_norm": "maxGradNorm",
    "max_epochs": "epochs",
    "train_batch_size": "globalBatchSize",
    "aux_loss_coef": "auxiliaryLoss",
    "seed": "seed",
}

POLICY = {
    "min_nodes": "minReplicas",
    "max_nodes": "maxReplicas",
    "replica_increment_step": "replicaIncrementStep",
    "scaling_timeout": "scalingTimeoutInSeconds",
    "graceful_shutdown_timeout": "gracefulShutdownTimeoutInSeconds",
    "faulty_timeout": "faultyScaleDownTimeoutInSeconds",
}

BY_SIZE = {"micro_train_batch_size", "uneven_batch"}
"""How a node's share is cut: slots do that, at any size."""

TAKEN = {
    *(*TRAINING, *BY_SIZE, "trainer_type", "packing_samples", "max_len", "gradient_checkpointing"),
    *("beta", "loss_type", "merge_weights", "save_hf_ckpt", "eval_steps", "max_ckpt_num"),
    *("save_steps", "strategy", "trainer_callbacks", "logging_steps"),
}

NEUTRAL: dict[str, Any] = {
    "label_smoothing": 0.0,
    "nll_loss_coef": 0.0,
    "reference_free": False,
    "pretrain_mode": False,
    "l2": 0.0,
    "gradient_clipping": True,
}
"""Would change what is learned; as the file has it here, it changes nothing."""

IDLE = {
    *("override_training_dir", "training_dir", "ring_attn_size", "ring_head_stride", "M"),
    *("grad_accum_dtype", "gradient_checkpointing_use_reentrant", "load_checkpoint"),
    *("resume_checkpoint_path", "disable_ds_ckpt", "disable_fast_tokenizer", "max_samples"),
    *("max_ckpt_mem", "use_tensorboard", "use_wandb", "ref_offload", "sampling_method"),
    "gradient_clipping_threshold",
}
"""Means nothing here: where and how their trainer keeps, logs and spreads."""


def is_recipe(document: Mapping[str, Any]) -> bool:
    """Whether a document is such a recipe, and no manifest."""
    return "kind" not in document and bool(document.keys() & {"training_config", "elastic_policy"})


def converted(document: Mapping[str, Any], *, source: str) -> tuple[dict[str, Any], list[str]]:
    """Return an ElasticJob, and what it does not say or was assumed.

    Raises:
        ConfigError: it is of another trainer, family or task, or trains otherwise at each size.
    """
    if any("_target_" in (document.get(name) or {}) for name in ("trainer", "model", "recipe")):
        raise ConfigError(
            f"{source} names classes of NeMo or Megatron (_target_), as checkpointless recipes do; "
            "no recipe can be made of it: run its script, changed to a pliant.Session"
        )
    try:
        return _converted(document, source)
    except (AttributeError, KeyError, TypeError, ValueError) as error:
        if isinstance(error, ConfigError):
            raise
        raise ConfigError(f"{source} is no recipe of HyperPod's that is known: {error}") from None


def _converted(document: Mapping[str, Any], source: str) -> tuple[dict[str, Any], list[str]]:
    notes: list[str] = []
    run, config = document.get("run") or {}, document["training_config"]
    model, data = config.get("model_config") or {}, config.get("datasets") or {}
    name = str(run.get("name") or "recipe")
    policy, same = _sizes(document, notes, source)
    arguments = {**_arguments(document), **same}
    task = str(arguments.get("trainer_type"))
    if task not in ("sft", "dpo"):
        raise ConfigError(f"{source} has trainer_type {task}; recipes have sft and dpo")
    results = str(run.get("results_dir") or "")
    if "${" in results or not results:
        results = f"results/{name}"
        notes.append(f"run.results_dir is the launcher's: files go to {results}")
    recipe: dict[str, Any] = {
        "task": task,
        "model": _model(name, model, arguments, notes, source),
        "data": _data(data, arguments, notes),
        "training": {
            ours: arguments[theirs]
            for theirs, ours in TRAINING.items()
            if arguments.get(theirs) is not None
        },
    }
    if (lora := _lora(model.get("peft_config"), notes)) is not None:
        recipe["lora"] = lora
    if task == "dpo" and "beta" in arguments:
        recipe["preference"] = {"beta": arguments["beta"]}
    every = arguments.get("save_steps") or 0
    recipe["checkpoint"] = {
        "path": f"{results}/checkpoints",
        "every": f"{every}steps" if every > 0 else "auto",
        "keep": arguments.get("max_ckpt_num") or 3,
    }
    if "evaluate" in recipe["data"] and (arguments.get("eval_steps") or 0) > 0:
        recipe["evaluation"] = {"everySteps": arguments["eval_steps"]}
    if arguments.get("save_hf_ckpt", True):
        merge = bool(arguments.get("merge_weights")) and lora is not None
        recipe["export"] = {"path": f"{results}/model", "merge": merge}
    notes += _left_out(config, model, data, arguments)
    job: dict[str, Any] = {
        "apiVersion": "pliant.dev/v1alpha1",
        "kind": "ElasticJob",
        "metadata": {"name": name.replace(".", "-")},
        "spec": {
            "recipe": recipe,
            "workersPerReplica": int((document.get("trainer") or {}).get("devices") or 1),
            "elasticPolicy": policy,
        },
    }
    check(ElasticJob, job, source=f"{source}, converted")
    return job, notes


def _sizes(
    document: Mapping[str, Any], notes: list[str], source: str
) -> tuple[dict[str, Any], dict[str, Any]]:
    """Return the policy, and the arguments that all sizes have in common, which go before."""
    elastic, scale = document.get("elastic_policy") or {}, document.get("scale_config") or {}
    nodes = int((document.get("trainer") or {}).get("num_nodes") or 1)
    policy = {POLICY[name]: value for name, value in elastic.items() if name in POLICY}
    policy = {"minReplicas": nodes, "maxReplicas": nodes} | policy
    if str(elastic.get("is_elastic")).lower() == "false":
        notes.append("elastic_policy.is_elastic is false; the job is elastic")
    if elastic.get("use_graceful_shutdown") is False:
        notes.append("elastic_policy.use_graceful_shutdown: replicas always leave in order")
    if not scale:
        return policy, {}
    policy["replicaDiscreteValues"] = sorted(map(int, scale))
    least, most = policy["replicaDiscreteValues"][0], policy["replicaDiscreteValues"][-1]
    policy |= {
        "minReplicas": max(least, policy["minReplicas"]),
        "maxReplicas": min(most, policy["maxReplicas"]),
    }
    each = [_arguments(one) for one in scale.values()]
    names = sorted({name for one in each for name in one} - BY_SIZE)
    if differing := [name for name in names if len({repr(one.get(name)) for one in each}) > 1]:
        raise ConfigError(
            f"{source} has another {in_words(differing)} at each size (scale_config); a recipe "
            "trains alike at any size: leave one value, in training_args"
        )
    base, same = _arguments(document), {name: each[0][name] for name in names}
    notes.append(
        f"{in_words(sorted(BY_SIZE))} by size are not needed: slots divide a global batch evenly "
        "at any size, to the bit"
    )
    notes += [
        f"{name} is {value}, as at every size of scale_config; training_args has {base[name]}"
        for name, value in same.items()
        if name in base and base[name] != value
    ]
    return policy, same


def _arguments(of: Mapping[str, Any]) -> dict[str, Any]:
    return (of.get("training_config") or {}).get("training_args") or {}


def _model(
    name: str,
    model: Mapping[str, Any],
    arguments: Mapping[str, Any],
    notes: list[str],
    source: str,
) -> dict[str, Any]:
    named = str(model.get("model_name_or_path") or "")
    text = f"{name} {named} {model.get('model_save_name')}".lower().replace("_", "-")
    family = next((one for one in (GPT_OSS, LLAMA) if one in text), None)
    if family is None:
        raise ConfigError(
            f"{source} names neither family that recipes train, {GPT_OSS} and {LLAMA}: run.name is "
            f"{name}"
        )
    weights = named if named.startswith(("/", ".")) else UNKNOWN
    if weights == UNKNOWN:
        notes.append(
            f"model.weights: replace {UNKNOWN} by a directory with the weights"
            + f" of {named}" * bool(named)
            + "; nothing is fetched, and MXFP4 is read as it is"
        )
    notes.append("model.precision is mixed (weights in float32); the file does not say")
    return {
        "family": family,
        "weights": weights,
        "precision": "mixed",
        "activationCheckpointing": bool(arguments.get("gradient_checkpointing")),
    }


def _data(
    data: Mapping[str, Any], arguments: Mapping[str, Any], notes: list[str]
) -> dict[str, Any]:
    found: dict[str, Any] = {"train": (data.get("train_data") or {}).get("file_path") or UNKNOWN}
    if found["train"] == UNKNOWN:
        notes.append(f"data.train: replace {UNKNOWN} by a file of chats or pairs")
    if evaluate := (data.get("val_data") or {}).get("file_path"):
        found["evaluate"] = evaluate
    elif "train_val_split_ratio" in data:
        notes.append(
            f"datasets.train_val_split_ratio {data['train_val_split_ratio']}: all of data.train is "
            "trained on; put what is held back into a file, data.evaluate"
        )
    if "max_len" in arguments:
        found["sequenceLength"] = arguments["max_len"]
    found["packing"] = "bfd" if arguments.get("packing_samples") else "none"
    return found


def _lora(given: Mapping[str, Any] | None, notes: list[str]) -> dict[str, Any] | None:
    if not given or given.get("peft_type") in (None, "null", "none"):
        return None
    known = {"peft_type", "r", "lora_alpha", "lora_dropout", "target_modules"}
    neutral = {"bias": "none", "task_type": "CAUSAL_LM", "use_dora": False}
    notes += [
        f"model_config.peft_config.{name} {value!r} is not carried over"
        for name, value in given.items()
        if name not in known and value != neutral.get(name)
    ]
    found = {"rank": given.get("r"), "alpha": given.get("lora_alpha")}
    found["dropout"] = given.get("lora_dropout")
    targets = given.get("target_modules")
    if targets != "all-linear":  # the default of recipes
        found["targets"] = [targets] if isinstance(targets, str) else targets
    return {name: value for name, value in found.items() if value is not None}


def _left_out(
    config: Mapping[str, Any],
    model: Mapping[str, Any],
    data: Mapping[str, Any],
    arguments: Mapping[str, Any],
) -> Iterator[str]:
    """Say what nothing became of, and would change what is learned or kept."""
    for name, value in arguments.items():
        if name in NEUTRAL and value != NEUTRAL[name]:
            yield f"training_args.{name} {value!r} is not carried over: it changes what is learned"
        elif name not in TAKEN | NEUTRAL.keys() | IDLE:
            yield f"training_args.{name} is not carried over"
    if arguments.get("loss_type", "sigmoid") != "sigmoid":
        yield f"training_args.loss_type {arguments['loss_type']}: preferences have sigmoid only"
    if arguments.get("trainer_callbacks"):
        yield "training_args.trainer_callbacks are not carried over"
    if sharding := ((arguments.get("strategy") or {}).get("fsdp_config") or {}):
        yield (
            f"fsdp_config ({sharding.get('sharding_strategy')}): the workers of a replica share "
            "the model by FSDP2, and replicas are equal"
        )
    if (config.get("mlflow") or {}).get("tracking_uri"):
        yield "training_config.mlflow is not carried over"
    if (key := model.get("chat_template_key")) or model.get("apply_chat_template"):
        yield f"the chat template {key or ''} is the tokenizer's".replace("  ", " ")
    if model.get("attn_implementation"):
        yield "model_config.attn_implementation: the family says it (sdpa, or eager with sinks)"
    if model.get("lora_checkpoint_file_path"):
        yield "model_config.lora_checkpoint_file_path is not carried over: adapters begin anew"
    if data.get("preprocessor_cfgs"):
        yield (
            "datasets.preprocessor_cfgs: rows are read as messages, or as prompt, chosen and "
            "rejected; prepare other ones before"
        )
