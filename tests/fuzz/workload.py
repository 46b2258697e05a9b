"""What a recipe is in PyTorch: model, optimizers, schedulers, data, loss, tail.

Owns the building; draws from the global generators only, which the caller has seeded.  Imports
nothing of pliant: a plain loop trains with the same objects.
"""

from __future__ import annotations

import random
from collections import Counter, deque
from collections.abc import Callable, Iterable, Iterator, Sequence
from contextlib import AbstractContextManager, contextmanager, nullcontext
from dataclasses import dataclass
from typing import Any

import numpy as np
import torch
from tests.fuzz import parts
from tests.fuzz.generator import Data, Optimizer, Recipe
from torch import nn
from torch.nn import functional
from torch.utils.data import Dataset, default_collate

NUM_CLASSES = 5
VOCABULARY = 19
NUM_FEATURES = 6
LENGTH = 5
IGNORED = -100

AUTOCAST = {
    "bf16 autocast": torch.bfloat16,
    "fp16 scaled": torch.float16,
    "overflow": torch.float16,
}
"""What a forward runs in, by the recipe's precision."""

ODD_WEIGHTS = (0.0, 0.5, 1.0, 3.0, 1e6)
"""Weight of a sample by its class, for ``weights="odd"``."""


@dataclass(slots=True)
class Workload:
    """The objects of one training run."""

    recipe: Recipe
    model: nn.Module
    optimizers: list[torch.optim.Optimizer]
    schedulers: list[Any]
    scaler: torch.amp.GradScaler | None
    dataset: Dataset[Any]
    collate_fn: Callable[[list[Any]], Any] | None
    keepsakes: Keepsakes

    def loss(self, batch: Any) -> tuple[torch.Tensor | None, float | None]:
        """Return mean loss and weight of a micro-batch; no loss: no backward."""
        dtype = AUTOCAST.get(self.recipe.precision)
        with nullcontext() if dtype is None else torch.autocast("cpu", dtype=dtype):
            return _loss(self.recipe, self.model, batch)

    @property
    def plateau(self) -> dict[str, Any]:
        """The scheduler that the script feeds with its score."""
        if "feed" not in self.recipe.tail:
            return {}
        return {"score": _scheduler("ReduceLROnPlateau", self.optimizers[0], self.recipe)}

    def warm_up(self, batch: Any) -> torch.Tensor:
        """Return the loss of a micro-batch, whatever it is good for."""
        logits: torch.Tensor = self.model(_unpack(batch)[0])[0]
        return logits.float().pow(2).mean()

    def score(self, batch: Any) -> tuple[float, float]:
        """Return what the script evaluates by, and its weight."""
        x, y = _unpack(batch)
        losses, weights = _per_target(self.recipe, self.model(x)[0], y)
        total = float(weights.sum())
        return (float((losses * weights).sum()) / total if total else 0.0), total

    def outside(self) -> AbstractContextManager[Any]:
        """Return what the script wraps around its whole loop."""
        if self.recipe.precision == "bf16 autocast outside":
            return torch.autocast("cpu", dtype=torch.bfloat16)
        return nullcontext()

    def buffers(self) -> dict[str, str]:
        """Return the rules that some of the model's buffers need."""
        return buffer_rules(self.recipe)

    def change(self, action: str) -> None:
        """Do what the script does between two phases."""
        body = self.model.get_submodule("body")
        if action in ("freeze", "unfreeze"):
            body.requires_grad_(requires_grad=action == "unfreeze")
        elif action == "lower rate":
            for optimizer in self.optimizers:
                for group in optimizer.param_groups:
                    group["lr"] *= 0.5
        elif action == "new head":
            for parameter in self.model.get_submodule("leave").parameters():
                nn.init.normal_(parameter, std=0.2)


def build(recipe: Recipe) -> Workload:
    """Make the objects of a recipe; seed the global generators before."""
    model = Network(recipe)
    optimizers = list(_optimizers(recipe, model))
    return Workload(
        recipe=recipe,
        model=model,
        optimizers=optimizers,
        schedulers=[_scheduler(name, optimizers[0], recipe) for name in recipe.schedulers],
        scaler=_scaler(recipe.precision),
        dataset=Samples(recipe.task, recipe.data),
        collate_fn={"default": None, "own": collate, "random": collate_noisily}[
            recipe.data.collate
        ],
        keepsakes=Keepsakes(recipe, model, optimizers),
    )


def buffer_rules(recipe: Recipe) -> dict[str, str]:
    """Return the rule of each buffer that needs one."""
    return {
        f"body.{number}.inner.value": rule
        for number, part in enumerate(recipe.parts)
        if (rule := parts.RULES.get(part.kind))
    }


@contextmanager
def process_of(recipe: Recipe) -> Iterator[None]:
    """Set what the script sets for the whole process; and back."""
    dtype, strict = torch.get_default_dtype(), torch.are_deterministic_algorithms_enabled()
    try:
        if recipe.process == "float64 by default":
            torch.set_default_dtype(torch.float64)
        if recipe.process == "deterministic":  # fills what torch.empty returns with nan
            torch.use_deterministic_algorithms(mode=True)
        yield
    finally:
        torch.set_default_dtype(dtype)
        torch.use_deterministic_algorithms(mode=strict)


def _scaler(precision: str) -> torch.amp.GradScaler | None:
    if precision == "overflow":
        return torch.amp.GradScaler("cpu", init_scale=2.0**24, growth_interval=3)
    if "scaled" in precision:
        return torch.amp.GradScaler("cpu", init_scale=2.0**14, growth_interval=5)
    return None


# --- model ---------------------------------------------------------------------------------


class Network(nn.Module):
    """Entrance by task, the recipe's parts, and a head."""

    def __init__(self, recipe: Recipe) -> None:
        super().__init__()
        width = recipe.width
        self.enter = enter = _entrance(recipe)
        self.body = nn.Sequential(
            *(parts.Around(parts.make(part.kind, width), part.wrap) for part in recipe.parts)
        )
        outputs = VOCABULARY if recipe.task == "tokens" else NUM_CLASSES
        self.leave = nn.Linear(width, outputs, bias=recipe.task != "tokens")
        if recipe.tied_head:
            self.leave.weight = enter.get_parameter("weight")

    def forward(self, x: torch.Tensor) -> tuple[torch.Tensor, torch.Tensor]:
        """Return logits, and the entrance's output."""
        hidden = self.enter(x)
        last = self.body(hidden)
        if x.dim() == 4:
            last = last.mean(1)
        return self.leave(last), hidden


def _entrance(recipe: Recipe) -> nn.Module:
    width = recipe.width
    if recipe.task == "vectors":
        return nn.Linear(NUM_FEATURES, width)
    if recipe.task == "tokens":
        return nn.Embedding(VOCABULARY, width)
    layers: list[nn.Module] = [nn.Conv2d(3, width, 3, stride=2, padding=1)]
    for kind in recipe.front:
        layers.append(_front(kind, width))
    rows = parts.Apply(lambda self, x: x.flatten(2).transpose(1, 2))
    return nn.Sequential(*layers, rows)


def _front(kind: str, width: int) -> nn.Module:
    made: dict[str, Callable[[], nn.Module]] = {
        "conv": lambda: nn.Conv2d(width, width, 3, padding=1, bias=False),
        "depthwise": lambda: nn.Conv2d(width, width, 3, padding=1, groups=width),
        "batchnorm2d": lambda: nn.BatchNorm2d(width),
        "groupnorm": lambda: nn.GroupNorm(2, width),
        "relu": nn.ReLU,
        "pool": lambda: nn.AvgPool2d(3, stride=1, padding=1),
        "dropout2d-off": lambda: nn.Dropout2d(0.5).eval(),
    }
    return made[kind]()


# --- loss ----------------------------------------------------------------------------------


def _loss(recipe: Recipe, model: nn.Module, batch: Any) -> tuple[torch.Tensor | None, float | None]:
    x, y = _unpack(batch)
    if recipe.loss == "skip" and int(y.reshape(-1)[0]) == 1:
        return None, None
    logits, hidden = model(x)
    losses, weights = _per_target(recipe, logits, y)
    total = weights.sum()
    loss = (losses * weights).sum() / total  # nan where everything is ignored
    if recipe.loss == "two passes":
        again, _ = _per_target(recipe, model(x)[0], y)
        loss = (loss + (again * weights).sum() / total) / 2
    elif recipe.loss == "auxiliary":
        loss = loss + 0.01 * hidden.float().pow(2).mean()
    elif recipe.loss == "penalty":
        (slope,) = torch.autograd.grad(loss, hidden, create_graph=True)
        loss = loss + 0.1 * slope.pow(2).sum()
    elif recipe.loss == "nan" and int(y.reshape(-1)[0]) == 2:
        loss = loss * float("nan")
    return loss, None if recipe.weights == "samples" else float(total)


def _per_target(
    recipe: Recipe, logits: torch.Tensor, y: torch.Tensor
) -> tuple[torch.Tensor, torch.Tensor]:
    flat = y.reshape(-1)
    losses = functional.cross_entropy(
        logits.float().reshape(len(flat), -1), flat, reduction="none", label_smoothing=0.05
    )
    if recipe.weights == "tokens":
        return losses, (flat != IGNORED).double()
    if recipe.weights == "odd":
        odd = torch.tensor(ODD_WEIGHTS, dtype=torch.float64)
        return losses, odd[flat.clamp(min=0) % len(ODD_WEIGHTS)] * (flat != IGNORED)
    return losses, torch.ones_like(flat, dtype=torch.float64)


# --- optimizers and schedulers ----------------------------------------------------------------


def _optimizers(recipe: Recipe, model: nn.Module) -> Iterable[torch.optim.Optimizer]:
    """Deal the parameters out: matrices to Muon if there is one, the others in turn."""
    left = list(model.parameters())
    if not recipe.all_held and recipe.parts:
        shelved = {id(p) for p in model.get_submodule("body.0").parameters()}
        left = [p for p in left if id(p) not in shelved]
    num_others = sum(chosen.name != "Muon" for chosen in recipe.optimizers)
    turns = iter(range(num_others))
    for chosen in recipe.optimizers:  # Muon comes first
        if chosen.name == "Muon":
            held = [p for p in left if p.dim() == 2 and p.dtype is torch.float32 and p.numel()]
            left = [p for p in left if not any(p is one for one in held)]
        else:
            held = left[next(turns) :: num_others]
        if held:
            yield _optimizer(chosen, held)


class Own(torch.optim.Optimizer):
    """An optimizer of the user's own, with state of every kind: by parameter and not."""

    def __init__(self, params: Any, lr: float = 0.01, weight_decay: float = 0.0) -> None:
        super().__init__(params, {"lr": lr, "weight_decay": weight_decay})

    @torch.no_grad()
    def step(self, closure: Any = None) -> Any:
        del closure
        everything: Any = self.state
        shared = everything.setdefault("all", {"steps": 0, "size": torch.zeros(())})
        shared["steps"] += 1
        for group in self.param_groups:
            group.setdefault("seen", Counter())[shared["steps"] % 2] += 1
            for parameter in group["params"]:
                if parameter.grad is None:
                    continue
                shared["size"] += parameter.grad.abs().sum().to(shared["size"].dtype)
                state = everything[parameter]
                last = state.get("last", parameter.grad)
                state["last"] = parameter.grad.clone()
                state["norms"] = deque(state.get("norms", ()), maxlen=2)
                state["norms"].append(float(last.abs().sum()))
                state["skipped"] = None
                change = parameter.grad + 0.3 * last + group["weight_decay"] * parameter
                rate = group["lr"] / (1.0 + 0.1 * float(torch.log1p(shared["size"])))
                parameter.sub_(change * rate)


def _optimizer(chosen: Optimizer, held: list[nn.Parameter]) -> torch.optim.Optimizer:
    options = dict(chosen.options)
    if options.pop("tensor_lr", False):
        options["lr"] = torch.tensor(options["lr"])
    groups: list[dict[str, Any]] = [
        {"params": held[n :: chosen.groups]} for n in range(chosen.groups)
    ]
    groups = [group for group in groups if group["params"]]
    if len(groups) > 1:
        groups[1]["weight_decay"] = 0.02
    kind = Own if chosen.name == "Own" else getattr(torch.optim, chosen.name)
    made: torch.optim.Optimizer = kind(groups, **options)
    return made


def _scheduler(name: str, optimizer: torch.optim.Optimizer, recipe: Recipe) -> Any:
    schedulers = torch.optim.lr_scheduler
    kinds: dict[str, Any] = {
        "StepLR": lambda: schedulers.StepLR(optimizer, 3, gamma=0.7),
        "MultiStepLR": lambda: schedulers.MultiStepLR(optimizer, [3, 3, 8], gamma=0.5),
        "ExponentialLR": lambda: schedulers.ExponentialLR(optimizer, 0.95),
        "CosineAnnealingLR": lambda: schedulers.CosineAnnealingLR(optimizer, 10, eta_min=1e-4),
        "CosineAnnealingWarmRestarts": lambda: schedulers.CosineAnnealingWarmRestarts(
            optimizer, 4, T_mult=2
        ),
        "OneCycleLR": lambda: schedulers.OneCycleLR(
            optimizer, max_lr=0.01, total_steps=recipe.num_steps + 1, cycle_momentum=False
        ),
        "LambdaLR": lambda: schedulers.LambdaLR(optimizer, lambda step: min(1.0, (step + 1) / 5)),
        "MultiplicativeLR": lambda: schedulers.MultiplicativeLR(optimizer, lambda step: 0.97),
        "LinearLR": lambda: schedulers.LinearLR(optimizer, 0.2, total_iters=6),
        "PolynomialLR": lambda: schedulers.PolynomialLR(optimizer, total_iters=20, power=2.0),
        "CyclicLR": lambda: schedulers.CyclicLR(
            optimizer, 1e-4, 1e-2, step_size_up=3, cycle_momentum=False
        ),
        "SequentialLR": lambda: schedulers.SequentialLR(
            optimizer,
            [schedulers.ConstantLR(optimizer, 0.5, 3), schedulers.ExponentialLR(optimizer, 0.9)],
            milestones=[4],
        ),
        "ChainedScheduler": lambda: schedulers.ChainedScheduler(
            [schedulers.ConstantLR(optimizer, 0.5, 3), schedulers.ExponentialLR(optimizer, 0.9)],
            optimizer,
        ),
        "ReduceLROnPlateau": lambda: schedulers.ReduceLROnPlateau(
            optimizer, patience=1, threshold=0.05, cooldown=1
        ),
    }
    return kinds[name]()


# --- data ------------------------------------------------------------------------------------


@dataclass
class Pair:
    """A sample as an object of the user's own."""

    x: Any
    y: Any


class Samples(Dataset[Any]):
    """Seeded samples of a task, in the form and with the augmentation of a recipe."""

    def __init__(self, task: str, data: Data) -> None:
        generator = torch.Generator().manual_seed(3)
        shapes = {"vectors": (NUM_FEATURES,), "images": (3, 6, 6), "tokens": (LENGTH + 1,)}
        self.task = task
        self.data = data
        if task == "tokens":
            self.x = torch.randint(0, VOCABULARY, (data.size, LENGTH + 1), generator=generator)
        else:
            self.x = torch.randn(data.size, *shapes[task], generator=generator)
        self.y = torch.randint(0, NUM_CLASSES, (data.size,), generator=generator)
        if data.fetch_all:
            self.__getitems__ = self._all

    def __len__(self) -> int:
        return self.data.size

    def __getitem__(self, index: int) -> Any:
        x, y = self.plain(index)
        if self.data.augment:
            x, y = self._augmented(x, y)
        if self.data.items == "dict":
            return {"y": y, "x": x}
        if self.data.items == "object":
            return Pair(x, y)
        return (x.numpy(), y.numpy()) if self.data.items == "numpy" else (x, y)

    def plain(self, index: int) -> tuple[torch.Tensor, torch.Tensor]:
        """Return a sample without augmentation."""
        x, y = self.x[index], self.y[index]
        if self.task == "tokens":
            x, y = x[:-1], x[1:].clone()
            y[: index % (LENGTH + 1)] = IGNORED  # in some samples all of them
        elif index % 7 == 0:
            y = torch.tensor(IGNORED)
        return x, y

    def _augmented(self, x: torch.Tensor, y: torch.Tensor) -> tuple[torch.Tensor, torch.Tensor]:
        if self.task == "tokens":
            return (x + int(np.random.randint(0, 2))) % VOCABULARY, y
        if random.random() < 0.5:
            x = x.flip(-1)
        return x * float(np.random.uniform(0.9, 1.1)) + 0.1 * torch.randn_like(x), y

    def _all(self, indexes: list[int]) -> list[Any]:
        return [self[index] for index in indexes]


def collate(items: list[Any]) -> Any:
    """Make a batch of items in any of the forms."""
    pairs = [_unpack(item) for item in items]
    return {"x": torch.stack([x for x, _ in pairs]), "y": torch.stack([y for _, y in pairs])}


def collate_noisily(items: list[Any]) -> Any:
    """Collate with random numbers of its own."""
    batch = collate(items)
    if batch["x"].is_floating_point():
        batch["x"] = batch["x"] * (1 + 0.05 * torch.rand(1))
    return batch


def batches(
    data: Data, micro_batch_size: int, global_batch_size: int, step: int
) -> list[list[int]]:
    """Return the samples of each micro-batch of a step, unshuffled."""
    full, rest = divmod(data.size, global_batch_size)
    steps = full + (rest > 0 and not data.drop_last)
    start = step % steps * global_batch_size
    stop = min(start + global_batch_size, data.size)
    return [
        list(range(at, min(at + micro_batch_size, stop)))
        for at in range(start, stop, micro_batch_size)
    ]


def collated(workload: Workload, indexes: list[int]) -> Any:
    """Return one micro-batch as a loader would."""
    return (workload.collate_fn or default_collate)([workload.dataset[at] for at in indexes])


def says_stop(batch: Any) -> bool:
    """Tell whether the script asks to stop at this micro-batch; some replicas see none such."""
    return int(_unpack(batch)[1].reshape(-1)[0]) % 2 == 0


def _unpack(batch: Any) -> tuple[torch.Tensor, torch.Tensor]:
    if isinstance(batch, Pair):
        return batch.x, batch.y
    x, y = (batch["x"], batch["y"]) if isinstance(batch, dict) else batch
    return torch.as_tensor(x), torch.as_tensor(y)


# --- what the script keeps beside its model ------------------------------------------------------


class Keepsakes:
    """The script's own state, moved in heads and tails: what ``extra_state`` is for."""

    def __init__(
        self, recipe: Recipe, model: nn.Module, optimizers: Sequence[torch.optim.Optimizer]
    ) -> None:
        self.kinds = recipe.tail
        self.model = model
        self.optimizers = optimizers
        held = {id(p) for o in optimizers for group in o.param_groups for p in group["params"]}
        free = [p for p in model.parameters() if id(p) not in held]
        self.shelved = [] if recipe.schedulers else free  # schedulers know the first groups only
        self.example = Samples(recipe.task, recipe.data).plain(0)[0].unsqueeze(0)
        self.live = self._all_but_local(recipe) if "live" in self.kinds else {}
        self.shadow = {n: p.detach().clone() for n, p in model.named_parameters()}
        self.counts: Counter[int] = Counter()
        self.history: deque[tuple[float, float]] = deque(maxlen=5)
        self.drawn: dict[int, Any] = {}
        self.last_loss = float("inf")
        self.scores: dict[int, float] = {}

    def _all_but_local(self, recipe: Recipe) -> dict[str, torch.Tensor]:
        """Return the model's own tensors, as ``state_dict`` does."""
        local = {name for name, rule in buffer_rules(recipe).items() if rule == "local"}
        return {n: t for n, t in self.model.state_dict().items() if n not in local}

    def head(self, step: int) -> None:
        """Do what the script does before the first micro-batch of a step."""
        if "head" in self.kinds:
            self.drawn[-step] = (float(torch.rand(())), float(np.random.rand()))

    @torch.no_grad()
    def update(self, step: int, *, loss: float, grad_norm: float) -> None:
        """Do what the script does in the tail of a step."""
        if "average" in self.kinds:
            for name, parameter in self.model.named_parameters():
                self.shadow[name].mul_(0.9).add_(parameter, alpha=0.1)
        if "counter" in self.kinds:
            self.counts[step % 3] += 1
        if "history" in self.kinds:
            self.history.append((loss, grad_norm))
        if "random" in self.kinds:
            self.drawn[step] = [torch.rand(2), np.random.rand(2), random.random()]
        if "forward" in self.kinds:  # in training mode: buffers move, dropout draws
            self.model(self.example)
        self._meddle(step, loss)

    def _meddle(self, step: int, loss: float) -> None:
        """Change model and optimizers by hand."""
        if "clamp" in self.kinds:
            for parameter in self.model.parameters():
                if not parameter.is_complex():
                    parameter.clamp_(-2.0, 2.0)
        if "add group" in self.kinds and step == 4 and self.shelved:
            self.optimizers[-1].add_param_group({"params": self.shelved, "lr": 0.003})
        if "reset" in self.kinds and step == 5:
            self.optimizers[0].state.clear()
        if "thaw" in self.kinds and step in (3, 6):
            self.model.get_submodule("body").requires_grad_(requires_grad=step == 6)
        if "rate by loss" in self.kinds:
            for group in self.optimizers[-1].param_groups:
                group["lr"] *= 0.9 if loss > self.last_loss else 1.02
            self.last_loss = loss

    def state_dict(self) -> dict[str, Any]:
        """Return everything that moves."""
        return {
            "shadow": self.shadow,
            "counts": self.counts,
            "history": self.history,
            "drawn": self.drawn,
            "last_loss": self.last_loss,
            "live": self.live,
            "scores": self.scores,
        }

    def load_state_dict(self, state: dict[str, Any]) -> None:
        """Take what another replica had."""
        self.shadow = dict(state["shadow"])
        self.counts = Counter(state["counts"])
        self.history = deque(state["history"], maxlen=5)
        self.drawn = dict(state["drawn"])
        self.last_loss = state["last_loss"]
        self.live = dict(state["live"])
        self.scores = dict(state["scores"])
