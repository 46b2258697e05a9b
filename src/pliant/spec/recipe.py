"""What ``spec.recipe`` of a job file says: a model, data and how to train, in place of a command.

Owns the names and the bounds of its fields, and what excludes each other.  Knows nothing of models
or data: that a directory holds what it should, the recipe's workers find out.
"""

from __future__ import annotations

import re
from typing import Annotated, Literal, Self

from pydantic import Field, model_validator

from pliant.core.durability import parse_interval
from pliant.core.errors import ConfigError
from pliant.spec.model import Model, impossible

MODULE = "pliant.recipes.train"
"""What the workers of a recipe run."""

SIZES = {
    "llama": ("tiny", "1b", "3b", "8b", "70b"),
    "gpt-oss": ("tiny", "20b", "120b"),
    "gpt2": ("tiny", "124m", "355m", "774m", "1.5b"),
}
"""The geometries of each family; ``tiny`` trains on two cores of a CPU in a minute."""

BYTES = "bytes"

Count = Annotated[int, Field(ge=1)]
Rate = Annotated[float, Field(gt=0)]
Share = Annotated[float, Field(ge=0, lt=1)]


class ModelEntry(Model):
    """What is trained."""

    family: Literal["llama", "gpt-oss", "gpt2"] = "llama"

    size: str = "tiny"
    """Of fresh weights: tiny, 1b, 3b, 8b or 70b of llama; tiny, 20b or 120b of gpt-oss; tiny, 124m,
    355m, 774m or 1.5b of gpt2."""

    weights: str | None = None
    """A directory with ``config.json`` and safetensors files, which says family and size; the
    default is fresh weights.  Nothing is ever fetched."""

    tokenizer: str | None = None
    """A directory with a tokenizer, or ``bytes``: one token per byte.  The default is the one
    beside the weights, else bytes."""

    precision: Literal["float32", "mixed", "bfloat16"] = "float32"
    """Of weights and computation; ``mixed`` keeps float32 weights and computes in bfloat16."""

    activation_checkpointing: bool = False
    """Compute activations again in the backward pass: less memory, a third more time.  In a file
    also ``auto``: where it does not fit otherwise."""

    compile: bool = False
    """Compile each layer with ``torch.compile``."""

    @model_validator(mode="after")
    def _possible(self) -> Self:
        if self.size not in SIZES[self.family]:
            raise impossible(
                f"model.size {self.size} is no size of {self.family}; it has "
                f"{', '.join(SIZES[self.family])}"
            )
        return self


class DevicesEntry(Model):
    """What the devices are like: by that ``auto`` chooses workersPerReplica, which is over how many
    the model is sharded, and activationCheckpointing."""

    memory: Rate | None = None
    """GiB of one; the default is what the devices of this machine have."""

    number: Count | None = None
    """The most that a replica may have; the default is 1,024."""


class LoraEntry(Model):
    """Train low-rank adapters, and leave the model's own weights as they are."""

    rank: Count = 16

    alpha: Rate = 32.0
    """The adapter's output is scaled by alpha / rank."""

    dropout: Share = 0.0

    targets: list[str] | None = None
    """Names of linear layers, as q_proj; the default is those of attention and, in models without
    experts, of the MLP."""

    experts: bool = False
    """Adapt the experts of a mixture as well."""

    @model_validator(mode="after")
    def _possible(self) -> Self:
        if self.experts and self.dropout:
            raise impossible("lora.dropout is not there for experts; leave out one of the two")
        return self


class DataEntry(Model):
    """What is trained on."""

    train: str
    """A JSONL file; an Arrow or Parquet file; or, for pre-training, the common prefix of a .bin
    and an .idx file of Megatron's indexed datasets."""

    evaluate: str | None = None
    """The same, for the evaluation."""

    field: str = "text"
    """Of pre-training: which field of a row holds the text."""

    sequence_length: Annotated[int, Field(ge=2)] = 128
    """Tokens of a sample; longer documents are split in pre-training, and cut otherwise."""

    packing: Literal["wrapped", "bfd", "none"] | None = None
    """How documents become samples: one after the other, wherever a sample ends (wrapped, the
    default of pre-training); whole, by best-fit decreasing (bfd, that of sft); or each by itself.
    In none does one document see another."""

    cache: str = "recipe-cache"
    """A directory for the tokens; made once, and verified by its digest."""


class TrainingEntry(Model):
    """How it is trained."""

    steps: Count | None = None
    """Optimizer steps in all; excludes epochs."""

    epochs: Count | None = None

    global_batch_size: Count = 8
    """Samples per step, over all replicas."""

    micro_batch_size: Count = 1
    """Samples per forward pass; a step has globalBatchSize / microBatchSize slots, and at most as
    many replicas."""

    learning_rate: Rate = 1e-4

    schedule: Literal["cosine", "linear", "constant"] = "cosine"
    """What the learning rate does after the warm-up: falls to minLearningRate, or stays."""

    warmup_steps: Annotated[int, Field(ge=0)] = 0

    warmup_ratio: Share = 0.0
    """The share of all steps that are warm-up, in place of warmupSteps."""

    min_learning_rate: Annotated[float, Field(ge=0)] = 0.0

    weight_decay: Annotated[float, Field(ge=0)] = 0.0

    betas: Annotated[list[Share], Field(min_length=2, max_length=2)] = Field(
        default_factory=lambda: [0.9, 0.999]
    )

    max_grad_norm: Rate | None = 1.0

    auxiliary_loss: Annotated[float, Field(ge=0)] | None = None
    """Weight of the loss that balances the experts of a mixture; the default is the model's."""

    seed: Annotated[int, Field(ge=0)] = 0

    @model_validator(mode="after")
    def _possible(self) -> Self:
        if (self.steps is None) == (self.epochs is None):
            raise impossible("training.steps or training.epochs: give one of the two")
        if self.warmup_steps and self.warmup_ratio:
            raise impossible("training.warmupSteps or training.warmupRatio: give one of the two")
        if self.global_batch_size % self.micro_batch_size:
            raise impossible(
                f"training.microBatchSize {self.micro_batch_size} does not divide globalBatchSize "
                f"{self.global_batch_size}"
            )
        return self


class PreferenceEntry(Model):
    """Direct preference optimisation (Rafailov et al., 2023)."""

    beta: Rate = 0.1

    reference: Literal["auto", "adapter", "model", "stored"] = "auto"
    """Whom the policy is compared with: itself without its adapter, a frozen copy of the starting
    weights, or what those say of each answer, computed once before the training and kept in
    data.cache (stored).  auto: the adapter where there is one, else the copy."""


class CheckpointEntry(Model):
    """Where the run is kept."""

    path: str

    every: str = "auto"
    """``500steps``, ``10min`` or ``auto``."""

    keep: Count = 3

    @model_validator(mode="after")
    def _possible(self) -> Self:
        try:
            parse_interval(self.every)
        except ConfigError as error:
            raise impossible(f"checkpoint.every: {error}") from None
        return self


class EvaluationEntry(Model):
    """When the model is evaluated on ``data.evaluate``."""

    every_steps: Count = 100

    patience: Count | None = None
    """Stop after so many evaluations without a lower loss; the default is never."""

    harness: str | None = None
    """``module:function`` of your own, called then on every worker with the model and the
    tokenizer; the numbers that it returns by name are logged as ``harness_NAME``."""

    @model_validator(mode="after")
    def _possible(self) -> Self:
        if self.harness is not None and not re.fullmatch(r"[\w.]+:\w+", self.harness):
            raise impossible(
                f"evaluation.harness {self.harness} names no function; write MODULE:FUNCTION"
            )
        return self


class ExportEntry(Model):
    """What is written at the end, as ``from_pretrained`` of transformers and PEFT load it."""

    path: str
    """A new directory: weights, configuration and tokenizer; of adapters, the adapter."""

    merge: bool = False
    """Write adapters as a part of the weights."""


class Recipe(Model):
    """A training run without a script."""

    task: Literal["pretrain", "sft", "dpo"] = "pretrain"
    """Predict the next token of texts; answer chats; or prefer one answer to another."""

    model: ModelEntry = Field(default_factory=ModelEntry)

    devices: DevicesEntry | None = None

    lora: LoraEntry | None = None

    data: DataEntry

    training: TrainingEntry

    preference: PreferenceEntry | None = None
    """Of task dpo."""

    checkpoint: CheckpointEntry | None = None

    evaluation: EvaluationEntry | None = None

    export: ExportEntry | None = None

    @model_validator(mode="after")
    def _possible(self) -> Self:
        if self.preference is not None and self.task != "dpo":
            raise impossible(f"preference is of task dpo, and the task is {self.task}")
        if self.evaluation is not None and self.data.evaluate is None:
            raise impossible("evaluation needs data.evaluate, a file to evaluate on")
        if self.export is not None and self.export.merge and self.lora is None:
            raise impossible("export.merge is of adapters, and the recipe has no lora")
        reference = self.preference.reference if self.preference else "auto"
        if reference == "adapter" and self.lora is None:
            raise impossible("preference.reference adapter needs lora; without it give model")
        family = self.model.family
        if self.lora is not None and self.lora.experts and family != "gpt-oss":
            raise impossible(f"lora.experts is of mixtures of experts, and {family} has none")
        if self.task == "dpo" and self.data.packing == "bfd":
            raise impossible("data.packing bfd is not for pairs; each pair is a sample of its own")
        if self.export is not None and self.export.merge and self.lora and self.lora.experts:
            raise impossible(
                "export.merge is not there for adapters of experts; export the adapter"
            )
        return self

    def command(self) -> list[str]:
        """Return what its workers run; the recipe itself is the argument."""
        text = self.model_dump_json(by_alias=True, exclude_unset=True)
        return ["-m", MODULE, text]
