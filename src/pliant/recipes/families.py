"""The families of models that recipes train, and their published geometries.

Owns numbers only: what transformers' configurations are made of, and how many parameters come of
it.  Imports neither torch nor transformers.

Sources: the ``config.json`` of Llama 3.1 (8B, 70B), Llama 3.2 (1B, 3B), gpt-oss-20b,
gpt-oss-120b, and of the four sizes of GPT-2.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Any

LLAMA, GPT_OSS, GPT2 = "llama", "gpt-oss", "gpt2"

ATTENTION = ("q_proj", "k_proj", "v_proj", "o_proj")
MLP = ("gate_proj", "up_proj", "down_proj")
EXPERTS = ("mlp.experts.gate_up_proj", "mlp.experts.down_proj")
"""Parameters of a mixture of experts, which are no linear layers."""

OF_GPT2 = ("c_attn", "c_fc", "c_proj")
"""Its linear layers; two of a layer are called ``c_proj``."""

MODEL_TYPES = {"llama": LLAMA, "gpt_oss": GPT_OSS, "gpt2": GPT2}
"""Family by ``model_type`` of a ``config.json``."""


def adapted_layers(family: str) -> tuple[str, ...]:
    """Return which linear layers adapters go to unless told otherwise."""
    return {LLAMA: ATTENTION + MLP, GPT_OSS: ATTENTION, GPT2: OF_GPT2}[family]


@dataclass(frozen=True, slots=True, kw_only=True)
class Geometry:
    """Sizes of a decoder; C width, H heads, K key-value heads, D of a head, E experts."""

    family: str
    vocabulary: int
    width: int
    inner: int
    """Width of the MLP, or of each expert."""

    layers: int
    heads: int
    kv_heads: int
    head_size: int
    experts: int = 0
    """0: one MLP a layer."""

    active_experts: int = 0
    """Of them each token passes so many."""

    is_tied: bool = False
    """The embedding is the output layer as well."""

    places: int = 0
    """Positions that have an embedding of their own; 0: angles tell them apart."""

    others: Mapping[str, Any] = field(default_factory=dict)
    """What else the configuration says."""

    def config(self) -> dict[str, Any]:
        """Return the arguments of transformers' configuration."""
        if self.family == GPT2:
            return {
                "vocab_size": self.vocabulary,
                "n_embd": self.width,
                "n_inner": self.inner,
                "n_layer": self.layers,
                "n_head": self.heads,
                "n_positions": self.places,
                **self.others,
            }
        found: dict[str, Any] = {
            "vocab_size": self.vocabulary,
            "hidden_size": self.width,
            "intermediate_size": self.inner,
            "num_hidden_layers": self.layers,
            "num_attention_heads": self.heads,
            "num_key_value_heads": self.kv_heads,
            "head_dim": self.head_size,
            "tie_word_embeddings": self.is_tied,
            **self.others,
        }
        if self.experts:
            found |= {
                "num_local_experts": self.experts,
                "num_experts_per_tok": self.active_experts,
            }
        return found

    def parameters(self) -> int:
        """Return how many parameters the model has."""
        return self._outside() + self.layers * (self._attention() + self._mlp(self.experts or 1))

    def active_parameters(self) -> int:
        """Return how many of them a token passes."""
        mlp = self._mlp(self.active_experts or 1)
        return self._outside() + self.layers * (self._attention() + mlp)

    def _outside(self) -> int:
        norm = self.width * (2 if self.family == GPT2 else 1)
        embedded = self.vocabulary * (1 if self.is_tied else 2) + self.places
        return embedded * self.width + norm

    def _attention(self) -> int:
        queries, keys = self.heads * self.head_size, self.kv_heads * self.head_size
        weights = self.width * (2 * queries + 2 * keys)
        biases = queries + 2 * keys + self.width
        biases += {GPT_OSS: self.heads, GPT2: 2 * self.width, LLAMA: -biases}[self.family]
        return weights + biases + 2 * self.width  # and the two norms of the layer

    def _mlp(self, experts: int) -> int:
        if self.family == LLAMA:
            return 3 * self.width * self.inner
        if self.family == GPT2:
            return 2 * self.width * self.inner + self.inner + self.width
        each = 3 * self.width * self.inner + 2 * self.inner + self.width
        return experts * each + self.experts * (self.width + 1)  # and the router


def _llama(factor: float, **sizes: Any) -> Geometry:
    rope = {
        "rope_type": "llama3",
        "rope_theta": 500_000.0,
        "factor": factor,
        "low_freq_factor": 1.0,
        "high_freq_factor": 4.0,
        "original_max_position_embeddings": 8192,
    }
    others = {
        "rope_parameters": rope,
        "max_position_embeddings": 131_072,
        "rms_norm_eps": 1e-5,
        "bos_token_id": 128_000,
        "eos_token_id": 128_001,
    }
    return Geometry(family=LLAMA, vocabulary=128_256, kv_heads=8, others=others, **sizes)


def _gpt_oss(**sizes: Any) -> Geometry:
    rope = {
        "rope_type": "yarn",
        "rope_theta": 150_000.0,
        "factor": 32.0,
        "beta_fast": 32.0,
        "beta_slow": 1.0,
        "original_max_position_embeddings": 4096,
        "truncate": False,
    }
    return Geometry(
        family=GPT_OSS,
        vocabulary=201_088,
        width=2880,
        inner=2880,
        heads=64,
        kv_heads=8,
        head_size=64,
        active_experts=4,
        others={"rope_parameters": rope, "max_position_embeddings": 131_072, "sliding_window": 128},
        **sizes,
    )


def _gpt2(layers: int, width: int, heads: int, **sizes: Any) -> Geometry:
    dropout = {"resid_pdrop": 0.0, "embd_pdrop": 0.0, "attn_pdrop": 0.0}
    return Geometry(
        family=GPT2,
        width=width,
        inner=4 * width,
        layers=layers,
        heads=heads,
        kv_heads=heads,
        head_size=width // heads,
        is_tied=True,
        others=dropout,
        **{"vocabulary": 50_257, "places": 1024, **sizes},
    )


TINY: dict[str, Any] = {"width": 64, "heads": 4, "kv_heads": 2, "head_size": 16, "layers": 2}
SHORT: dict[str, Any] = {
    "rope_parameters": {"rope_type": "default", "rope_theta": 10_000.0},
    "max_position_embeddings": 4096,
}

GEOMETRIES = {
    (LLAMA, "1b"): _llama(
        32.0, width=2048, inner=8192, layers=16, heads=32, head_size=64, is_tied=True
    ),
    (LLAMA, "3b"): _llama(
        32.0, width=3072, inner=8192, layers=28, heads=24, head_size=128, is_tied=True
    ),
    (LLAMA, "8b"): _llama(8.0, width=4096, inner=14_336, layers=32, heads=32, head_size=128),
    (LLAMA, "70b"): _llama(8.0, width=8192, inner=28_672, layers=80, heads=64, head_size=128),
    (GPT_OSS, "20b"): _gpt_oss(layers=24, experts=32),
    (GPT_OSS, "120b"): _gpt_oss(layers=36, experts=128),
    (GPT2, "124m"): _gpt2(12, 768, 12),
    (GPT2, "355m"): _gpt2(24, 1024, 16),
    (GPT2, "774m"): _gpt2(36, 1280, 20),
    (GPT2, "1.5b"): _gpt2(48, 1600, 25),
}


def geometry(family: str, size: str, vocabulary: int) -> Geometry:
    """Return a geometry; a tiny one has as large a vocabulary as its tokenizer."""
    if (known := GEOMETRIES.get((family, size))) is not None:
        return known
    if family == LLAMA:
        return Geometry(family=LLAMA, vocabulary=vocabulary, inner=128, others=SHORT, **TINY)
    if family == GPT2:
        return _gpt2(2, 64, 4, vocabulary=vocabulary)
    return Geometry(
        family=GPT_OSS,
        vocabulary=vocabulary,
        inner=64,
        experts=8,
        active_experts=2,
        others={**SHORT, "sliding_window": 32},
        **TINY,
    )
