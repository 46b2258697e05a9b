"""Samples say whether hosts have the same data; those that say nothing are left out."""

from __future__ import annotations

import random
from collections.abc import Callable
from types import SimpleNamespace
from typing import Any

import numpy as np
import pytest
import torch
from torch.utils.data import Dataset

from pliant.engine.data.loading import Schedule, SlotLoader
from pliant.engine.guard import samples as sample_words
from pliant.engine.guard.samples import MOST_DRAWS, SampleWords, words_of_samples


@pytest.fixture(autouse=True)
def patience(monkeypatch: pytest.MonkeyPatch) -> None:
    """Look at all samples on a loaded machine as well."""
    monkeypatch.setattr("pliant.engine.guard.samples.ENOUGH_S", 60.0)


@pytest.fixture(autouse=True)
def stopped(monkeypatch: pytest.MonkeyPatch) -> None:
    """Let no time pass, however busy the machine is."""
    monkeypatch.setattr(sample_words, "time", SimpleNamespace(monotonic=lambda: 0.0))


class Made(Dataset[Any]):
    """What a function makes of an index."""

    def __init__(self, make: Callable[[int], Any], size: int = 10_000) -> None:
        self._make = make
        self._size = size

    def __len__(self) -> int:
        return self._size

    def __getitem__(self, index: int) -> Any:
        return self._make(index)


KNOWN = [
    lambda index: (torch.full((3,), float(index)), index),
    lambda index: {"x": np.arange(index % 9 + 1), "name": "some text", "path": "/of/a/host"},
    lambda index: [index, 1.5, None, True, b"bytes", float("nan"), np.float32(index)],
    lambda index: torch.rand(3) + index,  # of a generator that is seeded for each sample
    lambda index: torch.zeros(0) if index else torch.tensor(1.0),
]


@pytest.mark.parametrize("make", KNOWN)
def test_samples_that_are_functions_of_their_index_say_the_same_each_time(
    make: Callable[[int], Any],
) -> None:
    words = words_of_samples(Made(make), 7)

    assert len(words) == 4
    assert 0 in words
    assert words == words_of_samples(Made(make), 7)


def test_another_copy_of_the_data_says_something_else() -> None:
    mine = words_of_samples(Made(lambda index: torch.full((3,), index)), 7)
    theirs = words_of_samples(Made(lambda index: torch.full((3,), index + 1)), 7)

    assert mine.keys() == theirs.keys()
    assert not set(mine.values()) & set(theirs.values())


def test_other_paths_to_the_same_data_say_the_same() -> None:
    mine = words_of_samples(Made(lambda index: (index, "/home/a/1.png", "s3://a/1")), 7)

    assert mine == words_of_samples(Made(lambda index: (index, "/data/1.png", "gs://b/1")), 7)


def test_paths_that_numpy_keeps_are_paths_as_well() -> None:
    """Seen: files listed in an array, an item of which is a text of numpy's."""

    def words(*texts: str) -> SampleWords:
        array = np.array(texts)
        return words_of_samples(Made(lambda index: (array[0], array, index)), 7)

    assert words("/home/a/1.png", "cat") == words("/data/1.png", "cat")
    assert words("/data/1.png", "cat") != words("/data/1.png", "dog")


def test_a_generator_of_the_datasets_own_says_nothing() -> None:
    """An augmentation that is not the same on two replicas is no reason to refuse one."""
    own = random.Random(1)

    assert words_of_samples(Made(lambda index: own.random()), 7) == {}
    assert words_of_samples(Made(lambda index: own.random() < 0.8), 7) == {}


def test_samples_that_fail_or_are_of_no_known_kind_say_nothing() -> None:
    def fails(index: int) -> int:
        if index:
            raise ValueError("no such file")
        return index

    assert list(words_of_samples(Made(fails), 7)) == [0]
    assert words_of_samples(Made(lambda _: object()), 7) == {}


def test_the_global_generators_go_on_as_if_nobody_had_looked() -> None:
    torch.manual_seed(3)
    expected = torch.rand(2)
    torch.manual_seed(3)

    words_of_samples(Made(lambda index: torch.rand(2)), 7)

    assert torch.equal(torch.rand(2), expected)


def test_samples_that_come_slowly_are_drawn_as_often_as_is_needed(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    now = iter(float(second) for second in range(100))
    clock = SimpleNamespace(monotonic=lambda: next(now) / 10)
    monkeypatch.setattr(sample_words, "time", clock)
    monkeypatch.setattr(sample_words, "ENOUGH_S", 0.5)
    fetched: list[int] = []

    def make(index: int) -> int:
        fetched.append(index)
        return index

    words = words_of_samples(Made(make), 7)

    assert [fetched.count(index) for index in words] == [2, 2, 2]
    assert MOST_DRAWS > 2


def test_a_first_sample_that_comes_slowly_is_drawn_twice_only(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    """Seen: one of a second was drawn eight times, and nobody waited for what was found."""
    fetched: list[int] = []
    monkeypatch.setattr("pliant.engine.guard.samples.ENOUGH_S", 1.0)
    monkeypatch.setattr("pliant.engine.guard.samples.time.monotonic", lambda: float(len(fetched)))

    def make(index: int) -> int:
        fetched.append(index)
        return index

    assert list(words_of_samples(Made(make), 7)) == [0]
    assert fetched == [0, 0]


@pytest.mark.parametrize("num_workers", [0, 2])
def test_a_loader_tells_what_the_process_that_fetches_has_seen(num_workers: int) -> None:
    dataset = Made(lambda index: torch.full((3,), float(index)), 22)
    loader = loader_of(dataset, num_workers)
    loader.open()
    try:
        assert loader.samples() == words_of_samples(dataset, 3)
    finally:
        loader.close()


def loader_of(dataset: Made, num_workers: int) -> SlotLoader:
    plan = Schedule(
        size=22, global_batch_size=8, micro_batch_size=2, seed=3, shuffle=True, drop_last=False
    )
    return SlotLoader(
        dataset, plan, num_slots=4, collate_fn=None, num_workers=num_workers, is_compared=True
    )
