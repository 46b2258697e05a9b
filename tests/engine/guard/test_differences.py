"""What a tail changes in a module is named where a joiner, or a resumed run, does not have it."""

from __future__ import annotations

import io
import multiprocessing
import random
import threading
from collections import deque
from collections.abc import Callable
from contextlib import ExitStack
from functools import partial
from multiprocessing.shared_memory import ShareableList, SharedMemory
from types import SimpleNamespace
from typing import Any

import numpy as np
import pytest
import torch
from tests.engine import models
from torch import nn
from torch.utils.data import ConcatDataset, Dataset, Subset

from pliant.engine import fingerprint
from pliant.engine.guard.differences import DatasetAttributes, Differences
from pliant.engine.guard.differences import words_of_dataset as words_of
from pliant.engine.guard.script_variables import ScriptVariables, words_of_modules


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
        self.attributes = Differences(dataset, self.net, self.notes.append, ScriptVariables())

    def step(self, number: int) -> None:
        self.attributes.on_step(number)
        self.net(torch.zeros(2, 4))
        self.attributes.on_computed()


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


def test_words_of_another_form_as_old_checkpoints_have_are_no_difference() -> None:
    resumed = Replica()
    old = b'[{"labels": "5"}, []]\n[{"drop.p": "0.25"}, []]\n{"old": "1"}\n{}'

    resumed.attributes.compare([old], where="in the checkpoint")
    resumed.step(5)

    assert old
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
        replica.attributes.on_step(number)
        replica.net.seen = 2
        replica.attributes.on_computed()

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
    attributes = Differences(dataset, net, notes.append, variables)

    for number in range(4):
        attributes.on_step(number)
        if isinstance(generator, torch.Generator):
            torch.rand(1, generator=generator)
        else:
            generator.normal(0, 1) if hasattr(generator, "normal") else generator.random()
        attributes.on_computed()
        torch.rand(1)

    (note,) = notes
    name = {"variable": "generator", "module": "Noisy.own", "dataset": "SimpleNamespace.rng"}[place]
    assert note.startswith(f"'{name}', a generator of the script's own, is drawn from while")


def test_a_generator_that_a_tail_draws_from_and_the_global_ones_are_not_named() -> None:
    notes: list[str] = []
    net = Noisy(random.Random(0))
    generator = torch.default_generator
    dataset = DatasetAttributes([0], is_copied=False)
    attributes = Differences(dataset, net, notes.append, ScriptVariables([net]))

    for number in range(4):
        attributes.on_step(number)
        torch.rand(1, generator=generator)
        attributes.on_computed()
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
    attributes = Differences(dataset, nn.Linear(1, 1), notes.append, ScriptVariables())

    for number in range(4):
        attributes.on_step(number)
        attributes.on_computed()

    (note,) = notes
    assert note.startswith("the dataset's 'fetched' changes whenever a sample is fetched")


# Of the dataset


class Curriculum(models.Points):
    """Points whose difficulty a script changes; it keeps what many datasets keep."""

    def __init__(self) -> None:
        super().__init__(20)
        self.difficulty = 1
        self.cache: dict[int, Any] = {}
        self.fetched = 0
        self.file: Any = None
        self.lock = threading.Lock()
        self.transform = partial(torch.mul, other=2.0)

    def __getitem__(self, index: int) -> Any:
        self.fetched += 1
        if self.file is None:
            self.file = io.StringIO()
        self.cache[index] = super().__getitem__(index)
        return self.cache[index]


def watched(dataset: Dataset[Any], *, is_copied: bool = False) -> DatasetAttributes:
    """Return what a session that begins knows of its dataset."""
    attributes = DatasetAttributes(dataset, is_copied=is_copied)
    with attributes.fetching():
        if not is_copied:
            _ = dataset[0]
    attributes.open()
    return attributes


def test_an_attribute_that_a_tail_changed_is_named_with_both_values() -> None:
    training, joiner = Curriculum(), Curriculum()
    theirs, mine = watched(training), watched(joiner)
    training.difficulty = 3

    said = mine.unlike([theirs.pack()])

    assert said.startswith(
        "the dataset's 'difficulty' is 1 here and 3 on the replicas that train: if samples depend"
    )
    assert "extra_state=" in said


def test_what_changes_by_being_fetched_is_not_compared() -> None:
    training, joiner = Curriculum(), Curriculum()
    theirs, mine = watched(training), watched(joiner)
    for index in range(20):
        _ = training[index]

    assert mine.unlike([theirs.pack()]) == ""


@pytest.mark.parametrize(
    ("name", "value", "other"),
    [
        ("a", 1, 2),
        ("a", "easy", "hard"),
        ("a", "x" * 100, "x" * 99 + "y"),
        ("a", [1, [2, {"k": 3}]], [1, [2, {"k": 4}]]),
        ("a", deque([1, 2]), deque([1, 3])),
        ("a", {"s", "t"}, {"s", "u"}),
        ("a", torch.arange(3.0), torch.arange(3.0) + 1),
        ("a", torch.zeros(10**6), torch.ones(10**6)),
        ("a", np.zeros((3, 4)), np.ones((3, 4))),
        ("a", np.float32(1.0), np.float32(2.0)),
        ("a", partial(min, 1), partial(min, 2)),
        ("a", list(range(5000)), list(range(5001))),
    ],
)
def test_every_plain_value_is_compared(name: str, value: Any, other: Any) -> None:
    one, two, three = models.Points(20), models.Points(20), models.Points(20)
    setattr(one, name, value)
    setattr(two, name, value)
    setattr(three, name, other)

    assert words_of(one) == words_of(two)
    assert words_of(one) != words_of(three)


def test_datasets_in_datasets_and_lists_of_transforms_are_looked_into() -> None:
    class Noise:
        def __init__(self, scale: float) -> None:
            self.scale = scale

    class Compose:
        def __init__(self, scale: float) -> None:
            self.transforms = [Noise(0.0), Noise(scale)]

    def built(scale: float) -> Dataset[Any]:
        inner = Curriculum()
        inner.transform = Compose(scale)  # type: ignore[assignment]
        return Subset(ConcatDataset([models.Points(20), inner]), range(30))

    mine, theirs = words_of(built(0.1)), words_of(built(0.2))

    name = "dataset.datasets[1].transform.transforms[1].scale"
    assert {key for key in mine if mine[key] != theirs[key]} == {name}
    assert (mine[name], theirs[name]) == ("0.1", "0.2")


def test_what_loader_processes_do_not_see_is_told() -> None:
    dataset = Curriculum()
    attributes = watched(dataset, is_copied=True)
    assert attributes.unseen() == ""

    dataset.difficulty = 2

    assert "'difficulty' changed after the loader processes had started" in attributes.unseen()
    assert attributes.unlike([watched(Curriculum()).pack()]) == ""  # they fetch from the old one


def test_a_dataset_that_holds_itself_or_very_much_ends(monkeypatch: pytest.MonkeyPatch) -> None:
    dataset: Any = Curriculum()
    dataset.itself = dataset
    dataset.many = [[number] * 200 for number in range(5000)]
    monkeypatch.setattr(fingerprint, "MAX_VALUES", 100)
    dataset.last = 1
    mine = watched(dataset)
    assert mine.unlike([watched(Curriculum()).pack()]) == ""  # not all of either was looked at

    theirs = watched(dataset)
    dataset.difficulty = 3  # what is short comes first
    said = theirs.pack()
    dataset.difficulty = 1
    assert "'difficulty' is 1 here and 3" in watched(dataset).unlike([said])


def test_a_dataset_without_attributes_has_none() -> None:
    assert words_of([1, 2]) == {}
    assert words_of(torch.zeros(3)) == {}


@pytest.mark.parametrize("kind", ["value", "array", "raw", "tensor", "memory", "list"])
def test_what_lies_in_shared_memory_is_named_as_that(kind: str) -> None:
    dataset = Curriculum()
    with ExitStack() as stack:
        dataset.shared = shared(kind, stack)  # type: ignore[attr-defined]
        attributes = watched(dataset, is_copied=True)
        before = attributes.unseen()
        changed(dataset.shared)  # type: ignore[attr-defined]

        said = attributes.unseen()

    assert before == ""
    assert said.startswith("the dataset's 'shared' in shared memory changed while loader processes")


def shared(kind: str, stack: ExitStack) -> Any:
    if kind == "memory":
        memory: Any = SharedMemory(create=True, size=8)
        stack.callback(memory.unlink)
        stack.callback(memory.close)
        return memory
    if kind == "list":
        numbers: Any = ShareableList([0, 1])
        stack.callback(numbers.shm.unlink)
        stack.callback(numbers.shm.close)
        return numbers
    return {
        "value": lambda: multiprocessing.Value("i", 0),
        "array": lambda: multiprocessing.Array("i", [0, 1]),
        "raw": lambda: multiprocessing.RawValue("d", 0.0),
        "tensor": lambda: torch.zeros(2).share_memory_(),  # type: ignore[no-untyped-call]
    }[kind]()


def changed(value: Any) -> None:
    if hasattr(value, "value"):
        value.value += 1
    else:
        getattr(value, "buf", value)[0] = 1
