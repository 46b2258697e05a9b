"""The four models that exactness is proved with, small enough for a unit test.

Each is a ``Case``: model, optimizers, data, how a micro-batch is computed, what the tail does.
``train`` runs one under a Session; ``tests/processes/train_model.py`` is the same as a script.
With ``randomness=False`` nothing is drawn after the model is built, for comparison with a plain
loop.
"""

from __future__ import annotations

import random
import time
from collections import Counter
from collections.abc import Callable
from dataclasses import dataclass, field
from typing import Any

import numpy as np
import torch
from torch import nn
from torch.nn import functional
from torch.utils.data import (
    BatchSampler,
    DataLoader,
    Dataset,
    DistributedSampler,
    RandomSampler,
    SubsetRandomSampler,
    WeightedRandomSampler,
)

import pliant

Batch = Any


@dataclass
class Case:
    model: nn.Module
    optimizer: torch.optim.Optimizer
    dataset: Any
    compute: Callable[[Batch], tuple[torch.Tensor, float | None]]
    """Mean loss of a micro-batch, and its weight; None: its number of samples.  Of a pipeline: its
    first stage's input."""
    global_batch_size: int
    micro_batch_size: int
    scheduler: Any = None
    max_grad_norm: float | None = None
    extra_state: Any = None
    collate_fn: Callable[[list[Any]], Any] | None = None
    tail: Callable[[int], None] = lambda step: None
    judge: Callable[[pliant.Session, Any], None] = lambda session, step: None
    """Also in the tail: what asks the session for something."""

    scaler: torch.amp.GradScaler | None = None
    schedule: Any = None
    """Of a pipeline: it runs forward and backward."""

    on_nonfinite: str = "warn"
    plateau: Any = None
    warmup: Callable[[Batch], torch.Tensor] | None = None
    phases: list[tuple[int, Callable[[], None]]] = field(default_factory=list)
    """(until which step, what happens after it), for a script with several ``steps()`` calls."""

    def session(self, **arguments: Any) -> pliant.Session:
        arguments = {
            "global_batch_size": self.global_batch_size,
            "micro_batch_size": self.micro_batch_size,
            "scheduler": self.scheduler,
            "max_grad_norm": self.max_grad_norm,
            "extra_state": self.extra_state,
            "collate_fn": self.collate_fn,
            "plateau": self.plateau,
            "on_nonfinite": self.on_nonfinite,
            "warmup": self.warmup,
            "scaler": self.scaler,
            **arguments,
        }
        return pliant.Session(
            model=self.model, optimizer=self.optimizer, dataset=self.dataset, **arguments
        )


def train(
    case: Case,
    steps: int,
    *,
    on_tail: Callable[[pliant.Session, Any], None] = lambda session, step: None,
    on_session: Callable[[pliant.Session], None] = lambda session: None,
    on_batch: Callable[[], None] = lambda: None,
    on_end: Callable[[pliant.Session], None] = lambda session: None,
    break_at: int | None = None,
    **arguments: Any,
) -> str:
    """Train to ``steps`` and return the state digest."""
    with case.session(**arguments) as session:
        on_session(session)
        for until, action in [*case.phases, (steps, lambda: None)]:
            for step in session.steps(min(until, steps)):
                for batch in step:
                    on_batch()
                    given, weight = case.compute(batch)
                    if case.schedule is None:
                        step.backward(given, weight=weight)
                    else:
                        inputs, targets = given[:, :-1], given[:, 1:]
                        step.pipeline(case.schedule, inputs, target=targets, weight=weight)
                case.tail(step.index)
                case.judge(session, step)
                on_tail(session, step)
                if step.index == break_at:
                    break
            action()
        on_end(session)
        return session.state_digest()


# --- byte-level GPT --------------------------------------------------------------


class Bytes(Dataset[Any]):
    """Windows of a fixed text; targets of some positions, and of some windows, are ignored."""

    def __init__(self, size: int, length: int = 16) -> None:
        generator = torch.Generator().manual_seed(5)
        self.text = torch.randint(0, 256, (size + length + 1,), generator=generator)
        self.size = size
        self.length = length

    def __len__(self) -> int:
        return self.size

    def __getitem__(self, index: int) -> tuple[torch.Tensor, torch.Tensor]:
        window = self.text[index : index + self.length + 1]
        targets = window[1:].clone()
        targets[: index % self.length] = -100
        if index % 5 == 0:
            targets[:] = -100
        return window[:-1], targets


class Block(nn.Module):
    def __init__(self, width: int, heads: int, dropout: float) -> None:
        super().__init__()
        self.heads = heads
        self.dropout = dropout
        self.norm = nn.ModuleList([nn.LayerNorm(width), nn.LayerNorm(width)])
        self.qkv = nn.Linear(width, 3 * width, bias=False)
        self.out = nn.Linear(width, width)
        self.mlp = nn.Sequential(
            nn.Linear(width, 4 * width), nn.GELU(), nn.Linear(4 * width, width), nn.Dropout(dropout)
        )

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        batch, length, width = x.shape
        q, k, v = (
            part.view(batch, length, self.heads, -1).transpose(1, 2)
            for part in self.qkv(self.norm[0](x)).chunk(3, dim=-1)
        )
        mixed = functional.scaled_dot_product_attention(
            q, k, v, is_causal=True, dropout_p=self.dropout if self.training else 0.0
        )
        x = x + self.out(mixed.transpose(1, 2).reshape(batch, length, width))
        return torch.add(x, self.mlp(self.norm[1](x)))


class GPT(nn.Module):
    def __init__(self, width: int = 32, dropout: float = 0.1, length: int = 16) -> None:
        super().__init__()
        self.token = nn.Embedding(256, width)
        self.position = nn.Embedding(length, width)
        self.blocks = nn.Sequential(*(Block(width, 2, dropout) for _ in range(2)))
        self.head = nn.Linear(width, 256, bias=False)
        self.head.weight = self.token.weight
        nn.init.normal_(self.token.weight, std=0.1)

    def forward(self, tokens: torch.Tensor) -> torch.Tensor:
        x = self.token(tokens) + self.position.weight[: tokens.shape[1]]
        logits: torch.Tensor = self.head(self.blocks(x))
        return logits


def _shard(model: GPT, sizes: dict[str, int], *, is_whole_outside: bool) -> None:
    """Shard by tensor parallelism in each block, and by FSDP2, as far as the mesh says."""
    from torch.distributed.fsdp import fully_shard  # takes a second to import
    from torch.distributed.tensor.parallel import (
        ColwiseParallel,
        RowwiseParallel,
        parallelize_module,
    )

    mesh = pliant.mesh(**sizes)
    model.to(mesh.device_type)
    for block in model.blocks:
        if "tp" in sizes:
            plan = {"mlp.0": ColwiseParallel(), "mlp.2": RowwiseParallel()}
            parallelize_module(block, mesh["tp"], plan)
        if "shard" in sizes:
            fully_shard(block, mesh=mesh["shard"])
    if "shard" in sizes and not is_whole_outside:
        fully_shard(model, mesh=mesh["shard"])


def gpt(
    *,
    randomness: bool = True,
    width: int = 32,
    mesh: dict[str, int] | None = None,
    is_whole_outside: bool = False,
    is_judged: bool = False,
    is_scaled: bool = False,
) -> Case:
    """A language model; sharded over the workers of a replica if a ``mesh`` is given.

    ``is_whole_outside``: only its blocks are sharded, and one parameter there is frozen;
    ``is_judged``: it is evaluated in its tails; ``is_scaled``: its loss is, which overflows twice.
    """
    model = GPT(width, dropout=0.1 if randomness else 0.0)
    if is_whole_outside:
        model.blocks[0].requires_grad_(requires_grad=False)
    if mesh:
        _shard(model, mesh, is_whole_outside=is_whole_outside)
    # Of some parameters that are sharded and some that are not torch cannot compute at once.
    foreach = False if mesh and "tp" in mesh else None
    optimizer = torch.optim.AdamW(model.parameters(), lr=3e-3, weight_decay=0.1, foreach=foreach)
    scheduler = torch.optim.lr_scheduler.LambdaLR(optimizer, lambda step: min(1.0, (step + 1) / 5))

    def compute(batch: Batch) -> tuple[torch.Tensor, float | None]:
        tokens, targets = (part.to(model.position.weight.device) for part in batch)
        loss = functional.cross_entropy(model(tokens).flatten(0, 1), targets.flatten())
        return loss, float((targets != -100).sum())

    def judge(session: pliant.Session, step: Any) -> None:
        if is_judged and step.index % 2:
            session.evaluate(Bytes(12), lambda batch: compute(batch)[0].nan_to_num(0.0))

    return Case(
        model=model,
        optimizer=optimizer,
        dataset=Bytes(96),
        compute=compute,
        global_batch_size=16,
        micro_batch_size=2,
        scheduler=scheduler,
        max_grad_norm=1.0,
        judge=judge,
        scaler=torch.amp.GradScaler("cpu", init_scale=2.0**127) if is_scaled else None,
    )


def staged(
    *,
    mesh: dict[str, int],
    kind: str = "Schedule1F1B",
    is_judged: bool = False,
    randomness: bool = True,
) -> Case:
    """A language model in as many stages as the mesh says; a micro-batch goes in two chunks."""
    from torch import distributed
    from torch.distributed import pipelining

    from pliant.recipes.gpt import GPTConfig, GPTStage, next_byte_loss

    made = pliant.mesh(**mesh)
    number, count, group = made["pp"].get_local_rank(), mesh["pp"], made.get_group("pp")
    config = GPTConfig(
        context=16, width=32, heads=2, layers=3, dropout=0.1 * randomness, tied=False
    )
    model = GPTStage(config, number, count)
    angles = torch.full((2,), float(number))  # one name on each stage, as rotary embeddings have
    model.register_buffer("angles", angles, persistent=False)
    model.to(made.device_type)
    device = next(model.parameters()).device
    stage = pipelining.PipelineStage(model, number, count, device, group=group)
    schedule = getattr(pipelining, kind)(stage, 2, loss_fn=next_byte_loss)
    optimizer = torch.optim.AdamW(model.parameters(), lr=3e-3)

    def compute(batch: Batch) -> tuple[torch.Tensor, float | None]:
        return batch, float((batch % 2).sum())

    def score(batch: Batch) -> torch.Tensor:
        losses: list[torch.Tensor] = []
        batch = batch.to(device)
        inputs = batch[:, :-1].contiguous()  # torch 2.11 refuses others
        schedule.eval(inputs, target=batch[:, 1:], losses=losses)
        loss = torch.stack(losses).mean() if losses else torch.zeros((), device=device)
        distributed.broadcast(loss, group=group, group_src=count - 1)
        return loss

    def judge(session: pliant.Session, step: Any) -> None:
        if is_judged and step.index % 2:
            session.evaluate(text[:8], score)

    text = torch.randint(0, 256, (96, 17), generator=torch.Generator().manual_seed(9))
    return Case(
        model=model,
        optimizer=optimizer,
        dataset=text,
        compute=compute,
        global_batch_size=16,
        micro_batch_size=4,
        scheduler=torch.optim.lr_scheduler.StepLR(optimizer, 2),
        max_grad_norm=1.0,
        judge=judge,
        schedule=schedule,
    )


# --- CNN -------------------------------------------------------------------------


class Images(Dataset[Any]):
    """Small images, augmented with random numbers of all three kinds."""

    def __init__(self, size: int, *, augment: bool, has_nan: bool = False) -> None:
        generator = torch.Generator().manual_seed(6)
        self.images = torch.randn(size, 3, 8, 8, generator=generator)
        if has_nan:  # of both signs: which one a sum has depends on what was added to what
            self.images[7] = torch.nan
            self.images[20] = -self.images[7]
        self.labels = torch.randint(0, 4, (size,), generator=generator)
        self.augment = augment

    def __len__(self) -> int:
        return len(self.labels)

    def __getitem__(self, index: int) -> tuple[torch.Tensor, torch.Tensor]:
        image = self.images[index]
        if self.augment:
            if random.random() < 0.5:
                image = image.flip(-1)
            image = image.roll(int(np.random.randint(-1, 2)), dims=-2)
            image = image + 0.1 * torch.randn_like(image)
        return image, self.labels[index]


def mix(items: list[Any]) -> tuple[torch.Tensor, torch.Tensor]:
    """Collate with random numbers of its own."""
    images = torch.stack([image for image, _ in items])
    return images * (1 + 0.05 * torch.rand(1)), torch.stack([label for _, label in items])


def cnn(*, randomness: bool = True, on_nonfinite: str = "") -> Case:
    """With ``on_nonfinite`` two images of the data are nan."""
    model = nn.Sequential(
        nn.Conv2d(3, 8, 3, padding=1, bias=False),
        nn.BatchNorm2d(8),
        nn.ReLU(),
        nn.Conv2d(8, 12, 3, padding=1, bias=False),
        nn.BatchNorm2d(12),
        nn.ReLU(),
        nn.AdaptiveAvgPool2d(2),
        nn.Flatten(),
        nn.Linear(48, 4),
    )
    model.to(memory_format=torch.channels_last)  # type: ignore[call-overload, unused-ignore]
    optimizer = torch.optim.SGD(model.parameters(), lr=0.05, momentum=0.9, dampening=0.1)

    def compute(batch: Batch) -> tuple[torch.Tensor, float | None]:
        images, labels = batch
        images = images.to(memory_format=torch.channels_last)
        return functional.cross_entropy(model(images), labels), None

    return Case(
        model=model,
        optimizer=optimizer,
        dataset=Images(50, augment=randomness, has_nan=bool(on_nonfinite)),
        compute=compute,
        global_batch_size=16,  # 4 steps an epoch, the last one of 2 samples
        micro_batch_size=2,
        collate_fn=mix if randomness else None,
        on_nonfinite=on_nonfinite or "warn",
    )


# --- mixture of experts ------------------------------------------------------------


class Experts(nn.Module):
    """Every sample goes to one expert; one of them only sees rare samples, one none at all."""

    def __init__(self, width: int = 8) -> None:
        super().__init__()
        self.enter = nn.Linear(4, width)
        self.router = nn.Linear(width, 4)
        self.experts = nn.ModuleList(nn.Linear(width, width) for _ in range(4))
        self.rare = nn.Linear(width, width)
        self.unused = nn.Linear(width, width)
        self.leave = nn.Linear(width, 3)

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        hidden = torch.tanh(self.enter(x))
        gates = self.router(hidden).softmax(-1)
        weight, chosen = gates.max(-1)
        mixed = torch.zeros_like(hidden)
        for number, expert in enumerate(self.experts):
            picked = (chosen == number).nonzero().squeeze(-1)
            if len(picked):
                part = weight[picked, None] * expert(hidden[picked])
                mixed = mixed.index_add(0, picked, part)
        if float(x.detach().mean()) > 0.9:
            mixed = mixed + self.rare(hidden)
        logits: torch.Tensor = self.leave(hidden + mixed)
        return logits


class Points(Dataset[Any]):
    def __init__(self, size: int) -> None:
        generator = torch.Generator().manual_seed(7)
        self.points = torch.randn(size, 4, generator=generator)
        self.labels = torch.randint(0, 3, (size,), generator=generator)

    def __len__(self) -> int:
        return len(self.labels)

    def __getitem__(self, index: int) -> tuple[torch.Tensor, torch.Tensor]:
        return self.points[index], self.labels[index]


class Staged(Points):
    """Points that a script makes smaller from stage to stage."""

    def __init__(self, size: int) -> None:
        super().__init__(size)
        self.stage = 0
        self.fetched = 0

    def __getitem__(self, index: int) -> tuple[torch.Tensor, torch.Tensor]:
        self.fetched += 1
        point, label = super().__getitem__(index)
        return point / (1 + self.stage), label

    def advance(self, step: int) -> None:
        if step % 4 == 3:
            self.stage += 1

    def state_dict(self) -> dict[str, int]:
        return {"stage": self.stage}

    def load_state_dict(self, state: dict[str, int]) -> None:
        self.stage = state["stage"]


def moe(*, randomness: bool = True, stages: str = "") -> Case:
    """With ``stages`` the tail changes the dataset: as ``extra_state``, or behind its back."""
    del randomness
    dataset = Staged(60)
    model = Experts()
    optimizer = torch.optim.AdamW(model.parameters(), lr=1e-2, weight_decay=0.05)

    def compute(batch: Batch) -> tuple[torch.Tensor, float | None]:
        points, labels = batch
        return functional.cross_entropy(model(points), labels), None

    return Case(
        model=model,
        optimizer=optimizer,
        dataset=dataset,
        compute=compute,
        global_batch_size=10,
        micro_batch_size=2,
        extra_state=dataset if stages == "extra_state" else None,
        tail=dataset.advance if stages else lambda step: None,
    )


# --- partly frozen network -----------------------------------------------------------


class Average:
    """Exponential moving average of a model, kept by the script in its tail."""

    def __init__(self, model: nn.Module) -> None:
        self.model = model
        self.shadow = {n: p.detach().clone() for n, p in model.named_parameters()}

    @torch.no_grad()
    def update(self) -> None:
        for name, parameter in self.model.named_parameters():
            self.shadow[name].mul_(0.9).add_(parameter, alpha=0.1)

    def state_dict(self) -> dict[str, Any]:
        return self.shadow

    def load_state_dict(self, state: dict[str, Any]) -> None:
        self.shadow = dict(state)


class Tally:
    """A counter of the script's own, with keys that plain JSON would spoil."""

    def __init__(self) -> None:
        self.counts: Counter[int] = Counter()

    def state_dict(self) -> dict[str, Any]:
        return {"counts": self.counts, "best": float("inf")}

    def load_state_dict(self, state: dict[str, Any]) -> None:
        self.counts = Counter(state["counts"])


def frozen(*, randomness: bool = True, unfreeze_at: int = 5) -> Case:
    backbone = nn.Sequential(nn.Linear(4, 16), nn.Tanh(), nn.Linear(16, 16), nn.Tanh())
    dropout = nn.Dropout(0.2 if randomness else 0.0)
    model = nn.Sequential(backbone, dropout, nn.Linear(16, 3))
    backbone.requires_grad_(requires_grad=False)
    optimizer = torch.optim.Adam(model.parameters(), lr=1e-2)
    average, tally = Average(model), Tally()

    def compute(batch: Batch) -> tuple[torch.Tensor, float | None]:
        points, labels = batch
        return functional.cross_entropy(model(points), labels), None

    def tail(step: int) -> None:
        average.update()
        tally.counts[step % 3] += 1

    return Case(
        model=model,
        optimizer=optimizer,
        dataset=Points(40),
        compute=compute,
        global_batch_size=8,
        micro_batch_size=1,
        extra_state={"average": average, "tally": tally},
        tail=tail,
        phases=[(unfreeze_at, lambda: _unfreeze(backbone))],
    )


def _unfreeze(module: nn.Module) -> None:
    module.requires_grad_(requires_grad=True)


# --- a run that looks at itself --------------------------------------------------------


def judged(*, randomness: bool = True, slow_s: float = 0.0) -> Case:
    """Evaluates in its tails, lets a scheduler follow that, and adds a parameter group late.

    With ``slow_s`` a micro-batch of the evaluation in step 4 takes that long, which is announced.
    """
    body = nn.Sequential(nn.Linear(4, 16), nn.BatchNorm1d(16), nn.Tanh())
    model = nn.Sequential(body, nn.Dropout(0.2 if randomness else 0.0), nn.Linear(16, 3))
    optimizer = torch.optim.SGD(model[2].parameters(), lr=0.3, momentum=0.9)
    scheduler = torch.optim.lr_scheduler.ReduceLROnPlateau(optimizer, patience=0, threshold=0.05)

    def compute(batch: Batch) -> tuple[torch.Tensor, float | None]:
        points, labels = batch
        return functional.cross_entropy(model(points), labels), None

    pause_s = 0.0

    def score(batch: Batch) -> Any:
        points, labels = batch
        logits = model(points)
        noise = torch.rand(()) + float(np.random.rand())
        time.sleep(pause_s)
        return {"loss": functional.cross_entropy(logits, labels), "noise": noise}, len(labels) + 0.5

    def judge(session: pliant.Session, step: Any) -> None:
        if step.index >= 3 and len(optimizer.param_groups) == 1:
            optimizer.add_param_group({"params": list(body.parameters()), "lr": 0.05})
        if step.index % 2 == 0 or step.is_last:
            nonlocal pause_s
            pause_s = slow_s if step.index == 4 else 0.0
            with session.busy(max_s=60.0):
                values = session.evaluate(Points(21), score, micro_batch_size=2)
            assert isinstance(values, dict)
            session.feed(loss=values["loss"] + 0.01 * values["noise"])

    return Case(
        model=model,
        optimizer=optimizer,
        dataset=Points(40),
        compute=compute,
        global_batch_size=8,
        micro_batch_size=2,
        judge=judge,
        plateau={"loss": scheduler},
        warmup=lambda batch: compute(batch)[0],
    )


def compiled(*, randomness: bool = True) -> Case:
    """What ``torch.compile`` made, compiled before a replica reports ready."""
    dropout = nn.Dropout(0.2 if randomness else 0.0)
    network = nn.Sequential(nn.Linear(4, 16), nn.GELU(), dropout, nn.Linear(16, 3))
    model = torch.compile(network, backend="aot_eager")
    assert isinstance(model, nn.Module)

    def compute(batch: Batch) -> tuple[torch.Tensor, float | None]:
        points, labels = batch
        return functional.cross_entropy(model(points), labels), None

    return Case(
        model=model,
        optimizer=torch.optim.AdamW(network.parameters(), lr=1e-2),
        dataset=Points(40),
        compute=compute,
        global_batch_size=8,
        micro_batch_size=2,
        warmup=lambda batch: compute(batch)[0],
    )


# --- a loader with a sampler of its own ----------------------------------------------


def drawn(*, randomness: bool = True) -> Case:
    """Points, some of them drawn several times in an epoch and some of them never."""
    del randomness
    model = nn.Sequential(nn.Linear(4, 6), nn.Dropout(0.1), nn.Linear(6, 3))
    weights = [float(number % 4) for number in range(44)]
    generator = torch.Generator().manual_seed(5)
    sampler = WeightedRandomSampler(weights, 50, generator=generator)

    def compute(batch: Batch) -> tuple[torch.Tensor, float | None]:
        points, labels = batch
        return functional.cross_entropy(model(points), labels), None

    return Case(
        model=model,
        optimizer=torch.optim.Adam(model.parameters(), lr=1e-2),
        dataset=DataLoader(Points(44), batch_size=2, sampler=sampler),
        compute=compute,
        global_batch_size=12,
        micro_batch_size=2,
    )


class Made(Dataset[Any]):
    """As many samples as said, each made when it is asked for, or not."""

    def __init__(self, size: int, *, broken_at: int = -1, own: bool = False) -> None:
        self.size = size
        self.broken_at = broken_at
        self.generator = torch.Generator().manual_seed(1) if own else None

    def __len__(self) -> int:
        return self.size

    def __getitem__(self, index: int) -> tuple[torch.Tensor, torch.Tensor]:
        if index == self.broken_at:
            raise IndexError(f"there is no sample {index}")
        point = torch.linspace(0, 1, 4) * (index % 97)
        if self.generator is not None:
            point = point + torch.rand(4, generator=self.generator)
        return point, torch.tensor(index % 3)


def same_first(worker: int) -> None:
    """Make ready a process of a loader: what it draws is seeded by samples, whatever this does."""
    random.seed(worker)


def loader_of(kind: str) -> Any:
    """Return data as people give it: a dataset, or a loader with a sampler."""
    points = Points(44)
    samplers: dict[str, Callable[[], Any]] = {
        "random": lambda: RandomSampler(points, generator=torch.Generator().manual_seed(5)),
        "subset": lambda: SubsetRandomSampler(range(3, 30)),
        "distributed": lambda: DistributedSampler(points, num_replicas=1, rank=0),
        "distributed by rank": lambda: DistributedSampler(points),
    }
    if kind in samplers:
        return DataLoader(points, batch_size=2, sampler=samplers[kind]())
    if kind == "batches":
        return DataLoader(
            points,
            batch_sampler=BatchSampler(RandomSampler(points), 2, drop_last=True),
            num_workers=1,
            worker_init_fn=same_first,
            prefetch_factor=3,
            timeout=30,
            pin_memory=True,
            persistent_workers=True,
        )
    sizes = {"five": Made(5), "vast": Made(10**9), "longer": Made(45), "own": Made(44, own=True)}
    return sizes[kind] if kind in sizes else Made(44, broken_at=7)


def fed(*, kind: str = "random", randomness: bool = True) -> Case:
    """Points as ``kind`` says, evaluated by a loader."""
    del randomness
    model = nn.Sequential(nn.Linear(4, 6), nn.Dropout(0.1), nn.Linear(6, 3))

    def compute(batch: Batch) -> tuple[torch.Tensor, float | None]:
        points, labels = batch
        return functional.cross_entropy(model(points), labels), None

    def judge(session: pliant.Session, step: Any) -> None:
        if step.index % 3 == 0:
            value = session.evaluate(DataLoader(Points(9), batch_size=2), lambda b: compute(b)[0])
            assert isinstance(value, float)
            session.log(value=value)
            with torch.no_grad():
                model[2].get_parameter("bias").add_(value * 1e-3)  # so that it shows

    return Case(
        model=model,
        optimizer=torch.optim.Adam(model.parameters(), lr=1e-2),
        dataset=loader_of(kind),
        compute=compute,
        global_batch_size=4,
        micro_batch_size=2,
        judge=judge,
    )


CASES: dict[str, Callable[..., Case]] = {
    "gpt": gpt,
    "cnn": cnn,
    "moe": moe,
    "frozen": frozen,
    "judged": judged,
    "compiled": compiled,
    "drawn": drawn,
    "fed": fed,
}

OF_SEVERAL_WORKERS: dict[str, Callable[..., Case]] = {"staged": staged}
"""Cases that a replica of one worker cannot train."""


def build(name: str, **options: Any) -> Case:
    """Seed, then build the case of this name."""
    pliant.seed(11)
    return {**CASES, **OF_SEVERAL_WORKERS}[name](**options)
