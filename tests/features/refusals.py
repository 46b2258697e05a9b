"""What is refused, with the sentence that a user reads, and what to do instead.

Owns the table behind ``docs/refusals.md``.  Every row but those that need several replicas has a
script of a few lines that is refused with exactly this sentence.
"""

from __future__ import annotations

import collections
import math
from collections.abc import Callable
from contextlib import suppress
from dataclasses import replace
from pathlib import Path
from tempfile import TemporaryDirectory
from types import SimpleNamespace
from typing import Any

import numpy as np
import torch
from tests.certificates import BOTH_ENDS, Authority, set_password
from tests.engine import models
from tests.features import refusals_elsewhere as elsewhere
from tests.features import refusals_of_nodes, refusals_replayed, refusals_simulated
from tests.features.methods import CountedSchedule
from tests.features.refusal import Refusal, Script
from tests.features.refusals_of_certificates import CERTIFICATES
from tests.features.refusals_of_workers import WORKERS
from torch import nn
from torch.utils.data import DataLoader, Dataset, IterableDataset

import pliant
from pliant.core.tls_files import TlsFiles
from pliant.engine.guard.comparison import part_with_the_wrong
from pliant.engine.protocol.meeting import check_alike
from pliant.engine.settings import check_saving
from pliant.engine.state import naming
from pliant.engine.worker import bootstrap
from pliant.machine.tls import ServedTls, TlsContexts


class Hider(torch.optim.SGD):
    """An optimizer that keeps a tensor in an object."""

    def __init__(self, params: Any) -> None:
        super().__init__(params, lr=0.1)
        self.memory = SimpleNamespace(last=torch.zeros(3))


class Hoarder(torch.optim.SGD):
    """An optimizer that keeps what it was lent."""

    def step(self, closure: Any = None) -> Any:
        for group in self.param_groups:
            for parameter in group["params"]:
                self.state[parameter]["last"] = parameter.grad
        return super().step(closure)


class EightBit(torch.Tensor):
    """A tensor of codes and a scale, as libraries of small optimizers have them: no memory."""

    @staticmethod
    def __new__(cls, like: torch.Tensor) -> EightBit:
        made: EightBit = torch.Tensor._make_wrapper_subclass(cls, like.shape)
        return made

    @classmethod
    def __torch_dispatch__(  # type: ignore[override]  # torch calls it on the class
        cls, func: Any, types: Any, args: Any = (), kwargs: Any = None
    ) -> Any:
        return EightBit(args[0])


class Adam8bit(torch.optim.SGD):
    """An optimizer with such a state."""

    def step(self, closure: Any = None) -> Any:
        for group in self.param_groups:
            for parameter in group["params"]:
                self.state[parameter]["exp_avg"] = EightBit(parameter)
        return super().step(closure)


def own_update(kind: Callable[[Any], torch.optim.Optimizer]) -> Script:
    """Return a script that trains with an optimizer of this kind."""

    def script() -> None:
        model = network()
        with session(model=model, optimizer=kind(model.parameters())) as opened:
            for step in opened.steps(3):
                for points, labels in step:
                    step.backward(nn.functional.cross_entropy(model(points), labels))

    return script


# --- scripts that are refused -------------------------------------------------------


def network() -> nn.Sequential:
    return nn.Sequential(nn.Linear(4, 8), nn.Linear(8, 3))


def once_within_itself() -> None:
    with pliant.once("tokens"), pliant.once("tokens"):
        pass


def session(**changes: Any) -> pliant.Session:
    """Make a session that would work without these changes."""
    model = changes.get("model", network())
    arguments = {
        "model": model,
        "dataset": models.Points(20),
        "global_batch_size": 8,
        "micro_batch_size": 2,
        **changes,
    }
    if "optimizer" not in changes:
        arguments["optimizer"] = torch.optim.SGD(model.parameters(), lr=0.1)
    return pliant.Session(**arguments)


def given(**changes: Any) -> Script:
    """Return a script whose session gets these arguments; a function makes its value."""

    def script() -> None:
        session(**{k: v() if callable(v) else v for k, v in changes.items()})

    return script


def loss_of(at: SimpleNamespace) -> torch.Tensor:
    points, labels = at.batch
    return nn.functional.cross_entropy(at.model(points), labels)


def backward(at: SimpleNamespace) -> None:
    at.step.backward(loss_of(at))


Place = Callable[[SimpleNamespace], object]


def trained(
    inside: Place = backward, *, tail: Place = lambda at: None, steps: int = 2, **changes: Any
) -> Script:
    """Return a script that trains, with these lines in its inner loop and in its tail."""

    def script() -> None:
        made = {k: v() if callable(v) else v for k, v in changes.items()}
        model = made.pop("model", None) or network()
        optimizer = made.pop("optimizer", None) or torch.optim.SGD(model.parameters(), lr=0.1)
        with session(model=model, optimizer=optimizer, **made) as open_session:
            at = SimpleNamespace(session=open_session, model=model, optimizer=optimizer, **made)
            for step in open_session.steps(steps):
                at.step = step
                for batch in step:
                    at.batch = batch
                    inside(at)
                tail(at)

    return script


def stepping_by_turns() -> None:
    model = network()
    both = [torch.optim.SGD(part.parameters(), lr=0.1) for part in model]
    with session(model=model, optimizer=both) as open_session:
        for step in open_session.steps(2):
            for _ in step:
                both[0].step()


def changed_inside(change: Place) -> Place:
    def inside(at: SimpleNamespace) -> None:
        change(at)
        backward(at)

    return inside


def every_second(at: SimpleNamespace) -> None:
    at.losses = [*getattr(at, "losses", []), at.model(at.batch[0]).square().mean()]
    if len(at.losses) == 2:
        at.step.backward(sum(at.losses))


def scaled(at: SimpleNamespace) -> None:
    at.scale = getattr(at, "scale", None)
    if at.scale is None:
        at.scale = torch.ones(1, requires_grad=True)
    at.step.backward((at.model(at.batch[0]) * at.scale).square().mean())


@torch.no_grad()
def learn_scale(at: SimpleNamespace) -> None:
    at.scale -= 0.1 * at.scale.grad


def make_an_optimizer(at: SimpleNamespace) -> None:
    at.next = torch.optim.AdamW(at.model.parameters())


def freeze(at: SimpleNamespace) -> None:
    at.model[0].weight.requires_grad_(requires_grad=False)


def clamp(at: SimpleNamespace) -> None:
    with torch.no_grad():
        at.model[0].weight.clamp_(-1.0, 1.0)


class Lazy(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.layer = nn.LazyLinear(3)


class Wrapped(nn.parallel.DistributedDataParallel):
    """What DistributedDataParallel makes of a model, without its process group."""

    def __init__(self) -> None:
        nn.Module.__init__(self)
        self.module = network()


class Counting(torch.optim.SGD):
    def state_dict(self) -> Any:
        return {**super().state_dict(), "count": 0}


def optimizer_of(kind: Any) -> Callable[[], Any]:
    """Return what makes a model and its optimizer fit each other."""
    return lambda: kind(network().parameters())


def own_optimizer(kind: Any) -> Script:
    def script() -> None:
        model = network()
        session(model=model, optimizer=kind(model.parameters()))

    return script


class TwoPass(torch.optim.SGD):
    """As SAM has them."""

    def first_step(self) -> None: ...

    def second_step(self) -> None: ...


class Closing(torch.optim.SGD):
    """Needs what it evaluates."""

    def step(self, closure: Any) -> Any:  # type: ignore[override]
        return super().step(closure)


class Asserting(torch.optim.SGD):
    """Needs it too, and does not say so before."""

    def step(self, closure: Any = None) -> Any:
        if closure is None:
            raise ValueError("I need a closure")
        return super().step(closure)


class Prepared(torch.optim.SGD):
    """Stands for what Accelerate makes of an optimizer."""

    __module__ = "accelerate.optimizer"


class Quantiser(nn.Module):
    """Stands for a fake quantiser of torch.ao."""

    def __init__(self) -> None:
        super().__init__()
        self.activation_post_process = nn.Module()
        self.activation_post_process.register_buffer("min_val", torch.tensor(math.inf))
        self.register_buffer("scale", torch.ones(1))
        self.register_buffer("zero_point", torch.zeros(1, dtype=torch.int32))
        self.register_buffer("observer_enabled", torch.ones(1))

    def calculate_qparams(self) -> Any:
        return self.scale, self.zero_point


class Stream(IterableDataset[Any]):
    def __iter__(self) -> Any:
        return iter(())


class Endless(Dataset[Any]):
    def __getitem__(self, index: int) -> int:
        return index


class Loses(models.Points):
    def __getitems__(self, indices: list[int]) -> Any:
        return [self[index] for index in indices[1:]]


class Undecided(models.Points):
    """Its items are of a kind that default_collate does not know."""

    def __getitem__(self, index: int) -> Any:
        return object()


class Growing(models.Points):
    """Gets longer when it is fetched from often enough."""

    fetched = 0

    def __len__(self) -> int:
        return 20 + (self.fetched > 10)

    def __getitem__(self, index: int) -> Any:
        self.fetched += 1
        return super().__getitem__(index % 20)


class OwnLoader(DataLoader[Any]):
    def __iter__(self) -> Any:
        return super().__iter__()


class Counts:
    """A sampler that goes on from where it was."""

    epoch = 0

    def __iter__(self) -> Any:
        self.epoch += 1
        return iter([(self.epoch + index) % 20 for index in range(20)])


class Grows:
    """A sampler whose epochs become longer."""

    epoch = 0

    def set_epoch(self, epoch: int) -> None:
        self.epoch = epoch

    def __iter__(self) -> Any:
        return iter(range(8 + self.epoch // 2))


class Share:
    def __init__(self) -> None:
        self.num_replicas = 2

    def __iter__(self) -> Any:
        return iter(range(10))


class Forever:
    def __iter__(self) -> Any:
        while True:
            yield 1


class Keeps:
    """Somebody's own state."""

    def __init__(self, value: Any) -> None:
        self.value = value

    def state_dict(self) -> Any:
        return {"value": self.value}

    def load_state_dict(self, state: Any) -> None: ...


def keeping(value: Callable[[], Any]) -> Script:
    return lambda: session(extra_state=Keeps(value()))


def deep() -> Any:
    value: list[Any] = []
    for _ in range(300):
        value = [value]
    return value


class Holder(nn.Module):
    """A model with one buffer and a forward that does something to it."""

    def __init__(self, buffer: torch.Tensor | None, change: Callable[[Any], object]) -> None:
        super().__init__()
        self.layer = nn.Linear(4, 3)
        self.register_buffer("kept", buffer)
        self.change = change

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        self.change((self, x))
        return self.layer(x)  # type: ignore[no-any-return]


def holding(buffer: torch.Tensor | None, change: Callable[[Any], object]) -> Script:
    return trained(model=lambda: Holder(buffer, change))


def rebind(value: Callable[[torch.Tensor], torch.Tensor]) -> Callable[[Any], object]:
    return lambda pair: setattr(pair[0], "kept", value(pair[1]))


def ruled(rule: str, dtype: torch.dtype) -> Script:
    def script() -> None:
        model = Holder(torch.zeros(2, dtype=dtype), lambda pair: None)
        session(model=model, buffers={"kept": rule})

    return script


def logged_inside(at: SimpleNamespace) -> None:
    with TemporaryDirectory() as directory:
        at.session.open_log(f"{directory}/log.csv").write("inside")


def opened(use: Callable[[pliant.Session], object]) -> None:
    """Use an open session."""
    with session() as made:
        use(made)


def twice_open() -> None:
    with session():
        session()


def opened_again() -> None:
    made = session()
    with made:
        pass
    with made:
        pass


def used_after() -> None:
    with session() as made:
        pass
    made.steps(1)


def left_early() -> None:
    with session() as made:
        for step in made.steps(1):
            for _ in step:
                break


def step_a_scheduler(at: SimpleNamespace) -> None:
    torch.optim.lr_scheduler.StepLR(at.optimizer, 1).step()


def clip(at: SimpleNamespace) -> None:
    backward(at)
    nn.utils.clip_grad_norm_(at.model.parameters(), 0.5)


def write_a_gradient(at: SimpleNamespace) -> None:
    weight = next(at.model.parameters())
    weight.grad = torch.ones_like(weight)
    backward(at)


def clip_values(at: SimpleNamespace) -> None:
    backward(at)
    nn.utils.clip_grad_value_(at.model.parameters(), 0.5)


def passed_over() -> None:
    with session() as made:
        for _ in made.steps(1):
            pass


def zipped(loops: Callable[[Any, DataLoader[Any]], Any]) -> Script:
    """Return a script whose inner loops are those, made of its steps and a loader of its own."""

    def script() -> None:
        with session() as made:
            for batches in loops(made.steps(2), DataLoader(models.Points(20))):
                for _ in batches:
                    pass

    return script


def iterated_twice(at: SimpleNamespace) -> None:
    for _ in at.step:
        pass


def backward_in_tail(at: SimpleNamespace) -> None:
    at.step.backward(loss_of(at))


def stepping_in_backward() -> None:
    model = network()
    for parameter in model.parameters():
        own = torch.optim.SGD([parameter], lr=0.1)
        parameter.register_post_accumulate_grad_hook(  # type: ignore[no-untyped-call]
            lambda _, own=own: own.step()
        )
    trained(model=lambda: model)()


class Fails(torch.autograd.Function):
    @staticmethod
    def forward(ctx: Any, x: torch.Tensor) -> torch.Tensor:
        return x.clone()

    @staticmethod
    def backward(ctx: Any, *gradients: Any) -> Any:
        raise RuntimeError("no memory")


def both(at: SimpleNamespace) -> None:
    backward(at)
    backward(at)


def pass_over(at: SimpleNamespace) -> None:
    points, labels = at.batch
    hidden = Fails.apply(at.model[0](points))  # type: ignore[no-untyped-call, unused-ignore]
    with suppress(RuntimeError):
        at.step.backward(nn.functional.cross_entropy(at.model[1](hidden), labels))


def grow(at: SimpleNamespace) -> None:
    at.model.append(nn.Linear(3, 3))


def sparse(at: SimpleNamespace) -> None:
    words = (at.batch[0] * 0).long()
    rows = nn.functional.embedding(words, at.model[1].weight, sparse=True)
    at.step.backward(rows.sum())


def leader_at_once() -> None:
    with session() as opened:
        _ = opened.leader


def evaluated(fn: Callable[[Any], Any], size: int = 20) -> Script:
    dataset = models.Points(20) if size else torch.utils.data.TensorDataset(torch.zeros(0, 4))
    return trained(tail=lambda at: at.session.evaluate(dataset, fn))


class InWorker:
    """Stands for a worker's context with these values, as an agent would give them."""

    def __init__(self, *, init: Path | None, session: object) -> None:
        work = SimpleNamespace(init=init, balance="even")
        self.values = {
            "assignment": SimpleNamespace(work=work, workers_per_replica=1),
            "session": session,
        }

    def __enter__(self) -> None:
        context: Any = SimpleNamespace(**self.values, meet_session=lambda: None)
        bootstrap.set_context(context)

    def __exit__(self, *_: object) -> None:
        bootstrap.set_context(None)


def started_from(weights: Callable[[Path], object]) -> Script:
    def script() -> None:
        path = Path("weights.pt")
        weights(path)
        with InWorker(init=path, session=None):
            session()

    return script


def second_session() -> None:
    with InWorker(init=None, session=object()):
        session()


def one_rate_is_another() -> None:
    """Do what every replica does with what the others say beside their votes."""
    names = [{"lr of parameter group 0 of optimizer 0": rate} for rate in ("0.01", "0.1", "0.1")]
    said = [naming.pack(one) for one in names]
    digests = [[1, 0, 5], [2, 0, 5], [2, 0, 5]]
    check_alike(digests, ["r1", "r2", "r3"], 5, lambda aspect: names[0], lambda own: said)


def two_have_another_weight() -> None:
    part_with_the_wrong([1, 2], ["r1", "r2"], "r1", f"at step 12 {OTHER_WEIGHT}")


# --- the table --------------------------------------------------------------------

OTHER_WEIGHT = (
    "parameter 'head.weight' differs between replicas (digest 00000000000000a1 on r1; digest "
    "00000000000000b2 on r2)"
)

TRAVEL = "the state of this run cannot be sent to a joining replica: state['extra']['']['value'] "
OWN_DATA = (
    "train on what `for batch in step:` gives (a session's dataset=, collate_fn= and num_workers= "
    "do what a DataLoader does)"
)
POINTS = models.Points(20)
PLAIN = "keep plain values, containers, tensors or numpy arrays in it"
SESSIONS = "tests/processes/test_elastic_session.py"
KEEPING = "tests/engine/test_checkpointing.py"
DURABLE = "tests/engine/state/test_durable.py"
FILES = "tests/engine/guard/test_files.py"
STATE = "tests/engine/state/test_training_state.py"

MADE = [
    Refusal(
        sentence="model must be a torch.nn.Module, got dict",
        when="`model=` is something else",
        instead="pass the module itself",
        script=given(model=dict, optimizer=optimizer_of(torch.optim.SGD)),
    ),
    Refusal(
        sentence="the model has no parameters",
        when="nothing is there to train",
        instead="pass the module that holds the parameters",
        script=given(model=nn.Identity, optimizer=optimizer_of(torch.optim.SGD)),
    ),
    Refusal(
        sentence="'layer.weight' is an uninitialised lazy parameter; run one batch through the "
        "model before the session is made",
        when="a lazy module has not seen its input",
        instead="`model(batch)` once",
        script=given(model=Lazy, optimizer=optimizer_of(torch.optim.SGD)),
        feature=("structure", "lazy modules that saw no batch"),
    ),
    Refusal(
        sentence="'weight' is on meta: pliant trains on CPU for now; CUDA is a later capability",
        when="a parameter or buffer is not on the CPU",
        instead="`model.to('cpu')`",
        script=given(model=lambda: nn.Linear(4, 3, device="meta")),
        feature=("structure", "models on CUDA"),
    ),
    Refusal(
        sentence="the model is wrapped in DistributedDataParallel; pass it unwrapped",
        when="the script was written for DDP",
        instead="pass the module inside",
        script=given(model=Wrapped),
        feature=("structure", "DistributedDataParallel"),
    ),
    Refusal(
        sentence="'1' is SyncBatchNorm, which talks to other replicas in its forward; use "
        "BatchNorm: the session combines its statistics",
        when="a layer needs all replicas in its forward",
        instead="BatchNorm",
        script=given(model=lambda: nn.Sequential(nn.Linear(4, 3), nn.SyncBatchNorm(3))),
        feature=("structure", "SyncBatchNorm"),
    ),
    Refusal(
        sentence="'0' gives sparse gradients; use sparse=False",
        when="an embedding was made with `sparse=True`",
        instead="`sparse=False`",
        script=given(model=lambda: nn.Sequential(nn.Embedding(3, 3, sparse=True))),
        feature=("structure", "sparse gradients"),
    ),
    Refusal(
        sentence="'0' has max_norm, which changes its weights in the forward of every "
        "micro-batch; leave it out, and shorten them after the loop over a step",
        when="an embedding was made with `max_norm=`",
        instead="shorten the rows in the tail, `weight.renorm_(...)`",
        script=given(model=lambda: nn.Sequential(nn.Embedding(3, 3, max_norm=1.0))),
        feature=("structure", "Embedding with max_norm"),
    ),
    Refusal(
        sentence="'0' observes values to quantise them and has seen none; run one batch through "
        "the model before the session is made",
        when="a model that is prepared for quantisation-aware training has seen no batch",
        instead="`model(batch)` once",
        script=given(model=lambda: nn.Sequential(Quantiser(), nn.Linear(4, 3))),
        feature=("methods", "quantisation-aware training that saw no batch"),
    ),
    Refusal(
        sentence="a session needs an optimizer",
        when="`optimizer=` is None or an empty list",
        instead="pass one",
        script=given(optimizer=None),
    ),
    Refusal(
        sentence="optimizer must be a torch.optim.Optimizer, got int",
        when="`optimizer=` is something else",
        instead="derive from `torch.optim.Optimizer`",
        script=given(optimizer=3),
    ),
    Refusal(
        sentence="LBFGS evaluates the loss several times a step, a session does once; use an "
        "optimizer that takes a gradient, such as torch.optim.AdamW",
        when="an optimizer needs a closure",
        instead="a first-order optimizer",
        script=own_optimizer(torch.optim.LBFGS),
        feature=("optimizers and schedulers", "LBFGS"),
    ),
    Refusal(
        sentence="TwoPass computes a step in two passes (first_step and second_step), and a "
        "session makes one; pass the optimizer that it wraps, and perturb the weights within the "
        "loss of a micro-batch (pliant docs bring-your-script, SAM)",
        when="an optimizer perturbs the weights for a second forward and backward: SAM and its kin",
        instead="SAM within the loss of a micro-batch",
        script=own_optimizer(TwoPass),
        feature=("optimizers and schedulers", "optimizers of two passes"),
    ),
    Refusal(
        sentence="Closing.step() needs 'closure', and a session calls it without arguments, once "
        "the gradient of the whole step is there; use an optimizer that takes a gradient, such as "
        "torch.optim.AdamW",
        when="an optimizer evaluates the loss itself",
        instead="a first-order optimizer",
        script=own_optimizer(Closing),
        feature=("optimizers and schedulers", "optimizers that need a closure"),
    ),
    Refusal(
        sentence="Prepared was prepared by Accelerate, which steps it by its own rules; pass the "
        "optimizer that accelerator.prepare() was given",
        when="an optimizer or a scheduler has been through `accelerator.prepare`",
        instead="what it was given",
        script=own_optimizer(Prepared),
        feature=("optimizers and schedulers", "what Accelerate has prepared"),
    ),
    Refusal(
        sentence="SparseAdam takes sparse gradients, which are not supported; use Adam, and "
        "sparse=False in the embedding",
        when="`optimizer=` is SparseAdam",
        instead="Adam",
        script=own_optimizer(torch.optim.SparseAdam),
        feature=("optimizers and schedulers", "SparseAdam"),
    ),
    Refusal(
        sentence="Counting has 'count' in its state_dict, which would not reach a joining replica; "
        "keep it in optimizer.state or in the parameter groups",
        when="an optimizer's `state_dict` has more than `state` and `param_groups`",
        instead='`optimizer.state["count"]`',
        script=own_optimizer(Counting),
    ),
    Refusal(
        sentence="SGD holds a parameter that is not in the model; put everything that is trained "
        "into one module",
        when="the optimizer trains something beside the model",
        instead="`nn.ModuleList([model, other])`",
        script=given(optimizer=optimizer_of(torch.optim.SGD)),
    ),
    Refusal(
        sentence="scheduler must be a torch.optim.lr_scheduler scheduler, got int",
        when="`scheduler=` is something else",
        instead="derive from `LRScheduler`",
        script=given(scheduler=3),
    ),
    Refusal(
        sentence="CountedSchedule is told how many updates there were; leave out scheduler= and "
        "write scheduler.step_update(session.committed) in the tail of a step, or "
        "scheduler.step(step.epoch + 1) where step.is_last_of_epoch; pass it as extra_state= if it "
        "has state",
        when="`scheduler=` is one of timm's",
        instead="the tail",
        script=given(
            scheduler=lambda: CountedSchedule(torch.optim.SGD(network().parameters(), lr=0.1))
        ),
    ),
    Refusal(
        sentence="plateau={'loss': ...} must be a ReduceLROnPlateau, got int; other schedulers go "
        "into scheduler=",
        when="`plateau=` names another kind of scheduler",
        instead="`scheduler=`",
        script=given(plateau=lambda: {"loss": 3}),
    ),
    Refusal(
        sentence="scaler must be a torch.amp.GradScaler, got int",
        when="`scaler=` is something else",
        instead='`torch.amp.GradScaler("cpu")`',
        script=given(scaler=3),
    ),
    Refusal(
        sentence="'0.weight' is float16, which a GradScaler cannot unscale; keep parameters in "
        "float32 and compute under autocast, or leave out scaler=",
        when="the model was converted to float16, or has complex parameters",
        instead="autocast",
        script=given(model=lambda: network().half(), scaler=lambda: torch.amp.GradScaler("cpu")),
        feature=("precision", "GradScaler with float16 or complex parameters"),
    ),
    Refusal(
        sentence="checkpoint='runs/gpt' is a str; pass a place and an interval: "
        "checkpoint=pliant.Checkpoint('runs/gpt', every='10min')",
        when="`checkpoint=` is a path, or something else",
        instead="`pliant.Checkpoint(path)`",
        script=given(checkpoint="runs/gpt"),
    ),
    Refusal(
        sentence="every='often' is no interval; write a number and a unit, as in '10min', '90s', "
        "'2h' or '500steps', or 'auto'",
        when="an interval is none",
        instead="a number and a unit",
        script=lambda: pliant.Checkpoint("runs/gpt", every="often"),
    ),
    Refusal(
        sentence="keep=0 checkpoints must be at least 1",
        when="`keep=` or `milestones=` is out of range",
        instead="a number of at least 1",
        script=lambda: pliant.Checkpoint("runs/gpt", keep=0),
    ),
    Refusal(
        sentence="max_unprotected='9steps' must be a time, as '30min' or '1h'",
        when="`max_unprotected=` is no time",
        instead="a time",
        script=lambda: pliant.Checkpoint("runs/gpt", max_unprotected="9steps"),
    ),
    Refusal(
        sentence="reduction must be 'exact' or 'fast', got 'quick'",
        when="`reduction=` is another word",
        instead="one of the two",
        script=given(reduction="quick"),
    ),
    Refusal(
        sentence="on_nonfinite must be 'warn', 'stop' or 'skip', got 'ignore'",
        when="`on_nonfinite=` is another word",
        instead="one of the three",
        script=given(on_nonfinite="ignore"),
    ),
    Refusal(
        sentence="threads must be an integer of at least 1, got 0",
        when="`threads=`, `num_workers=` or `seed=` is out of range",
        instead="a whole number in range",
        script=given(threads=0),
    ),
    Refusal(
        sentence="with threads=2 torch gives other results here from one time to the next: it gets "
        "fewer threads than it asked for; unset OMP_DYNAMIC and OMP_THREAD_LIMIT, or leave "
        "threads=1",
        when="`threads=` is above 1 where OpenMP may give fewer: sums hold what nobody wrote",
        instead="what the sentence says",
        proof="tests/engine/guard/test_numerics.py::"
        "test_results_that_differ_from_one_time_to_the_next_are_refused",
    ),
    Refusal(
        sentence="seed must be an integer of at least 0, got -1",
        when="`pliant.seed` gets something else",
        instead="a whole number in range",
        script=lambda: pliant.seed(-1),
    ),
    Refusal(
        sentence="max_grad_norm must be a positive number, got 0.0",
        when="`max_grad_norm=` is 0, negative or not finite",
        instead="leave it out to clip nothing",
        script=given(max_grad_norm=0.0),
    ),
    Refusal(
        sentence="global_batch_size must be a positive integer, got 0",
        when="a batch size is no positive integer",
        instead="a positive integer",
        script=given(global_batch_size=0),
    ),
    Refusal(
        sentence="micro_batch_size=3 does not divide global_batch_size=8; use micro_batch_size 2 "
        "or 4, or global_batch_size 6 or 9",
        when="a step would not consist of whole micro-batches",
        instead="one of the numbers it names",
        script=given(micro_batch_size=3),
    ),
    Refusal(
        sentence="the dataset has 20 samples, fewer than one global batch of global_batch_size=24; "
        "give it more, or a smaller batch",
        when="not even one step can be filled",
        instead="a smaller `global_batch_size`",
        script=given(global_batch_size=24),
        feature=("data", "a dataset smaller than one batch"),
    ),
    Refusal(
        sentence="dataset must be map-style (__len__ and __getitem__): its samples are fetched by "
        "index, got Stream; read a stream into a list first, dataset=list(stream), or into a file "
        "that is indexed",
        when="the dataset is a stream",
        instead="[a list of its samples](howto/bring-your-script.md#what-to-know)",
        script=given(dataset=Stream),
        feature=("data", "IterableDataset"),
    ),
    Refusal(
        sentence="the DataLoader's dataset is a stream (IterableDataset); a session fetches "
        "samples by index: read it into a list first, DataLoader(list(dataset), ...), or into a "
        "file that is indexed",
        when="`dataset=` is a DataLoader over a stream",
        instead="[a list of its samples](howto/bring-your-script.md#what-to-know)",
        script=given(dataset=lambda: DataLoader(Stream())),
    ),
    Refusal(
        sentence="OwnLoader is a DataLoader with an __iter__ of its own, which a session would "
        "not run; pass its dataset=, collate_fn= and num_workers= to the session, or a plain "
        "DataLoader",
        when="`dataset=` is a DataLoader that was derived from, or that Accelerate has prepared",
        instead="the DataLoader of torch",
        script=given(dataset=lambda: OwnLoader(POINTS)),
        feature=("data", "DataLoaders with an `__iter__` of their own"),
    ),
    Refusal(
        sentence="the DataLoader has batch_size=None: its dataset makes whole batches, and a "
        "session makes them of samples; pass a dataset of single samples and the batch_size",
        when="`dataset=` is a DataLoader that does not batch",
        instead="`DataLoader(dataset, batch_size=8)`",
        script=given(dataset=lambda: DataLoader(POINTS, batch_size=None)),
    ),
    Refusal(
        sentence="the DataLoader starts its processes by 'spawn', and those of a session are "
        "forked; leave out multiprocessing_context=",
        when="`dataset=` is a DataLoader with other processes",
        instead="leave out `multiprocessing_context=`",
        script=given(
            dataset=lambda: DataLoader(POINTS, num_workers=1, multiprocessing_context="spawn")
        ),
    ),
    Refusal(
        sentence="dataset= is a DataLoader, which says the order of the samples, and so does "
        "shuffle=; leave that out, or pass the dataset alone",
        when="`shuffle=` or `sampler=` is said twice",
        instead="`dataset=loader.dataset`",
        script=given(dataset=lambda: DataLoader(POINTS), shuffle=True),
    ),
    Refusal(
        sentence="sampler= and shuffle= both say the order of the samples; leave out one",
        when="both are given",
        instead="one of them",
        script=given(sampler=lambda: [1, 2], shuffle=True),
    ),
    Refusal(
        sentence="the DataLoader's list does not say how many samples its batches have; say "
        "micro_batch_size=",
        when="`dataset=` is a DataLoader with a batch sampler that has no `batch_size`",
        instead="`micro_batch_size=`",
        script=given(
            dataset=lambda: DataLoader(POINTS, batch_sampler=[[0, 1]]), micro_batch_size=None
        ),
    ),
    Refusal(
        sentence="list gives batches of other sizes than micro_batch_size=2 before the end of an "
        "epoch; a session's micro-batches have one size: let it drop or fill short batches, or "
        "say the order alone, sampler=[sample for batch in batches for sample in batch]",
        when="a batch sampler gives batches of several sizes: by length, by number of tokens",
        instead="[their order alone](howto/bring-your-script.md#what-to-know); or batches of one "
        "size, of which the last of an epoch may be shorter",
        script=given(dataset=lambda: DataLoader(POINTS, batch_sampler=[[0, 1, 2], [3]])),
        feature=("data", "batch samplers whose batches have several sizes"),
    ),
    Refusal(
        sentence="micro_batch_size is not given: say how many samples go through the model at "
        "once, for instance micro_batch_size=8, or pass a DataLoader, whose batch_size it is",
        when="nothing says it",
        instead="`micro_batch_size=`",
        script=given(micro_batch_size=None),
    ),
    Refusal(
        sentence="Counts gives other draws when it is asked for epoch 0 again, so a replica that "
        "joins could not draw what the others drew; let it draw from the global generators of "
        "torch, numpy or random, from a generator in one of its attributes, or by "
        "set_epoch(epoch)",
        when="a sampler is no function of the epoch: it counts, or is an iterator",
        instead="`set_epoch(epoch)`, a generator as its attribute, or the global ones",
        script=given(sampler=Counts),
        feature=("data", "samplers that go on from where they were"),
    ),
    Refusal(
        sentence="Share gives one of 2 replicas its share (num_replicas=2); a session divides the "
        "draws itself: make it with num_replicas=1",
        when="a distributed sampler of another library gives one process its part",
        instead="`num_replicas=1, rank=0`; torch's own is taken for all",
        script=given(sampler=Share),
    ),
    Refusal(
        sentence="Forever gave more than 2000 draws in an epoch; an epoch must end (and len() of "
        "the sampler, if it has one, be its draws)",
        when="a sampler has no end",
        instead="an end of each epoch",
        script=given(sampler=Forever),
    ),
    Refusal(
        sentence="list gave 'a'; it must give the indices of samples one by one, whole numbers",
        when="a sampler gives batches, or keys",
        instead="indices",
        script=given(sampler=lambda: ["a"]),
    ),
    Refusal(
        sentence="list gave 20, and the samples of the dataset are 0 to 19",
        when="a sampler is of another dataset",
        instead="a sampler of this dataset",
        script=given(sampler=lambda: [20]),
    ),
    Refusal(
        sentence="sampler must give indices one by one (__iter__), got int",
        when="`sampler=` is something else",
        instead="a sampler of `torch.utils.data`, or a list of indices",
        script=given(sampler=3),
    ),
    Refusal(
        sentence="list gives 3 samples, fewer than one global batch of global_batch_size=8; give "
        "it more, or a smaller batch",
        when="a sampler does not fill one step",
        instead="more draws, or a smaller `global_batch_size`",
        script=given(sampler=lambda: [1, 2, 3]),
    ),
    Refusal(
        sentence="dataset must have a length (__len__)",
        when="the dataset does not know its size",
        instead="`__len__`",
        script=given(dataset=Endless),
    ),
    Refusal(
        sentence="buffers names 'kept', which the model has not; it has: none",
        when="`buffers=` names something else",
        instead="a name of `model.named_buffers()`",
        script=given(buffers=lambda: {"kept": "sum"}),
    ),
    Refusal(
        sentence="buffers={'kept': 'median'}: the rule must be one of agree, local, max, mean, sum",
        when="`buffers=` has another rule",
        instead="one of these",
        script=ruled("median", torch.float32),
    ),
    Refusal(
        sentence="buffers={'kept': 'mean'}: torch.int64 has no mean",
        when="an integer buffer is given the rule `mean`",
        instead='`"sum"`, `"max"` or `"local"`',
        script=ruled("mean", torch.int64),
    ),
    Refusal(
        sentence="buffers={'kept': 'max'}: complex numbers have no order",
        when="a complex buffer is given the rule `max`",
        instead='`"mean"`, `"sum"` or `"local"`',
        script=ruled("max", torch.complex64),
    ),
    Refusal(
        sentence="extra_state is a int and has no state_dict()",
        when="`extra_state=` cannot say or take its state",
        instead="define `state_dict` and `load_state_dict`",
        script=given(extra_state=3),
    ),
    Refusal(
        sentence=TRAVEL
        + "is a builtins.object, which cannot travel to another replica; keep plain values, "
        "containers, tensors or numpy arrays",
        when="the state of an optimizer, scheduler, module or of your own holds an object",
        instead=PLAIN,
        script=keeping(object),
    ),
    Refusal(
        sentence=TRAVEL + "is a defaultdict with a factory that cannot travel",
        when="it holds a defaultdict of a function",
        instead="`defaultdict(int)`, `list`, `dict` and the like, or a plain dict",
        script=keeping(lambda: collections.defaultdict(lambda: 3)),
    ),
    Refusal(
        sentence=TRAVEL + "is a Odd, a kind of tensor that cannot travel",
        when="it holds a subclass of Tensor",
        instead="`tensor.as_subclass(torch.Tensor)`",
        script=keeping(lambda: torch.zeros(1).as_subclass(Odd)),
    ),
    Refusal(
        sentence=TRAVEL + "is a sparse, quantized or meta tensor, which cannot travel",
        when="it holds such a tensor",
        instead="`tensor.to_dense()`, `tensor.dequantize()`",
        script=keeping(lambda: torch.eye(2).to_sparse()),
    ),
    Refusal(
        sentence=TRAVEL + "is a numpy value of dtype object, which cannot travel",
        when="it holds an array of objects",
        instead="an array of numbers or strings",
        script=keeping(lambda: np.array([None])),
    ),
    Refusal(
        sentence=TRAVEL.rstrip()
        + "[0]" * 3
        + " ... is nested deeper than 200 levels, or in itself",
        when="it holds a container that holds itself",
        instead="a flat container",
        script=keeping(deep),
    ),
    Refusal(
        sentence="this process is one of 2 that torchrun started; a pliant session would train "
        "alone in each of them. Start the script with `pliant run`, or with `python`",
        when="the script was started with torchrun, srun or mpirun",
        instead="`pliant run train.py`",
        proof="tests/engine/test_session.py::test_a_launcher_without_an_agent_is_refused",
    ),
    Refusal(
        sentence="cannot start from the weights in weights.pt: Error(s) in loading state_dict for "
        'Sequential: Missing key(s) in state_dict: "0.weight", "0.bias", "1.weight", "1.bias". '
        'Unexpected key(s) in state_dict: "strange".',
        when="`--init` names weights of another model",
        instead="weights that `session.save` wrote for this model",
        script=started_from(lambda path: torch.save({"strange": torch.zeros(1)}, path)),
    ),
    Refusal(
        sentence="weights.pt holds no weights that torch.save wrote",
        when="`--init` names another kind of file",
        instead="weights that `session.save` wrote",
        script=started_from(lambda path: path.write_bytes(b"hello")),
    ),
    Refusal(
        sentence="another session of this process is still open; a script has one at a time",
        when="a session is made inside another",
        instead="end the first one",
        script=twice_open,
    ),
    Refusal(
        sentence="this is the script's second session, and a job trains one; train everything in "
        "one session, with a call of steps() for each phase",
        when="a script under `pliant run` makes two sessions",
        instead="several calls of `steps()`",
        script=second_session,
        feature=("loops", "two sessions in one script"),
    ),
    Refusal(
        sentence="a session is opened once, and one at a time in a process",
        when="a session is opened again",
        instead="make a new one",
        script=opened_again,
    ),
    Refusal(
        sentence="the session is used outside of its `with` block",
        when="`steps`, `log` or `save` is called before or after it",
        instead="call it inside",
        script=used_after,
    ),
]


class Odd(torch.Tensor):
    pass


LOOP = [
    Refusal(
        sentence="steps() takes the job's total number of steps, or epochs=",
        when="both are given, or none",
        instead="`session.steps(epochs=3)`",
        script=lambda: opened(lambda made: made.steps()),
    ),
    Refusal(
        sentence="steps() takes the job's total number of epochs, 1 at least, got -1",
        when="`epochs=` is no whole number of at least 1",
        instead="`session.steps(session.steps_per_epoch // 2)`",
        script=lambda: opened(lambda made: made.steps(epochs=-1)),
    ),
    Refusal(
        sentence="default_collate cannot make a micro-batch of the samples 5, 11: TypeError: "
        "default_collate: batch must contain tensors, numpy arrays, numbers, dicts or lists; found "
        "<class 'object'>; say how with collate_fn=",
        when="samples are of a kind, or of sizes, that torch does not put together",
        instead="`collate_fn=`",
        script=trained(dataset=lambda: Undecided(20), seed=0),
    ),
    Refusal(
        sentence="the dataset has 21 samples now and had 20 when the session was made, and the "
        "order of an epoch depends on it; let it keep its length, or draw from a part of it with "
        "sampler=",
        when="a dataset changes its length; looked at when an epoch begins",
        instead="a dataset of a fixed length, and a sampler of what is there",
        script=trained(dataset=lambda: Growing(20), steps=4),
    ),
    Refusal(
        sentence="Asserting.step() failed in its first update (ValueError: I need a closure); a "
        "session calls it without a closure, once the gradient is whole and has no "
        "graph; use an optimizer that needs neither, such as torch.optim.AdamW",
        when="an optimizer cannot make its first update: it wants a closure, or a graph",
        instead="a first-order optimizer",
        script=own_update(Asserting),
    ),
    Refusal(
        sentence="Grows gave 9 draws in epoch 2 and 8 in epoch 0; let every epoch have as many",
        when="a sampler gives epochs of several lengths",
        instead="as many draws in every epoch",
        script=trained(sampler=Grows, steps=4),
    ),
    Refusal(
        sentence="steps() takes the job's total number of steps, 1 at least, got -1",
        when="its argument is no whole number of at least 1",
        instead="`session.steps_per_epoch * epochs`",
        script=trained(steps=-1),
    ),
    Refusal(
        sentence="this call of steps() goes to step 2, and one before it went to 2, so it trains "
        "nothing: the number is the job's total. For several epochs write session.steps(epochs=3) "
        "once, or session.steps((epoch + 1) * 3) in a loop over epochs",
        when="a loop over epochs asks for the steps of one again and again",
        instead="`session.steps(epochs=3)`, with `step.is_last_of_epoch`",
        script=trained(tail=lambda at: at.session.steps(2)),
    ),
    Refusal(
        sentence="session.leader was asked for before session.steps(), where nobody leads yet, so "
        "that no replica would write; ask in the tail of a step or behind the loop, each time "
        "anew: another replica may lead by then",
        when="`session.leader` is asked for before the first call of `steps()`",
        instead="`if session.leader:` in a tail, between two calls of `steps()` or behind the last",
        script=leader_at_once,
    ),
    Refusal(
        sentence="session.save was called before session.steps(), where a replica has no state of "
        "the run yet, so that none would write; call it in the tail of a step, or behind the loop",
        when="weights are to be written, in a replica, before it has any of the run",
        instead="the call in a tail, or behind the loop",
        script=lambda: check_saving(is_elastic=True, has_begun=False),
    ),
    Refusal(
        sentence="the loss of this micro-batch goes back to one before it, which had no "
        "step.backward: replicas compute other numbers of micro-batches, and would add up others; "
        "call step.backward(loss) for each, the session adds them up",
        when="a script accumulates gradients by itself",
        instead="`step.backward(loss)` for each micro-batch, and a `global_batch_size=`",
        script=trained(every_second),
    ),
    Refusal(
        sentence="a tensor (1,) that is no parameter of the model gets a gradient from "
        "step.backward and changes from step to step: that gradient is of this replica's "
        "micro-batches only, and a joiner would have another tensor; make it a parameter of the "
        "model, or train it in the tail and keep it, and its optimizer, in extra_state=",
        when="a loss has parameters of its own (centers, a temperature), or goes through a second "
        "model that the tail trains",
        instead="one module of all that is trained; or both in `extra_state=`",
        script=trained(scaled, tail=learn_scale),
    ),
    Refusal(
        sentence="the script has made AdamW over the session's parameters since it began, and the "
        "session goes on with the optimizer that it was given; change the values of that one's "
        "groups for the next phase, or train it in a run of its own (pliant run --init)",
        when="a tail, or the code between two calls of `steps()`, makes the next phase's optimizer",
        instead="`optimizer.param_groups`",
        script=trained(tail=make_an_optimizer),
    ),
    Refusal(
        sentence="loss.backward() was called on the session's model; call step.backward(loss), "
        "once per micro-batch",
        when="the line of the plain loop was left",
        instead="`step.backward(loss)`",
        script=trained(lambda at: torch.autograd.backward(loss_of(at))),
        feature=("loops", "loss.backward()"),
    ),
    Refusal(
        sentence=".grad of '0.weight' was written to inside the loop over a step; the session "
        "takes gradients from step.backward(loss) alone, and a hook that Tensor.register_hook adds "
        "may change them",
        when="a script puts gradients there itself, or a hook of a module changes what is there",
        instead="`step.backward(loss)`; `parameter.register_hook`",
        script=trained(write_a_gradient),
    ),
    Refusal(
        sentence="Hoarder keeps a gradient itself in its state as 'last', and the next steps "
        "overwrite it; keep a copy (grad.clone())",
        when="an optimizer of your own remembers `p.grad`",
        instead="`p.grad.clone()`",
        script=own_update(lambda params: Hoarder(params, lr=0.1)),
    ),
    Refusal(
        sentence="Adam8bit keeps 'exp_avg' in its state as a EightBit, which cannot be sent to a "
        "joining replica; take an optimizer with plain tensors, such as torch.optim.AdamW",
        when="an optimizer packs its state into tensors of a class of its own, of 8 bits say",
        instead="`torch.optim.AdamW`",
        script=own_update(lambda params: Adam8bit(params, lr=0.1)),
    ),
    Refusal(
        sentence="Hider keeps a tensor in memory.last, which would not reach a joining replica; "
        "keep it in optimizer.state, in the parameter groups, or as a plain value or tensor in an "
        "attribute of the optimizer itself",
        when="an optimizer of your own keeps state in objects",
        instead='`self.state["last"]`, or `self.last`',
        script=own_update(Hider),
    ),
    Refusal(
        sentence="optimizer.step() was called by the script; the session steps the optimizer when "
        "the loop over a step ends",
        when="the line of the plain loop was left",
        instead="delete it",
        script=trained(lambda at: at.optimizer.step()),
        feature=("loops", "optimizer.step()"),
    ),
    Refusal(
        sentence="optimizer.step() was called by the script; the session steps the optimizer when "
        "the loop over a step ends; how several take turns is in "
        "pliant docs bring-your-script, Alternating optimizers",
        when="the loop of a GAN was left, with its two optimizers",
        instead="freeze who is to wait, in the tail",
        script=stepping_by_turns,
    ),
    Refusal(
        sentence="scheduler.step() was called by the script; the session steps its schedulers with "
        "each optimizer step",
        when="the line of the plain loop was left",
        instead="delete it; steps of a schedule are optimizer steps",
        proof="tests/engine/test_session.py::test_a_scheduler_that_the_script_steps_is_refused",
    ),
    Refusal(
        sentence="StepLR.step() was called in a loop over steps on a scheduler that the session "
        "was not given, and a joiner would not know of it; say Session(scheduler=...), which steps "
        "it with each optimizer step, or step it between two calls of steps()",
        when="a scheduler of the session's optimizer is stepped in a tail",
        instead="`scheduler=`; `plateau=` and `session.feed`",
        script=trained(tail=step_a_scheduler),
        feature=("optimizers and schedulers", "a scheduler that the session was not given"),
    ),
    Refusal(
        sentence="clip_grad_norm_ was called where the model has no gradients, so it clips "
        "nothing; say Session(max_grad_norm=0.5)",
        when="the line of the plain loop was left",
        instead="`max_grad_norm=`",
        script=trained(clip),
        feature=("loops", "clip_grad_norm_"),
    ),
    Refusal(
        sentence="clip_grad_value_ was called where the model has no gradients, so it clips "
        "nothing; let the optimizer do it before each of its steps: "
        "optimizer.register_step_pre_hook("
        "lambda *_: clip_grad_value_(model.parameters(), 0.5))",
        when="the line of the plain loop was left",
        instead="the hook",
        script=trained(clip_values),
        feature=("loops", "clip_grad_value_"),
    ),
    Refusal(
        sentence="step.backward was called twice for one micro-batch; add the losses, call it once",
        when="a micro-batch has several losses",
        instead="`step.backward(first + second)`",
        script=trained(both),
        feature=("loops", "several backwards in a slot"),
    ),
    Refusal(
        sentence="step.backward was called outside of the loop over the step",
        when="it stands in the tail",
        instead="indent it",
        script=trained(tail=backward_in_tail),
    ),
    Refusal(
        sentence="step.backward takes the mean loss, a tensor of one element, got (2, 3)",
        when="the loss was not reduced",
        instead="`loss.mean()`",
        script=trained(lambda at: at.step.backward(at.model(at.batch[0]))),
    ),
    Refusal(
        sentence="the loss does not depend on any parameter that requires a gradient",
        when="it was detached, or everything is frozen",
        instead="unfreeze something before the loop; leave out `no_grad` and `detach`",
        script=trained(lambda at: at.step.backward(torch.ones(()))),
    ),
    Refusal(
        sentence="weight must be finite and at least 0, got nan",
        when="`step.backward(loss, weight=...)` gets something else",
        instead="a number of tokens or samples; 0 leaves the micro-batch out",
        script=trained(lambda at: at.step.backward(loss_of(at), weight=math.nan)),
    ),
    Refusal(
        sentence="requires_grad of '0.weight' changed inside the loop over a step; change it "
        "before that loop, or after it",
        when="a parameter is frozen or unfrozen between two micro-batches",
        instead="do it in the tail",
        script=trained(changed_inside(freeze)),
    ),
    Refusal(
        sentence="the values of '0.weight' changed inside the loop over a step; change them before "
        "that loop, or after it",
        when="weights are written to between two micro-batches, also by a forward",
        instead="do it in the tail",
        script=trained(changed_inside(clamp)),
        feature=("structure", "a forward that writes to weights"),
    ),
    Refusal(
        sentence="the values of '1.bias' changed inside the loop over a step; change them before "
        "that loop, or after it",
        when="an optimizer of its own steps each parameter in a hook of the backward",
        instead="give the optimizer to the session",
        script=stepping_in_backward,
        feature=("optimizers and schedulers", "stepping in a hook of the backward"),
    ),
    Refusal(
        sentence="parameter '2.bias' was made after the session was; make everything that is "
        "trained before the session, and freeze what has to wait (requires_grad)",
        when="the model grows",
        instead="build the whole model, freeze a part of it",
        script=trained(tail=grow),
        feature=("structure", "models that grow"),
    ),
    Refusal(
        sentence="the gradient of '1.weight' is sparse; sparse gradients are not supported (use "
        "sparse=False in the embedding)",
        when="a function gives a sparse gradient",
        instead="`sparse=False`",
        script=trained(sparse),
    ),
    Refusal(
        sentence="the backward of a micro-batch failed and the script went on; a part of its "
        "gradients is added already. Let the error end the script",
        when="an error of `step.backward` is caught",
        instead="let it out: the replica is replaced, nothing is lost",
        script=trained(pass_over),
    ),
    Refusal(
        sentence="the loop over step 0 was left before its end; a step ends when it is committed "
        "(to end the job call step.stop())",
        when="`break` or `return` inside the inner loop",
        instead="`step.stop()`",
        script=left_early,
        feature=("loops", "break in the inner loop"),
    ),
    Refusal(
        sentence="step 0 was passed over: nobody asked for its micro-batches; write `for batch in "
        "step:` inside the loop over the steps, with step.backward(loss) in it",
        when="a loop over the steps trains on something else, or on nothing",
        instead="the inner loop",
        script=passed_over,
    ),
    Refusal(
        sentence="an iterator of a DataLoader that was made before this micro-batch of step 0 was "
        f"drawn from there: what it gives is another thing on every replica; {OWN_DATA}, or make "
        "the iterator there",
        when="the loop trains on a DataLoader or a sampler of its own, also by `zip(step, loader)`",
        instead="`dataset=`; what cannot be seen of such a loop is [here](assumptions.md)",
        script=zipped(lambda steps, loader: (zip(step, loader, strict=False) for step in steps)),
        feature=("data", "a DataLoader of the script's own in a step"),
    ),
    Refusal(
        sentence="an iterator of a DataLoader that was made before step 0 was drawn from there: "
        f"what it gives is another thing on every replica; {OWN_DATA}, or make the iterator there",
        when="a DataLoader runs beside the steps: `zip(session.steps(n), loader)`",
        instead="`dataset=`; in the tail any loader may be read",
        script=zipped(lambda steps, loader: (pair[0] for pair in zip(steps, loader, strict=False))),
    ),
    Refusal(
        sentence="a DataLoader over the session's own dataset was drawn from inside the loop over "
        f"step 0; {OWN_DATA}",
        when="a loader over the same dataset is made for each micro-batch",
        instead="the batch of the step",
        script=trained(lambda at: next(iter(DataLoader(at.dataset))), dataset=POINTS),
    ),
    Refusal(
        sentence="step 0 was iterated twice; its micro-batches come once",
        when="there are two loops over one step",
        instead="one loop with both",
        script=trained(tail=iterated_twice),
    ),
    Refusal(
        sentence="the loss is nan at step 0 in micro-batch 0 (samples 10, 5); the run ends before "
        "that step, as on_nonfinite='stop' says",
        when="a loss or a gradient is nan or inf, and the script wants to end there",
        instead="look at these samples; a smaller learning rate; `on_nonfinite='skip'`",
        script=trained(
            lambda at: at.step.backward(loss_of(at) * math.nan), on_nonfinite="stop", seed=1
        ),
    ),
    Refusal(
        sentence="step.loss is known after the loop over the step, not inside it",
        when="it is asked for too early",
        instead="ask in the tail",
        script=trained(lambda at: at.step.loss),
    ),
    Refusal(
        sentence="step.grad_norm is known in the tail of its step, not elsewhere",
        when="it is asked for too early or too late",
        instead="ask in the tail",
        script=trained(lambda at: at.step.grad_norm),
    ),
    Refusal(
        sentence="the dataset's __getitems__ returned 1 items for 2 indices; return one for each",
        when="a dataset drops samples",
        instead="drop them in `__len__`, or give them weight 0",
        script=trained(dataset=lambda: Loses(20)),
    ),
    Refusal(
        sentence="buffer 'kept' was made after the session; make it before, for instance by "
        "running one batch through the model",
        when="a forward makes a buffer",
        instead="`model(batch)` once before the session",
        script=holding(None, rebind(lambda x: x.detach().mean())),
        feature=("structure", "buffers made in the forward"),
    ),
    Refusal(
        sentence="buffer 'kept' changed its shape, its type or was removed during a step; run one "
        'batch through the model before the session is made, or say buffers={"kept": "local"} if '
        "it is not part of the model's state",
        when="a cache is kept as a buffer",
        instead='`buffers={"kept": "local"}`',
        script=holding(torch.zeros(1), rebind(lambda x: torch.zeros(2))),
    ),
    Refusal(
        sentence="the micro-batches of one step changed buffer 'kept' in different ways; say what "
        'to do with it: buffers={"kept": "sum"}, "max" or "local"',
        when="an integer buffer counts something of the data",
        instead='`buffers={"kept": "sum"}`',
        script=holding(
            torch.zeros((), dtype=torch.long), rebind(lambda x: (x * 1000).long().abs().sum())
        ),
    ),
    Refusal(
        sentence="buffer 'kept' has 20000 elements and changed during a step; say how: "
        'buffers={"kept": "mean"}, "sum", "max" or "local"',
        when="a buffer of more than 16384 elements, taken for a constant, moves",
        instead='`buffers={"kept": "mean"}`',
        script=holding(torch.zeros(20_000), rebind(lambda x: torch.ones(20_000))),
    ),
    Refusal(
        sentence="a log of session.open_log is written in the tail of a step, behind the loop over "
        "its micro-batches, of which each replica has its own",
        when="`log.write` stands in the inner loop",
        instead="indent it less",
        script=trained(logged_inside),
    ),
    Refusal(
        sentence="/tmp/log.csv is there and session.open_log did not write it; move it away, or "
        "give the log another name",
        when="a file of that name is there",
        instead="another name",
        proof="tests/engine/test_step_log.py::test_a_file_that_something_else_wrote_is_refused",
    ),
    Refusal(
        sentence="session.open_log('/tmp/logs/log.csv'): there is no directory /tmp/logs; make it "
        "with os.makedirs(..., exist_ok=True)",
        when="its directory is missing",
        instead="make it first",
        proof="tests/engine/test_step_log.py::test_a_directory_that_is_not_there_is_refused",
    ),
    Refusal(
        sentence="session.open_log cannot use /tmp/log.csv: [Errno 13] Permission denied: "
        "'/tmp/log.csv'",
        when="its place cannot be looked at",
        instead="another place",
        proof="tests/engine/test_step_log.py::test_a_directory_that_is_not_there_is_refused",
    ),
    Refusal(
        sentence="session.feed belongs in the tail of a step: after its inner loop",
        when="it is called elsewhere",
        instead="indent it less, or more",
        script=trained(lambda at: at.session.feed(loss=1.0)),
    ),
    Refusal(
        sentence="session.feed(loss=...): plateau= has no scheduler of that name; it has: none",
        when="the name is another",
        instead="a name of `plateau=`",
        script=trained(tail=lambda at: at.session.feed(loss=1.0)),
    ),
    Refusal(
        sentence="session.evaluate belongs in the tail of a step, after its inner loop; for a last "
        "evaluation ask there for step.is_last",
        when="it is called elsewhere",
        instead="`if step.is_last:` in the tail",
        script=trained(lambda at: at.session.evaluate(models.Points(20), lambda batch: 1.0)),
    ),
    Refusal(
        sentence="cannot evaluate 0 samples in micro-batches of 2",
        when="the dataset of `session.evaluate` is empty",
        instead="give it samples",
        script=evaluated(lambda batch: 1.0, size=0),
    ),
    Refusal(
        sentence="the DataLoader to evaluate on has drop_last=True, and session.evaluate takes "
        "each sample once; pass its dataset, or a Subset of it",
        when="a DataLoader given to `session.evaluate` leaves out samples or has a sampler",
        instead="its dataset",
        script=trained(
            tail=lambda at: at.session.evaluate(DataLoader(POINTS, drop_last=True), loss_of)
        ),
    ),
    Refusal(
        sentence="the weight of an evaluated micro-batch must be at least 0, got -1.0",
        when="the function of `session.evaluate` returns another weight",
        instead="a number of samples or tokens",
        script=evaluated(lambda batch: (1.0, -1.0)),
    ),
    Refusal(
        sentence="the function given to session.evaluate must return the micro-batch's mean as a "
        "number, or a dict of them by name, or such a thing and its weight: could not convert "
        "string to float: 'good'",
        when="it returns something else",
        instead="a number or a dict",
        script=evaluated(lambda batch: "good"),
    ),
]

TOGETHER = [
    Refusal(
        sentence="checkpoint step-00000009-l1 of ... was written by train.py --steps 9, and this "
        "is another script: tune.py --steps 9; give this run a place of its own, ...",
        when="the place of its checkpoints holds those of another job or another script",
        instead="another place; `--from-checkpoint anyway` or `never`",
        proof=f"{KEEPING}::test_what_another_run_wrote_is_not_gone_on_from_unless_asked",
    ),
    Refusal(
        sentence="no checkpoint of this run can be used; the last one tried: ...; look with "
        "`pliant checkpoint verify`, or remove them all to start from step 0",
        when="every checkpoint of the run is damaged",
        instead="mend the storage, or start anew",
        proof=f"{KEEPING}::test_where_every_checkpoint_is_damaged_nothing_else_is_trained",
    ),
    Refusal(
        sentence="seed is 7 here and 11 in checkpoint step-00000009-l1 of runs/gpt/kept; go on "
        "with what it was, or give this run a place of its own (with --init it can start from "
        "those weights)",
        when="what makes the result (seed, batch, data set, threads, optimizer) is not what it was",
        instead="the same again, or another place",
        proof=f"{KEEPING}::test_a_run_with_another_seed_does_not_go_on_from_there",
    ),
    Refusal(
        sentence="runs/gpt/kept belongs to another job: job gpt-1f6e83c1 (process 4711 on host) "
        "writes to it; give this job a place of its own, or end that one (if it is gone for good, "
        "remove runs/gpt/kept/lease.json)",
        when="two jobs keep their checkpoints in one place",
        instead="a place for each",
        proof=f"{KEEPING}::test_a_second_job_is_refused_while_the_first_lives",
    ),
    Refusal(
        sentence="the directory of the run is gone, and runs/gpt/kept is no longer held by this "
        "run: another may have gone on from there",
        when="a copy of the directory was resumed before it was removed under the run",
        instead="that run, or `pliant resume` of the copy",
        proof="tests/checkpoint/lease/test_job_lease.py::"
        "test_no_order_lets_two_histories_count_where_the_register_is_gone",
    ),
    Refusal(
        sentence="the checkpoint was written by a newer pliant; install that version",
        when="a run goes back to an older pliant",
        instead="the newer one",
        proof=f"{DURABLE}::test_a_document_of_a_newer_version_asks_for_it",
    ),
    Refusal(
        sentence="'body.0.weight' is float32 (8, 3) in the checkpoint and float32 (4, 3) in this "
        "script's model",
        when="the model was changed since",
        instead="the model that was trained, or another place",
        proof=f"{DURABLE}::test_another_model_is_refused_before_anything_is_written",
    ),
    Refusal(
        sentence="the checkpoint's model has 'late', which this script's has not",
        when="a parameter or buffer was taken out of the model since",
        instead="the model that was trained, or another place",
        proof=f"{DURABLE}::test_a_tensor_more_or_less_in_the_model_is_named",
    ),
    Refusal(
        sentence="this script's model has 'late', which the checkpoint's has not",
        when="a parameter or buffer was put into the model since",
        instead="the model that was trained, or another place",
        proof=f"{DURABLE}::test_a_tensor_more_or_less_in_the_model_is_named",
    ),
    Refusal(
        sentence="the checkpoint has 1 schedulers, and this script has 0",
        when="an optimizer or a scheduler was added or taken out since",
        instead="what was trained, or another place",
        proof=f"{DURABLE}::test_what_a_script_has_got_or_lost_since_is_named",
    ),
    Refusal(
        sentence="only this script has extra_state named 'ema'",
        when="a part of `extra_state` was added or taken out since",
        instead="what was trained, or another place",
        proof=f"{DURABLE}::test_what_a_script_has_got_or_lost_since_is_named",
    ),
    Refusal(
        sentence="only this script has a scaler",
        when="a scaler was added or taken out since",
        instead="what was trained, or another place",
        proof=f"{DURABLE}::test_what_a_script_has_got_or_lost_since_is_named",
    ),
    Refusal(
        sentence="the checkpoint to start from has no 'body.0.bias'",
        when="`--init` names a checkpoint of another model",
        instead="one of this model",
        proof=f"{DURABLE}::test_a_run_begins_with_the_weights_and_moments_of_another",
    ),
    Refusal(
        sentence="the checkpoint to start from has 'strange', which this model has not",
        when="`--init` names a checkpoint of another model",
        instead="one of this model",
        proof=f"{DURABLE}::test_a_run_begins_with_the_weights_and_moments_of_another",
    ),
    Refusal(
        sentence="cannot read the script nothing.py: No such file or directory",
        when="a replica starts after the script has gone",
        instead="keep it where it is until the run has ended",
        proof="tests/engine/worker/test_bootstrap.py::test_a_missing_script_is_a_wrong_input",
    ),
    Refusal(
        sentence="the session ended before its first step; train inside it with "
        "`for step in session.steps(total):`",
        when="a script under `pliant run` opens a session and trains nothing",
        instead="the loop inside the `with` block",
        proof="tests/processes/test_bad_input.py::test_what_a_script_asks_wrongly_ends_the_job_with_2",
    ),
    Refusal(
        sentence="one replica left the loop over session.steps() early and another did not; call "
        "step.stop(), which all replicas obey after the same step",
        when="`break` from the outer loop on some replicas only",
        instead="`step.stop()`",
        proof=f"{SESSIONS}::test_a_break_on_one_replica_is_refused",
        feature=("loops", "break from the outer loop on one replica"),
    ),
    Refusal(
        sentence="at step 5 lr of parameter group 0 of optimizer 0 differs between replicas (0.01 "
        "on r1; 0.1 on r2, r3): the script changed it on some replicas only; do it on every "
        "replica alike, not where session.leader is true",
        when="anything of the state differs: weights, buffers, modes, optimizers, `extra_state`",
        instead="the same change on every replica",
        script=one_rate_is_another,
    ),
    Refusal(
        sentence=f"at step 12 {OTHER_WEIGHT}, and no more than half of the replicas are alike: "
        "nobody can say which are right, so the run ends before a checkpoint holds it; pliant "
        "resume goes on from the one before",
        when="with `--verify-every`: memory or a device changed the state of as many replicas as "
        "are right",
        instead="`pliant resume`; three replicas or more, of which one that differs is replaced",
        script=two_have_another_weight,
    ),
    Refusal(
        sentence="its model has token.weight float32 [256, 48] where the run has token.weight "
        "float32 [256, 32]",
        when="a joiner's script builds another model",
        instead="the same script and arguments on every replica; the run goes on without it",
        proof=f"{SESSIONS}::test_a_joiner_with_another_model_is_refused_and_nobody_notices",
    ),
    Refusal(
        sentence="r3 cannot join: its steps() goes to step 40, the run's to step 240: the number "
        "counts from the job's first step, on every replica alike. Load no snapshot of your own, "
        "for Session(checkpoint=...) keeps the run, and write a number that nothing changes "
        "meanwhile",
        when="a replica asks `steps()` for another total than the run: its script found a snapshot "
        "of its own, a time or a file that changed",
        instead="the same number on every replica; the run goes on without it",
        proof="tests/core/job/test_handlers.py::test_how_far_a_call_goes_must_be_as_in_the_run",
    ),
    Refusal(
        sentence="session.evaluate after step 2: size of the dataset differs between replicas (30 "
        "on r1; 20 on r2); evaluate the same dataset on every replica, and draw parts of it with a "
        "seed (pliant.seed, or a generator of random_split)",
        when="the size of the dataset, the micro-batch or one of four samples is not the same",
        instead="the same dataset on every replica",
        proof="tests/engine/test_evaluation.py::test_another_dataset_is_named",
    ),
    Refusal(
        sentence="lr of optimizer 0 is 0.03 here and 0.01 in checkpoint step-00000012-l1 of "
        "runs/gpt, which would go on with what it was; give this run a place of its own, or go on "
        "all the same with --from-checkpoint anyway (a script that runs alone: "
        "PLIANT_FROM_CHECKPOINT=anyway)",
        when="what the script gives its parameter groups before the first step is not what it was: "
        "the second run of a sweep; of a rate that a scheduler moves the initial one counts",
        instead="a place for each run",
        proof="tests/engine/test_checkpointing.py::"
        "test_a_run_with_another_rate_does_not_go_on_from_there_and_a_longer_one_does",
    ),
    Refusal(
        sentence="its numerics is 5b5870ebce8a, the run has 715f302e20e8: it rounds differently; "
        "give every host the same of MKL_*, ONEDNN_*, DNNL_*, OMP_* and ATEN_CPU_CAPABILITY; "
        "unlike processors may agree with ATEN_CPU_CAPABILITY=avx2, MKL_CBWR=COMPATIBLE and "
        "ONEDNN_MAX_CPU_ISA=AVX2 on all",
        when="some operations of torch give other bits on a host: another processor, or a variable "
        "that makes MKL, oneDNN or torch choose other kernels",
        instead="the same variables, and processors of one kind; the run goes on without it",
        proof="tests/core/job/test_handlers.py::"
        "test_a_host_that_rounds_differently_is_told_what_to_set",
    ),
    Refusal(
        sentence="its sample 29 of the dataset is another than the run's; give every host the same "
        "data and what reads them, and seed what makes data before the session",
        when="one of four samples that are functions of their index is not what it is where the "
        "run began: another copy of the data, another version of what decodes it, numbers drawn "
        "without a seed",
        instead="the same data on every host, and then its agent anew; the run goes on without it",
        proof="tests/processes/test_several_hosts.py::"
        "test_other_data_and_other_rounding_are_refused_and_another_environment_is_told",
    ),
    Refusal(
        sentence="its module losses is another than the run's; give every host the same file",
        when="a module that the script imports differs between hosts, or was edited while the run "
        "lasts",
        instead="the same files on every host, and then its agent anew; the run goes on without it",
        proof="tests/processes/test_several_hosts.py::"
        "test_a_module_that_differs_is_named_and_the_job_waits_for_a_host_that_fits",
    ),
    Refusal(
        sentence="config.yaml changed after this run began, and the replicas that train read it "
        "before; put it back, then pliant scale N; or end the run, and resume it with the new one",
        when="a file that the script reads outside of steps is another one when a replica joins",
        instead="the file as it was; the run goes on without that replica until somebody scales it",
        proof=f"{FILES}::test_who_comes_and_reads_other_content_is_refused_by_its_name",
    ),
    Refusal(
        sentence="this replica would empty log.csv, which the run has written before it came; let "
        "one replica write it: `if session.leader:` in the tail of a step, session.open_log(path) "
        'for rows, session.save(path) for weights, pliant.once("name") for what is prepared, or '
        'add to it, open(path, "a")',
        when="the script opens a file with `w`, removes or replaces one, or a directory, that the "
        "run it joins has written",
        instead="one writer, or mode `a`; the run goes on without that replica",
        proof=f"{FILES}::test_who_comes_to_a_run_that_trains_destroys_nothing_of_it",
    ),
    Refusal(
        sentence="sample 0 of the dataset is not what it was when the run was kept: other data lie "
        "behind the same path; put them back, or go on with these: --from-checkpoint anyway (a "
        "script that runs alone: PLIANT_FROM_CHECKPOINT=anyway)",
        when="a run goes on from a checkpoint, and one of four samples is another one than then",
        instead="the data as they were, or the option",
        proof="tests/engine/guard/test_files.py::"
        "test_other_data_behind_the_same_path_are_refused_and_an_edited_module_is_told",
    ),
    Refusal(
        sentence="SGD has other parameter groups here than on the replicas that already train",
        when="a joiner's script groups its parameters otherwise",
        instead="the same groups on every replica",
        proof=f"{STATE}::test_other_parameter_groups_are_named_to_the_joiner",
    ),
    Refusal(
        sentence="the replicas that train have among their buffers 'late', which was made after "
        "the session; make it before, so that joiners have it too",
        when="a tail made a parameter or buffer",
        instead="make it before the session",
        proof=f"{STATE}::test_a_buffer_made_after_the_session_is_named_to_the_joiner",
    ),
]


def node_files(**changes: Any) -> TlsFiles:
    """Write ``ca.pem``, ``node.pem`` and ``node.key`` where the script runs."""
    Authority(Path()).files(**changes)
    return TlsFiles(ca="ca.pem", certificate="node.pem", key="node.key")


def foreign_certificate() -> None:
    files = node_files()
    Authority(Path())  # another, under the same name
    TlsContexts.of(files)


def certificate_for_servers() -> None:
    TlsContexts.of(node_files(usages=BOTH_ENDS[:1]))


def foreign_key() -> None:
    files = node_files()
    Authority(Path("other")).files()
    TlsContexts.of(replace(files, key="other/node.key"))


def key_with_a_password() -> None:
    files = node_files()
    set_password(Path(files.key))
    TlsContexts.of(files)


def key_for_a_certificate() -> None:
    TlsContexts.of(replace(node_files(), certificate="node.key"))


JOB = """\
apiVersion: pliant.dev/v1alpha1
kind: ElasticJob
metadata: {name: gpt}
spec:
  elasticPolicy: {minReplicas: 1, maxReplicas: 4}
  startReplicas: 2
  command: [train.py]
"""

TYPED = [
    Refusal(
        sentence="the script gone.py does not exist",
        when="`pliant run` is given another name",
        instead="the path of the script",
        command="run gone.py",
    ),
    Refusal(
        sentence=". is a directory; name a script or a job file",
        when="`pliant run` is given a directory",
        instead="`pliant run ./train.py`",
        command="run .",
    ),
    Refusal(
        sentence="the script and its arguments have 100028 bytes, and a replica can be told of "
        "98304 at most; put them into a file that the script reads",
        when="a list of thousands of files is given to a script",
        instead="a file with the list",
        command=f"run train.py {'x' * 100_013}",
    ),
    Refusal(
        sentence="'caf\\udce9' is no text in UTF-8, as what a script is given must be; rename the "
        "file",
        when="the name of a file among a script's arguments is in another encoding",
        instead="a name in UTF-8",
        command="run train.py caf\udce9",
    ),
    Refusal(
        sentence="'/home/ada/caf\\udce9' is no text in UTF-8, as the directories of a run must be; "
        "rename it",
        when="a run is started in a directory whose name is in another encoding, or has such a one",
        instead="a name in UTF-8",
        proof="tests/cli/test_start.py::test_a_directory_whose_name_is_no_text_is_refused",
    ),
    Refusal(
        sentence="gone.yaml cannot be read: No such file or directory",
        when="`pliant run` is given another name",
        instead="the path of the job file",
        command="run gone.yaml",
    ),
    Refusal(
        sentence="job.yaml names its command itself; put --steps 3 into spec.command",
        when="a job file is followed by arguments of the script",
        instead="write them into the file",
        command="run job.yaml --steps 3",
    ),
    Refusal(
        sentence="fit.ipynb is a notebook; make a script of it, `jupyter nbconvert --to script "
        "fit.ipynb`, and run fit.py",
        when="`pliant run` is given a notebook",
        instead="its cells as a script",
        command="run fit.ipynb",
    ),
    Refusal(
        sentence="pliant run starts the workers itself, without torchrun: pliant run train.py",
        when="another launcher, or `python`, is typed before the script",
        instead="the script alone",
        command="run torchrun --nproc_per_node 2 train.py",
    ),
    Refusal(
        sentence="there is no module package.train here, nor is it installed",
        when="`-m` names none that can be run",
        instead="one of the directory that this is typed in, or of one that is installed",
        command="run -m package.train",
    ),
    Refusal(
        sentence="there is no module package/train.py here; -m takes a name, without .py: -m "
        "package.train",
        when="`-m` is given a file",
        instead="its name, or `pliant run package/train.py`",
        command="run -m package/train.py",
    ),
    Refusal(
        sentence="there is no module gone to run in ... or installed here",
        when="a node of the job has not the module of `-m`",
        instead="the same directory, or the same packages, on every node",
        proof="tests/engine/worker/test_bootstrap.py::"
        "test_a_module_that_a_node_lacks_is_a_wrong_input",
    ),
    Refusal(
        sentence="package is a package without __main__.py; name a module of it",
        when="`-m` names a package that python would not run either",
        instead="`pliant run -m package.train`",
        before=elsewhere.written("package/__init__.py"),
        command="run -m package",
    ),
    Refusal(
        sentence="--nproc_per_node is torchrun's: leave it out; --max N is how many replicas there "
        "may be, and on several hosts pliant run --join HOST:PORT --nnodes MIN:MAX runs them",
        when="an option of torchrun is typed",
        instead="`pliant run --max 2 train.py`",
        command="run --nproc_per_node=2 train.py",
    ),
    Refusal(
        sentence="-m needs the name of a module: pliant run -m package.train",
        when="nothing follows `-m`",
        instead="a module",
        command="run -m",
    ),
    Refusal(
        sentence="--session-timeout 0s must be more than 0",
        when="the script is given no time",
        instead="a time, as `30min`",
        command="run --session-timeout 0s train.py",
    ),
    Refusal(
        sentence="--max 0 must be at least 1",
        when="a size is below 1",
        instead="a size from 1",
        command="run --max 0 train.py",
    ),
    Refusal(
        sentence="--min 3 is greater than --max 2",
        when="sizes contradict each other",
        instead="`--min` <= `--start` <= `--max`",
        command="run --min 3 --max 2 train.py",
    ),
    Refusal(
        sentence="--start 2 is less than --min 3",
        when="sizes contradict each other",
        instead="`--min` <= `--start` <= `--max`",
        command="run --min 3 --start 2 train.py",
    ),
    Refusal(
        sentence="--start 2 (job file) is greater than --max 1",
        when="an argument contradicts the job file",
        instead="`--min` <= `--start` <= `--max`",
        command="run --max 1 job.yaml",
    ),
    Refusal(
        sentence="maxReplicas=5 is above the 4 micro-batches of a step, and each replica needs "
        "one; lower maxReplicas to 4, or make micro_batch_size smaller",
        when="the script has fewer micro-batches in a step than `--max`",
        instead="leave out `--max`: the default is the number of slots",
        proof="tests/core/policy/test_decide.py::test_a_bound_above_the_slots_of_a_step_is_refused",
    ),
    Refusal(
        sentence="maxReplicas is set with --max, not with --policy",
        when="a field that has a flag is given in another way",
        instead="`--max 4`; in a job file, `maxReplicas: 4`",
        command="run --policy maxReplicas=4 train.py",
    ),
    Refusal(
        sentence="--policy: replicaIncrementStep 2 and replicaDiscreteValues 2, 4 exclude each "
        "other; give one of them",
        when="fields of the policy contradict each other",
        instead="one of the two",
        command="run --policy replicaIncrementStep=2 --policy replicaDiscreteValues=2,4 train.py",
    ),
    Refusal(
        sentence="'spares' is not KEY=VALUE, for instance maxReplicas=6",
        when="`pliant policy set` or `--policy` gets a field without a value",
        instead="`spares=1`, or `spares=none` for the default",
        command="run --policy spares train.py",
    ),
    Refusal(
        sentence="minReplicas=9, but the nodes can run 8",
        when="`pliant policy set` asks for what nothing could train with",
        instead="a smaller size, or first more nodes",
        proof="tests/conformance/test_scenarios.py::test_scenario",
    ),
    Refusal(
        sentence="--name 'My Job' must be lower-case letters, digits and dashes, at most 63 of "
        "them",
        when="a name has other letters",
        instead="`--name my-job`",
        command="run --name 'My Job' train.py",
    ),
    Refusal(
        sentence="--init gone.pt does not exist",
        when="there are no such weights",
        instead="the path that `session.save` got",
        command="run --init gone.pt train.py",
    ),
    Refusal(
        sentence="--max-restarts -1 must be at least 0",
        when="it is negative",
        instead="0 for none",
        command="run --max-restarts -1 train.py",
    ),
    Refusal(
        sentence="--show 'r' is neither all nor none nor a replica such as r1",
        when="it names nobody",
        instead="`--show r1`",
        command="run --show r train.py",
    ),
    Refusal(
        sentence="train.py/x cannot be written: Not a directory",
        when="there can be no such directory",
        instead="another `--out`",
        command="run --out train.py/x train.py",
    ),
    Refusal(
        sentence="port 80 of 127.0.0.1 is in use; choose another with --port",
        when="something else listens there",
        instead="leave out `--port`",
        proof="tests/processes/test_cli.py::test_a_port_in_use_is_refused",
    ),
    Refusal(
        sentence="--max stands behind train.py, which does not name it: write pliant run --max 2 "
        "train.py if it is for pliant, and pliant run train.py -- --max 2 if it is for the script",
        when="an option of pliant stands behind a script that has no such option",
        instead="one of the two",
        command="run train.py --max 2",
    ),
    Refusal(
        sentence="no job is running; start one with pliant run",
        when="`status`, `scale`, `drain`, `kill`, `stop` or `explain` has nobody to ask",
        instead="`pliant run train.py`",
        command="status",
    ),
    Refusal(
        sentence="no job named x is running; none is; start one with pliant run",
        when="`--job` names another",
        instead="a name that `pliant ls` shows",
        command="scale 2 --job x",
    ),
    Refusal(
        sentence="no job named x is running or has ended; none is; start one with pliant run",
        when="`--job` of `status`, `logs`, `explain` or `audit` names another",
        instead="a name that `pliant ls` shows",
        command="status --job x",
    ),
    Refusal(
        sentence="shared belongs to another user (id 65534), who could replace what the run writes "
        "there; choose another, such as shared/run, which is made for you",
        when="`--out` is a directory of somebody else",
        instead="a directory of one's own",
        proof="tests/processes/test_hosts.py::test_a_directory_that_others_may_change_is_refused",
    ),
    Refusal(
        sentence="everybody may write to shared, and could replace what the run writes there; "
        "choose shared/run, which is made for you alone, or run chmod o-w shared",
        when="`--out` is a directory like `/tmp`",
        instead="a new directory in it",
        proof="tests/processes/test_hosts.py::test_a_directory_that_others_may_change_is_refused",
    ),
    Refusal(
        sentence="out/register.json is no file; remove it, or choose another --out",
        when="a pipe or a device lies where the run keeps its files: reading it may never end",
        instead="a new directory",
        proof="tests/processes/test_hosts.py::"
        "test_a_pipe_under_the_name_of_a_file_of_the_run_is_refused",
    ),
    Refusal(
        sentence="x is neither a run's directory nor a job that waits (none does)",
        when="`pliant resume` is told what it does not know",
        instead="what `pliant ls` names under `to go on`",
        command="resume x",
    ),
    Refusal(
        sentence=". holds no run: it has no events.jsonl",
        when="`--out` names another directory",
        instead="the directory of the run",
        command="audit --out .",
    ),
    Refusal(
        sentence="a job has at least 1 replica, not 0; pliant stop ends it",
        when="`pliant scale 0`",
        instead="`pliant stop`",
        command="scale 0",
    ),
    Refusal(
        sentence="--notice 'soon' is no duration; write it like 30s, 5m or 1h",
        when="a time has no such form",
        instead="`--notice 30s`",
        command="drain r3 --notice soon",
    ),
    Refusal(
        sentence="--notice 12000d is too long; at most 1e+09 s can be waited for",
        when="a time is longer than 31 years",
        instead="a shorter one",
        command="drain r3 --notice 12000d",
    ),
]

TLS = [
    Refusal(
        sentence="--tls-key must be given, too: replicas need all three files for TLS",
        when="some of the three are given, here or in the job file",
        instead="`--tls-ca`, `--tls-certificate` and `--tls-key`, or none",
        command="run --tls-ca ca.pem --tls-certificate node.pem train.py",
    ),
    Refusal(
        sentence="the CA /tls/ca.pem cannot be read: No such file or directory",
        when="a file of TLS is not there on this node, or not for this user",
        instead="the three files on every node",
        command="run --tls-ca /tls/ca.pem --tls-certificate /tls/n.pem --tls-key /tls/n.key "
        "train.py",
    ),
    Refusal(
        sentence="the certificate node.key holds no certificate in PEM form",
        when="a file of TLS holds something else",
        instead="PEM: `openssl x509 -inform der -in FILE -out node.pem`",
        script=key_for_a_certificate,
    ),
    Refusal(
        sentence="the key other/node.key does not belong to the certificate node.pem",
        when="the key is of another certificate",
        instead="the key that the certificate was requested with",
        script=foreign_key,
    ),
    Refusal(
        sentence="the key node.key has a password, which nobody is asked for; remove it",
        when="the key is encrypted",
        instead="`openssl pkey -in FILE -out node.key`",
        script=key_with_a_password,
    ),
    Refusal(
        sentence="the certificate node.pem is not signed by the CA ca.pem",
        when="another CA has signed it, or one between is missing",
        instead="a certificate of the job's CA, with those between behind it in its file",
        script=foreign_certificate,
    ),
    Refusal(
        sentence="the certificate node.pem has expired, or its CA has",
        when="a certificate is too old",
        instead="a new one, under the same path",
        script=lambda: TlsContexts.of(node_files(days=(-3, -1))),
    ),
    Refusal(
        sentence="the certificate node.pem is not valid yet, or its CA is not; compare the clocks",
        when="a certificate is of the future",
        instead="set the clock of the node, or of where the certificate was made",
        script=lambda: TlsContexts.of(node_files(days=(1, 3))),
    ),
    Refusal(
        sentence="the certificate node.pem is not for both ends of a connection; its "
        "extendedKeyUsage must name serverAuth and clientAuth, or be left out",
        when="a certificate is for servers only, or for clients",
        instead="one for both: every node is both",
        script=certificate_for_servers,
    ),
    Refusal(
        sentence="the certificate node.pem does not name 10.0.0.1",
        when="the certificate of a coordinator is not of the host in `--listen` or `--join`",
        instead="one whose `subjectAltName` has that name or address",
        script=lambda: ServedTls(node_files(names=["10.0.0.2"]), "10.0.0.1"),
    ),
    Refusal(
        sentence="--tls-key must be given, too: it goes with --tls-certificate",
        when="an agent, or a command, is given one of the two",
        instead="both, or `--tls-ca` alone where the coordinator wants no certificate",
        command="doctor --join 127.0.0.1:1 --tls-certificate node.pem",
    ),
]

WRITTEN = [
    Refusal(
        sentence="PLIANT_MIN=two must be a whole number",
        when="an environment variable of pliant is something else",
        instead="`PLIANT_MIN=2`",
        proof="tests/cli/test_settings.py::test_an_environment_variable_that_is_no_number_is_named",
    ),
    Refusal(
        sentence="PLIANT_RESUME=maybe must be 1 or 0",
        when="one that switches something on is something else",
        instead="`PLIANT_RESUME=1`",
        proof="tests/cli/test_settings.py::test_an_environment_variable_that_is_no_number_is_named",
    ),
    Refusal(
        sentence="job.yaml line 5: unknown field spec.elasticPolicy.minReplica; did you mean "
        "minReplicas?",
        when="a field is misspelt",
        instead="the name it proposes",
        command="run job.yaml",
        replaced=("minReplicas", "minReplica"),
    ),
    Refusal(
        sentence="job.yaml line 5: minReplicas 5 is greater than maxReplicas 4",
        when="sizes contradict each other",
        instead="minReplicas <= startReplicas <= maxReplicas",
        command="run job.yaml",
        replaced=("minReplicas: 1", "minReplicas: 5"),
    ),
    Refusal(
        sentence="job.yaml line 5: spec.elasticPolicy.maxReplicas must be a whole number, not "
        "'four'",
        when="a value is of another type",
        instead="a number",
        command="run job.yaml",
        replaced=("maxReplicas: 4", "maxReplicas: four"),
    ),
    Refusal(
        sentence='job.yaml line 7: spec.command[1] must be text; put it in quotes: "5"',
        when="a value is a number, and should be text",
        instead="quotes",
        command="run job.yaml",
        replaced=("[train.py]", "[train.py, 5]"),
    ),
    Refusal(
        sentence="job.yaml line 7: spec.command must not be empty",
        when="nothing is to be run",
        instead="a script, or `-m` and a module",
        command="run job.yaml",
        replaced=("[train.py]", "[]"),
    ),
    Refusal(
        sentence="--verify-every must be at least 0 (never), not -1",
        when="a number of steps is negative",
        instead="0, or a number of steps",
        command="run --verify-every -1 train.py",
    ),
    Refusal(
        sentence="job.yaml line 6: spec.sessionTimeoutInSeconds must be more than 0, not 0",
        when="a value is out of bounds",
        instead="one within them",
        command="run job.yaml",
        replaced=("startReplicas: 2", "sessionTimeoutInSeconds: 0"),
    ),
    Refusal(
        sentence="--workers-per-replica 0 must be between 1 and 10000",
        when="a replica is to have no worker, or more than a node can have devices",
        instead="how many devices a replica needs",
        command="run --workers-per-replica 0 train.py",
    ),
    Refusal(
        sentence="job.yaml line 7: spec.command must be a list, not 'train.py'",
        when="the command is one text",
        instead='`[train.py, --steps, "500"]`',
        command="run job.yaml",
        replaced=("[train.py]", "train.py"),
    ),
    Refusal(
        sentence="job.yaml line 1: apiVersion must be pliant.dev/v1alpha1, not 'pliant.dev/v2'",
        when="the file is for another version",
        instead="`pliant.dev/v1alpha1`",
        command="run job.yaml",
        replaced=("v1alpha1", "v2"),
    ),
    Refusal(
        sentence="job.yaml line 3: metadata.name is missing",
        when="a field is missing",
        instead="add it",
        command="run job.yaml",
        replaced=("{name: gpt}", "{}"),
    ),
    Refusal(
        sentence="job.yaml line 7: spec.tls.key is missing",
        when="some of the files of TLS are given",
        instead="all three, or none",
        command="run job.yaml",
        replaced=("  startReplicas: 2\n", "  startReplicas: 2\n  tls: {ca: a, certificate: b}\n"),
    ),
    Refusal(
        sentence="job.yaml line 7: the field startReplicas is given twice",
        when="a field is given twice",
        instead="once",
        command="run job.yaml",
        replaced=("  startReplicas: 2\n", "  startReplicas: 2\n  startReplicas: 3\n"),
    ),
    Refusal(
        sentence="job.yaml must be a mapping that starts with apiVersion and kind",
        when="the file holds something else",
        instead="the example in the README",
        command="run job.yaml",
        replaced=(JOB, "train.py"),
    ),
]

OTHER = "tests/engine/worker/test_other_scripts.py"
BOOTSTRAP = "tests/engine/worker/test_bootstrap.py"
SHOWN = "in pliant docs bring-your-script shows the lines (train.py, line 7)"

OTHERS = [
    Refusal(
        sentence="the script asks for RANK, which torchrun sets and pliant does not. Delete "
        "init_process_group, DistributedDataParallel and DistributedSampler, and give the plain "
        f"model, optimizer and dataset to pliant.Session; `From torchrun` {SHOWN}",
        when="a script for torchrun asks for a variable, and it is not there",
        instead="a session",
        proof=f"{OTHER}::test_it_is_told_once_what_it_does_and_where_to_read_on",
    ),
    Refusal(
        sentence="the script calls torch.distributed.init_process_group, as under torchrun. ... ",
        when="it joins a process group; one of this process alone is nobody's business",
        instead="a session",
        proof=f"{OTHER}::test_it_is_told_once_what_it_does_and_where_to_read_on",
    ),
    Refusal(
        sentence="the script calls torch.distributed.init_process_group at port 29555, which one "
        "replica of a host alone can have. ... ",
        when="it makes a group, though of one process, at a port of its own: the second replica "
        "would meet it in use",
        instead="a session; a group of one with `store=dist.HashStore()`",
        proof=f"{OTHER}::test_it_is_told_once_what_it_does_and_where_to_read_on",
    ),
    Refusal(
        sentence="the script starts processes of its own with torch.multiprocessing.spawn. ... ",
        when="a script starts its own process group",
        instead="a session",
        proof=f"{OTHER}::test_it_is_told_once_what_it_does_and_where_to_read_on",
    ),
    Refusal(
        sentence="the script makes a transformers.Trainer outside of a pliant.Session. Give its "
        "model, a torch optimizer and its dataset to pliant.Session, and write the loop in place "
        f"of trainer.train(); `From a Trainer of Hugging Face` {SHOWN}",
        when="a script that says nothing of pliant makes a Trainer of Hugging Face, Lightning, "
        "Composer or fastai, an Accelerator, a Fabric or a DeepSpeed engine",
        instead="a session",
        proof=f"{OTHER}::test_who_makes_a_trainer_is_told_there",
    ),
    Refusal(
        sentence="the script steps AdamW outside of a pliant.Session. Give model, optimizer and "
        "dataset to pliant.Session, and call step.backward(loss) for loss.backward(), "
        f"optimizer.step() and zero_grad(); `From a plain loop` {SHOWN}",
        when="a script that says nothing of pliant trains; one that does may warm up",
        instead="a session",
        proof=f"{OTHER}::test_it_is_told_once_what_it_does_and_where_to_read_on",
    ),
    Refusal(
        sentence="the script has made no pliant.Session in 540 s and is at train.py, line 7. If it "
        "needs longer to get there, say so: --session-timeout 2h; if it trains otherwise, "
        "pliant docs bring-your-script shows what to change",
        when="a script does something else, or prepares its data for long",
        instead="`--session-timeout`, `spec.sessionTimeoutInSeconds`",
        proof=f"{OTHER}::test_who_makes_no_session_in_time_is_ended_wherever_it_is",
    ),
    Refusal(
        sentence="the script has made no pliant.Session in 540 s and is at train.py, line 3: it "
        "waits for pliant.once('tokens'), which r1 runs. If that needs longer, say so: "
        "--session-timeout 2h",
        when="another process prepares data for long",
        instead="`--session-timeout`, `spec.sessionTimeoutInSeconds`",
        proof=f"{OTHER}::test_who_waits_for_another_too_long_is_told_for_whom",
    ),
    Refusal(
        sentence="pliant.once('tokens') failed on r1: OSError: the mirror is away; nothing was "
        "prepared, so no replica goes on (train.py, line 3)",
        when="the block of `pliant.once` raised in the process that ran it",
        instead="a block that works; it runs again with `pliant resume`",
        proof="tests/processes/test_once.py::test_a_block_that_fails_is_everybodys_failure",
    ),
    Refusal(
        sentence="pliant.once('tokens') stands within itself; give each block its own name",
        when="a block of `pliant.once` contains one of its name",
        instead="another name",
        script=once_within_itself,
    ),
    Refusal(
        sentence="the script ended without opening a pliant.Session; train inside `with "
        "pliant.Session(...) as session:`. One is made at loop.py, line 3, under `if __name__ == "
        '"__main__":`, which does not run where loop.py is imported; start that file, or call a '
        "function of it",
        when="it comes to its end before",
        instead="the file with the session",
        proof=f"{OTHER}::test_a_script_that_ends_without_a_session_is_told_where_one_is",
    ),
    Refusal(
        sentence="the script showed its help and ended: python train.py --help",
        when="`--help` stands behind the script, which is passed on",
        instead="`pliant run --help` for that of pliant",
        proof=f"{OTHER}::test_a_script_that_ends_without_a_session_is_told_where_one_is",
    ),
    Refusal(
        sentence="the script exited with code 2: the following arguments are required: lr",
        when="the script's own parser refuses its arguments",
        instead="arguments that it takes",
        proof=f"{OTHER}::test_how_a_script_fails_is_said_in_its_own_words",
    ),
    Refusal(
        sentence="the script uses an accelerator, and pliant trains on the CPU for now: leave out "
        ".cuda() and .to('cuda'), or write device = 'cpu'; torch says: Found no NVIDIA driver on "
        "your system. ... (train.py, line 7)",
        when="something is moved to a GPU, and there is none, or the model is not there",
        instead='`device = "cpu"`',
        proof=f"{OTHER}::test_how_a_script_fails_is_said_in_its_own_words",
    ),
    Refusal(
        sentence="out is there already, as each replica runs the top of the script; write "
        "exist_ok=True where it is made (train.py, line 2)",
        when="the script makes a directory that another replica has made",
        instead='`os.makedirs("out", exist_ok=True)`',
        proof=f"{BOOTSTRAP}::test_a_mistake_that_each_replica_would_repeat_is_one_sentence",
    ),
    Refusal(
        sentence="a scheduler was made for 2 steps and the run has more; give OneCycleLR "
        "total_steps= as many as session.steps() makes: steps_per_epoch * epochs (train.py, line "
        "6)",
        when="a OneCycleLR ends before the run does",
        instead="`total_steps=` of the whole run",
        proof=f"{BOOTSTRAP}::test_a_mistake_that_each_replica_would_repeat_is_one_sentence",
    ),
    Refusal(
        sentence="BatchNorm cannot train on one sample, and the last micro-batch of an epoch has "
        "one; leave it out with drop_last=True, or take another micro_batch_size (train.py, line "
        "2)",
        when="a micro-batch of one sample is left over",
        instead="`drop_last=True`",
        proof=f"{BOOTSTRAP}::test_a_mistake_that_each_replica_would_repeat_is_one_sentence",
    ),
]

TABLES = {
    "A script that was not written for pliant": OTHERS,
    "When a session is made": MADE,
    "Inside the loop": LOOP,
    "When replicas differ": TOGETHER,
    "On the command line": TYPED,
    "Sizes and the policy": elsewhere.SIZES,
    "In a job file": [*WRITTEN, *elsewhere.WRITTEN],
    "A run that is there already, and going on with one": elsewhere.RUNS,
    "Jobs that run, and what they have printed": elsewhere.JOBS,
    "On several nodes": refusals_of_nodes.NODES,
    "Replicas of several workers": WORKERS,
    "TLS": TLS,
    "Certificates of one's own": CERTIFICATES,
    "Checkpoints": elsewhere.CHECKPOINTS,
    "Starting a pool": elsewhere.POOLS,
    "What a pool is told": elsewhere.TOLD,
    "A pool that users share": elsewhere.SHARED,
    "A simulation": refusals_simulated.SIMULATED,
    "A replay": refusals_replayed.REPLAYED,
    "The installation": elsewhere.INSTALLED,
}
