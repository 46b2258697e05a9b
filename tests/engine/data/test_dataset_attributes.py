"""What of a dataset differs between replicas is named; caches and counters are left alone."""

from __future__ import annotations

import io
import multiprocessing
import threading
from collections import deque
from contextlib import ExitStack
from functools import partial
from multiprocessing.shared_memory import ShareableList, SharedMemory
from typing import Any

import numpy as np
import pytest
import torch
from tests.engine import models
from torch.utils.data import ConcatDataset, Dataset, Subset

from pliant.engine.data import dataset_attributes
from pliant.engine.data.dataset_attributes import DatasetAttributes, words_of


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
    monkeypatch.setattr(dataset_attributes, "MAX_VALUES", 100)
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
