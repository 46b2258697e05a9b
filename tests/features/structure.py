"""What models are made of: shared weights, checkpointing, norms, buffers, hooks, phases."""

from __future__ import annotations

import random
import warnings
from collections import Counter
from collections.abc import Callable
from typing import Any

import numpy as np
import torch
from tests.features.feature import Batch, Block, Feature, adam, network, shaped
from torch import nn
from torch.nn import functional
from torch.nn.utils import parametrizations, parametrize, prune
from torch.utils.checkpoint import checkpoint

CANCELS = 1e-4
"""Tolerance where large terms cancel inside one backward, so that rounding shows."""


def of(make: Callable[[], nn.Module]) -> Callable[[], Block]:
    def build() -> Block:
        model = shaped(make())
        return Block(model=model, optimizers=adam(model))

    return build


# --- weights used several times ----------------------------------------------------


class Tied(nn.Module):
    """One matrix at the beginning and at the end, with a checkpoint around each use."""

    def __init__(self, *, use_reentrant: bool | None) -> None:
        super().__init__()
        self.use_reentrant = use_reentrant
        self.enter = nn.Linear(4, 6)
        self.middle = nn.Linear(6, 6)
        self.leave = nn.Linear(6, 6)
        self.leave.weight = self.middle.weight

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        hidden = self.enter(x)
        for layer in (self.middle, self.leave):
            if self.use_reentrant is None:
                hidden = torch.tanh(layer(hidden))
            else:
                hidden = checkpoint(
                    lambda h, layer=layer: torch.tanh(layer(h)),
                    hidden,
                    use_reentrant=self.use_reentrant,
                )
        logits: torch.Tensor = hidden[:, :3]
        return logits


def two_passes() -> Block:
    model = network()

    def loss(batch: Batch) -> torch.Tensor:
        points, labels = batch
        first, second = model(points), model(points.flip(-1))
        return functional.cross_entropy(first, labels) + functional.mse_loss(first, second)

    return Block(model=model, optimizers=adam(model), loss=loss)


def gradient_penalty() -> Block:
    model = network()

    def loss(batch: Batch) -> torch.Tensor:
        points, labels = batch
        points = points.clone().requires_grad_()
        value = functional.cross_entropy(model(points), labels)
        (slope,) = torch.autograd.grad(value, points, create_graph=True)
        total: torch.Tensor = value + slope.pow(2).sum(1).mean()
        return total

    return Block(model=model, optimizers=adam(model), loss=loss)


class Chosen(nn.Module):
    """A branch that only some samples take, and one that none takes."""

    def __init__(self) -> None:
        super().__init__()
        self.always, self.seldom, self.never = (nn.Linear(4, 3) for _ in range(3))

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        logits: torch.Tensor = self.always(x)
        if float(x[:, 0].max()) > 1.2:
            logits = logits + self.seldom(x)
        return logits


class Shapes(nn.Module):
    """Parameters of unusual shapes and strides."""

    def __init__(self) -> None:
        super().__init__()
        self.scalar = nn.Parameter(torch.ones(()))
        self.empty = nn.Parameter(torch.zeros(0, 3))
        self.turned = nn.Parameter(torch.randn(3, 4).t())
        self.sliced = nn.Parameter(torch.randn(4, 6)[:, ::2])
        self.listed = nn.ParameterList([torch.randn(3) for _ in range(2)])
        self.by_name = nn.ParameterDict({"bias": torch.zeros(3)})

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        bent = x @ self.turned * self.scalar + x @ self.sliced + self.empty.sum()
        logits: torch.Tensor = bent + self.listed[0] * self.listed[1] + self.by_name["bias"]
        return logits


# --- phases -----------------------------------------------------------------------


def thawing() -> Block:
    model = network()
    model[0].requires_grad_(requires_grad=False)

    def tail(step: int) -> None:
        model[0].requires_grad_(requires_grad=step >= 3)
        model[2].requires_grad_(requires_grad=step < 9)

    return Block(model=model, optimizers=adam(model), tail=tail)


def sleeping_norm() -> Block:
    layers = [nn.Linear(4, 6, bias=False), nn.BatchNorm1d(6, eps=0.1), nn.Tanh(), nn.Linear(6, 3)]
    model = shaped(nn.Sequential(*layers))

    def tail(step: int) -> None:
        if step == 4:
            model[1].eval()

    return Block(model=model, optimizers=adam(model), tail=tail)


def rate_by_hand() -> Block:
    model = network()
    optimizer = torch.optim.SGD(model.parameters(), lr=0.1)

    def tail(step: int) -> None:
        for group in optimizer.param_groups:
            group["lr"] = 0.1 / (step + 2)

    return Block(model=model, optimizers=[optimizer], tail=tail)


# --- reparametrized weights -----------------------------------------------------------


def old_style(make: Callable[[], nn.Module]) -> nn.Module:
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")
        return make()


def pruned() -> nn.Module:
    layer = nn.Linear(4, 3)
    prune.l1_unstructured(layer, "weight", amount=0.3)  # type: ignore[no-untyped-call]
    return layer


class Adapted(nn.Module):
    """A layer whose forward puts an adapter on its weight and takes it off again, as PEFT's do."""

    def __init__(self) -> None:
        super().__init__()
        self.layer = nn.Linear(4, 3)
        self.adapter = nn.Linear(4, 3, bias=False)

    def forward(self, points: torch.Tensor) -> torch.Tensor:
        added = Added()
        added.what = lambda: self.adapter.weight
        parametrize.register_parametrization(self.layer, "weight", added)
        found = self.layer(points)
        parametrize.remove_parametrizations(self.layer, "weight", leave_parametrized=False)
        assert torch.is_tensor(found)
        return found


class Added(nn.Module):
    what: Callable[[], torch.Tensor]

    def forward(self, weight: torch.Tensor) -> torch.Tensor:
        return weight + self.what()


def weight_norm_old() -> nn.Module:
    return old_style(lambda: nn.utils.weight_norm(nn.Linear(4, 3)))


def spectral_norm_old() -> nn.Module:
    return old_style(lambda: nn.utils.spectral_norm(nn.Linear(4, 3)))


# --- buffers ------------------------------------------------------------------------


class Buffers(nn.Module):
    """Buffers of every kind, in ways that people move them."""

    ema: torch.Tensor
    hidden: torch.Tensor
    short: torch.Tensor
    calls: torch.Tensor
    small: torch.Tensor
    is_warm: torch.Tensor

    def __init__(self) -> None:
        super().__init__()
        self.layer = nn.Linear(4, 3)
        self.register_buffer("ema", torch.zeros(4))
        self.register_buffer("hidden", torch.zeros(4), persistent=False)
        self.register_buffer("calls", torch.zeros((), dtype=torch.long))
        self.register_buffer("small", torch.zeros(2, dtype=torch.uint8))
        self.register_buffer("is_warm", torch.tensor(data=False))
        self.register_buffer("mask", torch.full((4,), -torch.inf))
        self.register_buffer("short", torch.zeros(4, dtype=torch.bfloat16))
        self.register_buffer("empty", torch.zeros(0))

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        mean = x.detach().mean(0)
        self.ema = 0.9 * self.ema + 0.1 * mean  # rebound
        self.hidden.mul_(0.5).add_(mean)
        self.short.add_(mean.bfloat16())
        self.calls += 1
        self.small += 3
        self.is_warm = torch.ones_like(self.is_warm)
        return self.layer(x - self.ema - 0.1 * self.hidden)  # type: ignore[no-any-return]


class Counts(nn.Module):
    """Counters that slots move differently, each with a rule."""

    seen: torch.Tensor
    largest: torch.Tensor

    def __init__(self) -> None:
        super().__init__()
        self.layer = nn.Linear(4, 3)
        self.register_buffer("seen", torch.zeros(3, dtype=torch.long))
        self.register_buffer("largest", torch.full((4,), -1e9))

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        logits: torch.Tensor = self.layer(x)
        self.seen += torch.bincount(logits.argmax(-1), minlength=3)
        self.largest.copy_(torch.maximum(self.largest, x.detach().amax(0)))
        return logits


def ruled_buffers() -> Block:
    model = shaped(Counts())
    rules = {"seen": "sum", "largest": "max"}
    return Block(model=model, optimizers=adam(model), buffers=rules)


# --- hooks ----------------------------------------------------------------------------


def hooked() -> Block:
    """Hooks of every kind that change what is computed."""
    model = network()
    model[0].register_forward_pre_hook(lambda module, args: (args[0] * 1.5,))
    model[0].register_forward_hook(lambda module, args, out: out - 0.1)
    model[2].register_full_backward_hook(halve)
    model[2].get_parameter("weight").register_hook(  # type: ignore[no-untyped-call]
        lambda gradient: gradient * 0.5
    )
    optimizer = torch.optim.Adam(model.parameters(), lr=1e-2)
    optimizer.register_step_post_hook(lambda o, args, kwargs: renorm(model))
    return Block(model=model, optimizers=[optimizer])


def halve(module: nn.Module, into: Any, out: Any) -> Any:
    return tuple(gradient * 0.5 for gradient in into)


@torch.no_grad()
def renorm(model: nn.Module) -> None:
    for parameter in model.parameters():
        parameter.clamp_(-1.0, 1.0)


# --- layers ---------------------------------------------------------------------------


class Recurrent(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.cell = nn.LSTM(1, 5, num_layers=2, batch_first=True)
        self.leave = nn.Linear(5, 3)

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        return self.leave(self.cell(x.unsqueeze(-1))[0][:, -1])  # type: ignore[no-any-return]


class Attentive(nn.Module):
    def __init__(self, dropout: float) -> None:
        super().__init__()
        self.enter = nn.Linear(1, 8)
        self.layer = nn.TransformerEncoderLayer(8, 2, 16, dropout=dropout, batch_first=True)
        self.leave = nn.Linear(8, 3)

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        return self.leave(self.layer(self.enter(x.unsqueeze(-1))).mean(1))  # type: ignore[no-any-return]


class Convolved(nn.Module):
    """Images in channels_last with batch statistics, one of them cumulative."""

    def __init__(self) -> None:
        super().__init__()
        self.net = nn.Sequential(
            nn.Conv2d(1, 4, 3, padding=1, bias=False),
            nn.BatchNorm2d(4),
            nn.ReLU(),
            nn.ConvTranspose2d(4, 4, 2, bias=False),
            nn.BatchNorm2d(4, momentum=None),
            nn.Sigmoid(),
            nn.InstanceNorm2d(4, affine=True, track_running_stats=True),
            nn.Sigmoid(),
            nn.GroupNorm(2, 4),
            nn.Flatten(),
            nn.Linear(36, 3),
        ).to(memory_format=torch.channels_last)  # type: ignore[call-overload, unused-ignore]

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        image = x.view(-1, 1, 2, 2).contiguous(memory_format=torch.channels_last)
        return self.net(image)  # type: ignore[no-any-return]


class Looked(nn.Module):
    """Embeddings of whole numbers, alone and in bags."""

    def __init__(self) -> None:
        super().__init__()
        self.word = nn.Embedding(7, 6, padding_idx=0)
        self.bag = nn.EmbeddingBag(7, 6, mode="sum")
        self.norm = nn.RMSNorm(6)
        self.leave = nn.Linear(6, 3)

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        words = (x * 2).long().remainder(7)
        return self.leave(self.norm(self.word(words).mean(1) + self.bag(words)))  # type: ignore[no-any-return]


def random_layers() -> nn.Module:
    return nn.Sequential(
        nn.Linear(4, 8), nn.Dropout(0.3), nn.RReLU(), nn.AlphaDropout(0.1), nn.Linear(8, 3)
    )


class SometimesSkipped(nn.Module):
    """Stochastic depth: which layers a micro-batch passes is drawn from Python and numpy."""

    def __init__(self) -> None:
        super().__init__()
        self.layers = nn.ModuleList([nn.Linear(4, 4) for _ in range(3)])
        self.leave = nn.Linear(4, 3)

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        for layer in self.layers:
            if random.random() < 0.5:
                x = x + layer(x) * float(np.random.rand())
        return self.leave(x)  # type: ignore[no-any-return]


# --- state of one's own ------------------------------------------------------------------


class Notes:
    """What a script keeps for itself."""

    def __init__(self) -> None:
        self.counts: Counter[int] = Counter()
        self.last: float | None = None
        self.shape: tuple[int, ...] = ()

    def state_dict(self) -> dict[Any, Any]:
        return {"counts": self.counts, "last": self.last, "shape": self.shape, 3: {1.5, None}}

    def load_state_dict(self, state: dict[Any, Any]) -> None:
        self.counts = Counter(state["counts"])
        self.last = state["last"]
        self.shape = state["shape"]


def kept_notes() -> Block:
    model, notes = network(), Notes()

    def tail(step: int) -> None:
        notes.counts[step % 3] += 1
        notes.last = None if step % 2 else float(step)
        notes.shape = (*notes.shape, step)

    return Block(model=model, optimizers=adam(model), tail=tail, extra={"notes": notes})


class Remembering(nn.Linear):
    """Keeps plain values through ``get_extra_state``, as quantizing layers do."""

    def __init__(self) -> None:
        super().__init__(4, 3)
        self.scale = 1.0

    def get_extra_state(self) -> dict[str, Any]:
        return {"scale": self.scale}

    def set_extra_state(self, state: dict[str, Any]) -> None:
        self.scale = state["scale"]

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        return super().forward(x) * self.scale


def extra_module_state() -> Block:
    model = shaped(Remembering())

    def tail(step: int) -> None:
        model.scale *= 0.97

    return Block(model=model, optimizers=adam(model), tail=tail)


FEATURES = [
    Feature(name="tied weights", build=of(lambda: Tied(use_reentrant=None))),
    Feature(
        name="tied weights, activation checkpointing",
        build=of(lambda: Tied(use_reentrant=False)),
    ),
    Feature(
        name="tied weights, reentrant checkpointing",
        build=of(lambda: Tied(use_reentrant=True)),
        note="the first step of a replica may be computed twice, once",
    ),
    Feature(name="two forward passes in a slot", build=two_passes),
    Feature(name="gradient penalty, double backward", build=gradient_penalty),
    Feature(
        name="branches that only some samples take",
        build=of(Chosen),
        note="parameters that no slot touched have no gradient, as in one process",
    ),
    Feature(name="scalar, empty, transposed and strided parameters", build=of(Shapes)),
    Feature(
        name="freezing and unfreezing in mid-run",
        build=thawing,
        note="in the tail of a step, or between two calls of `steps()`",
    ),
    Feature(name="layers switched to eval in mid-run", build=sleeping_norm),
    Feature(name="the learning rate set by hand", build=rate_by_hand, note="in the tail"),
    Feature(
        name="spectral_norm",
        build=of(lambda: parametrizations.spectral_norm(nn.Linear(4, 3))),
        note="its vectors move once a step, by the mean over the slots",
    ),
    Feature(
        name="spectral_norm, old style",
        build=of(spectral_norm_old),
        note="its vectors move once a step, by the mean over the slots",
    ),
    Feature(name="weight_norm", build=of(lambda: parametrizations.weight_norm(nn.Linear(4, 3)))),
    Feature(name="weight_norm, old style", build=of(weight_norm_old)),
    Feature(name="orthogonal", build=of(lambda: parametrizations.orthogonal(nn.Linear(4, 3)))),
    Feature(name="pruned weights", build=of(pruned)),
    Feature(
        name="an adapter that each forward puts on a parameter and takes off",
        build=of(Adapted),
        note="as PEFT's `target_parameters`",
    ),
    Feature(
        name="buffers rebound, bool, integer, 16-bit, infinite, non-persistent, empty",
        build=of(Buffers),
        note="slots start from the values of the step's start; floating point moves by the mean",
    ),
    Feature(
        name="buffers that count",
        build=ruled_buffers,
        note='`buffers={name: "sum"}`, `"max"` or `"local"` where slots differ',
    ),
    Feature(
        name="convolutions, batch and instance statistics, channels_last",
        build=of(Convolved),
        note="statistics move once a step, by the mean over the slots",
        tolerance=CANCELS,
    ),
    Feature(name="LSTM", build=of(Recurrent)),
    Feature(name="attention", build=of(lambda: Attentive(0.0))),
    Feature(name="attention with dropout", build=of(lambda: Attentive(0.2)), is_random=True),
    Feature(name="dropout and random activations", build=of(random_layers), is_random=True),
    Feature(
        name="stochastic depth",
        build=of(SometimesSkipped),
        note="drawn from torch, numpy or `random`",
        is_random=True,
    ),
    Feature(name="Embedding and EmbeddingBag", build=of(Looked)),
    Feature(
        name="your own hooks",
        build=hooked,
        note="those on gradients see a micro-batch's own, before it is weighed",
    ),
    Feature(
        name="state of your own",
        build=kept_notes,
        note="`extra_state=`: plain values, containers, Counter, None, tensors, numpy",
    ),
    Feature(
        name="torch.compile",
        note="`warmup=` compiles before a replica reports ready; compare with a run that compiles",
        proof="tests/processes/test_elastic_session.py::test_a_joiner_compiles_before_it_joins",
    ),
    Feature(name="get_extra_state of modules", build=extra_module_state),
    Feature(
        name="a replica of several workers",
        note="`--workers-per-replica`, `pliant.mesh(shard=...)`: each its own micro-batches",
        proof="tests/processes/test_several_trainers.py::"
        "test_join_drain_and_the_death_of_either_worker_leave_no_trace",
    ),
    Feature(
        name="a replica on several hosts",
        note="`--hosts-per-replica`: its workers are divided evenly over hosts that are one node; "
        "also where a coordinator, or one of the hosts, is lost",
        proof="tests/processes/test_joint_nodes_lost.py::"
        "test_another_coordinator_takes_over_joint_nodes",
    ),
    Feature(
        name="checkpoints of replicas of several workers",
        note="each worker writes its share; the run goes on at any other shape, sharded or not",
        proof="tests/processes/test_durable.py::"
        "test_what_sharded_replicas_saved_goes_on_at_any_other_shape",
    ),
    Feature(
        name="FSDP2 inside a replica",
        note='`fully_shard` over `mesh["shard"]`; the bits are those of the model unsharded',
        proof="tests/processes/test_several_trainers.py::"
        "test_a_sharded_model_ends_as_one_that_is_whole",
    ),
    Feature(
        name="tensor parallelism inside a replica",
        note='`parallelize_module` over `mesh["tp"]`, also with FSDP2; part of the identity',
        proof="tests/processes/test_several_trainers.py::"
        "test_tensor_parallelism_gives_the_same_for_every_number_of_replicas",
    ),
    Feature(
        name="pipeline parallelism inside a replica",
        note="a schedule of `torch.distributed.pipelining`, `step.pipeline`; part of the identity",
        proof="tests/processes/test_pipelines.py::"
        "test_join_drain_and_the_death_of_either_stage_leave_no_trace",
    ),
    Feature(
        name="a GradScaler, and parameters that are sharded",
        note="a gradient that overflows on one worker of a replica does on all",
        proof="tests/processes/test_several_trainers.py::"
        "test_a_sharded_model_ends_as_one_that_is_whole",
    ),
    Feature(
        name="--init of sharded models",
        note="each worker takes its part of a file of whole weights; a stage takes its layers",
        proof="tests/processes/test_resume.py::"
        "test_a_sharded_checkpoint_of_plain_torch_starts_replicas_of_any_number_and_shape",
    ),
    Feature(
        name="session.save of sharded models and of stages",
        note="one file of whole weights, a tensor at a time; every worker calls it",
        proof="tests/processes/test_several_trainers.py::"
        "test_weights_of_a_sharded_model_are_written_whoever_dies_there",
    ),
]
