"""Scripts that are refused, with the sentence that each is refused with.

Owns tables of sentences, with " ... " for more of the same, and scripts of a few lines.  Sentences
that take several processes are shown where those are tested.
"""

from __future__ import annotations

import collections
import math
from collections.abc import Callable
from pathlib import Path
from tempfile import TemporaryDirectory
from types import SimpleNamespace
from typing import Any

import numpy as np
import torch
from tests.engine import models
from tests.features.methods import CountedSchedule
from tests.features.refusal import Listed, Script
from torch import nn
from torch.utils.data import DataLoader, Dataset, IterableDataset

import pliant
from pliant.engine.settings import check_saving
from pliant.engine.worker import bootstrap
from pliant.recipes.gpt import GPTConfig, GPTStage


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


def scaled(at: SimpleNamespace) -> None:
    at.scale = getattr(at, "scale", None)
    if at.scale is None:
        at.scale = torch.ones(1, requires_grad=True)
    at.step.backward((at.model(at.batch[0]) * at.scale).square().mean())


def freeze(at: SimpleNamespace) -> None:
    at.model[0].weight.requires_grad_(requires_grad=False)


def clamp(at: SimpleNamespace) -> None:
    with torch.no_grad():
        at.model[0].weight.clamp_(-0.01, 0.01)


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


def own_optimizers(make: Callable[[list[nn.Parameter]], Any]) -> Script:
    def script() -> None:
        model = network()
        session(model=model, optimizer=make([*model.parameters()]))

    return script


def own_scheduler(make: Callable[[torch.optim.Optimizer], Any]) -> Script:
    def script() -> None:
        model = network()
        optimizer = torch.optim.SGD(model.parameters(), lr=0.1)
        session(model=model, optimizer=optimizer, scheduler=make(optimizer))

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


def opened_again() -> None:
    made = session()
    with made:
        pass
    with made:
        pass


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


def grow(at: SimpleNamespace) -> None:
    at.model.append(nn.Linear(3, 3))


def sparse(at: SimpleNamespace) -> None:
    words = (at.batch[0] * 0).long()
    rows = nn.functional.embedding(words, at.model[1].weight, sparse=True)
    at.step.backward(rows.sum())


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


TRAVEL = "the state of this run cannot be sent to a joining replica: state['extra']['']['value'] "


OWN_DATA = (
    "train on what `for batch in step:` gives (a session's dataset=, collate_fn= and num_workers= "
    "do what a DataLoader does)"
)


POINTS = models.Points(20)


class Odd(torch.Tensor):
    pass


MADE: dict[str, Script | Listed] = {
    "model must be a torch.nn.Module, got dict": given(
        model=dict, optimizer=optimizer_of(torch.optim.SGD)
    ),
    "'layer.weight' is an uninitialised lazy parameter; run one batch through the "
    "model before the session is made": Listed(
        given(model=Lazy, optimizer=optimizer_of(torch.optim.SGD)),
        "structure",
        "lazy modules that saw no batch",
        "`model(batch)` once",
    ),
    "'weight' is on meta, where tensors have no values; give it memory before the session is made, "
    "with to_empty(), and set its values": Listed(
        given(model=lambda: nn.Linear(4, 3, device="meta")),
        "structure",
        "models on the meta device",
        "`model.to_empty(device=...)`",
    ),
    "the model is wrapped in DistributedDataParallel; pass it unwrapped": Listed(
        given(model=Wrapped), "structure", "DistributedDataParallel", "pass the module inside"
    ),
    "'1' is SyncBatchNorm, which talks to other replicas in its forward; use "
    "BatchNorm: the session combines its statistics": Listed(
        given(model=lambda: nn.Sequential(nn.Linear(4, 3), nn.SyncBatchNorm(3))),
        "structure",
        "SyncBatchNorm",
        "BatchNorm",
    ),
    "'0' gives sparse gradients; use sparse=False": Listed(
        given(model=lambda: nn.Sequential(nn.Embedding(3, 3, sparse=True))),
        "structure",
        "sparse gradients",
        "`sparse=False`",
    ),
    "'0' has max_norm, which changes its weights in the forward of every "
    "micro-batch; leave it out, and shorten them after the loop over a step": Listed(
        given(model=lambda: nn.Sequential(nn.Embedding(3, 3, max_norm=1.0))),
        "structure",
        "Embedding with max_norm",
        "shorten the rows in the tail, `weight.renorm_(...)`",
    ),
    "'0' observes values to quantise them and has seen none; run one batch through "
    "the model before the session is made": Listed(
        given(model=lambda: nn.Sequential(Quantiser(), nn.Linear(4, 3))),
        "methods",
        "quantisation-aware training that saw no batch",
        "`model(batch)` once",
    ),
    "a session needs an optimizer": given(optimizer=None),
    "LBFGS evaluates the loss several times a step, a session does once; use an "
    "optimizer that takes a gradient, such as torch.optim.AdamW": Listed(
        own_optimizer(torch.optim.LBFGS),
        "optimizers and schedulers",
        "LBFGS",
        "a first-order optimizer",
    ),
    "TwoPass computes a step in two passes (first_step and second_step), and a "
    "session makes one; pass the optimizer that it wraps, and perturb the weights within the "
    "loss of a micro-batch (pliant docs bring-your-script, SAM)": Listed(
        own_optimizer(TwoPass),
        "optimizers and schedulers",
        "optimizers of two passes",
        "SAM within the loss of a micro-batch",
    ),
    "Closing.step() needs 'closure', and a session calls it without arguments, once "
    "the gradient of the whole step is there; use an optimizer that takes a gradient, such as "
    "torch.optim.AdamW": Listed(
        own_optimizer(Closing),
        "optimizers and schedulers",
        "optimizers that need a closure",
        "a first-order optimizer",
    ),
    "Prepared was prepared by Accelerate, which steps it by its own rules; pass the "
    "optimizer that accelerator.prepare() was given": Listed(
        own_optimizer(Prepared),
        "optimizers and schedulers",
        "what Accelerate has prepared",
        "what it was given",
    ),
    "SparseAdam takes sparse gradients, which are not supported; use Adam, and "
    "sparse=False in the embedding": Listed(
        own_optimizer(torch.optim.SparseAdam), "optimizers and schedulers", "SparseAdam", "Adam"
    ),
    "SGD holds a parameter of another optimizer, so each step would change it twice; give each "
    "parameter to one": Listed(
        own_optimizers(lambda weights: [torch.optim.SGD(weights, lr=0.1) for _ in range(2)]),
        "optimizers and schedulers",
        "two optimizers of one parameter",
        "one of each",
    ),
    "scheduler= names one scheduler twice; it would move twice a step": own_scheduler(
        lambda optimizer: [torch.optim.lr_scheduler.ConstantLR(optimizer)] * 2
    ),
    "ConstantLR was made for another optimizer than the session's, whose learning rate would "
    "never change; make it for that one": own_scheduler(
        lambda _: torch.optim.lr_scheduler.ConstantLR(
            torch.optim.SGD(network().parameters(), lr=0.1)
        )
    ),
    "no loss that step.backward was given depends on a parameter of the session's model, so the "
    "step would train nothing; compute it with that model": trained(
        lambda at: at.step.backward(network()(at.batch[0]).sum())
    ),
    "CountedSchedule is told how many updates there were; leave out scheduler= and "
    "write scheduler.step_update(session.committed) in the tail of a step, or "
    "scheduler.step(step.epoch + 1) where step.is_last_of_epoch; pass it as extra_state= if it "
    "has state": given(
        scheduler=lambda: CountedSchedule(torch.optim.SGD(network().parameters(), lr=0.1))
    ),
    "plateau={'loss': ...} must be a ReduceLROnPlateau, got int; other schedulers go "
    "into scheduler=": given(plateau=lambda: {"loss": 3}),
    "'0.weight' is float16, which a GradScaler cannot unscale; keep parameters in "
    "float32 and compute under autocast, or leave out scaler=": Listed(
        given(model=lambda: network().half(), scaler=lambda: torch.amp.GradScaler("cpu")),
        "precision",
        "GradScaler with float16 or complex parameters",
        "autocast",
    ),
    "seed must be an integer of at least 0, got -1": lambda: pliant.seed(-1),
    "the dataset has 20 samples, fewer than one global batch of global_batch_size=24; "
    "give it more, or a smaller batch": Listed(
        given(global_batch_size=24),
        "data",
        "a dataset smaller than one batch",
        "a smaller `global_batch_size`",
    ),
    "dataset must be map-style (__len__ and __getitem__): its samples are fetched by "
    "index, got Stream; read a stream into a list first, dataset=list(stream), or into a file "
    "that is indexed": Listed(
        given(dataset=Stream),
        "data",
        "IterableDataset",
        "[a list of its samples](../howto/bring-your-script.md#what-to-know)",
    ),
    "OwnLoader is a DataLoader with an __iter__ of its own, which a session would "
    "not run; pass its dataset=, collate_fn= and num_workers= to the session, or a plain "
    "DataLoader": Listed(
        given(dataset=lambda: OwnLoader(POINTS)),
        "data",
        "DataLoaders with an `__iter__` of their own",
        "the DataLoader of torch",
    ),
    "dataset= is a DataLoader, which says the order of the samples, and so does "
    "shuffle=; leave that out, or pass the dataset alone": given(
        dataset=lambda: DataLoader(POINTS), shuffle=True
    ),
    "list gives batches of other sizes than micro_batch_size=2 before the end of an "
    "epoch; a session's micro-batches have one size: let it drop or fill short batches, or "
    "say the order alone, sampler=[sample for batch in batches for sample in batch]": Listed(
        given(dataset=lambda: DataLoader(POINTS, batch_sampler=[[0, 1, 2], [3]])),
        "data",
        "batch samplers whose batches have several sizes",
        "[their order alone](../howto/bring-your-script.md#what-to-know); or batches of one "
        "size, of which the last of an epoch may be shorter",
    ),
    "micro_batch_size is not given: say how many samples go through the model at "
    "once, for instance micro_batch_size=8, or pass a DataLoader, whose batch_size it is": given(
        micro_batch_size=None
    ),
    "Counts gives other draws when it is asked for epoch 0 again, so a replica that "
    "joins could not draw what the others drew; let it draw from the global generators of "
    "torch, numpy or random, from a generator in one of its attributes, or by "
    "set_epoch(epoch)": Listed(
        given(sampler=Counts),
        "data",
        "samplers that go on from where they were",
        "`set_epoch(epoch)`, a generator as its attribute, or the global ones",
    ),
    "Forever gave more than 2000 draws in an epoch; an epoch must end (and len() of "
    "the sampler, if it has one, be its draws)": given(sampler=Forever),
    "list gives 3 samples, fewer than one global batch of global_batch_size=8; give "
    "it more, or a smaller batch": given(sampler=lambda: [1, 2, 3]),
    "dataset must have a length (__len__)": given(dataset=Endless),
    "buffers names 'kept', which the model has not; it has: none": given(
        buffers=lambda: {"kept": "sum"}
    ),
    "buffers={'kept': 'median'}: the rule must be one of agree, local, max, mean, sum": ruled(
        "median", torch.float32
    ),
    "buffers={'kept': 'mean'}: torch.int64 has no mean": ruled("mean", torch.int64),
    "buffers={'kept': 'max'}: complex numbers have no order": ruled("max", torch.complex64),
    TRAVEL + "is a builtins.object, which cannot travel to another replica; keep plain values, "
    "containers, tensors or numpy arrays": keeping(object),
    TRAVEL + "is a defaultdict with a factory that cannot travel": keeping(
        lambda: collections.defaultdict(lambda: 3)
    ),
    TRAVEL + "is a Odd, a kind of tensor that cannot travel": keeping(
        lambda: torch.zeros(1).as_subclass(Odd)
    ),
    TRAVEL + "is a sparse, quantized or meta tensor, which cannot travel": keeping(
        lambda: torch.eye(2).to_sparse()
    ),
    TRAVEL + "is a numpy value of dtype object, which cannot travel": keeping(
        lambda: np.array([None])
    ),
    TRAVEL.rstrip() + "[0]" * 3 + " ... is nested deeper than 200 levels, or in itself": keeping(
        deep
    ),
    "cannot start from the weights in weights.pt: Error(s) in loading state_dict for "
    'Sequential: Missing key(s) in state_dict: "0.weight", "0.bias", "1.weight", "1.bias". '
    'Unexpected key(s) in state_dict: "strange".': started_from(
        lambda path: torch.save({"strange": torch.zeros(1)}, path)
    ),
    "weights.pt holds no weights that torch.save wrote": started_from(
        lambda path: path.write_bytes(b"hello")
    ),
    "this is the script's second session, and a job trains one; train everything in "
    "one session, with a call of steps() for each phase": Listed(
        second_session, "loops", "two sessions in one script", "several calls of `steps()`"
    ),
    "a session is opened once, and one at a time in a process": opened_again,
}

LOOP: dict[str, Script | Listed] = {
    "steps() takes the job's total number of steps, or epochs=": lambda: opened(
        lambda made: made.steps()
    ),
    "steps() takes the job's total number of epochs, 1 at least, got -1": lambda: opened(
        lambda made: made.steps(epochs=-1)
    ),
    "default_collate cannot make a micro-batch of the samples 5, 11: TypeError: "
    "default_collate: batch must contain tensors, numpy arrays, numbers, dicts or lists; found "
    "<class 'object'>; say how with collate_fn=": trained(dataset=lambda: Undecided(20), seed=0),
    "the dataset has 21 samples now and had 20 when the session was made, and the "
    "order of an epoch depends on it; let it keep its length, or draw from a part of it with "
    "sampler=": trained(dataset=lambda: Growing(20), steps=4),
    "Asserting.step() failed in its first update (ValueError: I need a closure); a "
    "session calls it without a closure, once the gradient is whole and has no "
    "graph; use an optimizer that needs neither, such as torch.optim.AdamW": own_update(Asserting),
    "steps() takes the job's total number of steps, 1 at least, got -1": trained(steps=-1),
    "session.save was called before session.steps(), where a replica has no state of "
    "the run yet, so that none would write; call it in the tail of a step, or behind "
    "the loop": lambda: check_saving(is_elastic=True, has_begun=False),
    "loss.backward() was called on the session's model; call step.backward(loss), "
    "once per micro-batch": Listed(
        trained(lambda at: torch.autograd.backward(loss_of(at))),
        "loops",
        "loss.backward()",
        "`step.backward(loss)`",
    ),
    ".grad of '0.weight' was written to inside the loop over a step; the session "
    "takes gradients from step.backward(loss) alone, and a hook that Tensor.register_hook adds "
    "may change them": trained(write_a_gradient),
    "Hoarder keeps a gradient itself in its state as 'last', and the next steps "
    "overwrite it; keep a copy (grad.clone())": own_update(lambda params: Hoarder(params, lr=0.1)),
    "Adam8bit keeps 'exp_avg' in its state as a EightBit, which cannot be sent to a "
    "joining replica; take an optimizer with plain tensors, such as torch.optim.AdamW": own_update(
        lambda params: Adam8bit(params, lr=0.1)
    ),
    "Hider keeps a tensor in memory.last, which would not reach a joining replica; "
    "keep it in optimizer.state, in the parameter groups, or as a plain value or tensor in an "
    "attribute of the optimizer itself": own_update(Hider),
    "optimizer.step() was called by the script; the session steps the optimizer when "
    "the loop over a step ends": Listed(
        trained(lambda at: at.optimizer.step()), "loops", "optimizer.step()", "delete it"
    ),
    "optimizer.step() was called by the script; the session steps the optimizer when "
    "the loop over a step ends; how several take turns is in "
    "pliant docs bring-your-script, Alternating optimizers": stepping_by_turns,
    "StepLR.step() was called in a loop over steps on a scheduler that the session "
    "was not given, and a joiner would not know of it; say Session(scheduler=...), which steps "
    "it with each optimizer step, or step it between two calls of steps()": Listed(
        trained(tail=step_a_scheduler),
        "optimizers and schedulers",
        "a scheduler that the session was not given",
        "`scheduler=`; `plateau=` and `session.feed`",
    ),
    "clip_grad_norm_ was called where the model has no gradients, so it clips "
    "nothing; say Session(max_grad_norm=0.5)": Listed(
        trained(clip), "loops", "clip_grad_norm_", "`max_grad_norm=`"
    ),
    "clip_grad_value_ was called where the model has no gradients, so it clips "
    "nothing; let the optimizer do it before each of its steps: "
    "optimizer.register_step_pre_hook("
    "lambda *_: clip_grad_value_(model.parameters(), 0.5))": Listed(
        trained(clip_values), "loops", "clip_grad_value_", "the hook"
    ),
    "step.backward was called twice for one micro-batch; add the losses, call it once": Listed(
        trained(both), "loops", "several backwards in a slot", "`step.backward(first + second)`"
    ),
    "weight must be finite and at least 0, got nan": trained(
        lambda at: at.step.backward(loss_of(at), weight=math.nan)
    ),
    "the values of '0.weight' changed inside the loop over a step; change them before "
    "that loop, or after it": Listed(
        trained(changed_inside(clamp)),
        "structure",
        "a forward that writes to weights",
        "do it in the tail",
    ),
    "the values of '1.bias' changed inside the loop over a step; change them before "
    "that loop, or after it": Listed(
        stepping_in_backward,
        "optimizers and schedulers",
        "stepping in a hook of the backward",
        "give the optimizer to the session",
    ),
    "parameter '2.bias' was made after the session was; make everything that is "
    "trained before the session, and freeze what has to wait (requires_grad)": Listed(
        trained(tail=grow),
        "structure",
        "models that grow",
        "build the whole model, freeze a part of it",
    ),
    "the gradient of '1.weight' is sparse; sparse gradients are not supported (use "
    "sparse=False in the embedding)": trained(sparse),
    "the loop over step 0 was left before its end; a step ends when it is committed "
    "(to end the job call step.stop())": Listed(
        left_early, "loops", "break in the inner loop", "`step.stop()`"
    ),
    "an iterator of a DataLoader that was made before this micro-batch of step 0 was "
    f"drawn from there: what it gives is another thing on every replica; {OWN_DATA}, or make "
    "the iterator there": Listed(
        zipped(lambda steps, loader: (zip(step, loader, strict=False) for step in steps)),
        "data",
        "a DataLoader of the script's own in a step",
        "`dataset=`; what cannot be seen of such a loop is [here](../explanation/exactness.md)",
    ),
    "an iterator of a DataLoader that was made before step 0 was drawn from there: "
    f"what it gives is another thing on every replica; {OWN_DATA}, or make the iterator "
    "there": zipped(lambda steps, loader: (pair[0] for pair in zip(steps, loader, strict=False))),
    "step 0 was iterated twice; its micro-batches come once": trained(tail=iterated_twice),
    "step.loss is known after the loop over the step, not inside it": trained(
        lambda at: at.step.loss
    ),
    "step.grad_norm is known in the tail of its step, not elsewhere": trained(
        lambda at: at.step.grad_norm
    ),
    "buffer 'kept' was made after the session; make it before, for instance by "
    "running one batch through the model": Listed(
        holding(None, rebind(lambda x: x.detach().mean())),
        "structure",
        "buffers made in the forward",
        "`model(batch)` once before the session",
    ),
    "buffer 'kept' changed its shape, its type or was removed during a step; run one "
    'batch through the model before the session is made, or say buffers={"kept": "local"} if '
    "it is not part of the model's state": holding(
        torch.zeros(1), rebind(lambda x: torch.zeros(2))
    ),
    "the micro-batches of one step changed buffer 'kept' in different ways; call train() or eval() "
    "alike on every replica, or say what to do with it: "
    'buffers={"kept": "sum"}, "max" or "local"': holding(
        torch.zeros((), dtype=torch.long), rebind(lambda x: (x * 1000).long().abs().sum())
    ),
    "buffer 'kept' has 20000 elements and changed during a step; say how: "
    'buffers={"kept": "mean"}, "sum", "max" or "local"': holding(
        torch.zeros(20_000), rebind(lambda x: torch.ones(20_000))
    ),
    "a log of session.open_log is written in the tail of a step, behind the loop over "
    "its micro-batches, of which each replica has its own": trained(logged_inside),
    "session.feed belongs in the tail of a step: after its inner loop": trained(
        lambda at: at.session.feed(loss=1.0)
    ),
    "session.evaluate belongs in the tail of a step, after its inner loop; for a last "
    "evaluation ask there for step.is_last": trained(
        lambda at: at.session.evaluate(models.Points(20), lambda batch: 1.0)
    ),
    "the DataLoader to evaluate on has drop_last=True, and session.evaluate takes "
    "each sample once; pass its dataset, or a Subset of it": trained(
        tail=lambda at: at.session.evaluate(DataLoader(POINTS, drop_last=True), loss_of)
    ),
    "the weight of an evaluated micro-batch must be at least 0, got -1.0": evaluated(
        lambda batch: (1.0, -1.0)
    ),
    "the function given to session.evaluate must return the micro-batch's mean as a "
    "number, or a dict of them by name, or such a thing and its weight: could not convert "
    "string to float: 'good'": evaluated(lambda batch: "good"),
}

OTHERS: dict[str, Script | Listed] = {
    "pliant.once('tokens') stands within itself; give each block its own name": once_within_itself,
    "a GPT with layers=4 and tied=True has no 2 stages: each needs a layer, and no "
    "two of them can share a weight": lambda: GPTStage(GPTConfig(), 0, 2),
}

SCRIPTS = MADE | LOOP | OTHERS
