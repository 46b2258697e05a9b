"""Models of a recipe: transformers' own classes, fresh or from safetensors, whole or sharded.

Owns which weights a model begins with, and that they are the same however it is sharded.  Knows
nothing of data or losses.

    config --meta--> adapters --fully_shard--> to_empty --> weights, file by file
"""

from __future__ import annotations

import json
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import torch
from torch import Tensor, nn
from torch.distributed.tensor import DTensor, distribute_tensor

import pliant
from pliant.core.errors import ConfigError
from pliant.recipes.estimate import check_length
from pliant.recipes.families import (
    EXPERTS,
    GPT2,
    GPT_OSS,
    LLAMA,
    MODEL_TYPES,
    adapted_layers,
    geometry,
)
from pliant.spec.recipe import LoraEntry, Recipe

DTYPES = {"float32": torch.float32, "mixed": torch.float32, "bfloat16": torch.bfloat16}
"""Of the weights."""

BLOCKS, SCALES = "_blocks", "_scales"
"""Endings of a tensor in MXFP4: two 4-bit numbers a byte, and an exponent for each 32."""


def build(recipe: Recipe, tokenizer: Any, workers: int) -> nn.Module:
    """Return the model with the weights that it begins with.

    ``workers`` of a replica shard it.  ``pliant.seed`` must have been called.

    Raises:
        ConfigError: the weights are not there, are not of the family, or do not fit.
    """
    config = _config(recipe, tokenizer)
    kind = _class_of(config)
    check_length(recipe)
    with torch.device("meta"):
        model = kind(config).to(DTYPES[recipe.model.precision])
    if recipe.lora is not None:
        model = _adapted(model, recipe.lora)
    if recipe.model.activation_checkpointing:
        model.gradient_checkpointing_enable({"use_reentrant": False})
        model.enable_input_require_grads()
    if workers > 1:
        _shard(model, workers)
    model.to_empty(device=pliant.device())
    base = model.get_base_model() if recipe.lora is not None else model
    base.tie_weights()
    _set_angles(base)
    if recipe.model.weights is None:
        base.apply(base._init_weights)  # noqa: SLF001
    else:
        _read(model, base, Path(recipe.model.weights))
    if recipe.lora is not None:
        _begin_adapters(model)
    if recipe.model.compile:
        for layer in layers_of(model):
            layer.compile()
    found: nn.Module = model.train()
    return found


def _config(recipe: Recipe, tokenizer: Any) -> Any:
    from transformers import AutoConfig, GPT2Config, GptOssConfig, LlamaConfig

    entry = recipe.model
    if entry.weights is None:
        vocabulary = len(tokenizer)
        sizes = geometry(entry.family, entry.size, vocabulary)
        if sizes.vocabulary < vocabulary:
            raise ConfigError(
                f"the tokenizer has {vocabulary} tokens, and {entry.family} {entry.size} "
                f"{sizes.vocabulary}"
            )
        kinds: dict[str, type[Any]] = {LLAMA: LlamaConfig, GPT_OSS: GptOssConfig, GPT2: GPT2Config}
        said = sizes.config()
        if entry.family == GPT2:  # its own would be beyond a small vocabulary
            said |= {"bos_token_id": tokenizer.bos_token_id, "eos_token_id": None}
        config = kinds[entry.family](**said)
        config.eos_token_id = tokenizer.eos_token_id  # or it would not stop
    else:
        try:
            config = AutoConfig.from_pretrained(entry.weights, local_files_only=True)
        except (OSError, ValueError) as error:
            raise ConfigError(f"model.weights {entry.weights}: {error}") from None
        if hasattr(config, "quantization_config"):
            del config.quantization_config  # taken off while it is read
    attention = "eager" if config.model_type == "gpt_oss" else "sdpa"
    config._attn_implementation = attention  # noqa: SLF001
    config.use_cache = False
    auxiliary = recipe.training.auxiliary_loss
    if config.model_type == "gpt_oss" and auxiliary is not None:
        config.router_aux_loss_coef = auxiliary
    return config


def _class_of(config: Any) -> type[Any]:
    from transformers import GPT2LMHeadModel, GptOssForCausalLM, LlamaForCausalLM

    family = MODEL_TYPES.get(config.model_type)
    if family is None:
        raise ConfigError(
            f"the weights are of a {config.model_type}; recipes train {', '.join(MODEL_TYPES)}"
        )
    kinds = {LLAMA: LlamaForCausalLM, GPT_OSS: GptOssForCausalLM, GPT2: GPT2LMHeadModel}
    found: type[Any] = kinds[family]
    return found


def layers_of(model: nn.Module) -> Iterator[nn.Module]:
    """Yield the layers of the decoder, below adapters, too."""
    for name, module in model.named_modules():
        if name.endswith(("model.layers", "transformer.h")):
            yield from module.children()
            return


def _shard(model: nn.Module, workers: int) -> None:
    from torch.distributed.fsdp import fully_shard

    mesh = pliant.mesh(shard=workers)["shard"]
    for layer in layers_of(model):
        fully_shard(layer, mesh=mesh)
    fully_shard(model, mesh=mesh)


# --- weights


def _set_angles(base: nn.Module) -> None:
    """Compute what is in no file: the angles of positions."""
    for module in base.modules():
        if type(module).__name__.endswith("RotaryEmbedding"):
            with torch.device(pliant.device()):
                whole = type(module)(module.config)
            for name, buffer in whole.named_buffers():
                setattr(module, name, buffer)


def _read(model: nn.Module, base: Any, directory: Path) -> None:
    """Read the weights, tensor by tensor; adapters have none there."""
    targets = {_plain(name): one for name, one in model.named_parameters()}
    missing = {name for name in targets if "lora_" not in name}
    tied = base._tied_weights_keys if base.config.tie_word_embeddings else ()  # noqa: SLF001
    for spelt, value in tensors(directory):
        prefix = base.base_model_prefix  # GPT-2 as published is without
        name = spelt if spelt in targets or spelt in tied else f"{prefix}.{spelt}"
        if name in targets:
            put(targets[name], value)
            missing.discard(name)
        elif name not in tied and not spelt.endswith(".attn.bias"):  # the mask in old files
            raise ConfigError(f"{directory} has a tensor {spelt}, and the model has none")
    if missing:
        raise ConfigError(f"{directory} has no tensor {min(missing)}")


def _plain(name: str) -> str:
    """Return the name of a parameter without what adapters and sharding put around it."""
    for around in ("base_model.model.", "base_layer.", "_orig_mod.", "parametrizations."):
        name = name.replace(around, "")
    return name.removesuffix(".original")


def put(parameter: Tensor, value: Tensor) -> None:
    """Copy a whole tensor into a parameter, or this worker's part of it."""
    value = value.to(parameter.dtype)
    with torch.no_grad():
        if isinstance(parameter, DTensor):
            mesh, places = parameter.device_mesh, parameter.placements
            mine = distribute_tensor(value.to(parameter.device), mesh, places, src_data_rank=None)
            parameter.to_local().copy_(mine.to_local())
        else:
            parameter.copy_(value)


def tensors(directory: Path) -> Iterator[tuple[str, Tensor]]:
    """Yield the tensors of safetensors files, one file open at a time; MXFP4 as bfloat16.

    Raises:
        ConfigError: there are none, or one is damaged.
    """
    from safetensors import SafetensorError, safe_open

    index = directory / "model.safetensors.index.json"
    if index.is_file():
        names = sorted(set(json.loads(index.read_text())["weight_map"].values()))
    else:
        names = sorted(path.name for path in directory.glob("*.safetensors"))
    if not names:
        raise ConfigError(f"model.weights {directory} holds no safetensors file")
    waiting: dict[str, Tensor] = {}
    for name in names:
        try:
            with safe_open(directory / name, "pt") as file:
                for key in file.keys():  # noqa: SIM118
                    yield from _dequantised(key, file.get_tensor(key), waiting)
        except (OSError, SafetensorError) as error:
            raise ConfigError(f"{directory / name} cannot be read: {error}") from None


def _dequantised(
    key: str, value: Tensor, waiting: dict[str, Tensor]
) -> Iterator[tuple[str, Tensor]]:
    if not key.endswith((BLOCKS, SCALES)):
        yield key, value
        return
    stem = key.removesuffix(BLOCKS).removesuffix(SCALES)
    waiting[key] = value
    if stem + BLOCKS in waiting and stem + SCALES in waiting:
        blocks, scales = waiting.pop(stem + BLOCKS), waiting.pop(stem + SCALES)
        yield stem, from_mxfp4(blocks, scales)


MXFP4 = (0.0, 0.5, 1.0, 1.5, 2.0, 3.0, 4.0, 6.0)
"""Values of the lower three bits; the fourth is the sign (OCP Microscaling Formats, v1.0)."""


def from_mxfp4(blocks: Tensor, scales: Tensor) -> Tensor:
    """Return experts' weights as bfloat16.

    Args:
        blocks: (E, R, G, 16), uint8: of E experts R rows of G groups of 32 numbers, two a byte,
            the lower half first.
        scales: (E, R, G), uint8: the exponent of each group, 127 more than it is.

    Returns:
        (E, 32 G, R): as the model has it, transposed.
    """
    table = torch.tensor([*MXFP4, *(-value for value in MXFP4)], dtype=torch.bfloat16)
    numbers = torch.stack([blocks & 15, blocks >> 4], -1).flatten(-2).int()
    values = torch.ldexp(table[numbers], scales.int().sub(127).unsqueeze(-1))
    return values.flatten(-2).transpose(1, 2).contiguous()


# --- adapters


def _adapted(model: Any, entry: LoraEntry) -> nn.Module:
    try:
        from peft import LoraConfig, get_peft_model
    except ImportError:
        raise ConfigError("lora needs PEFT: pip install 'pliant[recipes]'") from None

    config = LoraConfig(
        task_type="CAUSAL_LM",
        r=entry.rank,
        lora_alpha=entry.alpha,  # type: ignore[arg-type, unused-ignore]
        lora_dropout=entry.dropout,
        target_modules=entry.targets or list(adapted_layers(MODEL_TYPES[model.config.model_type])),
        target_parameters=list(EXPERTS) if entry.experts else None,
        fan_in_fan_out=model.config.model_type == "gpt2",  # its weights are transposed
    )
    found: nn.Module = get_peft_model(model, config)
    return found


def _begin_adapters(model: nn.Module) -> None:
    """Draw what adapters begin with: the first factor at random, the second 0."""
    for name, parameter in model.named_parameters():
        if "lora_A" in name:
            nn.init.kaiming_uniform_(parameter, a=5**0.5)
        elif "lora_B" in name:
            nn.init.zeros_(parameter)
