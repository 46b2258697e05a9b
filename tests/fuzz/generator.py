"""From a seed to a recipe: a small training run and everything that is to happen to it.

Owns the choice and nothing else: no torch, no clock, the same recipe for the same seed on every
machine.  ``workload`` makes a model and data of a recipe, ``stage`` lets the events happen.

A recipe prints as text that ``parse`` reads back, so that a failure can be kept in a file.
"""

from __future__ import annotations

import random
from collections.abc import Sequence
from dataclasses import dataclass, replace
from pprint import pformat
from typing import Any

from pliant.testing import faults

Options = tuple[tuple[str, Any], ...]

PLAIN_PARTS = (
    "linear",
    "mlp",
    "layernorm",
    "rmsnorm",
    "groupnorm",
    "batchnorm",
    "batchnorm-average",
    "batchnorm-eval",
    "instancenorm",
    "attention",
    "gru",
    "conv1d",
    "experts",
    "rare",
    "embedding",
    "weight-norm",
    "spectral-norm",
    "orthogonal",
    "lora",
    "two-views",
    "transposed",
    "channels-last",
    "tied-pair",
    "scalar",
    "empty",
    "unused",
    "frozen",
    "own-function",
    "in-place",
    "hooked",
    "shared-norm",
    "float64",
    "complex",
    "bfloat16",
    "buffer-rebound",
    "buffer-integer",
    "buffer-bool",
    "buffer-complex",
    "buffer-infinite",
    "buffer-not-saved",
    "buffer-sum",
    "buffer-max",
    "buffer-local",
)
RANDOM_PARTS = ("dropout", "alpha-dropout", "noise", "layer-drop", "python-drop")
"""Parts that draw random numbers in their forward."""

WRAPS = ("", "", "", "residual", "residual", "checkpoint", "reentrant", "twice", "reentrant twice")

NO_SECOND_DERIVATIVE = ("attention", "gru", "own-function", "bfloat16", "in-place", "hooked")

NEVER_WRAPPED = (
    "python-drop",  # checkpointing restores torch's generator only
    "two-views",  # torch adds later gradients to both views, in plain loops too
    "hooked",  # its hook sees what came since it last fired: another sum in a plain loop
)

TAILS = (
    "average",
    "counter",
    "history",
    "random",
    "head",
    "live",
    "forward",
    "clamp",
    "rate by loss",
    "reset",
    "thaw",
    "add group",
    "evaluate",
    "feed",
)
"""What a script does outside of its micro-batches, and keeps; see ``workload.Keepsakes``."""

OPTIMIZERS: dict[str, Sequence[Options]] = {
    "SGD": (
        (),
        (("momentum", 0.9), ("dampening", 0.1)),
        (("momentum", 0.8), ("nesterov", True), ("weight_decay", 0.05)),
        (("momentum", 0.9), ("maximize", True), ("lr", 1e-4)),
    ),
    "Adam": (
        (),
        (("amsgrad", True), ("eps", 1e-4)),
        (("weight_decay", 0.1), ("betas", (0.5, 0.7))),
    ),
    "AdamW": ((), (("amsgrad", True),), (("weight_decay", 0.3), ("betas", (0.0, 0.99)))),
    "NAdam": ((), (("momentum_decay", 0.01), ("decoupled_weight_decay", True))),
    "RAdam": ((), (("weight_decay", 0.1), ("decoupled_weight_decay", True))),
    "Adamax": ((), (("weight_decay", 0.1),)),
    "Adadelta": ((("lr", 0.3),), (("lr", 0.5), ("rho", 0.5), ("weight_decay", 0.01))),
    "Adagrad": ((("lr", 0.02),), (("lr_decay", 0.1), ("initial_accumulator_value", 0.1))),
    "RMSprop": ((), (("centered", True), ("momentum", 0.9), ("lr", 1e-3))),
    "Rprop": ((("lr", 1e-3),), (("etas", (0.3, 1.5)), ("step_sizes", (1e-5, 0.1)))),
    "ASGD": ((("lr", 0.01),), (("t0", 3.0), ("lambd", 0.01), ("alpha", 0.6))),
    "Adafactor": ((), (("weight_decay", 0.1), ("lr", 0.02))),
    "Own": ((), (("lr", 0.02),)),
    "Muon": ((), (("momentum", 0.5), ("nesterov", False))),
}
FUSED = ("SGD", "Adam", "AdamW", "Adagrad")
"""Optimizers with a fused variant.  SGD without momentum only: in torch 2.13 that variant fails on
a parameter that gets its first gradient late, and spoils 32 bfloat16 numbers or more at a time."""

ONE_BY_ONE = ("Muon", "Own")
"""Optimizers without a ``foreach`` variant."""

VARIANTS = ("foreach", "fused", "maximize", "amsgrad", "tensor_lr")
"""Options that are counted."""

REAL_ONLY = ("Adafactor", "Muon")
MATRICES_ONLY = ("Muon",)

SCHEDULERS = (
    "StepLR",
    "MultiStepLR",
    "ExponentialLR",
    "CosineAnnealingLR",
    "CosineAnnealingWarmRestarts",
    "OneCycleLR",
    "LambdaLR",
    "MultiplicativeLR",
    "LinearLR",
    "PolynomialLR",
    "CyclicLR",
    "SequentialLR",
    "ChainedScheduler",
    "ReduceLROnPlateau",
)

POINTS = tuple(sorted(faults.POINTS))


@dataclass(frozen=True, slots=True, kw_only=True)
class Part:
    """One block of the model's body, from ``[..., width]`` to ``[..., width]``."""

    kind: str
    wrap: str = ""


@dataclass(frozen=True, slots=True, kw_only=True)
class Optimizer:
    """One optimizer and its options; several share the parameters in turn."""

    name: str
    options: Options = ()
    groups: int = 1


@dataclass(frozen=True, slots=True, kw_only=True)
class Data:
    """The dataset and how it is fetched."""

    size: int
    items: str
    augment: bool
    collate: str
    fetch_all: bool
    num_workers: int
    shuffle: bool
    drop_last: bool


@dataclass(frozen=True, slots=True, kw_only=True)
class Event:
    """What is done to the job from outside when it has committed ``step`` steps."""

    step: int
    kind: str
    number: int = 0
    """Of a scale: how many replicas; else which of them that live, counted round."""

    waits: bool = True
    """Whether the next event waits until this one has shown its effect."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Recipe:
    """What a seed stands for."""

    seed: int
    task: str
    width: int
    front: tuple[str, ...]
    parts: tuple[Part, ...]
    tied_head: bool
    loss: str
    weights: str
    precision: str
    optimizers: tuple[Optimizer, ...]
    schedulers: tuple[str, ...]
    max_grad_norm: float | None
    data: Data
    num_slots: int
    micro_batch_size: int
    num_steps: int
    phases: tuple[tuple[int, str], ...]
    tail: tuple[str, ...]
    warmup: bool = False
    """Whether every replica computes a micro-batch before it reports ready."""

    all_held: bool = True
    """Whether the optimizers hold all parameters; else one block's are never stepped."""

    process: str = ""
    """What the script sets for the whole process."""

    stop_at: int | None
    start_replicas: int
    max_replicas: int
    survivor: str
    """The replica that nothing is done to: a run whose members are all lost is lost."""

    faults: tuple[str, ...]
    events: tuple[Event, ...]

    def __str__(self) -> str:
        return pformat(self, width=100, sort_dicts=False)

    @property
    def features(self) -> tuple[str, ...]:
        """What is in it, as one would count it."""
        return (
            f"task {self.task}",
            f"precision {self.precision}",
            f"loss {self.loss}",
            f"weights {self.weights}",
            *{f"part {part.kind}" for part in self.parts},
            *{f"wrap {part.wrap}" for part in self.parts if part.wrap},
            *{f"front {name}" for name in self.front},
            *{f"optimizer {optimizer.name}" for optimizer in self.optimizers},
            *{f"{k}={v}" for o in self.optimizers for k, v in o.options if k in VARIANTS},
            *{f"scheduler {name}" for name in self.schedulers},
            f"loader processes {self.data.num_workers}",
            f"K {self.num_slots}",
            *{f"phase {action}" for _, action in self.phases},
            *{f"tail {name}" for name in self.tail},
            *({f"process {self.process}"} if self.process else ()),
        )

    def quiet(self, *, num_steps: int) -> Recipe:
        """Return the start of it without random numbers after the model is built, in order."""
        parts = tuple(part for part in self.parts if part.kind not in RANDOM_PARTS)
        data = replace(self.data, augment=False, shuffle=False, num_workers=0)
        if data.collate == "random":
            data = replace(data, collate="own")
        num_steps = min(num_steps, self.num_steps)
        phases = tuple((end, action) for end, action in self.phases if end < num_steps)
        return replace(
            self,
            parts=parts,
            data=data,
            tail=(),
            num_steps=num_steps,
            phases=phases,
            stop_at=None,
        )


def parse(text: str) -> Recipe:
    """Read a recipe back that was printed."""
    names = {kind.__name__: kind for kind in (Recipe, Part, Optimizer, Data, Event)}
    found = eval(text, {"__builtins__": {}}, names)
    if not isinstance(found, Recipe):
        raise TypeError(f"not a recipe: {text:.80}")
    return found


def recipe(seed: int) -> Recipe:
    """Return the recipe of this seed."""
    return _Draw(seed).recipe()


class _Draw:
    """The choices of one recipe, in order; later ones may depend on earlier ones."""

    def __init__(self, seed: int) -> None:
        self._seed = seed
        self._random = random.Random(seed)

    def recipe(self) -> Recipe:
        task = self._one("vectors", "tokens", "images")
        precision = self._precision()
        parts = self._parts()
        num_slots = self._one(2, 2, 3, 3, 4, 4, 5, 5, 6, 7, 8)
        micro = self._one(1, 2, 2, 3)
        num_steps = self._random.randint(10, 15)
        max_replicas = min(self._one(2, 2, 3, 3, 4), num_slots)
        start = self._random.randint(1, max_replicas)
        survivor = f"r{self._random.randint(1, start)}"
        chosen = Recipe(
            seed=self._seed,
            task=task,
            width=self._one(4, 8, 12),
            front=self._front() if task == "images" else (),
            parts=parts,
            tied_head=task == "tokens" and self._chance(0.5),
            loss=self._loss(parts, precision),
            weights=self._one("samples", "samples", "tokens", "odd"),
            precision=precision,
            optimizers=self._optimizers(parts),
            schedulers=self._schedulers(),
            max_grad_norm=self._one(None, None, 0.3, 5.0),
            data=self._data(num_slots * micro),
            num_slots=num_slots,
            micro_batch_size=micro,
            num_steps=num_steps,
            phases=self._phases(num_steps),
            tail=self._some(0.2, *TAILS),
            warmup=self._chance(0.15),
            all_held=self._chance(0.8),
            process=self._one("", "", "", "", "deterministic", "float64 by default"),
            stop_at=num_steps - 2 if self._chance(0.08) else None,
            start_replicas=start,
            max_replicas=max_replicas,
            survivor=survivor,
            faults=self._faults(survivor, num_steps),
            events=self._events(num_steps, start, max_replicas, int(survivor[1:])),
        )
        return _corrected(chosen)

    def _one(self, *choices: Any) -> Any:
        return self._random.choice(choices)

    def _chance(self, probability: float) -> bool:
        return self._random.random() < probability

    def _some(self, probability: float, *choices: str) -> tuple[str, ...]:
        return tuple(choice for choice in choices if self._chance(probability))

    def _precision(self) -> str:
        if self._chance(0.7):
            return "float32"
        return str(
            self._one(
                "bf16 autocast", "bf16 autocast outside", "fp16 scaled", "fp32 scaled", "overflow"
            )
        )

    def _parts(self) -> tuple[Part, ...]:
        kinds = [self._one(*PLAIN_PARTS) for _ in range(self._random.randint(1, 4))]
        kinds += [self._one(*RANDOM_PARTS) for _ in range(self._one(0, 0, 1, 1, 2))]
        self._random.shuffle(kinds)
        return tuple(Part(kind=kind, wrap=self._one(*WRAPS)) for kind in kinds)

    def _front(self) -> tuple[str, ...]:
        kinds = ("conv", "depthwise", "batchnorm2d", "groupnorm", "relu", "pool", "dropout2d-off")
        return tuple(self._one(*kinds) for _ in range(self._random.randint(0, 3)))

    def _loss(self, parts: Sequence[Part], precision: str) -> str:
        loss = str(
            self._one("one", "one", "one", "two passes", "auxiliary", "penalty", "skip", "nan")
        )
        if loss == "penalty" and (
            precision != "float32"
            or any(part.kind in NO_SECOND_DERIVATIVE for part in parts)
            or any("reentrant" in part.wrap or "checkpoint" in part.wrap for part in parts)
        ):
            return "one"
        return loss

    def _optimizers(self, parts: Sequence[Part]) -> tuple[Optimizer, ...]:
        kinds = {part.kind for part in parts}
        names = [name for name in OPTIMIZERS if name not in MATRICES_ONLY]
        if "complex" in kinds:
            names = [name for name in names if name not in REAL_ONLY]
        chosen = [str(self._one(*names))]
        if self._chance(0.25):
            chosen.append(str(self._one(*names)))
        if self._chance(0.1):
            chosen.insert(0, "Muon")
        return tuple(
            Optimizer(
                name=name,
                options=self._options(name, kinds),
                groups=1 if name == "Muon" else self._one(1, 1, 2),
            )
            for name in chosen
        )

    def _options(self, name: str, kinds: set[str]) -> Options:
        options = dict(self._one(*OPTIMIZERS[name]))
        options.setdefault("lr", self._one(1e-3, 1e-2))
        if name not in ONE_BY_ONE:
            variant = self._one("none", "none", "foreach", "loop", "fused", "tensor_lr")
            if variant == "foreach":
                options["foreach"] = True
            elif variant == "loop":
                options["foreach"] = False
            elif (
                variant == "fused"
                and name in FUSED
                and "complex" not in kinds
                and "momentum" not in options
            ):
                options["fused"] = True
            elif variant == "tensor_lr" and name in ("Adam", "AdamW", "SGD"):
                options["tensor_lr"] = True
                options["foreach"] = False
        return tuple(options.items())

    def _schedulers(self) -> tuple[str, ...]:
        return tuple(str(self._one(*SCHEDULERS)) for _ in range(self._one(0, 1, 1, 2)))

    def _data(self, global_batch: int) -> Data:
        steps = self._random.randint(2, 5)
        size = global_batch * steps
        if self._chance(0.6):
            size += self._random.randrange(global_batch)
        return Data(
            size=size,
            items=self._one("tuple", "tuple", "dict", "object", "numpy"),
            augment=self._chance(0.5),
            collate=self._one("default", "default", "own", "random"),
            fetch_all=self._chance(0.15),
            num_workers=self._one(0, 0, 0, 0, 1, 2),
            shuffle=self._chance(0.8),
            drop_last=self._chance(0.2),
        )

    def _phases(self, num_steps: int) -> tuple[tuple[int, str], ...]:
        if self._chance(0.65):
            return ()
        ends = sorted(self._random.sample(range(2, num_steps - 2), self._one(1, 2)))
        actions = ("freeze", "unfreeze", "lower rate", "new head", "nothing")
        return tuple((end, str(self._one(*actions))) for end in ends)

    def _faults(self, survivor: str, num_steps: int) -> tuple[str, ...]:
        """Let some of the replicas kill themselves at a named point, each about when it is in."""
        placed = []
        for number in range(1, 9):
            name = f"r{number}"
            if name != survivor and self._chance(0.35):
                step = 0 if self._chance(0.25) else min(num_steps - 4, self._random.randint(1, 8))
                placed.append(f"{name}@{self._one(*POINTS)}:{step}+=SIGKILL")
        return tuple(placed)

    def _events(self, num_steps: int, start: int, most: int, least: int) -> tuple[Event, ...]:
        """Let the job grow first if it starts small; later replicas come as others are killed.

        ``least``: with fewer replicas the survivor would not be one of them.
        """
        count = self._random.randint(2, 4)
        steps = sorted(self._random.randint(1, num_steps - 5) for _ in range(count))
        events: list[Event] = []
        for step in steps:
            kind = str(self._one("scale", "full", "drain", "drain", "kill", "kill", "kill two"))
            if start < most and not events:
                kind = "full"
            number = self._random.randint(least, most) if kind == "scale" else self._one(*range(9))
            if kind == "full":
                kind, number = "scale", most
            events.append(Event(step=step, kind=kind, number=number, waits=self._chance(0.6)))
        return tuple(events)


def _corrected(chosen: Recipe) -> Recipe:
    """Leave out what does not go together in plain PyTorch either."""
    kinds = {part.kind for part in chosen.parts}
    if "complex" in kinds and chosen.precision in ("fp16 scaled", "overflow", "fp32 scaled"):
        chosen = replace(chosen, precision="float32")  # unscaling knows no complex numbers
    if chosen.precision in ("fp16 scaled", "overflow") and "gru" in kinds:
        chosen = replace(chosen, precision="fp32 scaled")
    if "empty" in kinds and any(one.name == "Adafactor" for one in chosen.optimizers):
        parts = [part for part in chosen.parts if part.kind != "empty"]  # divides by its size
        chosen = replace(chosen, parts=tuple(parts))
    chosen = replace(
        chosen,
        parts=tuple(
            replace(part, wrap="") if part.kind in NEVER_WRAPPED else part for part in chosen.parts
        ),
    )
    if chosen.data.items == "object" and chosen.data.collate == "default":
        chosen = replace(chosen, data=replace(chosen.data, collate="own"))
    return chosen
