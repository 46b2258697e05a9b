"""Evaluation: a function over a whole dataset, shared out over the replicas in a tail.

Owns the cutting into micro-batches, whose part is whose, and the total, which has the same bits
for every number of replicas: the values of all micro-batches are exchanged, then added exactly.
Must not know how replicas meet: it asks a ``Team``.

    own micro-batches --values--> exchange --all values--> total
            |                        |
            +------ somebody died ---+--> the others' micro-batches too, here, alone

Nothing of the run changes: modules are in evaluation mode, no gradient is recorded, generators
and buffers are as before.  After a fault the others may have the total already and be in the next
step, so nobody is waited for a second time.
"""

from __future__ import annotations

import json
import math
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from typing import Any, Protocol

import torch
from torch.utils.data import default_collate

from pliant.core.errors import UsageError
from pliant.engine import probe, randomness
from pliant.engine.data.loading import Samples
from pliant.engine.state import naming
from pliant.engine.state.buffers import BufferRules

Values = dict[str, float]
Outcome = float | Values

Row = tuple[float, Values]
"""What the function said of one micro-batch: its weight, and its values."""

_ONLY = ""
"""Name of the value of a function that returns one number."""


class EvaluationTeam(Protocol):
    """Those who do this tail together."""

    @property
    def place(self) -> tuple[int, int]:
        """This replica's rank and how many they are; (0, 1) once they are no longer together."""

    def attend(self) -> None:
        """Serve what the coordinator wants meanwhile; afterwards ``place`` may be another."""

    def exchange(self, name: str, payload: bytes) -> list[bytes] | None:
        """Return what each of them gives under ``name``; None if they are no longer together."""

    def gather_names(self, names: Mapping[str, str]) -> dict[str, str]:
        """Return what all workers of this replica name, those of further ones with their number."""


class SingleMemberTeam:
    """The team of a replica that trains alone."""

    place = (0, 1)

    def attend(self) -> None:
        """Nobody wants anything."""

    def exchange(self, name: str, payload: bytes) -> list[bytes] | None:
        """Nobody else gives anything."""
        del name
        return [payload]

    def gather_names(self, names: Mapping[str, str]) -> dict[str, str]:
        """Return them: nobody else names anything."""
        return dict(names)


@dataclass(frozen=True, slots=True, kw_only=True)
class Evaluation:
    """One call of ``session.evaluate``, which says what its arguments are."""

    dataset: Samples
    size: int
    """Of the dataset."""
    fn: Callable[[Any], Any]
    collate_fn: Callable[[list[Any]], Any] | None
    micro_batch_size: int
    coordinates: tuple[int, ...]
    """Of this call in the run: seed, committed steps, how many were before it in the same tail."""
    replica: str = ""
    words: Callable[[], Mapping[int, str]] = dict
    """Says what some samples are, for the comparison with other replicas."""

    def run(self, model: torch.nn.Module, buffers: BufferRules, team: EvaluationTeam) -> Outcome:
        """Return the weighted mean over the dataset: a number, or one by name."""
        count = -(-self.size // self.micro_batch_size)
        with _undisturbed(model, buffers):
            rows = self._share(count, buffers, team)
            rows |= {n: self._row(n, buffers) for n in range(count) if n not in rows}
        return _total([rows[number] for number in range(count)])

    def _share(self, count: int, buffers: BufferRules, team: EvaluationTeam) -> dict[int, Row]:
        """Return the rows of everybody, or of this replica alone if they are apart."""
        rank, size = team.place
        rows: dict[int, Row] = {}
        for number in range(count * rank // size, count * (rank + 1) // size):
            probe.at("evaluate", self.coordinates[1])
            team.attend()
            rows[number] = self._row(number, buffers)
        name = "evaluate/" + "/".join(map(str, self.coordinates))
        if size == 1 or (parts := team.exchange(name, _pack(rows, self._described()))) is None:
            return rows
        looks: list[dict[str, str]] = [json.loads(part)[0] for part in parts]
        who = [look.pop("") for look in looks]
        if (what := naming.difference(looks, who)) is not None:
            raise UsageError(
                f"session.evaluate after step {self.coordinates[1] - 1}: {what}; evaluate the same "
                "dataset on every replica, and draw parts of it with a seed (pliant.seed, or a "
                "generator of random_split)"
            )
        for part in parts:
            rows |= _unpack(part)
        return rows

    def _described(self) -> dict[str, str]:
        """Return what must be equal on all, and under no name whose it is."""
        samples = {f"sample {index} of the dataset": word for index, word in self.words().items()}
        sizes = {"size of the dataset": self.size, "micro_batch_size": self.micro_batch_size}
        return {"": self.replica, **{name: str(one) for name, one in sizes.items()}, **samples}

    def _row(self, number: int, buffers: BufferRules) -> Row:
        start = number * self.micro_batch_size
        stop = min(start + self.micro_batch_size, self.size)
        randomness.seed_place("evaluate", *self.coordinates, number)
        items = [self.dataset[index] for index in range(start, stop)]
        batch = (self.collate_fn or default_collate)(items)
        row = _read(self.fn(batch), stop - start)
        buffers.rewind()
        return row


@contextmanager
def _undisturbed(model: torch.nn.Module, buffers: BufferRules) -> Iterator[None]:
    """Evaluate without a trace."""
    modes = [(module, module.training) for module in model.modules()]
    buffers.begin()
    try:
        with randomness.preserved(), torch.no_grad():
            model.eval()
            yield
    finally:
        buffers.rewind()
        for module, mode in modes:
            module.training = mode


def _read(answer: Any, samples: int) -> Row:
    weighed = isinstance(answer, tuple) and len(answer) == 2
    mean, counted = answer if weighed else (answer, samples)
    named = mean if isinstance(mean, Mapping) else {_ONLY: mean}
    try:
        weight = float(counted)
        values = {str(name): float(value) for name, value in named.items()}
    except (TypeError, ValueError, RuntimeError) as error:
        raise UsageError(
            "the function given to session.evaluate must return the micro-batch's mean as a "
            f"number, or a dict of them by name, or such a thing and its weight: {error}"
        ) from error
    if not (math.isfinite(weight) and weight >= 0.0):
        raise UsageError(f"the weight of an evaluated micro-batch must be at least 0, got {weight}")
    return weight, values


def _total(rows: Sequence[Row]) -> Outcome:
    """Return the weighted means; a row of weight 0 counts nothing, whatever its values are."""
    names = list(dict.fromkeys(name for _, values in rows for name in values))
    means = {}
    for name in names:
        found = [(values[name], weight) for weight, values in rows if name in values]
        weight = _sum([weight for _, weight in found])
        total = _sum([value * weight for value, weight in found if weight])
        mean = total / weight if weight else math.nan
        means[name] = math.nan if math.isnan(mean) else mean  # the sign of a nan does not travel
    return means[_ONLY] if names == [_ONLY] else means


def _sum(values: Sequence[float]) -> float:
    """Add exactly, so that the order does not matter; infinities as IEEE 754 does."""
    try:
        return math.fsum(values)
    except (OverflowError, ValueError):
        return sum(values)


def _pack(rows: Mapping[int, Row], look: Mapping[str, str]) -> bytes:
    listed = [
        [number, weight.hex(), {name: value.hex() for name, value in values.items()}]
        for number, (weight, values) in rows.items()
    ]
    return json.dumps([look, listed], separators=(",", ":")).encode()


def _unpack(data: bytes) -> dict[int, Row]:
    return {
        number: (
            float.fromhex(weight),
            {name: float.fromhex(value) for name, value in values.items()},
        )
        for number, weight, values in json.loads(data)[1]
    }
