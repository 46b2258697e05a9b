"""An evaluation gives the same bits however it is shared out, and leaves no trace."""

from __future__ import annotations

import math
import random
from collections.abc import Callable, Mapping
from dataclasses import replace
from typing import Any

import numpy as np
import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st
from tests.engine.models import Points
from torch import nn
from torch.nn import functional
from torch.utils.data import DataLoader, SubsetRandomSampler

import pliant
from pliant.core.errors import ConfigError, UsageError
from pliant.engine.evaluation import Evaluation, Outcome, SingleMemberTeam
from pliant.engine.state.buffers import BufferRules


class Shared:
    """A team of which one is played at a time; the others' parts are given."""

    def __init__(self, rank: int, size: int, *, breaks: str = "") -> None:
        self.place = (rank, size)
        self.breaks = breaks
        self.others: list[bytes] = []
        self.given: bytes | None = None

    def attend(self) -> None:
        if self.breaks == "meanwhile":
            self.place = (0, 1)

    def gather_names(self, names: Mapping[str, str]) -> dict[str, str]:
        return dict(names)

    def exchange(self, name: str, payload: bytes) -> list[bytes] | None:
        del name
        self.given = payload
        return None if self.breaks else [payload, *self.others]


def network() -> nn.Sequential:
    torch.manual_seed(3)
    return nn.Sequential(nn.Linear(4, 8), nn.BatchNorm1d(8), nn.Dropout(0.5), nn.Linear(8, 3))


def evaluation(model: nn.Module, size: int, micro_batch_size: int) -> Evaluation:
    def fn(batch: Any) -> Any:
        points, labels = batch
        loss = functional.cross_entropy(model(points), labels)
        return {"loss": loss, "noise": torch.rand(()) + float(np.random.rand()) + random.random()}

    return Evaluation(
        dataset=Points(size),
        size=size,
        fn=fn,
        collate_fn=None,
        micro_batch_size=micro_batch_size,
        coordinates=(7, 3, 0),
    )


def play(size: int, micro_batch_size: int, team: Any) -> Outcome:
    model = network()
    return evaluation(model, size, micro_batch_size).run(model, BufferRules(model, {}, 1), team)


@settings(max_examples=30)
@given(
    size=st.integers(1, 30),
    micro_batch_size=st.integers(1, 8),
    replicas=st.integers(2, 5),
    breaks=st.sampled_from(["", "meanwhile", "exchange"]),
)
def test_any_number_of_replicas_gets_what_one_gets(
    size: int, micro_batch_size: int, replicas: int, breaks: str
) -> None:
    alone = play(size, micro_batch_size, SingleMemberTeam())
    teams = [Shared(rank, replicas, breaks=breaks) for rank in range(replicas)]
    if not breaks:
        for team in teams:  # a first time, for what each gives
            others = [t for t in teams if t is not team]
            team.breaks = "exchange"
            play(size, micro_batch_size, team)
            team.breaks = ""
            for other in others:
                assert team.given is not None
                other.others.append(team.given)
    for team in teams:
        assert play(size, micro_batch_size, team) == alone


@pytest.mark.parametrize(
    ("other", "sentence"),
    [
        (
            {"size": 20},
            r"after step 2: size of the dataset differs between replicas \(30 on r1; 20",
        ),
        ({"words": lambda: {4: "cd"}}, r"sample 4 of the dataset differs .*\(ab on r1; cd on r2\)"),
    ],
)
def test_another_dataset_is_named(other: dict[str, Any], sentence: str) -> None:
    """Each replica had a number of its own, or one that followed from who evaluated what."""
    model, theirs, team = network(), Shared(1, 2, breaks="exchange"), Shared(0, 2)
    one = replace(evaluation(model, 30, 4), words=lambda: {4: "ab"}, replica="r1")
    replace(one, replica="r2", **other).run(model, BufferRules(model, {}, 1), theirs)
    assert theirs.given is not None
    team.others = [theirs.given]

    with pytest.raises(UsageError, match=sentence):
        one.run(model, BufferRules(model, {}, 1), team)


def test_the_run_goes_on_as_if_nothing_had_been_evaluated() -> None:
    model = network()
    model[2].eval()
    model.register_buffer("calls", torch.zeros(()))
    before = {name: value.clone() for name, value in model.state_dict().items()}
    torch.manual_seed(5)
    expected = torch.rand(3)
    torch.manual_seed(5)

    def fn(batch: Any) -> torch.Tensor:
        model.calls.add_(1)  # type: ignore[operator]
        assert not model.training
        assert not torch.is_grad_enabled()
        total: torch.Tensor = model(batch[0]).sum()
        return total

    work = replace(evaluation(model, 9, 2), fn=fn)
    work.run(model, BufferRules(model, {}, 1), SingleMemberTeam())

    assert all(torch.equal(before[name], value) for name, value in model.state_dict().items())
    assert torch.equal(torch.rand(3), expected)
    assert [module.training for module in (model, model[1], model[2])] == [True, True, False]


def small_session(model: nn.Module, **more: Any) -> pliant.Session:
    arguments = {"optimizer": torch.optim.SGD(model.parameters(), lr=0.1), **more}
    return pliant.Session(
        model=model, dataset=Points(4), global_batch_size=4, micro_batch_size=2, **arguments
    )


def in_a_tail(action: Callable[[pliant.Session], Any]) -> Any:
    model = nn.Linear(4, 3)
    with small_session(model) as session:
        for step in session.steps(1):
            for points, labels in step:
                step.backward(functional.cross_entropy(model(points), labels))
            return action(session)
    raise AssertionError


def test_weights_count_and_weight_zero_does_not() -> None:
    answers = iter([(1.0, 3), (2.0, 1), (math.nan, 0)])
    assert in_a_tail(lambda s: s.evaluate(Points(5), lambda batch: next(answers))) == 1.25


def test_a_result_that_is_no_number_has_no_sign() -> None:
    """What another replica evaluated comes as text, in which it has none."""
    found = in_a_tail(lambda session: session.evaluate(Points(4), lambda batch: -math.nan))

    assert math.isnan(found)
    assert math.copysign(1.0, found) == 1.0


def test_feeding_does_not_hide_a_step_of_the_scripts_own() -> None:
    model = nn.Linear(4, 3)
    optimizer = torch.optim.SGD(model.parameters(), lr=0.1)
    plateau = torch.optim.lr_scheduler.ReduceLROnPlateau(optimizer)

    def train() -> None:
        with small_session(model, optimizer=optimizer, plateau={"loss": plateau}) as session:
            for step in session.steps(1):
                for points, labels in step:
                    step.backward(functional.cross_entropy(model(points), labels))
                plateau.step(step.loss)
                session.feed(loss=step.loss)

    with pytest.raises(UsageError, match="called by the script"):
        train()


def test_a_loader_is_evaluated_as_its_dataset() -> None:
    points = Points(20)
    model = network()
    optimizer = torch.optim.SGD(model.parameters(), lr=0.1)
    shuffled = DataLoader(points, batch_size=4, shuffle=True, num_workers=2)
    drawn = DataLoader(points, sampler=SubsetRandomSampler(range(3)))

    def fn(batch: Any) -> torch.Tensor:
        assert len(batch[1]) == 4
        return functional.cross_entropy(model(batch[0]), batch[1])

    with pliant.Session(
        model=model, optimizer=optimizer, dataset=points, global_batch_size=8, micro_batch_size=2
    ) as session:
        for step in session.steps(1):
            for inputs, labels in step:
                step.backward(functional.cross_entropy(model(inputs), labels))
            expected = session.evaluate(points, fn, micro_batch_size=4)
            assert session.evaluate(shuffled, fn) == expected
            with pytest.raises(ConfigError, match="a sampler of its own"):
                session.evaluate(drawn, fn)
