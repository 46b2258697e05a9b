"""Number formats: autocast, 16-bit, 64-bit and complex parameters, scaling, weights."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import replace
from typing import Any

import torch
from tests.features.feature import Batch, Block, Feature, adam, network, shaped
from torch import nn
from torch.nn import functional

BF16_TOLERANCE = 2e-2
FP16_TOLERANCE = 4e-3
"""A plain loop scales the loss before backward, where 16 bits round otherwise."""


def autocast(dtype: torch.dtype) -> Callable[[], Block]:
    def build() -> Block:
        model = network()

        def loss(batch: Batch) -> torch.Tensor:
            points, labels = batch
            with torch.autocast("cpu", dtype=dtype):
                return functional.cross_entropy(model(points), labels)

        return Block(model=model, optimizers=adam(model), loss=loss)

    return build


def scaler(**options: Any) -> torch.amp.GradScaler:
    return torch.amp.GradScaler("cpu", init_scale=1024.0, growth_interval=3, **options)


def scaled(build: Callable[[], Block]) -> Callable[[], Block]:
    def build_scaled() -> Block:
        block = build()
        block.arguments["scaler"] = scaler()
        return block

    return build_scaled


def overflowing() -> Block:
    """One slot of some steps overflows: the one with a sample far away."""
    block = scaled(autocast(torch.float16))()
    inner = block.compute

    def loss(batch: Batch) -> torch.Tensor:
        is_far = bool((batch[0] > 2.2).any())
        return inner(batch) * (torch.inf if is_far else 1.0)

    schedule = torch.optim.lr_scheduler.ExponentialLR(block.optimizers[0], gamma=0.9)
    return replace(block, loss=loss, schedulers=[schedule])


def of_dtype(dtype: torch.dtype) -> Callable[[], Block]:
    def build() -> Block:
        model = network(dtype)
        optimizer = torch.optim.Adam(model.parameters(), lr=1e-2, eps=1e-4)

        def loss(batch: Batch) -> torch.Tensor:
            points, labels = batch
            return functional.cross_entropy(model(points.to(dtype)).float(), labels)

        return Block(model=model, optimizers=[optimizer], loss=loss)

    return build


class Master(torch.optim.Optimizer):
    """SGD on a float32 copy of each 16-bit parameter, which lies in its state."""

    def __init__(self, params: Any) -> None:
        super().__init__(params, {"lr": 0.05})

    @torch.no_grad()
    def step(self, closure: None = None) -> None:  # type: ignore[override]
        for group in self.param_groups:
            for p in group["params"]:
                state = self.state[p]
                if "copy" not in state:
                    state["copy"] = p.float()
                state["copy"].add_(p.grad.float(), alpha=-group["lr"])
                p.copy_(state["copy"])


def master_copies() -> Block:
    block = of_dtype(torch.bfloat16)()
    block.optimizers = [Master(block.model.parameters())]
    return block


class Complex(nn.Module):
    """A complex matrix between two real ones."""

    mean: torch.Tensor

    def __init__(self, dtype: torch.dtype) -> None:
        super().__init__()
        self.turn = nn.Parameter(torch.randn(4, 4, dtype=dtype))
        self.leave = nn.Linear(4, 3)
        self.register_buffer("mean", torch.zeros(4, dtype=dtype))

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        turned = x.to(self.turn.dtype) @ self.turn
        self.mean = 0.9 * self.mean + 0.1 * turned.detach().mean(0)
        return self.leave((turned - self.mean).abs().float())  # type: ignore[no-any-return]


def complex_numbers(dtype: torch.dtype) -> Callable[[], Block]:
    def build() -> Block:
        model = shaped(Complex(dtype))
        return Block(model=model, optimizers=adam(model))

    return build


def mixed() -> Block:
    trunk, head = nn.Linear(4, 6).bfloat16(), nn.Linear(6, 3).double()
    model = shaped(nn.ModuleList([trunk, nn.LayerNorm(6), head]))

    def loss(batch: Batch) -> torch.Tensor:
        points, labels = batch
        hidden = model[1](trunk(points.bfloat16()).float())
        return functional.cross_entropy(head(hidden.double()), labels)

    optimizer = torch.optim.AdamW(model.parameters(), lr=1e-2)
    return Block(model=model, optimizers=[optimizer], loss=loss)


def token_weights() -> Block:
    model = network()

    def weight(batch: Batch) -> float:
        return 1.0 + 249_999.75 * float(batch[1].sum())

    return Block(model=model, optimizers=adam(model), weight=weight)


def ignored_labels() -> Block:
    """Labels of samples on one side are ignored; where all of a slot are, its loss is nan."""
    model = network()

    def targets(batch: Batch) -> torch.Tensor:
        points, labels = batch
        counted: torch.Tensor = labels.masked_fill(points[:, 0] < 0, -100)
        return counted

    def loss(batch: Batch) -> torch.Tensor:
        return functional.cross_entropy(model(batch[0]), targets(batch))

    def weight(batch: Batch) -> float:
        return float((targets(batch) != -100).sum())

    return Block(model=model, optimizers=adam(model), loss=loss, weight=weight)


def clipped() -> Block:
    model = network()
    return Block(model=model, optimizers=adam(model), arguments={"max_grad_norm": 0.3})


FEATURES = [
    Feature(name="bfloat16 autocast", build=autocast(torch.bfloat16), tolerance=BF16_TOLERANCE),
    Feature(
        name="float16 autocast with GradScaler",
        build=scaled(autocast(torch.float16)),
        note="`scaler=`; it scales inside `step.backward`",
        is_alone=True,
        tolerance=FP16_TOLERANCE,
    ),
    Feature(
        name="GradScaler, inf in one slot",
        build=overflowing,
        note="the update is skipped everywhere, the step counts, the scheduler waits",
        is_alone=True,
        tolerance=FP16_TOLERANCE,
    ),
    Feature(
        name="bfloat16 parameters",
        build=of_dtype(torch.bfloat16),
        note="gradients are added in float32",
        tolerance=BF16_TOLERANCE,
    ),
    Feature(
        name="bfloat16 parameters with float32 copies",
        build=master_copies,
        note="kept in the optimizer's state",
        tolerance=BF16_TOLERANCE,
    ),
    Feature(
        name="float16 parameters",
        build=of_dtype(torch.float16),
        note="without a GradScaler; Adam's default eps underflows",
        tolerance=FP16_TOLERANCE,
    ),
    Feature(name="float64 parameters", build=of_dtype(torch.float64)),
    Feature(name="complex64 parameters and buffers", build=complex_numbers(torch.complex64)),
    Feature(name="complex128 parameters and buffers", build=complex_numbers(torch.complex128)),
    Feature(name="parameters of several types in one model", build=mixed, tolerance=BF16_TOLERANCE),
    Feature(
        name="weights of up to a million tokens",
        build=token_weights,
        note="`step.backward(loss, weight=...)`",
        is_alone=True,
    ),
    Feature(
        name="every label of a slot ignored",
        build=ignored_labels,
        note="give weight 0: the nan of an empty mean goes nowhere",
        is_alone=True,
    ),
    Feature(
        name="clipping the gradient's norm",
        build=clipped,
        note="`max_grad_norm=`, of the whole step's gradient",
        is_alone=True,
    ),
]
