"""What a tail changes in a module is named where a joiner, or a resumed run, does not have it."""

from __future__ import annotations

import random
from collections.abc import Callable
from types import SimpleNamespace
from typing import Any

import numpy as np
import pytest
import torch
from tests.engine import models
from torch import nn

from pliant.engine.data.dataset_attributes import DatasetAttributes
from pliant.engine.state.script_attributes import ScriptAttributes
from pliant.engine.state.script_variables import ScriptVariables, words_of_modules


class Net(nn.Module):
    """Counts its forwards, and has a schedule of its own."""

    def __init__(self) -> None:
        super().__init__()
        self.drop = nn.Dropout(0.5)
        self.layer = nn.Linear(4, 3)
        self.temperature = 1.0
        self.calls = 0

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        self.calls += 1
        self.seen = len(x)
        out: torch.Tensor = self.layer(self.drop(x)) / self.temperature
        return out


class Replica:
    def __init__(self) -> None:
        self.net = Net()
        self.notes: list[str] = []
        dataset = DatasetAttributes(models.Points(4), is_copied=True)
        self.attributes = ScriptAttributes(dataset, self.net, self.notes.append, ScriptVariables())

    def step(self, number: int) -> None:
        self.attributes.begin(number)
        self.net(torch.zeros(2, 4))
        self.attributes.end()


def trained(change: Callable[[Net], object]) -> Replica:
    """Return one that has made five steps, with a tail behind the fourth."""
    replica = Replica()
    for number in range(5):
        replica.step(number)
        if number == 3:
            change(replica.net)
    return replica


def test_what_a_tail_changed_is_named_with_both_values_at_the_first_step() -> None:
    joiner = Replica()
    joiner.attributes.compare([trained(lambda net: setattr(net.drop, "p", 0.25)).attributes.pack()])
    assert joiner.notes == []

    for number in (5, 6):
        joiner.step(number)

    note, counted = joiner.notes
    assert "'calls'" in counted
    assert note.startswith(
        "the model's 'drop.p' is 0.5 here and 0.25 on the replicas that train: if a forward"
    )
    assert "get_extra_state" in note


@pytest.mark.parametrize("change", [lambda net: None, lambda net: net.eval()])
def test_what_a_forward_changes_and_what_travels_is_not_named(
    change: Callable[[Net], object],
) -> None:
    joiner = Replica()
    joiner.attributes.compare([trained(change).attributes.pack()])

    joiner.step(5)

    assert joiner.notes == []


def test_what_the_loop_sets_for_each_step_is_not_named() -> None:
    joiner = Replica()
    theirs = trained(lambda net: setattr(net, "temperature", 4.0)).attributes.pack()
    joiner.attributes.compare([theirs])

    joiner.net.temperature = 5.0
    joiner.step(5)

    assert joiner.notes == []


def test_a_checkpoint_that_knows_of_the_dataset_only_is_no_difference() -> None:
    resumed = Replica()

    resumed.attributes.compare([resumed.attributes.dataset.pack()], where="in the checkpoint")
    resumed.step(5)

    assert resumed.notes == []


def test_only_plain_values_are_looked_at() -> None:
    words = words_of_modules(Net())

    assert words["drop.p"] == "0.5"
    assert words["layer.in_features"] == "4"
    assert not [name for name in words if "training" in name or "._" in name or name[0] == "_"]


def test_a_private_attribute_that_a_tail_changed_is_named() -> None:
    joiner, training = Replica(), trained(lambda net: setattr(net, "_beta", 3))
    joiner.net._beta = 1  # type: ignore[assignment]
    joiner.attributes.compare([training.attributes.pack()])

    joiner.step(5)

    assert joiner.notes[0].startswith("the model's '_beta' is 1 here and 3 on the replicas")


def test_a_number_that_a_forward_counts_is_named_once() -> None:
    replica = Replica()

    for number in range(6):
        replica.step(number)

    (note,) = replica.notes
    assert note.startswith("a forward changes the model's 'calls' in each step: if it computes by")


def test_a_number_that_a_forward_sets_once_is_not_named() -> None:
    replica = Replica()

    for number in range(6):
        replica.attributes.begin(number)
        replica.net.seen = 2
        replica.attributes.end()

    assert replica.notes == []


class Noisy(nn.Linear):
    """Draws from a generator of its own."""

    def __init__(self, generator: Any) -> None:
        super().__init__(4, 3)
        self.own = generator


@pytest.mark.parametrize(
    "generator",
    [
        torch.Generator(),
        random.Random(0),
        np.random.default_rng(0),
        np.random.RandomState(0),
    ],
)
@pytest.mark.parametrize("place", ["variable", "module", "dataset"])
def test_a_generator_of_the_scripts_own_that_a_step_draws_from_is_named(
    generator: Any, place: str
) -> None:
    notes: list[str] = []
    net = Noisy(generator if place == "module" else None)
    data = SimpleNamespace(rng=generator if place == "dataset" else None)
    dataset = DatasetAttributes([0], is_copied=False)
    variables = ScriptVariables([net, data])
    attributes = ScriptAttributes(dataset, net, notes.append, variables)

    for number in range(4):
        attributes.begin(number)
        if isinstance(generator, torch.Generator):
            torch.rand(1, generator=generator)
        else:
            generator.normal(0, 1) if hasattr(generator, "normal") else generator.random()
        attributes.end()
        torch.rand(1)

    (note,) = notes
    name = {"variable": "generator", "module": "Noisy.own", "dataset": "SimpleNamespace.rng"}[place]
    assert note.startswith(f"'{name}', a generator of the script's own, is drawn from while")


def test_a_generator_that_a_tail_draws_from_and_the_global_ones_are_not_named() -> None:
    notes: list[str] = []
    net = Noisy(random.Random(0))
    generator = torch.default_generator
    dataset = DatasetAttributes([0], is_copied=False)
    attributes = ScriptAttributes(dataset, net, notes.append, ScriptVariables([net]))

    for number in range(4):
        attributes.begin(number)
        torch.rand(1, generator=generator)
        attributes.end()
        net.own.random()

    assert notes == []


def test_a_dataset_that_counts_what_is_fetched_is_named_and_a_cache_is_not() -> None:
    class Counting:
        def __init__(self) -> None:
            self.fetched, self.cached = 0, None

    notes: list[str] = []
    data: Any = Counting()
    dataset = DatasetAttributes(data, is_copied=False)
    with dataset.fetching():
        data.fetched += 1
        data.cached = {0: 1.0}
    attributes = ScriptAttributes(dataset, nn.Linear(1, 1), notes.append, ScriptVariables())

    for number in range(4):
        attributes.begin(number)
        attributes.end()

    (note,) = notes
    assert note.startswith("the dataset's 'fetched' changes whenever a sample is fetched")
