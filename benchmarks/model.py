"""The benchmark model: a byte-level GPT of 9.64M parameters (116 MB with Adam state).

Owns the model (and a larger one), its data and its loss, shared by every side of a comparison.
Must not know of sessions, of process groups or of who measures.
"""

from __future__ import annotations

import torch
from torch import Tensor, nn
from torch.utils.data import Dataset

from pliant.recipes.gpt import GPT, GPTConfig, next_byte_loss

SIZES = {
    "10M": GPTConfig(context=128, layers=12, dropout=0.0, tied=False),
    "300M": GPTConfig(context=128, width=1024, heads=16, layers=24, dropout=0.0, tied=False),
}
"""By number of parameters: 9.64M and 303M (3.6 GB with Adam state)."""


def build(params: str = "10M") -> GPT:
    """Return the model; the caller has seeded the generator."""
    return GPT(SIZES[params])


class Tokens(Dataset[tuple[Tensor, Tensor]]):
    """Random bytes, the same in every process: what is learnt does not matter here."""

    def __init__(self, *, samples: int, length: int, seed: int = 1) -> None:
        generator = torch.Generator().manual_seed(seed)
        self.bytes = torch.randint(
            256, (samples * length + 1,), generator=generator, dtype=torch.uint8
        )
        self._length = length
        self._samples = samples

    def __len__(self) -> int:
        return self._samples

    def __getitem__(self, index: int) -> tuple[Tensor, Tensor]:
        start = index * self._length
        window = self.bytes[start : start + self._length + 1].long()
        return window[:-1], window[1:]


def loss_of(model: nn.Module, x: Tensor, y: Tensor) -> Tensor:
    """Return the mean cross entropy of one micro-batch."""
    return next_byte_loss(model(x), y)
