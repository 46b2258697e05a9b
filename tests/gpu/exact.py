"""What exact mode says and refuses on a GPU, in a process of its own: prints JSON."""

from __future__ import annotations

import json
import sys
from collections.abc import Callable
from typing import Any

import torch
from tests.accelerator import identity
from tests.accelerator.identity import Scores, refusal, train
from torch import nn

from pliant.core.errors import UsageError
from pliant.engine.device import here, numerics
from pliant.engine.worker import script_errors

GPU: Any = torch.cuda


def captured(scores: torch.Tensor) -> torch.Tensor:
    found: list[UsageError] = []
    with GPU.graph(GPU.CUDAGraph()):
        try:
            here.device.refuse_graphs()
        except UsageError as error:
            found.append(error)  # for later: a capture is to end in peace
    raise found[0]


def plain() -> Scores:
    return Scores().to("cuda")


def recorded() -> Any:
    return GPU.make_graphed_callables(plain(), (torch.ones(2, 4, device="cuda"),))


def compiled() -> Any:
    return torch.compile(plain(), mode="reduce-overhead")


def function_compiled() -> Scores:
    """Return a model that is compiled where only Inductor sees it."""
    model = plain()
    model.loss_of = torch.compile(lambda scores: scores.square().sum(), mode="reduce-overhead")
    return model


def pooled(scores: torch.Tensor) -> torch.Tensor:
    return nn.functional.avg_pool3d(scores.reshape(1, 1, 1, 2, 3), 1).sum()


def sentence(model: Callable[[], Any], loss: Any = None, steps: int = 4) -> str:
    def act() -> None:
        made = model()
        if loss is not None:
            made.loss_of = loss
        train(made, steps)

    error = refusal(act)
    return script_errors.explained(error, {}) or str(error)


def main() -> None:
    identity.SIM = "cuda"
    said = dict(train(plain())._parts.identity())
    told = {
        "identity": {name: value for name, value in said.items() if name.startswith("device")},
        "numerics": [numerics.word_of_device(torch.device("cuda", 0)) for _ in range(3)],
        "pooled": sentence(plain, pooled),
        "recorded": sentence(recorded),
        "compiled": sentence(compiled),
        "function compiled": sentence(function_compiled),
        "captured": sentence(plain, captured),
    }
    sys.stdout.write(json.dumps(told) + "\n")


if __name__ == "__main__":
    main()
