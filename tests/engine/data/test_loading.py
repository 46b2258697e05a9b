"""Which samples a slot holds depends on step and slot alone, however it was fetched."""

from __future__ import annotations

import errno
import os
import random
import resource
from collections import namedtuple
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from torch.utils.data import Dataset

from pliant.core.errors import UsageError
from pliant.engine.data.loading import (
    Schedule,
    SlotLoader,
    pack,
    unpack,
    warn_if_random,
)


class Drawn(Dataset[Any]):
    """An item is its index and one random number of each kind."""

    def __len__(self) -> int:
        return 22

    def __getitem__(self, index: int) -> tuple[int, float, float, float]:
        return index, float(torch.rand(())), float(np.random.rand()), random.random()


def schedule(**changes: Any) -> Schedule:
    values: dict[str, Any] = {
        "size": 22,
        "global_batch_size": 8,
        "micro_batch_size": 2,
        "seed": 3,
        "shuffle": True,
        "drop_last": False,
    }
    return Schedule(**(values | changes))


def loader(num_workers: int = 0) -> SlotLoader:
    made = SlotLoader(
        Drawn(), schedule(), num_slots=4, collate_fn=lambda items: items, num_workers=num_workers
    )
    made.open()
    return made


def fetch(source: SlotLoader, step: int, slot: int) -> Any:
    request = schedule().request(step, slot)
    assert request is not None
    return source.take_batch(request)


@pytest.mark.parametrize("shuffle", [True, False])
def test_every_epoch_holds_each_sample_once(shuffle: bool) -> None:
    plan = schedule(shuffle=shuffle)
    for epoch in range(3):
        steps = range(epoch * plan.steps_per_epoch, (epoch + 1) * plan.steps_per_epoch)
        requests = [plan.request(step, slot) for step in steps for slot in range(4)]
        samples = [sample for request in requests if request for sample in request.samples]

        assert sorted(samples) == list(range(22))


def test_the_last_batch_of_an_epoch_is_short_or_dropped() -> None:
    assert [schedule().num_samples(step) for step in range(4)] == [8, 8, 6, 8]
    assert schedule().request(2, 3) is None
    assert schedule(drop_last=True).steps_per_epoch == 2


class Short(Drawn):
    """A machine without a descriptor for a moment, after it has drawn."""

    def __init__(self, told: Path) -> None:
        self._told = told

    def __getitem__(self, index: int) -> tuple[int, float, float, float]:
        item = super().__getitem__(index)
        if not self._told.exists():
            self._told.touch()
            raise OSError(errno.EMFILE, os.strerror(errno.EMFILE))
        return item


@pytest.mark.parametrize("num_workers", [0, 1])
def test_a_slot_is_fetched_again_when_descriptors_are_short(
    tmp_path: Path, num_workers: int
) -> None:
    source = SlotLoader(
        Short(tmp_path / "told"), schedule(), num_slots=4, collate_fn=list, num_workers=num_workers
    )
    source.open()
    source.want(0, range(4))
    undisturbed = loader()
    undisturbed.want(0, range(4))

    assert [fetch(source, 0, slot) for slot in range(4)] == [
        fetch(undisturbed, 0, slot) for slot in range(4)
    ]
    source.close()


def test_a_loader_process_collates_without_shared_memory() -> None:
    """Which a container may have little of, and of which a killed process leaves a file."""
    source = SlotLoader(
        torch.arange(22),
        schedule(shuffle=False),
        num_slots=4,
        collate_fn=None,
        num_workers=1,
        worker_init_fn=lambda _: resource.setrlimit(resource.RLIMIT_FSIZE, (0, 0)),
    )
    source.open()
    source.want(0, range(4))
    request = schedule(shuffle=False).request(0, 1)
    assert request is not None

    assert source.take_batch(request).tolist() == [2, 3]
    source.close()


def test_what_a_slot_holds_does_not_depend_on_who_fetches_it_when() -> None:
    here = loader()
    here.want(0, [0, 1, 2, 3])
    alone = {(step, slot): fetch(here, step, slot) for step in range(2) for slot in range(4)}

    for num_workers in (0, 2):
        there = loader(num_workers)
        there.want(0, [2, 3])
        assert fetch(there, 0, 2) == alone[0, 2]
        there.want(0, [1, 3])  # ownership changed; 3 may have been fetched ahead
        assert fetch(there, 0, 3) == alone[0, 3]
        assert fetch(there, 0, 1) == alone[0, 1]
        there.want(0, [2])  # the step is done again
        assert fetch(there, 0, 2) == alone[0, 2]
        there.want(1, [0])
        there.forget(before=1)
        assert fetch(there, 1, 0) == alone[1, 0]
        there.close()
    here.close()


def test_prefetched_slots_survive_a_change_of_ownership() -> None:
    fetched: list[int] = []

    class Watched(Drawn):
        def __getitem__(self, index: int) -> Any:
            fetched.append(index)
            return index

    plan = schedule()
    source = SlotLoader(Watched(), plan, num_slots=4, collate_fn=list, num_workers=0)
    source.open()
    source.want(0, [0, 1])
    later = plan.request(0, 1)
    assert later is not None
    source.take_batch(later)  # 0 came on the way and is kept
    source.want(0, [0, 3])

    first = plan.request(0, 0)
    assert first is not None
    assert source.take_batch(first) == list(first.samples)
    assert len(fetched) == 4
    source.close()


class Ends(Drawn):
    def __getitem__(self, index: int) -> Any:
        raise StopIteration


class Loses(Drawn):
    def __getitems__(self, indices: list[int]) -> Any:
        return indices[1:]


@pytest.mark.parametrize("num_workers", [0, 1])
@pytest.mark.parametrize(
    ("dataset", "error", "sentence"),
    [
        (Ends(), RuntimeError, "the dataset or collate_fn raised StopIteration"),
        (Loses(), UsageError, "__getitems__ returned 1 items for 2 indices"),
    ],
)
def test_a_dataset_that_does_not_keep_its_word_is_named(
    dataset: Any, error: type[Exception], sentence: str, num_workers: int
) -> None:
    source = SlotLoader(dataset, schedule(), num_slots=4, collate_fn=list, num_workers=num_workers)
    source.open()
    source.want(0, [0])

    with pytest.raises(error, match=sentence):
        fetch(source, 0, 0)
    source.close()


def test_a_dataset_with_a_generator_of_its_own_is_warned_about() -> None:
    class Own(Dataset[Any]):
        generator = torch.Generator()

        def __getitem__(self, index: int) -> Any:
            return {"x": torch.rand(2, generator=self.generator)}

    with pytest.warns(UserWarning, match=r"Own\[0\] gave two different items"):
        warn_if_random(Own(), 0)
    before = torch.get_rng_state()
    warn_if_random(Drawn(), 0)
    assert torch.equal(before, torch.get_rng_state())


Pair = namedtuple("Pair", "x y")  # what data sets really return

TENSORS = [
    torch.randn(2, 3, 4, 5).to(memory_format=torch.channels_last),
    torch.randn(6)[::2],
    torch.randn(3, 1).expand(3, 4),
    torch.tensor(3),
    torch.empty(0, 4),
    torch.tensor([True, False]),
    torch.randn(4).to(torch.bfloat16),
    torch.randn(3, dtype=torch.complex64).conj(),
]


@pytest.mark.parametrize("tensor", TENSORS, ids=lambda tensor: f"{tensor.dtype}{tensor.layout}")
def test_a_tensor_keeps_values_type_and_order_of_memory(tensor: torch.Tensor) -> None:
    found = unpack(pack({"x": [tensor]}))["x"][0]

    assert found.dtype == tensor.dtype
    assert torch.equal(found.to_dense(), tensor.to_dense())
    if tensor.layout is torch.strided and tensor.dim() == 4:
        assert found.stride() == tensor.stride()


def test_other_values_travel_too() -> None:
    batch: Any = Pair(x={"text": "a", "n": np.arange(3)}, y=(1, None))

    found = unpack(pack(batch))

    assert isinstance(found, Pair)
    assert found.x["n"].tolist() == [0, 1, 2]
    assert found.y == (1, None)


def test_what_is_unpacked_can_be_written_to() -> None:
    found = unpack(pack(torch.zeros(3)))
    found += 1
    assert found.tolist() == [1, 1, 1]
