"""Small trainings that differ in one feature each, for ``benchmarks.features``.

Owns models, data and losses, the same objects for every side of a comparison.  Must not know of
sessions, process groups or who measures.  A step of 8 micro-batches takes some 0.1 to 0.4 s.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass, field
from functools import partial
from typing import Any

import torch
from torch import Tensor, nn
from torch.nn.functional import cross_entropy
from torch.utils.checkpoint import checkpoint
from torch.utils.data import Dataset

from benchmarks.model import Tokens
from pliant.recipes.gpt import GPT, GPTConfig, next_byte_loss

LENGTH = 32


@dataclass(frozen=True, slots=True, kw_only=True)
class Workload:
    """One training; ``build`` draws from the default generator."""

    build: Callable[[], nn.Module]
    dataset: Dataset[Any]
    compute: Callable[[nn.Module, Any], Tensor]
    """Mean loss of one micro-batch."""

    micro_batch: int = 2
    optimizer: Callable[[Any], torch.optim.Optimizer] = lambda parameters: torch.optim.AdamW(
        parameters, lr=3e-4
    )
    clip: float | None = None
    scaler: Callable[[], torch.amp.GradScaler | None] = lambda: None
    num_workers: int = 0
    unused: bool = False
    """Some parameters take no part in some micro-batches: DDP has to look for them."""

    more: dict[str, Any] = field(default_factory=dict)
    """Further arguments of the session."""


def _gpt(dropout: float = 0.0) -> GPT:
    return GPT(GPTConfig(width=128, layers=4, heads=4, context=LENGTH, dropout=dropout))


def _next_byte(model: nn.Module, batch: Any) -> Tensor:
    return next_byte_loss(model(batch[0]), batch[1])


def _autocast(dtype: torch.dtype, model: nn.Module, batch: Any) -> Tensor:
    with torch.autocast("cpu", dtype=dtype):
        return _next_byte(model, batch)


class Images(Dataset[tuple[Tensor, Tensor]]):
    """Noise with labels; with ``noisy`` each item draws an augmentation."""

    def __init__(self, *, noisy: bool) -> None:
        generator = torch.Generator().manual_seed(1)
        self.images = torch.randn(512, 3, 24, 24, generator=generator)
        self.noisy = noisy

    def __len__(self) -> int:
        return 512

    def __getitem__(self, index: int) -> tuple[Tensor, Tensor]:
        image = self.images[index]
        if self.noisy:
            image = image + 0.1 * torch.randn(image.shape)
        return image, torch.tensor(index % 10)


def _network(norm: Callable[[int], nn.Module] = nn.Identity) -> nn.Module:
    layers: list[nn.Module] = []
    for channels, wider in ((3, 32), (32, 64), (64, 64)):
        layers += [nn.Conv2d(channels, wider, 3, padding=1), _norm(norm, wider), nn.ReLU()]
    return nn.Sequential(*layers, nn.AdaptiveAvgPool2d(1), nn.Flatten(), nn.Linear(64, 10))


def _norm(norm: Callable[[int], nn.Module], channels: int) -> nn.Module:
    return nn.Identity() if norm is nn.Identity else norm(channels)


def _classify(model: nn.Module, batch: Any) -> Tensor:
    return cross_entropy(model(batch[0]), batch[1])


class Experts(nn.Module):
    """Eight experts of which a micro-batch uses one, chosen by its data."""

    def __init__(self) -> None:
        super().__init__()
        self.embed = nn.Embedding(256, 192)
        self.experts = nn.ModuleList(
            nn.Sequential(nn.Linear(192, 384), nn.GELU(), nn.Linear(384, 192)) for _ in range(8)
        )
        self.head = nn.Linear(192, 256)

    def forward(self, tokens: Tensor) -> Tensor:
        """Return logits."""
        hidden = self.embed(tokens)
        chosen = self.experts[int(tokens.sum()) % 8]
        logits: Tensor = self.head(hidden + chosen(hidden))
        return logits


class Checkpointed(nn.Module):
    """The GPT with its whole forward pass computed again in backward."""

    def __init__(self) -> None:
        super().__init__()
        self.inner = _gpt()

    def forward(self, tokens: Tensor) -> Any:
        """Return logits."""
        return checkpoint(self.inner, tokens, use_reentrant=False)


def workloads() -> dict[str, Workload]:
    """Return all of them; the first is what the others are compared with by eye."""
    tokens = Tokens(samples=2048, length=LENGTH)
    gpt = partial(Workload, build=_gpt, dataset=tokens, compute=_next_byte)
    images = partial(Workload, dataset=Images(noisy=False), compute=_classify, micro_batch=8)
    sgd = partial(torch.optim.SGD, lr=0.01, momentum=0.9)
    return {
        "GPT": gpt(),
        "GPT, clipping": gpt(clip=1.0),
        "GPT, dropout": gpt(build=partial(_gpt, 0.1)),
        "GPT, bf16 autocast": gpt(compute=partial(_autocast, torch.bfloat16)),
        "GPT, fp16 autocast and scaler": gpt(
            compute=partial(_autocast, torch.float16), scaler=partial(torch.amp.GradScaler, "cpu")
        ),
        "GPT, activation checkpointing": gpt(build=Checkpointed),
        "mixture of experts, unused parameters": gpt(build=Experts, unused=True),
        "CNN": images(build=_network, optimizer=sgd),
        "CNN, BatchNorm": images(build=partial(_network, nn.BatchNorm2d), optimizer=sgd),
        "CNN, augmentation": images(build=_network, optimizer=sgd, dataset=Images(noisy=True)),
        "CNN, augmentation in 1 loader process": images(
            build=_network, optimizer=sgd, dataset=Images(noisy=True), num_workers=1
        ),
    }
