"""A snapshot holds this rank's share as it was at the boundary, in memory that is used again."""

from __future__ import annotations

from typing import Any

import torch

from pliant.checkpoint.snapshot import Copier


def copied(copier: Copier, tensors: dict[str, torch.Tensor], rank: int = 0, of: int = 1) -> Any:
    held = copier.copy(tensors, {}, rank=rank, num_shares=of).held
    return {piece.name: tensor for piece, tensor in held.items()}


def test_what_the_training_does_later_does_not_change_a_snapshot() -> None:
    weights = torch.arange(6.0).reshape(2, 3).t()

    held = copied(Copier(), {"w": weights})
    weights += 1

    assert held["w"].tolist() == [[0.0, 3.0], [1.0, 4.0], [2.0, 5.0]]


def test_the_next_snapshot_takes_the_same_memory_and_the_new_values() -> None:
    copier, weights = Copier(), torch.zeros(3)
    first = copied(copier, {"w": weights})["w"]
    weights += 1

    second = copied(copier, {"w": weights})["w"]

    assert second.data_ptr() == first.data_ptr()
    assert second.tolist() == [1.0, 1.0, 1.0]


def test_every_tensor_is_held_once_whatever_the_number_of_members_becomes() -> None:
    copier = Copier()
    tensors = {name: torch.full((4,), float(index)) for index, name in enumerate("abcde")}
    copied(copier, tensors, rank=0, of=1)

    shares = [copied(copier, tensors, rank=rank, of=2) for rank in range(2)]

    assert sorted([*shares[0], *shares[1]]) == list("abcde")
    assert copier.num_bytes == sum(tensor.nbytes for tensor in shares[1].values())


def test_tensors_that_come_or_change_after_the_first_snapshot_are_held() -> None:
    copier = Copier()
    copied(copier, {"w": torch.zeros(3)})

    grown = copied(copier, {"w": torch.ones(5), "m": torch.ones(2)})
    retyped = copied(copier, {"w": torch.ones(5, dtype=torch.float64), "m": torch.ones(2)})

    assert (grown["w"].tolist(), grown["m"].tolist()) == ([1.0] * 5, [1.0] * 2)
    assert retyped["w"].dtype == torch.float64


def test_tensors_are_described_without_their_memory() -> None:
    contents = Copier().copy({"w": torch.zeros(2, 3)}, {"o": 1}, rank=0, num_shares=1)

    assert contents.tensors["w"].device.type == "meta"
    assert (contents.tensors["w"].shape, contents.objects) == ((2, 3), {"o": 1})
