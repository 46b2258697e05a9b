"""Lines of a plain loop that would do nothing, or something else on a joiner, are refused."""

from __future__ import annotations

import warnings
from collections.abc import Callable, Iterator
from itertools import cycle, islice
from typing import Any

import pytest
import torch
from tests.engine import models
from torch import nn
from torch.nn.utils import clip_grad_norm_, clip_grad_value_, clip_grads_with_norm_
from torch.optim import lr_scheduler
from torch.utils.data import DataLoader, WeightedRandomSampler

import pliant
from pliant.core.errors import UsageError
from pliant.engine.guard.script_calls import _cell

Call = Callable[[nn.Module, torch.optim.Optimizer], object]


def nothing(model: nn.Module, optimizer: torch.optim.Optimizer) -> None:
    """Do nothing."""


def train(
    *,
    head: Call = nothing,
    slot: Call = nothing,
    tail: Call = nothing,
    between: Call = nothing,
    **more: Callable[[Any], Any],
) -> nn.Module:
    model = nn.Linear(4, 3)
    optimizer = torch.optim.SGD(model.parameters(), lr=0.1)
    given = {"dataset": models.Points(20)} | {n: make(optimizer) for n, make in more.items()}
    with pliant.Session(
        model=model, optimizer=optimizer, global_batch_size=8, micro_batch_size=2, **given
    ) as session:
        for total in (2, 4):
            for step in session.steps(total):
                head(model, optimizer)
                for points, labels in step:
                    step.backward(nn.functional.cross_entropy(model(points), labels))
                    slot(model, optimizer)
                if "plateau" in more:
                    session.feed(loss=step.loss)
                tail(model, optimizer)
            between(model, optimizer)
    return model


def stepped(kind: Callable[[torch.optim.Optimizer], Any]) -> Call:
    """Return what makes a scheduler at first, and steps it whenever it is called."""
    made: list[Any] = []

    def call(model: nn.Module, optimizer: torch.optim.Optimizer) -> None:
        if not made:
            made.append(kind(optimizer))
        made[0].step(*[1.0] * isinstance(made[0], lr_scheduler.ReduceLROnPlateau))

    return call


class Halving(lr_scheduler.LRScheduler):
    """A scheduler of somebody's own."""

    def get_lr(self) -> list[Any]:
        return [group["lr"] / 2 for group in self.optimizer.param_groups]


KINDS: list[Callable[[Any], Any]] = [
    lambda optimizer: lr_scheduler.StepLR(optimizer, 1),
    lambda optimizer: lr_scheduler.OneCycleLR(optimizer, 0.1, 10),
    lambda optimizer: lr_scheduler.CosineAnnealingWarmRestarts(optimizer, 3),
    lambda optimizer: lr_scheduler.ReduceLROnPlateau(optimizer),
    lambda optimizer: lr_scheduler.SequentialLR(
        optimizer, [lr_scheduler.ConstantLR(optimizer), lr_scheduler.StepLR(optimizer, 1)], [2]
    ),
    Halving,
]


@pytest.mark.parametrize("kind", KINDS)
@pytest.mark.parametrize("place", ["head", "slot", "tail"])
def test_a_scheduler_that_the_session_was_not_given_is_refused(
    kind: Callable[[Any], Any], place: str
) -> None:
    here: dict[str, Any] = {place: stepped(kind)}

    with pytest.raises(UsageError, match=r"step\(\) was called in a loop over steps on a sched"):
        train(**here)


@pytest.mark.filterwarnings("ignore:Detected call of `lr_scheduler.step")
def test_between_two_calls_of_steps_a_scheduler_may_be_stepped() -> None:
    train(between=stepped(KINDS[0]))


def test_torchs_warning_of_a_scheduler_names_the_line_of_the_script() -> None:
    other = torch.optim.SGD(nn.Linear(1, 1).parameters(), lr=0.1)

    with pytest.warns(UserWarning, match="Detected call of `lr_scheduler.step") as warned:
        train(tail=stepped(lambda optimizer: lr_scheduler.StepLR(other, 1)))

    assert {each.filename for each in warned} == {__file__}


def test_a_warning_of_a_script_with_a_scheduler_is_shown_once_and_not_in_each_step() -> None:
    def tail(*_: object) -> None:
        warnings.warn("from one line", UserWarning, stacklevel=1)

    with warnings.catch_warnings(record=True) as warned:
        warnings.simplefilter("default")
        train(tail=tail, scheduler=lambda optimizer: lr_scheduler.StepLR(optimizer, 1))

    assert [str(each.message) for each in warned].count("from one line") == 1


def test_the_sessions_own_schedulers_are_stepped() -> None:
    train(scheduler=KINDS[4])
    train(plateau=lambda optimizer: {"loss": lr_scheduler.ReduceLROnPlateau(optimizer)})


@pytest.mark.filterwarnings("ignore:Detected call of `lr_scheduler.step")
def test_a_scheduler_of_another_optimizer_may_be_stepped() -> None:
    other = torch.optim.SGD(nn.Linear(1, 1).parameters(), lr=0.1)

    train(tail=stepped(lambda optimizer: lr_scheduler.StepLR(other, 1)))


@pytest.mark.parametrize("place", ["head", "slot", "tail"])
def test_clipping_where_there_is_no_gradient_is_refused(place: str) -> None:
    def clip(model: nn.Module, optimizer: torch.optim.Optimizer) -> None:
        clip_grad_norm_(model.parameters(), max_norm=0.5)

    here: dict[str, Any] = {place: clip}

    with pytest.raises(UsageError, match=r"clips nothing; say Session\(max_grad_norm=0.5\)"):
        train(**here)


@pytest.mark.parametrize("place", ["head", "slot", "tail"])
@pytest.mark.parametrize("is_listed", [True, False])
def test_clipping_values_where_there_is_no_gradient_is_refused(place: str, is_listed: bool) -> None:
    """Also of parameters that are a generator, which can be looked at but once."""

    def clip(model: nn.Module, optimizer: torch.optim.Optimizer) -> None:
        given = list(model.parameters()) if is_listed else model.parameters()
        clip_grad_value_(given, clip_value=0.25)

    here: dict[str, Any] = {place: clip}

    with pytest.raises(UsageError, match=r"clip_grad_value_ was called .*step_pre_hook.*, 0.25\)"):
        train(**here)


def test_clipping_by_a_norm_that_the_script_has_is_refused() -> None:
    def clip(model: nn.Module, optimizer: torch.optim.Optimizer) -> None:
        clip_grads_with_norm_(model.parameters(), 0.5, torch.ones(()))

    with pytest.raises(UsageError, match="clip_grad_norm_ was called"):
        train(tail=clip)


@pytest.mark.parametrize("is_named", [True, False])
def test_clipping_values_of_another_model_works(is_named: bool) -> None:
    other = nn.Linear(2, 2)

    def clip(model: nn.Module, optimizer: torch.optim.Optimizer) -> None:
        for parameter in other.parameters():
            parameter.grad = torch.full_like(parameter, 3.0)
        if is_named:
            clip_grad_value_(clip_value=0.5, parameters=other.parameters())
        else:
            clip_grad_value_(other.parameters(), 0.5)

    train(slot=clip)

    assert other.weight.grad is not None
    assert float(other.weight.grad.max()) == 0.5


class Holder:
    """An object of the script's with a scheduler in it."""

    def __init__(self, optimizer: torch.optim.Optimizer, *, says: bool) -> None:
        self.parts = {"schedule": lr_scheduler.StepLR(optimizer, 2)}
        self.says = says

    def state_dict(self) -> dict[str, Any]:
        return {"schedule": self.parts["schedule"].state_dict()} if self.says else {"none": 0}

    def load_state_dict(self, state: dict[str, Any]) -> None:
        if self.says:
            self.parts["schedule"].load_state_dict(state["schedule"])


@pytest.mark.filterwarnings("ignore:Detected call of `lr_scheduler.step")
@pytest.mark.parametrize("says", [True, False])
def test_a_scheduler_inside_the_scripts_own_state_may_be_stepped_if_it_travels(says: bool) -> None:
    made: list[Holder] = []

    def make(optimizer: torch.optim.Optimizer) -> Holder:
        made.append(Holder(optimizer, says=says))
        return made[0]

    def step(model: nn.Module, optimizer: torch.optim.Optimizer) -> None:
        made[0].parts["schedule"].step()

    if says:
        train(tail=step, extra_state=make)
    else:
        with pytest.raises(UsageError, match="a scheduler that the session was not given"):
            train(tail=step, extra_state=make)


def test_clipping_in_a_hook_of_the_optimizer_and_of_other_models_works() -> None:
    norms = []

    def clip_other(model: nn.Module, optimizer: torch.optim.Optimizer) -> None:
        clip_grad_norm_(nn.Linear(1, 1).parameters(), 0.5)

    def hooked(optimizer: torch.optim.Optimizer) -> None:
        parameters = optimizer.param_groups[0]["params"]
        optimizer.register_step_pre_hook(
            lambda *_: norms.append(float(clip_grad_norm_(parameters, 0.5)))
        )

    train(slot=clip_other, tail=clip_other, scheduler=hooked)

    assert len(norms) == 4
    assert min(norms) > 0


def test_after_the_session_everything_is_as_it_was() -> None:
    step, clips = lr_scheduler.LRScheduler.step, (clip_grads_with_norm_, clip_grad_value_)
    bodies = [_cell(clip).cell_contents for clip in clips]
    plateau = lr_scheduler.ReduceLROnPlateau.step

    train()

    assert lr_scheduler.LRScheduler.step is step
    assert lr_scheduler.ReduceLROnPlateau.step is plateau
    assert [_cell(clip).cell_contents for clip in clips] == bodies


def test_a_scheduler_among_the_scripts_own_state_is_the_scripts_to_step() -> None:
    made: list[Any] = []

    def make(optimizer: torch.optim.Optimizer) -> Any:
        made.append(lr_scheduler.StepLR(optimizer, 2))
        return {"schedule": made[0]}

    train(tail=lambda model, optimizer: made[0].step(), extra_state=make)

    assert made[0].last_epoch == 4


@pytest.mark.parametrize("place", ["tail", "between"])
def test_an_optimizer_that_is_made_for_the_next_phase_is_refused(place: str) -> None:
    """The session went on with the one that it was given, and nobody was told."""
    kept: list[torch.optim.Optimizer] = []
    here: dict[str, Any] = {
        place: lambda model, optimizer: kept.append(torch.optim.AdamW(model.parameters()))
    }

    with pytest.raises(UsageError, match="has made AdamW over the session's parameters since"):
        train(**here)


def test_an_optimizer_that_is_thrown_away_or_used_or_of_another_model_may_be_made() -> None:
    kept: list[torch.optim.Optimizer] = []

    def tail(model: nn.Module, optimizer: torch.optim.Optimizer) -> None:
        lr_scheduler.StepLR(torch.optim.AdamW(model.parameters()), 1)
        kept.append(torch.optim.SGD(nn.Linear(1, 1).parameters(), lr=0.1))
        kept.append(torch.optim.SGD(model.parameters(), lr=0.1))
        kept[-1].step()

    train(tail=tail)
    torch.optim.AdamW(nn.Linear(1, 1).parameters())


# Data from a loader of the script's own


MADE_ELSEWHERE = "made before this micro-batch"

Loop = Callable[[pliant.Session, nn.Module], None]


def train_loaders(loop: Loop) -> None:
    model = nn.Linear(4, 3)
    with pliant.Session(
        model=model,
        optimizer=torch.optim.SGD(model.parameters(), lr=0.1),
        dataset=models.Points(20),
        global_batch_size=8,
        micro_batch_size=2,
    ) as session:
        loop(session, model)


def loss_of(model: nn.Module, batch: Any) -> torch.Tensor:
    points, labels = batch
    return nn.functional.cross_entropy(model(points), labels)


def endless(loader: DataLoader[Any]) -> Iterator[Any]:
    while True:
        yield from loader


def weighted() -> DataLoader[Any]:
    sampler = WeightedRandomSampler([1.0] * 19 + [9.0], 20)
    return DataLoader(models.Points(20), batch_size=2, sampler=sampler)


@pytest.mark.parametrize("source", [iter, cycle, endless])
@pytest.mark.parametrize("num_workers", [0, 1])
def test_a_loop_over_a_loader_of_its_own_is_refused(
    source: Callable[[Any], Iterator[Any]], num_workers: int
) -> None:
    own = source(DataLoader(models.Points(20), batch_size=2, num_workers=num_workers))

    with pytest.raises(UsageError, match=MADE_ELSEWHERE):
        train(slot=lambda *_: next(own))


@pytest.mark.parametrize("is_first", [True, False])
def test_a_loader_zipped_with_the_step_is_refused(is_first: bool) -> None:
    def loop(session: pliant.Session, model: nn.Module) -> None:
        for step in session.steps(3):
            both = (weighted(), step) if is_first else (step, weighted())
            for batches in zip(*both, strict=False):
                step.backward(loss_of(model, batches[not is_first]))

    with pytest.raises(UsageError, match=MADE_ELSEWHERE):
        train_loaders(loop)


def test_a_loader_that_is_read_anew_for_each_micro_batch_is_left_alone() -> None:
    """Support sets and the like: every replica sees the same at the same micro-batch."""
    others = DataLoader(models.Points(8), batch_size=2, shuffle=True)

    train(slot=lambda *_: list(others))


def test_loaders_are_free_in_the_tail_and_around_the_session() -> None:
    held_out = iter(DataLoader(models.Points(20)))

    for _ in range(2):
        train(tail=lambda *_: (next(held_out), list(weighted())))
    next(held_out)


def test_a_dataset_may_read_from_a_loader() -> None:
    class Streamed(models.Points):
        def __init__(self) -> None:
            super().__init__(20)
            self.source = cycle(DataLoader(models.Points(20)))

        def __getitem__(self, index: int) -> Any:
            next(self.source)
            return super().__getitem__(index)

    train(dataset=lambda _: Streamed())


# --- the ways not to draw what a step has ----------------------------------------------


def test_a_part_of_the_micro_batches_is_no_step() -> None:
    def loop(session: pliant.Session, model: nn.Module) -> None:
        for step in session.steps(3):
            for batch in islice(step, 4):  # all four, but not to the end
                step.backward(loss_of(model, batch))

    with pytest.raises(UsageError, match="the loop over step 0 was left before its end"):
        train_loaders(loop)


def test_an_iterator_of_a_former_step_gives_nothing() -> None:
    def loop(session: pliant.Session, model: nn.Module) -> None:
        former = None
        for step in session.steps(3):
            if former is not None:
                assert list(former) == []
            former = iter(step)
            for batch in former:
                step.backward(loss_of(model, batch))

    train_loaders(loop)
