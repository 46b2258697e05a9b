"""A byte-level GPT, small enough for two CPU cores and ordinary enough to be read at a glance.

Owns the model and nothing else: no data, no optimizer, no knowledge of pliant.  Pre-norm blocks,
learned positions, causal attention through PyTorch's fused kernel, optionally tied embeddings.

Shape suffixes: B samples, T tokens of a sample, C width, H heads, V vocabulary.
"""

from __future__ import annotations

from dataclasses import dataclass

import torch
from torch import Tensor, nn
from torch.nn import functional

from pliant.core.errors import ConfigError


@dataclass(frozen=True, slots=True, kw_only=True)
class GPTConfig:
    """Sizes of a GPT; the defaults are the demo's, about 3.2M parameters."""

    vocabulary: int = 256
    """One entry per byte."""

    context: int = 64
    """Longest sample, in tokens."""

    width: int = 256
    heads: int = 8
    layers: int = 4
    dropout: float = 0.1
    """Share of the residual stream dropped in training; 0 to 1."""

    tied: bool = True
    """Whether the output layer shares its weight with the token embedding."""

    def __post_init__(self) -> None:
        if self.width % self.heads:
            raise ConfigError(f"width={self.width} is not a multiple of heads={self.heads}")


class Attention(nn.Module):
    """Causal self-attention: every token sees itself and what came before."""

    def __init__(self, config: GPTConfig) -> None:
        super().__init__()
        self.heads = config.heads
        self.qkv = nn.Linear(config.width, 3 * config.width)
        self.out = nn.Linear(config.width, config.width)

    def forward(self, x_BTC: Tensor) -> Tensor:  # noqa: N803 - shape suffix
        """Mix each token with the earlier ones."""
        q, k, v = (
            part.unflatten(-1, (self.heads, -1)).transpose(1, 2)  # BTC -> BHT(C/H)
            for part in self.qkv(x_BTC).chunk(3, dim=-1)
        )
        mixed = functional.scaled_dot_product_attention(q, k, v, is_causal=True)
        return torch.as_tensor(self.out(mixed.transpose(1, 2).flatten(2)))


class Block(nn.Module):
    """One layer: attention, then a feed-forward net, both added to the residual stream."""

    def __init__(self, config: GPTConfig) -> None:
        super().__init__()
        self.norm_1 = nn.LayerNorm(config.width)
        self.attention = Attention(config)
        self.norm_2 = nn.LayerNorm(config.width)
        self.feed_forward = nn.Sequential(
            nn.Linear(config.width, 4 * config.width),
            nn.GELU(),
            nn.Linear(4 * config.width, config.width),
        )
        self.dropout = nn.Dropout(config.dropout)

    def forward(self, x_BTC: Tensor) -> Tensor:  # noqa: N803 - shape suffix
        """Return the residual stream after this layer."""
        x_BTC = x_BTC + self.dropout(self.attention(self.norm_1(x_BTC)))  # noqa: N806
        return torch.as_tensor(x_BTC + self.dropout(self.feed_forward(self.norm_2(x_BTC))))


class GPT(nn.Module):
    """Predicts the next byte."""

    def __init__(self, config: GPTConfig) -> None:
        super().__init__()
        self.config = config
        self.token_embedding = nn.Embedding(config.vocabulary, config.width)
        self.position_embedding = nn.Embedding(config.context, config.width)
        self.dropout = nn.Dropout(config.dropout)
        self.blocks = nn.ModuleList(Block(config) for _ in range(config.layers))
        self.norm = nn.LayerNorm(config.width)
        self.head = nn.Linear(config.width, config.vocabulary, bias=False)
        self.apply(_initialise)
        if config.tied:
            self.head.weight = self.token_embedding.weight

    def forward(self, tokens_BT: Tensor) -> Tensor:  # noqa: N803 - shape suffix
        """Return the logits BTV of the token after each position."""
        x_BTC = self.embed(tokens_BT)  # noqa: N806
        for block in self.blocks:
            x_BTC = block(x_BTC)  # noqa: N806
        return torch.as_tensor(self.head(self.norm(x_BTC)))

    def embed(self, tokens_BT: Tensor) -> Tensor:  # noqa: N803 - shape suffix
        """Return the residual stream BTC in front of the first layer."""
        positions_T = torch.arange(tokens_BT.shape[1], device=tokens_BT.device)  # noqa: N806
        x_BTC = self.token_embedding(tokens_BT) + self.position_embedding(positions_T)  # noqa: N806
        return torch.as_tensor(self.dropout(x_BTC))


class GPTStage(GPT):
    """One stage of a pipeline: some layers of a GPT, under the names that they have in it.

    The first has the embeddings as well, the last one the output layer.
    """

    def __init__(self, config: GPTConfig, stage: int, stages: int) -> None:
        if config.tied or config.layers < stages:
            raise ConfigError(
                f"a GPT with layers={config.layers} and tied={config.tied} has no {stages} stages: "
                "each needs a layer, and no two of them can share a weight"
            )
        super().__init__(config)
        first, behind = (config.layers * number // stages for number in (stage, stage + 1))
        for number in set(map(str, range(config.layers))) - set(map(str, range(first, behind))):
            delattr(self.blocks, number)
        self.is_first, self.is_last = stage == 0, stage == stages - 1
        if not self.is_first:
            del self.token_embedding, self.position_embedding
        if not self.is_last:
            del self.norm, self.head

    def forward(self, x: Tensor) -> Tensor:
        """Take tokens BT and give the residual stream BTC, or that and give logits BTV."""
        x_BTC = self.embed(x) if self.is_first else x  # noqa: N806
        for block in self.blocks.children():
            x_BTC = block(x_BTC)  # noqa: N806
        return torch.as_tensor(self.head(self.norm(x_BTC))) if self.is_last else x_BTC


def next_byte_loss(logits_BTV: Tensor, targets_BT: Tensor) -> Tensor:  # noqa: N803
    """Return the mean cross-entropy over all tokens, in nats per byte."""
    return functional.cross_entropy(logits_BTV.flatten(0, 1), targets_BT.flatten())


def _initialise(module: nn.Module) -> None:
    if isinstance(module, nn.Linear | nn.Embedding):
        nn.init.normal_(module.weight, std=0.02)
    if isinstance(module, nn.Linear) and module.bias is not None:
        nn.init.zeros_(module.bias)
