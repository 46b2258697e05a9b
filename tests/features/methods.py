"""Ways to train that are more than one forward and one backward: each with a network of its own."""

from __future__ import annotations

import importlib
import math
import warnings
from typing import Any

import torch
from tests.engine import models
from tests.features.feature import NUM_SAMPLES, Batch, Block, Feature, adam, network, shaped
from torch import nn
from torch.func import functional_call
from torch.nn import functional
from torch.optim import swa_utils

RHO = 0.05
"""How far SAM goes from the weights."""

GIVEN = "tests/features/test_given_by_others.py"


def sharpness_aware() -> Block:
    """Take the gradient where the loss of the micro-batch is larger: SAM, by micro-batch."""
    model = network()

    def loss(batch: Batch) -> torch.Tensor:
        points, labels = batch
        weights = dict(model.named_parameters())
        here = functional.cross_entropy(model(points), labels)
        slopes = torch.autograd.grad(here, list(weights.values()))
        norm = torch.nn.utils.get_total_norm(slopes)
        up = {
            name: weight + RHO * slope / norm
            for (name, weight), slope in zip(weights.items(), slopes, strict=True)
        }
        return functional.cross_entropy(functional_call(model, up, (points,)), labels)

    return Block(model=model, optimizers=adam(model), loss=loss)


def averaged() -> Block:
    """Keep an exponential mean of the weights."""
    model = network()
    decay: Any = swa_utils.get_ema_multi_avg_fn(0.9)  # type: ignore[no-untyped-call]
    mean = swa_utils.AveragedModel(model, multi_avg_fn=decay)
    return Block(
        model=model,
        optimizers=adam(model),
        tail=lambda step: mean.update_parameters(model),
        extra={"mean": mean},
    )


class CountedSchedule:
    """A schedule as timm has them: told how many updates there were, and what ``noise`` it made."""

    def __init__(self, optimizer: torch.optim.Optimizer) -> None:
        self.optimizer = optimizer
        self.base = [group["lr"] for group in optimizer.param_groups]
        self.noise = 0.0

    def step_update(self, num_updates: int) -> None:
        generator = torch.Generator().manual_seed(num_updates)
        self.noise = 0.1 * float(torch.rand((), generator=generator))
        for group, base in zip(self.optimizer.param_groups, self.base, strict=True):
            cosine = 0.5 + 0.5 * math.cos(math.pi * min(num_updates, 15) / 15)
            group["lr"] = base * cosine * min(1.0, num_updates / 4) * (1 + self.noise)

    def state_dict(self) -> dict[str, Any]:
        return {"base": self.base, "noise": self.noise}

    def load_state_dict(self, state: dict[str, Any]) -> None:
        self.base, self.noise = state["base"], state["noise"]


def counted_schedule() -> Block:
    model = network()
    optimizer = torch.optim.SGD(model.parameters(), lr=0.1, momentum=0.9)
    schedule = CountedSchedule(optimizer)
    return Block(
        model=model,
        optimizers=[optimizer],
        tail=lambda step: schedule.step_update(step + 1),
        extra={"schedule": schedule},
    )


def taking_turns() -> Block:
    """Train a generator and its critic by turns, a step each: who waits is frozen in the tail."""
    model = shaped(nn.ModuleDict({"generator": nn.Linear(4, 4), "critic": nn.Linear(4, 1)}))
    model["generator"].requires_grad_(requires_grad=False)

    def loss(batch: Batch) -> torch.Tensor:
        points, _ = batch
        made = model["critic"](model["generator"](points))
        if not model["critic"].weight.requires_grad:
            return functional.softplus(-made).mean()
        real = model["critic"](points)
        return functional.softplus(-real).mean() + functional.softplus(made).mean()

    def tail(step: int) -> None:
        model["critic"].requires_grad_(requires_grad=step % 2 == 1)
        model["generator"].requires_grad_(requires_grad=step % 2 == 0)

    return Block(
        model=model,
        optimizers=[*adam(model["generator"]), *adam(model["critic"])],
        loss=loss,
        tail=tail,
    )


def critic_in_the_tail() -> Block:
    """Train the generator by the session; its critic in the tail, the same on every replica."""
    generator, critic = shaped(nn.Linear(4, 4)), nn.Linear(4, 1)
    (optimizer,) = adam(critic)
    points = models.Points(NUM_SAMPLES).points

    def loss(batch: Batch) -> torch.Tensor:
        weights = {name: weight.detach() for name, weight in critic.named_parameters()}
        made = functional_call(critic, weights, (generator(batch[0]),))
        return functional.softplus(-made).mean()

    def tail(step: int) -> None:
        real = points[torch.arange(step * 8, step * 8 + 8) % NUM_SAMPLES]
        with torch.no_grad():
            made = generator(real)
        optimizer.zero_grad()
        scores = functional.softplus(critic(made)) + functional.softplus(-critic(real))
        torch.autograd.backward(scores.mean())
        optimizer.step()

    return Block(
        model=generator,
        optimizers=adam(generator),
        loss=loss,
        tail=tail,
        extra={"critic": critic, "optimizer of the critic": optimizer},
    )


def quantisation_aware() -> Block:
    """Train with fake quantisers that observe, and no longer do so after a while."""
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")  # torch.ao is to move to torchao
        quantization: Any = importlib.import_module("torch.ao.quantization")

        layers = [nn.Linear(4, 6), nn.ReLU(), nn.Linear(6, 3)]
        model = nn.Sequential(quantization.QuantStub(), *layers, quantization.DeQuantStub())
        model.train()
        model.qconfig = quantization.get_default_qat_qconfig("fbgemm")
        quantization.prepare_qat(model, inplace=True)
    model(models.Points(NUM_SAMPLES).points)  # observers know a range only then

    def tail(step: int) -> None:
        if step == 12:
            model.apply(quantization.disable_observer)

    return Block(model=shaped(model), optimizers=adam(model), tail=tail)


FEATURES = [
    Feature(
        name="SAM",
        build=sharpness_aware,
        note="by micro-batch, within the loss: `functional_call` with perturbed weights",
    ),
    Feature(
        name="an exponential mean of the weights",
        build=averaged,
        note="`AveragedModel` in the tail, as `extra_state`",
    ),
    Feature(
        name="timm's schedulers",
        build=counted_schedule,
        note="`scheduler.step_update(session.committed)` in the tail, as `extra_state`",
    ),
    Feature(
        name="alternating optimizers, a GAN",
        build=taking_turns,
        note="both models in one module; who waits is frozen in the tail (`requires_grad_`)",
    ),
    Feature(
        name="a second model trained in the tail",
        build=critic_in_the_tail,
        note="with its own optimizer, both as `extra_state`; the same data on every replica",
    ),
    Feature(
        name="quantisation-aware training",
        build=quantisation_aware,
        note="`torch.ao`: ranges move by the mean over the slots, scales and zero points follow; "
        "run one batch through the model first",
    ),
    Feature(
        name="timm, Hugging Face datasets, optimizers of others",
        note="the real ones, with `make frameworks`",
        proof=f"{GIVEN}::test_a_dataset_of_hugging_face_gives_its_samples",
    ),
]
