"""Scripts: random sequences of calls that all members make, and what they should give."""

from __future__ import annotations

import random
import time
from dataclasses import dataclass
from typing import Any

import torch

from pliant.engine.comm.communicator import Communicator


def pattern(numel: int, *seeds: int, dtype: torch.dtype = torch.uint8) -> torch.Tensor:
    """Return what only these seeds give."""
    generator = torch.Generator().manual_seed(hash(seeds) & 0x7FFFFFFF)
    size = numel * torch.empty(0, dtype=dtype).element_size()
    raw = torch.randint(0, 256, (size,), dtype=torch.uint8, generator=generator)
    return raw.bitwise_and(1).bool() if dtype is torch.bool else raw.view(dtype)


def raw(tensor: torch.Tensor) -> bytes:
    """Return the bytes: what is no number is equal to itself, too."""
    return tensor.contiguous().view(-1).view(torch.uint8).numpy().tobytes()


@dataclass(frozen=True)
class Step:
    """One call of all members."""

    kind: str
    sizes: tuple[int, ...]
    number: int


def script(seed: int, size: int, most_bytes: int = 900_000) -> list[Step]:
    """Return what all members do, by seed."""
    rng = random.Random(seed)
    kinds = ["all_to_all", "all_gather", "broadcast", "share", "meet", "post"]
    if size == 2:
        kinds.append("swap")

    def nbytes() -> int:
        return rng.choice(
            [0, 1, rng.randrange(100), rng.randrange(most_bytes // 15), rng.randrange(most_bytes)]
        )

    return [
        Step(rng.choice(kinds), tuple(nbytes() for _ in range(size * size)), number)
        for number in range(rng.randrange(5, 25))
    ]


def play(comm: Communicator, steps: list[Step], seed: int, got: dict[int, Any]) -> None:
    """Do all steps, with pauses of this member's own; put what it got under the step's number."""
    rng = random.Random(f"{seed} {comm.rank}")
    later: list[tuple[Any, int, list[torch.Tensor]]] = []
    for step in steps:
        if rng.random() < 0.2:
            time.sleep(rng.random() * 0.004)
        if step.kind == "post":
            transfer, targets = _post(comm, step)
            later.append((transfer, step.number, targets))
        else:
            got[step.number] = _collect(comm, step)
        if later and rng.random() < 0.4:
            transfer, number, targets = later.pop(rng.randrange(len(later)))
            comm.wait(transfer)
            got[number] = [raw(target) for target in targets]
    for transfer, number, targets in later:
        comm.wait(transfer)
        got[number] = [raw(target) for target in targets]


def check(steps: list[Step], got: list[dict[int, Any]], what: str) -> None:
    """Compare what the members got with what they should have."""
    size = len(got)
    for me in range(size):
        for step in steps:
            if step.number in got[me]:
                is_right = got[me][step.number] == expected(step, me, size)
                assert is_right, f"{what}: rank {me} got something else in {step}"


def _post(comm: Communicator, step: Step) -> tuple[Any, list[torch.Tensor]]:
    sources = [
        pattern(step.sizes[comm.rank * comm.size + rank], step.number, comm.rank, rank)
        for rank in range(comm.size)
    ]
    targets = [
        torch.zeros(step.sizes[rank * comm.size + comm.rank], dtype=torch.uint8)
        for rank in range(comm.size)
    ]
    transfer = comm.post(
        sends=[(rank, sources[rank]) for rank in comm.others],
        receives=[(rank, targets[rank]) for rank in comm.others],
    )
    return transfer, targets


def _collect(comm: Communicator, step: Step) -> Any:
    me, size, number = comm.rank, comm.size, step.number
    if step.kind == "meet":
        return comm.meet()
    if step.kind == "share":
        return comm.share(f"n{number % 3}", raw(pattern(step.sizes[me], number, me)))
    if step.kind == "broadcast":
        root = number % size
        value = pattern(step.sizes[0], number, me)
        comm.broadcast(value, root)
        return raw(value)
    if step.kind == "swap":
        theirs = torch.zeros(step.sizes[0], dtype=torch.uint8)
        comm.swap(pattern(step.sizes[0], number, me), theirs)
        return raw(theirs)
    if step.kind == "all_gather":
        shards = [torch.zeros(step.sizes[rank], dtype=torch.uint8) for rank in range(size)]
        shards[me] = pattern(step.sizes[me], number, me)
        comm.all_gather(shards)
        return [raw(shard) for shard in shards]
    transfer, targets = _post(comm, step)
    comm.wait(transfer)
    return [raw(target) for target in targets]


def expected(step: Step, me: int, size: int) -> Any:
    """Tell what a step gives this member."""
    number = step.number
    if step.kind == "meet":
        return None
    if step.kind in ("share", "all_gather"):
        return [raw(pattern(step.sizes[rank], number, rank)) for rank in range(size)]
    if step.kind == "broadcast":
        return raw(pattern(step.sizes[0], number, number % size))
    if step.kind == "swap":
        return raw(pattern(step.sizes[0], number, 1 - me))
    return [
        bytes(step.sizes[me * size + me])
        if rank == me
        else raw(pattern(step.sizes[rank * size + me], number, rank, me))
        for rank in range(size)
    ]
