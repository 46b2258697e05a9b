"""Every optimizer and every schedule of torch, each with a small network of its own."""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable, Iterable
from typing import Any

import torch
from tests.features.feature import Block, Feature, network
from torch import nn, optim
from torch.optim import lr_scheduler, swa_utils

Make = Callable[[list[nn.Parameter]], optim.Optimizer]
Schedule = Callable[[optim.Optimizer], Any]


def trained_by(make: Make, schedule: Schedule | None = None) -> Callable[[], Block]:
    def build() -> Block:
        model = network()
        optimizer = make(list(model.parameters()))
        schedulers = [] if schedule is None else [schedule(optimizer)]
        return Block(model=model, optimizers=[optimizer], schedulers=schedulers)

    return build


def scheduled(schedule: Schedule) -> Callable[[], Block]:
    return trained_by(lambda p: optim.SGD(p, lr=0.1, momentum=0.9), schedule)


def muon_and_adamw() -> Block:
    model = network()
    matrices = [p for p in model.parameters() if p.dim() == 2]
    vectors = [p for p in model.parameters() if p.dim() != 2]
    return Block(model=model, optimizers=[optim.Muon(matrices), optim.AdamW(vectors)])


def groups_added_later() -> Block:
    model = network()
    optimizer = optim.AdamW(model[0].parameters(), lr=1e-2)
    optimizer.add_param_group({"params": model[2].parameters(), "lr": 1e-3, "weight_decay": 0.0})
    schedule = lr_scheduler.LambdaLR(optimizer, [lambda n: 0.9**n, lambda n: 1 / (n + 1)])
    return Block(model=model, optimizers=[optimizer], schedulers=[schedule])


def named_parameters() -> Block:
    model = network()
    return Block(model=model, optimizers=[optim.NAdam(model.named_parameters())])


def one_parameter_in_two() -> Block:
    model = network()
    return Block(
        model=model,
        optimizers=[optim.SGD(model.parameters(), 1e-2), optim.Adam(model[2].parameters())],
    )


class Odd(optim.Optimizer):
    """Keeps numbers, containers and nothing at all in its state, as home-made optimizers do."""

    def __init__(self, params: Iterable[nn.Parameter]) -> None:
        super().__init__(params, {"lr": 0.05})

    @torch.no_grad()
    def step(self, closure: None = None) -> None:  # type: ignore[override]
        for group in self.param_groups:
            for p in group["params"]:
                state = self.state[p]
                if not state:
                    state |= {"count": 0, "best": float("inf"), "mean": None, "seen": Counter()}
                state["count"] += 1
                state["seen"][state["count"] % 3] += 1
                state["best"] = min(state["best"], float(p.grad.norm()))
                mean = p.grad if state["mean"] is None else 0.9 * state["mean"] + p.grad
                state["mean"] = mean.clone() if state["count"] % 4 else None
                p.add_(p.grad, alpha=-group["lr"] / state["count"] * state["seen"][1])


def weights_averaged() -> Block:
    model = network()
    optimizer = optim.SGD(model.parameters(), lr=0.1)
    average = swa_utils.AveragedModel(model)

    def tail(step: int) -> None:
        if step >= 3:
            average.update_parameters(model)

    return Block(
        model=model,
        optimizers=[optimizer],
        schedulers=[swa_utils.SWALR(optimizer, swa_lr=0.01, anneal_epochs=5)],
        tail=tail,
        extra={"average": average},
    )


class Warmup:
    """A factor of the learning rate that is an object: its attributes travel."""

    def __init__(self) -> None:
        self.calls = 0

    def __call__(self, step: int) -> float:
        self.calls += 1
        return min(1.0, self.calls / 20)


def one_after_another(o: optim.Optimizer) -> Any:
    first = lr_scheduler.LinearLR(o, start_factor=0.1, total_iters=4)
    second = lr_scheduler.CosineAnnealingLR(o, T_max=6)
    third = lr_scheduler.ExponentialLR(o, gamma=0.8)
    return lr_scheduler.SequentialLR(o, [first, second, third], milestones=[4, 9])


def one_upon_another(o: optim.Optimizer) -> Any:
    parts = [
        lr_scheduler.ConstantLR(o, factor=0.1, total_iters=5),
        lr_scheduler.ExponentialLR(o, gamma=0.9),
    ]
    return lr_scheduler.ChainedScheduler(parts)


def tensor_rate(p: list[nn.Parameter]) -> optim.Optimizer:
    return optim.Adam(p, lr=torch.tensor(0.01))


OPTIMIZERS: dict[str, Make] = {
    "Adafactor": lambda p: optim.Adafactor(p, lr=0.05),
    "Adadelta": lambda p: optim.Adadelta(p),
    "Adagrad": lambda p: optim.Adagrad(p, lr_decay=0.01, initial_accumulator_value=0.1),
    "Adam": lambda p: optim.Adam(p, lr=1e-2),
    "Adam(amsgrad=True)": lambda p: optim.Adam(p, lr=1e-2, amsgrad=True),
    "Adamax": lambda p: optim.Adamax(p),
    "AdamW": lambda p: optim.AdamW(p, lr=1e-2, weight_decay=0.1),
    "AdamW(maximize=True)": lambda p: optim.AdamW(p, lr=1e-3, maximize=True),
    "ASGD": lambda p: optim.ASGD(p, lr=0.05, t0=5),
    "NAdam": lambda p: optim.NAdam(p),
    "RAdam": lambda p: optim.RAdam(p, lr=1e-2),
    "RMSprop": lambda p: optim.RMSprop(p),
    "RMSprop(centered=True, momentum=0.9)": lambda p: optim.RMSprop(p, centered=True, momentum=0.9),
    "Rprop": lambda p: optim.Rprop(p),
    "SGD": lambda p: optim.SGD(p, lr=0.1),
    "SGD(momentum=0.9, nesterov=True)": lambda p: optim.SGD(
        p, lr=0.1, momentum=0.9, nesterov=True, weight_decay=1e-2
    ),
}

FOREACH = [name for name in OPTIMIZERS if name.isalpha() and name != "Adafactor"]
"""Adafactor refuses it on the CPU."""
FUSED = ("Adagrad", "Adam", "AdamW", "SGD")
VARIANTS = [*(("foreach", name) for name in FOREACH), *(("fused", name) for name in FUSED)]

SCHEDULES: dict[str, Schedule] = {
    "LambdaLR": lambda o: lr_scheduler.LambdaLR(o, lambda n: min(1.0, (n + 1) / 5)),
    "LambdaLR with an object": lambda o: lr_scheduler.LambdaLR(o, Warmup()),
    "MultiplicativeLR": lambda o: lr_scheduler.MultiplicativeLR(o, lambda n: 0.95),
    "StepLR": lambda o: lr_scheduler.StepLR(o, step_size=3, gamma=0.5),
    "MultiStepLR": lambda o: lr_scheduler.MultiStepLR(o, [2, 9, 13], gamma=0.5),
    "ConstantLR": lambda o: lr_scheduler.ConstantLR(o, total_iters=9),
    "LinearLR": lambda o: lr_scheduler.LinearLR(o, total_iters=12),
    "ExponentialLR": lambda o: lr_scheduler.ExponentialLR(o, gamma=0.9),
    "CosineAnnealingLR": lambda o: lr_scheduler.CosineAnnealingLR(o, T_max=8),
    "CosineAnnealingWarmRestarts": lambda o: lr_scheduler.CosineAnnealingWarmRestarts(
        o, T_0=3, T_mult=2
    ),
    "PolynomialLR": lambda o: lr_scheduler.PolynomialLR(o, total_iters=15, power=2.0),
    "CyclicLR": lambda o: lr_scheduler.CyclicLR(
        o, base_lr=0.01, max_lr=0.1, step_size_up=3, mode="triangular2"
    ),
    "CyclicLR with a function": lambda o: lr_scheduler.CyclicLR(
        o, base_lr=0.01, max_lr=0.1, step_size_up=4, scale_fn=lambda n: 0.9**n
    ),
    "OneCycleLR": lambda o: lr_scheduler.OneCycleLR(o, max_lr=0.2, total_steps=60),
    "SequentialLR": one_after_another,
    "ChainedScheduler": one_upon_another,
    "ReduceLROnPlateau": lambda o: lr_scheduler.ReduceLROnPlateau(o, patience=1, threshold=0.5),
}

NOTES = {
    "ReduceLROnPlateau": "fed with the loss of the whole step",
    "LambdaLR": "functions are taken from the script, on a joiner too",
}


def variant(kind: str, name: str) -> Make:
    return lambda p: getattr(optim, name)(p, lr=1e-2, **{kind: True})


JUDGED = "tests/processes/test_elastic_session.py::test_join_drain_and_kill_leave_no_trace"

FEATURES = [
    *(
        Feature(name=name, build=trained_by(make), note=NOTES.get(name, ""))
        for name, make in OPTIMIZERS.items()
    ),
    *(
        Feature(name=f"{name}({kind}=True)", build=trained_by(variant(kind, name)))
        for kind, name in VARIANTS
    ),
    Feature(
        name="Muon with AdamW",
        build=muon_and_adamw,
        note="a list of optimizers, stepped at one commit",
    ),
    Feature(
        name="the learning rate as a tensor",
        build=trained_by(tensor_rate, lambda o: lr_scheduler.ExponentialLR(o, gamma=0.9)),
    ),
    Feature(
        name="add_param_group",
        build=groups_added_later,
        note="before the session is made",
    ),
    Feature(
        name="add_param_group in a tail",
        note="joiners get the group with the state",
        proof=JUDGED,
    ),
    Feature(
        name="ReduceLROnPlateau by name",
        note="`plateau={name: ...}`, fed by `session.feed(name=value)` in the tail",
        proof=JUDGED,
    ),
    Feature(name="parameters given by name", build=named_parameters),
    Feature(name="one parameter in two optimizers", build=one_parameter_in_two),
    Feature(
        name="an optimizer of your own",
        build=trained_by(Odd),
        note="its state may hold tensors, numbers, containers, Counter, None",
    ),
    Feature(
        name="AveragedModel with SWALR",
        build=weights_averaged,
        note="updated in the tail, passed as `extra_state`",
    ),
    *(
        Feature(name=name, build=scheduled(schedule), note=NOTES.get(name, ""))
        for name, schedule in SCHEDULES.items()
    ),
]
