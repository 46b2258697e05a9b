"""The benchmark model: a byte-level GPT of about 10M parameters (116 MB with Adam state).

Owns the model, its data and its loss, shared by every side of a comparison.  Must not know of
pliant, of process groups or of who measures.
"""

from __future__ import annotations

import torch
from torch import Tensor, nn
from torch.nn import functional
from torch.utils.data import Dataset

VOCABULARY = 256
WIDTH = 256
HEADS = 8
LAYERS = 12
CONTEXT = 128
"""Longest sequence; how many tokens a sample really has is ``Tokens(length=...)``."""


class Block(nn.Module):
    """One pre-norm transformer layer."""

    def __init__(self) -> None:
        super().__init__()
        self.norm_1 = nn.LayerNorm(WIDTH)
        self.qkv = nn.Linear(WIDTH, 3 * WIDTH)
        self.out = nn.Linear(WIDTH, WIDTH)
        self.norm_2 = nn.LayerNorm(WIDTH)
        self.up = nn.Linear(WIDTH, 4 * WIDTH)
        self.down = nn.Linear(4 * WIDTH, WIDTH)

    def forward(self, x: Tensor) -> Tensor:
        """Map (batch, time, width) to the same shape."""
        batch, time, _ = x.shape
        qkv = self.qkv(self.norm_1(x)).view(batch, time, 3, HEADS, WIDTH // HEADS)
        q, k, v = qkv.permute(2, 0, 3, 1, 4).unbind(0)
        mixed = functional.scaled_dot_product_attention(q, k, v, is_causal=True)
        x = x + self.out(mixed.transpose(1, 2).reshape(batch, time, WIDTH))
        grown = functional.gelu(self.up(self.norm_2(x)))
        return x + torch.as_tensor(self.down(grown))


class GPT(nn.Module):
    """Byte-level GPT; 9.65M parameters, 116 MB in fp32 with two Adam moments."""

    def __init__(self) -> None:
        super().__init__()
        self.token = nn.Embedding(VOCABULARY, WIDTH)
        self.position = nn.Embedding(CONTEXT, WIDTH)
        self.blocks = nn.ModuleList(Block() for _ in range(LAYERS))
        self.norm = nn.LayerNorm(WIDTH)
        self.head = nn.Linear(WIDTH, VOCABULARY, bias=False)

    def forward(self, tokens: Tensor) -> Tensor:
        """Map (batch, time) byte numbers to (batch, time, 256) logits."""
        at = torch.arange(tokens.shape[1], device=tokens.device)
        x = self.token(tokens) + self.position(at)
        for block in self.blocks:
            x = block(x)
        return torch.as_tensor(self.head(self.norm(x)))


class Tokens(Dataset[tuple[Tensor, Tensor]]):
    """Random bytes, the same in every process: what is learnt does not matter here."""

    def __init__(self, *, samples: int, length: int, seed: int = 1) -> None:
        generator = torch.Generator().manual_seed(seed)
        self._bytes = torch.randint(
            VOCABULARY, (samples * length + 1,), generator=generator, dtype=torch.uint8
        )
        self._length = length
        self._samples = samples

    def __len__(self) -> int:
        return self._samples

    def __getitem__(self, index: int) -> tuple[Tensor, Tensor]:
        start = index * self._length
        window = self._bytes[start : start + self._length + 1].long()
        return window[:-1], window[1:]


def loss_of(model: nn.Module, x: Tensor, y: Tensor) -> Tensor:
    """Return the mean cross entropy of one micro-batch."""
    logits: Tensor = model(x)
    return functional.cross_entropy(logits.flatten(0, 1), y.flatten())
