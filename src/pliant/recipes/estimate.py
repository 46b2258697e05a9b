"""What a recipe will need, before anything starts: memory, slots, sizes, time.

Owns arithmetic over sizes; imports neither torch nor transformers.  They are estimates: what a
kernel or an allocator takes besides is not among them.

Sources: activations after Korthikanti et al., Reducing Activation Recomputation in Large
Transformer Models (2022), section 4; 6 floating-point operations a parameter and token, after
Kaplan et al., Scaling Laws for Neural Language Models (2020), section 2.1.
"""

from __future__ import annotations

import json
from dataclasses import dataclass, replace
from pathlib import Path

from pliant.core.errors import ConfigError
from pliant.recipes.families import GPT2, GPT_OSS, MODEL_TYPES, Geometry, adapted_layers, geometry
from pliant.spec.recipe import LoraEntry, Recipe

BYTES_OF_FLOAT32, BYTES_OF_BFLOAT16 = 4, 2
BYTES_VOCABULARY = 262
"""Of the tokenizer that takes a token per byte."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Estimate:
    """Of one recipe; bytes are of one worker."""

    parameters: int
    trained: int
    weights_bytes: float
    gradients_bytes: float
    """Those of a micro-batch, and the sum of a step."""

    optimizer_bytes: float
    activations_bytes: float
    slots: int
    """Micro-batches of a step, and the most replicas that have something to do."""

    even_sizes: tuple[int, ...]
    """At which each replica has as many of them as the others."""

    step_flops: float
    """Of a whole step, forward and backward."""

    @property
    def total_bytes(self) -> float:
        """All of it."""
        kept = self.weights_bytes + self.gradients_bytes + self.optimizer_bytes
        return kept + self.activations_bytes


def geometry_of(recipe: Recipe) -> Geometry:
    """Return the sizes of the model: those of its directory, or those that the recipe names.

    Raises:
        ConfigError: the directory has no configuration of a family that is known.
    """
    entry = recipe.model
    if entry.weights is None:
        return geometry(entry.family, entry.size, BYTES_VOCABULARY)
    path = Path(entry.weights) / "config.json"
    try:
        said = json.loads(path.read_text())
        family = MODEL_TYPES[said["model_type"]]
        if family == GPT2:
            return replace(
                geometry(family, "124m", 0),
                vocabulary=said["vocab_size"],
                width=said["n_embd"],
                inner=said.get("n_inner") or 4 * said["n_embd"],
                layers=said["n_layer"],
                heads=said["n_head"],
                kv_heads=said["n_head"],
                head_size=said["n_embd"] // said["n_head"],
                places=said["n_positions"],
            )
        experts = int(said.get("num_local_experts", 0)) if family == GPT_OSS else 0
        return Geometry(
            family=family,
            vocabulary=said["vocab_size"],
            width=said["hidden_size"],
            inner=said["intermediate_size"],
            layers=said["num_hidden_layers"],
            heads=said["num_attention_heads"],
            kv_heads=said["num_key_value_heads"],
            head_size=said.get("head_dim") or said["hidden_size"] // said["num_attention_heads"],
            experts=experts,
            active_experts=said.get("num_experts_per_tok", 0) if experts else 0,
            is_tied=bool(said.get("tie_word_embeddings", False)),
        )
    except OSError:
        raise ConfigError(f"model.weights {entry.weights} holds no config.json") from None
    except (KeyError, TypeError, ValueError) as error:
        raise ConfigError(
            f"{path} describes no model that recipes train ({', '.join(MODEL_TYPES)}): {error}"
        ) from None


def check_length(recipe: Recipe) -> None:
    """Refuse samples of more tokens than the model has positions.

    Raises:
        ConfigError: they are, or the model is not known.
    """
    places, length = geometry_of(recipe).places, recipe.data.sequence_length
    if 0 < places < length:
        raise ConfigError(
            f"data.sequenceLength {length} is more than the {places} positions that the model has"
        )


def estimate(recipe: Recipe, workers: int = 1) -> Estimate:
    """Return what a worker needs where so many of a replica share the model.

    Raises:
        ConfigError: no number of workers can train it.
    """
    check_length(recipe)
    sizes, training = geometry_of(recipe), recipe.training
    total = sizes.parameters()
    trained = total if recipe.lora is None else _of_adapters(recipe.lora, sizes)
    in_half = recipe.model.precision == "bfloat16"
    width = BYTES_OF_BFLOAT16 if in_half else BYTES_OF_FLOAT32
    slots = training.global_batch_size // training.micro_batch_size
    tokens = recipe.data.sequence_length * (2 if recipe.task == "dpo" else 1)
    compared = recipe.preference.reference if recipe.preference else "auto"
    if (
        recipe.task == "dpo"
        and compared != "stored"
        and (recipe.lora is None or compared == "model")
    ):
        total *= 2  # the frozen copy
    per_token = 2 * sizes.active_parameters() + 4 * (
        sizes.active_parameters() if recipe.lora is None else sizes.active_parameters() / 2
    )
    again = 1.0 + (1 / 3 if recipe.model.activation_checkpointing else 0)
    return Estimate(
        parameters=sizes.parameters(),
        trained=trained,
        weights_bytes=total * width / workers,
        gradients_bytes=2 * trained * width / workers,
        optimizer_bytes=2 * trained * width / workers,
        activations_bytes=_activations(recipe, sizes) * (1 if in_half else 2),
        slots=slots,
        even_sizes=tuple(size for size in range(1, slots + 1) if slots % size == 0),
        step_flops=per_token * tokens * training.global_batch_size * again,
    )


def _of_adapters(entry: LoraEntry, sizes: Geometry) -> int:
    """Return how many parameters adapters have."""
    queries, keys = sizes.heads * sizes.head_size, sizes.kv_heads * sizes.head_size
    ends: dict[str, tuple[int, ...]] = {
        "q_proj": (sizes.width, queries),
        "k_proj": (sizes.width, keys),
        "v_proj": (sizes.width, keys),
        "o_proj": (queries, sizes.width),
        "gate_proj": (sizes.width, sizes.inner),
        "up_proj": (sizes.width, sizes.inner),
        "down_proj": (sizes.inner, sizes.width),
        "c_attn": (sizes.width, 3 * sizes.width),
        "c_fc": (sizes.width, sizes.inner),
        "c_proj": (sizes.width, sizes.width, sizes.inner, sizes.width),  # two of that name
    }
    names = entry.targets or adapted_layers(sizes.family)
    a_layer = sum(sum(ends[name]) for name in names if name in ends)
    if entry.experts:
        a_layer += sizes.experts * (2 * sizes.width + 3 * sizes.inner)
    return entry.rank * a_layer * sizes.layers


def _activations(recipe: Recipe, sizes: Geometry) -> float:
    """Return the bytes of a micro-batch in 16 bits, and of its logits in 32."""
    pairs = 2 if recipe.task == "dpo" else 1
    length = recipe.data.sequence_length
    tokens = pairs * recipe.training.micro_batch_size * length
    inside = tokens * sizes.width * (34 + 5 * sizes.heads * length / sizes.width)
    kept = tokens * sizes.width * 2
    is_again = recipe.model.activation_checkpointing
    layers = sizes.layers * kept + inside if is_again else sizes.layers * inside
    return layers + 3 * tokens * sizes.vocabulary * BYTES_OF_FLOAT32 / 2
