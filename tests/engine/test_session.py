"""What a script can do with a session, and what it is told when it does something else."""

from __future__ import annotations

import json
import math
import multiprocessing
import os
import pickle
import random
import threading
from collections.abc import Callable, Iterator
from pathlib import Path
from types import SimpleNamespace
from typing import Any
from unittest.mock import Mock

import numpy as np
import pytest
import torch
from tests.engine import models
from torch import nn
from torch.utils.data import Sampler

import pliant
from pliant.core.errors import ConfigError, UsageError
from pliant.engine import assembly, randomness
from pliant.engine.data.ledger import Ledger
from pliant.engine.data.slots import Extras
from pliant.engine.member.alone import Alone
from pliant.engine.plain_state import State
from pliant.engine.reduce.buckets import Layout
from pliant.engine.sharding.stages import Stages
from pliant.engine.update import Update


def small(**changes: Any) -> dict[str, Any]:
    """Arguments of a session that works."""
    model = changes.pop("model", None) or nn.Sequential(nn.Linear(4, 8), nn.Linear(8, 3))
    arguments: dict[str, Any] = {
        "model": model,
        "optimizer": torch.optim.SGD([p for p in model.parameters()], lr=0.1),
        "dataset": models.Points(20),
        "global_batch_size": 8,
        "micro_batch_size": 2,
    }
    return arguments | changes


def loss_of(model: nn.Module, batch: Any) -> torch.Tensor:
    points, labels = batch
    return nn.functional.cross_entropy(model(points), labels)


def run(steps: int = 3, **changes: Any) -> tuple[str, list[float]]:
    arguments = small(**changes)
    losses = []
    with pliant.Session(**arguments) as session:
        for step in session.steps(steps):
            for batch in step:
                step.backward(loss_of(arguments["model"], batch))
            losses.append(step.loss)
        return session.state_digest(), losses


def digest_of(name: str, steps: int = 6, **arguments: Any) -> str:
    return models.train(models.build(name), steps, **arguments)


def test_a_loss_that_the_script_changes_behind_its_backward_counts_as_it_was() -> None:
    def losses(factor: float) -> list[float]:
        torch.manual_seed(0)
        arguments, found = small(), []
        with pliant.Session(**arguments) as session:
            for step in session.steps(3):
                for batch in step:
                    loss = loss_of(arguments["model"], batch)
                    step.backward(loss)
                    with torch.no_grad():
                        loss *= factor
                found.append(step.loss)
        return found

    assert losses(4.0) == losses(1.0)


def test_epochs_are_counted_in_steps_of_which_the_last_may_be_short() -> None:
    arguments = small()  # 20 samples, 8 a step
    seen = []
    with pliant.Session(**arguments) as session:
        assert session.steps_per_epoch == 3
        for total in (1, 2):
            for step in session.steps(epochs=total):
                sizes = []
                for batch in step:
                    sizes.append(len(batch[1]))
                    step.backward(loss_of(arguments["model"], batch))
                seen.append((step.epoch, sum(sizes), step.is_last_of_epoch, step.is_last))

    assert seen == [
        (0, 8, False, False),
        (0, 8, False, False),
        (0, 4, True, True),
        (1, 8, False, False),
        (1, 8, False, False),
        (1, 4, True, True),
    ]


def test_loader_processes_change_nothing() -> None:
    assert digest_of("cnn", 9) == digest_of("cnn", 9, num_workers=2)


def test_the_digest_sees_every_part_of_the_state() -> None:
    case = models.build("frozen")
    with case.session() as session:
        for step in session.steps(2):
            for batch in step:
                step.backward(case.compute(batch)[0])
        seen = {session.state_digest()}
        case.extra_state["tally"].counts[5] += 1
        seen.add(session.state_digest())
        with torch.no_grad():
            next(case.model.parameters())[0, 0] *= -1.0
        seen.add(session.state_digest())
        case.optimizer.param_groups[0]["lr"] = 0.5
        seen.add(session.state_digest())
    assert len(seen) == 4


def test_the_memory_format_is_no_part_of_the_digest() -> None:
    case = models.build("cnn", randomness=False)
    with case.session() as session:
        before = session.state_digest()
        case.model.to(memory_format=torch.contiguous_format)  # type: ignore[call-overload, unused-ignore]
        assert session.state_digest() == before


def test_the_tail_sees_the_committed_step_and_no_gradient() -> None:
    arguments = small(max_grad_norm=0.01)
    model = arguments["model"]
    with pliant.Session(**arguments) as session:
        for step in session.steps(2):
            before = model[0].weight.clone()
            for batch in step:
                with pytest.raises(UsageError, match="known after the loop"):
                    _ = step.loss
                step.backward(loss_of(model, batch))
            assert not torch.equal(before, model[0].weight)
            assert all(p.grad is None for p in model.parameters())
            assert math.isfinite(step.loss)
            assert step.grad_norm > 0.01
            assert session.leader
            assert session.committed == step.index + 1
    assert not session.leaving


def test_nobody_leads_before_the_first_step() -> None:
    """Asked for there it was true alone, and false on every replica: nobody wrote."""
    arguments = small()
    with pliant.Session(**arguments) as session:
        with pytest.raises(UsageError, match=r"session\.leader was asked for before"):
            _ = session.leader
        for step in session.steps(1):
            for batch in step:
                step.backward(loss_of(arguments["model"], batch))
        assert session.leader


def test_the_gradient_norm_is_that_of_the_global_gradient() -> None:
    assert step_norms(None) == pytest.approx(step_norms(1e9), rel=1e-6)


def step_norms(max_grad_norm: float | None) -> list[float]:
    pliant.seed(2)
    arguments = small(max_grad_norm=max_grad_norm)
    norms = []
    with pliant.Session(**arguments) as session:
        for step in session.steps(3):
            for batch in step:
                step.backward(loss_of(arguments["model"], batch))
            norms.append(step.grad_norm)
    return norms


def test_steps_counts_the_whole_job() -> None:
    seen = []
    arguments = small()
    with pliant.Session(**arguments) as session:
        for total, left in ((2, 2), (5, 3)):
            steps = session.steps(total)
            assert len(steps) == left  # what a progress bar counts to
            for step in steps:
                for batch in step:
                    step.backward(loss_of(arguments["model"], batch))
                seen.append((total, step.index, step.epoch))
        assert session.steps_per_epoch == 3
    assert seen == [(2, 0, 0), (2, 1, 0), (5, 2, 0), (5, 3, 1), (5, 4, 1)]


@pytest.mark.parametrize("words", [{"total": 3}, {"total": 2}, {"epochs": 1}])
def test_a_call_that_goes_no_further_than_one_before_it_is_refused(words: dict[str, int]) -> None:
    """As in a loop over epochs with ``steps(steps_per_epoch)``, which trained the first only."""
    arguments = small()
    with pliant.Session(**arguments) as session:
        assert session.steps_per_epoch == 3
        for step in session.steps(3):
            for batch in step:
                step.backward(loss_of(arguments["model"], batch))
        with pytest.raises(UsageError, match="trains nothing: the number is the job's total"):
            session.steps(**words)
        with pytest.raises(UsageError, match="total number of steps, 1 at least, got 0"):
            session.steps(0)


def test_stop_ends_the_job_after_the_step() -> None:
    arguments = small()
    with pliant.Session(**arguments) as session:
        for step in session.steps(100):
            for batch in step:
                step.backward(loss_of(arguments["model"], batch))
                if step.index == 2:
                    step.stop()
        assert session.committed == 3
        assert list(session.steps(200)) == []


def test_break_ends_the_job_too() -> None:
    arguments = small()
    with pliant.Session(**arguments) as session:
        for step in session.steps(100):
            for batch in step:
                step.backward(loss_of(arguments["model"], batch))
            break
        assert list(session.steps(200)) == []
        assert session.committed == 1


def test_a_step_that_was_not_entered_is_refused_where_the_session_ends() -> None:
    def train() -> None:
        with pliant.Session(**small()) as session:
            next(session.steps(1))

    with pytest.raises(UsageError, match="step 0 was passed over"):
        train()


def fail_inside_a_step() -> None:
    with pliant.Session(**small()) as session:
        for step in session.steps(3):
            for _ in step:
                _ = 1 / 0


def test_an_error_of_the_script_comes_out_as_it_is() -> None:
    with pytest.raises(ZeroDivisionError):
        fail_inside_a_step()
    assert run()[1]


def test_weight_zero_or_no_backward_leaves_a_slot_out() -> None:
    digests = []
    for is_called in (True, False):
        pliant.seed(3)
        arguments = small()
        model = arguments["model"]
        with pliant.Session(**arguments) as session:
            for step in session.steps(3):
                for number, batch in enumerate(step):
                    if number != 1:
                        step.backward(loss_of(model, batch))
                    elif is_called:
                        step.backward(loss_of(model, batch) * math.nan, weight=0)
            digests.append((session.state_digest(), step.loss))
    assert digests[0] == digests[1]
    assert math.isfinite(digests[0][1])


def test_a_step_without_any_backward_commits_and_moves_nothing() -> None:
    arguments = small()
    before = [p.clone() for p in arguments["model"].parameters()]
    with pliant.Session(**arguments) as session:
        for step in session.steps(1):
            for _ in step:
                pass
            assert math.isnan(step.loss)
        assert session.committed == 1
    assert all(map(torch.equal, before, arguments["model"].parameters()))


def test_what_micro_batches_log_is_added_up_as_their_losses_are() -> None:
    arguments = small()
    model, found = arguments["model"], []
    with pliant.Session(**arguments) as session:
        for step in session.steps(3):  # the last has two micro-batches of four
            for points, labels in step:
                loss = loss_of(model, (points, labels))
                step.log(loss=loss, slot=step.slot)
                step.log(weight=float(labels[0]), label=labels[0])
                if step.slot:
                    step.backward(loss)
                else:
                    step.log(missed=1)
            found.append((step.logged, step.logged_weights))
        losses = [step.loss]
    logged, weights = found[-1]
    assert sorted(logged) == ["label", "loss", "missed", "slot"]
    assert (logged["slot"], weights["slot"], weights["missed"]) == (0.5, 4.0, 2.0)
    assert logged["loss"] != losses[0]  # that of micro-batch 0 had no backward
    assert found[0][1]["slot"] == 8.0


def test_a_logged_loss_has_the_bits_of_the_loss() -> None:
    arguments = small()
    with pliant.Session(**arguments) as session:
        for step in session.steps(3):
            for batch in step:
                loss = loss_of(arguments["model"], batch)
                step.backward(loss)
                step.log(loss=loss)
            assert step.logged == {"loss": step.loss}


def norms_set(*norms: float | None, given: float | None = None) -> str:
    """Return the digest after micro-batch 0, 1, ... of each step has set these."""
    arguments = small(max_grad_norm=given)
    model = arguments["model"]
    with torch.no_grad():
        for parameter in model.parameters():
            parameter.fill_(0.3)
    with pliant.Session(**arguments) as session:
        for step in session.steps(2):
            for batch in step:
                if step.slot < len(norms):
                    session.max_grad_norm = norms[step.slot]
                step.backward(loss_of(model, batch))
        return session.state_digest()


def test_the_clip_may_be_set_inside_the_loop_by_micro_batches_that_agree() -> None:
    assert norms_set(0.01) == norms_set(0.01, 0.01) == norms_set(given=0.01)
    assert norms_set(None, None, given=0.01) == norms_set() != norms_set(0.01)
    with pytest.raises(UsageError, match=r"different values \(None, 0.01\)"):
        norms_set(0.01, None)
    with pytest.raises(ConfigError, match="positive"):
        norms_set(-1.0)


def test_supervision_hears_of_what_takes_long_only(monkeypatch: pytest.MonkeyPatch) -> None:
    told, has_told = list[float](), threading.Event()

    def tell(_: Alone, max_s: float) -> None:
        told.append(max_s)
        has_told.set()

    monkeypatch.setattr(Alone, "tell_busy", tell)
    with pliant.Session(**small()) as session:
        with session.busy(max_s=60.0):
            pass
        assert told == []
        monkeypatch.setattr("pliant.engine.session.BUSY_AFTER_S", 0.0)
        with session.busy(max_s=60.0):
            assert has_told.wait(20.0)
        assert told == [60.0, 0.0]


def test_a_function_makes_the_scheduler_and_epochs_step_it() -> None:
    given: list[Any] = []

    def make(optimizer: Any, steps_per_epoch: int) -> Any:
        given.append(steps_per_epoch)
        return torch.optim.lr_scheduler.StepLR(optimizer, step_size=1, gamma=0.5)

    arguments = small(scheduler=make, scheduler_every="epoch")
    rates = []
    with pliant.Session(**arguments) as session:
        for step in session.steps(epochs=2):
            for batch in step:
                step.backward(loss_of(arguments["model"], batch))
            rates.append(arguments["optimizer"].param_groups[0]["lr"])
    assert given == [3]
    assert rates == [0.1, 0.1, 0.05, 0.05, 0.05, 0.025]
    with pytest.raises(ConfigError, match="'step' or 'epoch'"):
        pliant.Session(**small(scheduler_every="batch"))
    plateau = torch.optim.lr_scheduler.ReduceLROnPlateau
    with pytest.raises(ConfigError, match="the loss of one step"):
        pliant.Session(**small(scheduler=lambda o, _: plateau(o), scheduler_every="epoch"))


def test_plain_values_are_a_state() -> None:
    given = {"best": 1.0}
    states = [pliant.State(best=1.0), State.over(given)]
    for state in states:
        state.best = 2.0
        sent = state.state_dict()
        state.left = 3
        assert sent == {"best": 2.0}
        state.load_state_dict(sent)
        assert repr(state) == "State(best=2.0)"
        with pytest.raises(AttributeError, match="has no 'left'"):
            state.left  # noqa: B018
    assert given == {"best": 2.0}
    with pytest.raises(ConfigError, match=r"pliant\.State"):
        pliant.Session(**small(extra_state={"best": 1.0}))


def log_once(value: Any = 1.0, times: int = 1, weight: float | None = None) -> None:
    with pliant.Session(**small()) as session:
        for step in session.steps(1):
            for _ in step:
                for _ in range(times):
                    step.log(value=value, weight=weight)


@pytest.mark.parametrize(
    ("given", "says"),
    [
        ({"times": 2}, "twice for one micro-batch"),
        ({"value": torch.ones(2)}, r"has the shape \(2,\)"),
        ({"weight": -1.0}, "at least 0"),
    ],
)
def test_what_cannot_be_logged_of_a_micro_batch_is_refused(
    given: dict[str, Any], says: str
) -> None:
    with pytest.raises(UsageError, match=says):
        log_once(**given)


def test_what_is_of_micro_batches_is_refused_in_the_tail_and_the_other_way_round() -> None:
    with pliant.Session(**small()) as session:
        for step in session.steps(1):
            with pytest.raises(UsageError, match=r"step\.logged is known after the loop"):
                step.logged  # noqa: B018
            for _ in step:
                pass
            with pytest.raises(UsageError, match=r"step\.log belongs inside the loop"):
                step.log(value=1.0)
            with pytest.raises(UsageError, match=r"step\.slot is known inside the loop"):
                step.slot  # noqa: B018


def test_a_parameter_that_no_slot_touched_has_no_gradient() -> None:
    case = models.build("moe")
    models.train(case, 4)
    used = case.optimizer.state
    names = {n for n, p in case.model.named_parameters() if p in used}

    assert "enter.weight" in names
    assert "unused.weight" not in names


@pytest.mark.parametrize("is_overflowing", [True, False])
def test_an_overflow_skips_the_update_and_the_scheduler_but_commits(is_overflowing: bool) -> None:
    pliant.seed(4)
    arguments = small()
    optimizer = arguments["optimizer"]
    scheduler = torch.optim.lr_scheduler.StepLR(optimizer, step_size=1, gamma=0.5)
    scaler = torch.amp.GradScaler("cpu", init_scale=4.0)
    before = [p.clone() for p in arguments["model"].parameters()]
    with pliant.Session(**arguments, scheduler=scheduler, scaler=scaler) as session:
        for step in session.steps(1):
            for number, batch in enumerate(step):
                loss = loss_of(arguments["model"], batch)
                step.backward(loss * math.inf if is_overflowing and number == 2 else loss)
        assert session.committed == 1
    moved = not all(map(torch.equal, before, arguments["model"].parameters()))
    assert moved is not is_overflowing
    assert scaler.get_scale() == (2.0 if is_overflowing else 4.0)
    assert optimizer.param_groups[0]["lr"] == (0.1 if is_overflowing else 0.05)


class Counting(nn.Linear):
    """Counts samples, which are not as many in each micro-batch."""

    def __init__(self) -> None:
        super().__init__(4, 3)
        self.count: torch.Tensor
        self.register_buffer("count", torch.zeros((), dtype=torch.int64))

    def forward(self, points: torch.Tensor) -> torch.Tensor:
        self.count += int(points[0, 0] > 0)
        return super().forward(points)


def test_what_is_wrong_with_a_step_ends_the_run_before_it_is_committed() -> None:
    model = Counting()
    sessions: list[pliant.Session] = []

    def train() -> None:
        with pliant.Session(**small(model=model)) as session:
            sessions.append(session)
            for step in session.steps(1):
                for batch in step:
                    step.backward(loss_of(model, batch))

    with pytest.raises(UsageError, match="changed buffer 'count' in different ways"):
        train()
    assert sessions[0]._training.committed == 0


def test_a_fused_optimizer_that_skips_leaves_the_scheduler_alone() -> None:
    arguments = small()
    optimizer = torch.optim.Adam(arguments["model"].parameters(), fused=True)
    scheduler = torch.optim.lr_scheduler.StepLR(optimizer, step_size=1, gamma=0.5)
    scaler = torch.amp.GradScaler("cpu", init_scale=4.0)
    arguments |= {"optimizer": optimizer, "scheduler": scheduler, "scaler": scaler}
    with pliant.Session(**arguments) as session:
        for step in session.steps(1):
            for batch in step:
                step.backward(loss_of(arguments["model"], batch) * math.inf)
    assert scheduler.last_epoch == 0
    assert scaler.get_scale() == 2.0


def update_of(model: nn.Module, **more: Any) -> Update:
    """Return the update of a model of two parameters, by SGD with a rate of 1."""
    given: dict[str, Any] = {"scaler": None, "max_grad_norm": None, **more}
    return Update(
        parameters=dict(model.named_parameters()),
        layout=Layout.of(model.named_parameters(), extras=7),
        optimizers=[torch.optim.SGD(model.parameters(), lr=1.0)],
        optimizer_states=[],
        schedulers=[],
        plateau={},
        micro_batch_size=1,
        stages=Stages(),
        **given,
    )


def reduced(update: Update, value: float) -> tuple[list[torch.Tensor], Extras]:
    """Return a step's result whose gradient is ``value`` everywhere."""
    values = torch.tensor([0.0, 0.0, 1.0, 1.0, 0.0, 1.0, 1.0], dtype=torch.float64)
    buckets = [torch.full((bucket.numel,), value) for bucket in update.layout.buckets[:-1]]
    return buckets, Extras(values=values, num_parameters=2)


def test_a_scaler_works_on_a_replica_that_has_not_scaled_anything_yet() -> None:
    model = nn.Linear(2, 1)
    update = update_of(model, scaler=torch.amp.GradScaler("cpu", init_scale=4.0))
    before = model.weight.detach().clone()

    update.apply(update.prepare(*reduced(update, 8.0), step=0))

    assert torch.equal(model.weight, before - 2.0)


def test_a_step_with_a_scaler_that_was_given_up_is_done_again() -> None:
    model = nn.Linear(2, 1)
    scaler = torch.amp.GradScaler("cpu", init_scale=4.0)
    update = update_of(model, scaler=scaler, max_grad_norm=100.0)
    before = model.weight.detach().clone()

    update.prepare(*reduced(update, math.inf), step=0)
    gradient = update.prepare(*reduced(update, 8.0), step=0)
    update.apply(gradient)

    assert gradient.norm_here == pytest.approx(math.sqrt(12.0))
    assert torch.equal(model.weight, before - 2.0)
    assert scaler.get_scale() == 4.0


def test_a_gradient_is_finite_though_its_norm_is_not() -> None:
    update = update_of(nn.Linear(2, 1), max_grad_norm=1.0)

    gradient = update.prepare(*reduced(update, 1e25), step=0)

    assert gradient.norm is not None
    assert gradient.norm.isinf()
    assert not gradient.nonfinite


def test_a_nan_is_told_and_the_same_one_whoever_added_it_up() -> None:
    results = []
    for bits in (0x7FC00001, 0xFFC00000 - (1 << 32)):
        update = update_of(nn.Linear(2, 1), max_grad_norm=1.0)
        buckets, extras = reduced(update, 1.0)
        buckets[0].view(torch.int32)[1] = bits
        gradient = update.prepare(buckets, extras, step=0)
        assert gradient.nonfinite == "the gradient is not finite"
        update.apply(gradient)
        results.append([tensor.view(torch.int32).tolist() for _, tensor in gradient.parts])
    assert results[0] == results[1]


@pytest.mark.parametrize("slot", [1, 3])
@pytest.mark.parametrize("is_frozen_first", [True, False])
def test_a_parameter_cannot_be_frozen_or_unfrozen_inside_a_step(
    slot: int, is_frozen_first: bool
) -> None:
    arguments = small()
    weight = arguments["model"][0].weight

    def train() -> None:
        with pliant.Session(**arguments) as session:
            for step in session.steps(2):
                weight.requires_grad_(not (is_frozen_first and step.index == 1))
                for number, batch in enumerate(step):
                    if step.index == 1 and number == slot:
                        weight.requires_grad_(not weight.requires_grad)
                    step.backward(loss_of(arguments["model"], batch))

    with pytest.raises(UsageError, match=r"requires_grad of '0\.weight' changed inside the loop"):
        train()


def test_weights_cannot_be_written_to_inside_a_step() -> None:
    arguments = small()
    weight = arguments["model"][0].weight

    def train() -> None:
        with pliant.Session(**arguments) as session:
            for step in session.steps(4):
                with torch.no_grad():
                    weight.clamp_(-1.0, 1.0)  # before the loop over the step: fine
                for batch in step:
                    if step.index == 3:  # whose versions rise is known
                        with torch.no_grad():
                            weight.clamp_(-1.0, 1.0)
                    step.backward(loss_of(arguments["model"], batch))

    with pytest.raises(UsageError, match=r"the values of '0\.weight' changed inside the loop"):
        train()


def test_random_numbers_between_two_calls_do_not_depend_on_the_last_tail() -> None:
    def drawn(in_tail: int) -> torch.Tensor:
        arguments = small()
        with pliant.Session(**arguments, seed=3) as session:
            for step in session.steps(1):
                for batch in step:
                    step.backward(loss_of(arguments["model"], batch))
                torch.rand(in_tail)
            return torch.rand(1)

    assert torch.equal(drawn(0), drawn(5))


class OpensAtFirstItem(models.Points):
    """Opens its file as the documentation of torch advises: each loader process its own."""

    opened_by: int | None = None

    def __getitem__(self, index: int) -> Any:
        self.opened_by = self.opened_by or os.getpid()
        assert self.opened_by == os.getpid()
        return super().__getitem__(index)


@pytest.mark.parametrize("num_workers", [0, 2])
def test_what_a_dataset_opens_belongs_to_one_process(num_workers: int) -> None:
    run(3, dataset=OpensAtFirstItem(40), num_workers=num_workers)


@pytest.mark.parametrize("content", [b"", b"hello", pickle.dumps(Path)])
def test_a_file_that_holds_no_weights_is_refused(
    tmp_path: Path, content: bytes, monkeypatch: pytest.MonkeyPatch
) -> None:
    path = tmp_path / "weights.pt"
    path.write_bytes(content)
    assignment = SimpleNamespace(
        work=SimpleNamespace(init=path, balance="even"), workers_per_replica=1
    )
    context = SimpleNamespace(assignment=assignment, session=None, meet_session=lambda: None)
    monkeypatch.setattr("pliant.engine.session.worker_context", lambda: context)

    with pytest.raises(ConfigError, match=r"weights"):
        pliant.Session(**small())


def test_several_optimizers_step_at_one_commit() -> None:
    model = nn.Sequential(nn.Linear(4, 8), nn.Linear(8, 3))
    optimizers = [
        torch.optim.SGD(model[0].parameters(), 0.1),
        torch.optim.Adam(model[1].parameters()),
    ]
    schedulers = [torch.optim.lr_scheduler.ReduceLROnPlateau(o, patience=0) for o in optimizers]
    before = [p.clone() for p in model.parameters()]

    run(model=model, optimizer=optimizers, scheduler=schedulers)

    assert not any(map(torch.equal, before, model.parameters()))


def test_fast_reduction_trains_alike() -> None:
    pliant.seed(5)
    exact = run()[1]
    pliant.seed(5)
    assert run(reduction="fast")[1] == pytest.approx(exact, rel=1e-5)


def test_random_numbers_depend_on_the_place_they_are_drawn_at() -> None:
    def drawn(noise: Callable[[], object]) -> list[Any]:
        arguments = small()
        seen: list[Any] = []
        pliant.seed(6)

        def draw() -> tuple[float, float, float]:
            return float(torch.rand(())), float(np.random.rand()), random.random()

        with pliant.Session(**arguments) as session:
            for step in session.steps(2):
                seen.append(draw())
                noise()
                for batch in step:
                    seen.append(draw())
                    step.backward(loss_of(arguments["model"], batch))
                    noise()
                seen.append(draw())
                noise()
        return seen

    quiet = drawn(lambda: None)

    assert drawn(lambda: (torch.rand(7), np.random.rand(3), random.random())) == quiet
    assert len(set(quiet)) == len(quiet)


def test_seed_is_the_seed_of_all_three_generators() -> None:
    pliant.seed(9)
    drawn = torch.rand(2), np.random.rand(), random.random()
    torch.manual_seed(9)
    np.random.seed(9)
    random.seed(9)

    assert torch.equal(drawn[0], torch.rand(2))
    assert drawn[1:] == (np.random.rand(), random.random())
    assert randomness.chosen_seed() == 9
    with pytest.raises(ConfigError, match="seed must be an integer"):
        pliant.seed(-1)


def test_saved_weights_load_without_pickle(tmp_path: Path) -> None:
    arguments = small()
    path = tmp_path / "deep" / "weights.pt"
    with pliant.Session(**arguments) as session:
        session.save(path)
    assert [p.name for p in path.parent.iterdir()] == ["weights.pt"]
    weights = torch.load(path, weights_only=True)
    assert torch.equal(weights["0.weight"], arguments["model"][0].weight)


def test_equal_weights_are_equal_files_whatever_they_are_called(tmp_path: Path) -> None:
    with pliant.Session(**small()) as session:
        session.save(tmp_path / "one.pt")
        session.save(tmp_path / "another.pt")

    assert (tmp_path / "one.pt").read_bytes() == (tmp_path / "another.pt").read_bytes()


def test_a_step_uses_weights_as_they_are_under_an_autocast_around_all_steps() -> None:
    """Autocast keeps casted weights: one who joined after the tail would have others."""

    def run(*, looks: bool) -> str:
        torch.manual_seed(0)
        model = nn.Linear(4, 3)
        optimizer = torch.optim.SGD(model.parameters(), lr=0.1)
        session = pliant.Session(**small(model=model, optimizer=optimizer))
        with session, torch.autocast("cpu", dtype=torch.bfloat16):
            for step in session.steps(4):
                for batch in step:
                    step.backward(loss_of(model, batch))
                with torch.no_grad():
                    if looks:
                        model(torch.ones(2, 4))
                    model.weight.mul_(0.5)
            return session.state_digest()

    assert run(looks=True) == run(looks=False)


def test_a_loop_that_learns_nothing_is_told_once_and_at_the_end(
    capsys: pytest.CaptureFixture[str],
) -> None:
    with pliant.Session(**small()) as session:
        for step in session.steps(3):
            for _ in step:
                pass
    told = [line for line in capsys.readouterr().err.splitlines() if "step.backward" in line]
    said = (
        "step 0 learned nothing: no micro-batch of it had a step.backward(...) of a weight above 0"
    )
    assert told == [f"pliant: {said}", f"pliant: warning: {said}"]


def test_log_writes_one_line_when_alone(capsys: pytest.CaptureFixture[str]) -> None:
    arguments = small()
    with pliant.Session(**arguments) as session:
        for step in session.steps(1):
            for batch in step:
                step.backward(loss_of(arguments["model"], batch))
            session.log(loss=0.25, lr=torch.tensor(1e-3))
    assert capsys.readouterr().out == "step 0  loss 0.25  lr 0.001\n"


def test_the_memory_of_gradient_sums_is_told_where_it_matters(
    capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    with pliant.Session(**small()):
        pass
    assert "gradient cop" not in capsys.readouterr().err
    monkeypatch.setattr(assembly, "NOTEWORTHY", 0.0)
    with pliant.Session(**small()):
        pass
    assert "gradient copies of 0.0 MB while" in capsys.readouterr().err


def test_threads_are_set_and_given_back() -> None:
    before = torch.get_num_threads()
    with pliant.Session(**small()):
        assert torch.get_num_threads() == 1
    assert torch.get_num_threads() == before


def test_a_sampler_draws_with_the_threads_of_the_run() -> None:
    seen: list[int] = []

    class Counting(Sampler[int]):
        def __iter__(self) -> Iterator[int]:
            seen.append(torch.get_num_threads())
            return iter(range(20))

    before = torch.get_num_threads()
    with pliant.Session(**small(sampler=Counting(), threads=before + 1)):
        pass

    assert set(seen) == {before + 1}


def test_a_session_that_cannot_say_its_last_words_gives_everything_back(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    before = torch.get_num_threads()
    arguments = small(checkpoint=pliant.Checkpoint(tmp_path), threads=before + 1, num_workers=1)

    def train_for_nobody() -> None:
        with monkeypatch.context() as gone, pliant.Session(**arguments) as session:
            for step in session.steps(2):
                for batch in step:
                    step.backward(loss_of(arguments["model"], batch))
                session.log(loss=step.loss)
            gone.setattr("sys.stdout.write", Mock(side_effect=BrokenPipeError))

    with pytest.raises(BrokenPipeError):
        train_for_nobody()

    assert torch.get_num_threads() == before
    assert not multiprocessing.active_children()
    again = small(checkpoint=pliant.Checkpoint(tmp_path), threads=before + 1)
    with pliant.Session(**again) as session:
        assert not list(session.steps(2))


def test_the_ledger_names_the_samples_of_each_slot(tmp_path: Path) -> None:
    path = tmp_path / "ledger" / "r1.jsonl"
    ledger = Ledger(path)
    place = {"lineage": 1, "step": 2, "generation": 3}
    ledger.slot(**place, slot=0, ids=(7, 8), is_used=True)
    ledger.slot(**place, slot=1, ids=(9,), is_used=False)
    ledger.commit(lineage=1, step=2, generation=3, digest="ab")
    ledger.close()

    lines = [json.loads(line) for line in path.read_text().splitlines()]
    assert lines == [
        {"lineage": 1, "step": 2, "generation": 3, "slot": 0, "ids": [7, 8]},
        {"lineage": 1, "step": 2, "generation": 3, "slot": 1, "ids": [9], "unused": True},
        {"lineage": 1, "step": 2, "generation": 3, "commit": True, "digest": "ab"},
    ]


# --- what is refused, beside what tests/features shows -------------------------------


def test_a_scheduler_that_the_script_steps_is_refused() -> None:
    arguments = small()
    scheduler = torch.optim.lr_scheduler.StepLR(arguments["optimizer"], 1)

    def train() -> None:
        with pliant.Session(**arguments, scheduler=scheduler) as session:
            for step in session.steps(2):
                for batch in step:
                    step.backward(loss_of(arguments["model"], batch))
                scheduler.step()

    with pytest.raises(UsageError, match=r"scheduler\.step\(\) was called by the script"):
        train()


def test_after_the_session_the_model_is_the_scripts_again() -> None:
    arguments = small()
    model, optimizer = arguments["model"], arguments["optimizer"]
    with pliant.Session(**arguments) as session:
        for step in session.steps(1):
            for batch in step:
                step.backward(loss_of(model, batch))
    torch.autograd.backward(model(torch.ones(1, 4)).sum())
    optimizer.step()
    assert model[0].weight.grad is not None


class Remembering(torch.optim.SGD):
    """Keeps the last gradient, and a number beside its state."""

    def __init__(self, params: Any, *, keeps: str) -> None:
        super().__init__(params, lr=0.1)
        self.keeps = keeps

    def step(self, closure: Any = None) -> Any:
        held = [p for group in self.param_groups for p in group["params"] if p.grad is not None]
        for parameter in held:
            last = parameter.grad if self.keeps == "itself" else parameter.grad.clone()
            self.state[parameter]["last"] = last
        return super().step(closure)

    def state_dict(self) -> Any:
        return {**super().state_dict(), **({"beside": 1} if self.keeps == "beside" else {})}


def test_an_optimizer_may_keep_a_copy_of_a_gradient_but_not_the_gradient_itself() -> None:
    def run(keeps: str) -> None:
        model = nn.Linear(4, 3)
        optimizer = Remembering(model.parameters(), keeps=keeps)
        with pliant.Session(**small(model=model, optimizer=optimizer)) as session:
            for step in session.steps(4):
                for batch in step:
                    step.backward(loss_of(model, batch))

    run("copy")
    with pytest.raises(UsageError, match="Remembering keeps a gradient itself in its state as"):
        run("itself")


@pytest.mark.parametrize(
    ("launcher", "environment"),
    [
        ("torchrun", {"TORCHELASTIC_RUN_ID": "x", "WORLD_SIZE": "2"}),
        ("srun", {"SLURM_STEP_NUM_TASKS": "2"}),
        ("mpirun", {"OMPI_COMM_WORLD_SIZE": "2"}),
    ],
)
def test_a_launcher_without_an_agent_is_refused(
    monkeypatch: pytest.MonkeyPatch, launcher: str, environment: dict[str, str]
) -> None:
    for name, value in environment.items():
        monkeypatch.setenv(name, value)

    with pytest.raises(ConfigError, match=f"one of 2 that {launcher} started"):
        pliant.Session(**small())


class Momentum(nn.Module):
    """A network with a slow copy of itself, moved in each forward as momentum encoders do it."""

    def __init__(self, move: Callable[[Any, Any], None]) -> None:
        super().__init__()
        self.fast = nn.Linear(4, 3)
        self.slow = nn.Linear(4, 3).requires_grad_(requires_grad=False)
        self.move = move

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        self.move(self.fast.weight, self.slow.weight)
        y: torch.Tensor = self.fast(x) + self.slow(x)
        return y


def rebind(fast: nn.Parameter, slow: nn.Parameter) -> None:
    slow.data = slow.data * 0.9 + fast.data * 0.1


def rebind_there_and_back(fast: nn.Parameter, slow: nn.Parameter) -> None:
    for _ in range(4):  # the allocator may give the first address again
        slow.data = slow.data * 0.9 + fast.data * 0.1


def write_behind_autograd(fast: nn.Parameter, slow: nn.Parameter) -> None:
    slow.data.mul_(0.9).add_(fast.data, alpha=0.1)


@pytest.mark.parametrize("move", [rebind, rebind_there_and_back, write_behind_autograd])
def test_weights_that_a_forward_moves_are_refused_however_it_does_it(move: Any) -> None:
    with pytest.raises(UsageError, match=r"the values of 'slow\.weight' changed inside the loop"):
        run(model=Momentum(move))


def test_weights_may_be_rebound_in_a_tail() -> None:
    digests = []
    moves: list[Callable[[nn.Parameter, nn.Parameter], object]] = [
        rebind,
        lambda fast, slow: slow.mul_(0.9).add_(fast * 0.1),
    ]
    for move in moves:
        pliant.seed(5)
        arguments = small(model=Momentum(lambda fast, slow: None))
        model: Any = arguments["model"]
        with pliant.Session(**arguments) as session:
            for step in session.steps(4):
                for batch in step:
                    step.backward(loss_of(model, batch))
                with torch.no_grad():
                    move(model.fast.weight, model.slow.weight)
            digests.append(session.state_digest())

    assert digests[0] == digests[1]


class Replacing(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.layer = nn.Linear(4, 3)

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        y: torch.Tensor = self.layer(x)
        self.layer.weight = nn.Parameter(self.layer.weight.detach().clone())
        return y


def test_a_parameter_that_a_forward_replaces_is_refused_before_the_step_is_committed() -> None:
    seen = []

    def train() -> None:
        arguments = small(model=Replacing())
        with pliant.Session(**arguments) as session:
            for step in session.steps(2):
                for batch in step:
                    step.backward(loss_of(arguments["model"], batch))
                seen.append(step.index)

    with pytest.raises(UsageError, match=r"parameter 'layer\.weight' was made after the session"):
        train()
    assert seen == []
