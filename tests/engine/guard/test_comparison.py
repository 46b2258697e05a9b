"""Whatever of the state differs, some digest does, in the same step or within a few."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from typing import Any

import pytest
import torch
from tests.engine.state.test_training_state import Held, state_of
from torch import nn

from pliant.core.errors import StateCorruptError, UsageError
from pliant.engine.guard import comparison
from pliant.engine.guard.comparison import (
    ASPECTS,
    StateComparison,
    compare_whole,
    part_with_the_wrong,
)
from pliant.engine.state import naming


def network() -> nn.Sequential:
    torch.manual_seed(0)
    return nn.Sequential(nn.Linear(4, 8), nn.BatchNorm1d(8), nn.Linear(8, 3))


class Replica:
    def __init__(self) -> None:
        self.model: Any = network()
        self.kept = Held({"count": 1})
        self.state = state_of(self.model, extra={"": self.kept})
        for parameter in self.model.parameters():
            self.optimizer.state[parameter]["momentum_buffer"] = torch.ones_like(parameter)
        self.comparison = StateComparison(self.state, dict)

    @property
    def optimizer(self) -> torch.optim.Optimizer:
        return self.state.optimizers[0]

    def digests(self, step: int = 0) -> tuple[int, ...]:
        self.comparison.pass_boundary(step)
        self.comparison.begin(step)
        return self.comparison.digests()


def write(parameter: torch.Tensor) -> None:
    parameter.data.add_(1.0)


CHANGES: dict[str, tuple[Callable[[Replica], object], str, str]] = {
    "total": (lambda r: setattr(r.comparison, "total", 70), "arguments", "the total of steps()"),
    "fed": (
        lambda r: r.comparison.feed({"loss": 0.5}),
        "arguments",
        "what session.feed(loss=...) was given",
    ),
    "mode": (lambda r: r.model[1].eval(), "modes", "training of module '1' (train() or eval())"),
    "frozen": (lambda r: r.model[0].bias.requires_grad_(False), "modes", "requires_grad of '0.b"),
    "buffer": (lambda r: r.model[1].running_var.add_(1), "tensors", "buffer '1.running_var'"),
    "weight": (lambda r: write(r.model[2].weight), "tensors", "parameter '2.weight'"),
    "state": (
        lambda r: r.optimizer.state[r.model[2].bias]["momentum_buffer"].zero_(),
        "tensors",
        "momentum_buffer of '2.bias' in the state of optimizer 0",
    ),
    "object": (lambda r: r.kept.kept.update(count=2), "objects", "extra_state['count']"),
}


@pytest.mark.parametrize("change", CHANGES)
def test_a_difference_is_in_one_digest_and_among_its_names(change: str) -> None:
    make, aspect, name = CHANGES[change]
    mine, theirs = Replica(), Replica()
    assert mine.digests() == theirs.digests()

    make(theirs)
    pairs = list(zip(mine.digests(16), theirs.digests(16), strict=True))

    first = next(number for number, (a, b) in enumerate(pairs) if a != b)
    assert ASPECTS[first] == aspect
    a, b = mine.comparison.named(first), theirs.comparison.named(first)
    (found,) = [key for key in a.keys() | b.keys() if a.get(key) != b.get(key)]
    assert found.startswith(name)
    assert mine.comparison.whole() != theirs.comparison.whole()


def test_every_byte_has_its_turn(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(comparison, "PART_BYTES", 100)
    seen = set()
    for step in range(8):
        mine, theirs = Replica(), Replica()
        write(theirs.model[2].weight[2])
        if mine.digests(step) != theirs.digests(step):
            seen.add(step)

    assert 0 < len(seen) < 8


def test_a_step_that_is_done_again_starts_from_the_same() -> None:
    mine = Replica()
    first = mine.digests(3)
    mine.model[1].running_mean.add_(1.0)  # a forward; what it did is undone before the next attempt
    mine.comparison.begin(3)

    assert mine.comparison.digests() == first


def test_who_received_the_state_in_the_middle_of_a_step_says_nothing_of_its_boundary() -> None:
    mine = Replica()
    mine.comparison.receive()
    modes, objects = ASPECTS.index("modes"), ASPECTS.index("objects")

    first, second = mine.digests(16), mine.digests(32)

    assert first[modes] == first[objects] == comparison.UNKNOWN
    assert comparison.UNKNOWN not in second


def test_weights_that_change_behind_autograd_within_a_step_are_named() -> None:
    mine = Replica()
    mine.digests()
    write(mine.model[2].weight)

    with pytest.raises(UsageError, match=r"the values of '2.weight' changed inside the loop"):
        mine.comparison.digests()


def test_a_sampler_that_draws_otherwise_here_is_found_out_in_that_step() -> None:
    def told(draws: str) -> tuple[tuple[int, ...], dict[str, str]]:
        replica = Replica()
        replica.comparison = StateComparison(replica.state, dict, lambda step: draws * (step == 3))
        assert replica.digests(2) == Replica().digests(2)
        digests = replica.digests(3)
        return digests, replica.comparison.named(ASPECTS.index("settings"))

    (one, names), (other, _) = told("ab"), told("cd")

    assert one != other
    assert names == {"what the sampler draws for this step": "'ab'"}


def test_a_rate_in_a_tensor_is_compared_to_its_last_bit() -> None:
    def digests(rate: float) -> tuple[int, ...]:
        settings = {"optimizers": [{"groups": [{"lr": torch.tensor(rate)}]}]}
        replica = Replica()
        replica.comparison = StateComparison(replica.state, lambda: settings)
        return replica.digests()

    assert digests(1e-3) == digests(1e-3) != digests(1.0001e-3)


# What follows from a difference


class Team:
    """One replica, and what the others say."""

    place = (0, 3)

    def __init__(self, others: Sequence[dict[str, str]]) -> None:
        self._others = others
        self.exchanged: list[str] = []

    def attend(self) -> None:
        pass

    def gather_names(self, names: Mapping[str, str]) -> dict[str, str]:
        return dict(names)

    def exchange(self, name: str, payload: bytes) -> list[bytes] | None:
        self.exchanged.append(name)
        if name.endswith("/names"):
            return [payload, *map(naming.pack, self._others)]
        plain = [{k: v for k, v in one.items() if k} for one in self._others]
        return [payload, *(naming.pack({"": naming.summary(one)}) for one in plain)]


def comparison_of_a_layer() -> StateComparison:
    torch.manual_seed(1)
    return StateComparison(state_of(torch.nn.Linear(2, 2)), dict)


def others(*who: tuple[str, str]) -> list[dict[str, str]]:
    """Say what others have: all alike, but of some one weight."""
    names = comparison_of_a_layer().whole()
    return [{**names, "parameter 'weight'": weight, "": name} for name, weight in who]


def test_what_is_alike_is_exchanged_once() -> None:
    weight = comparison_of_a_layer().whole()["parameter 'weight'"]
    team = Team(others(("r2", weight), ("r3", weight)))

    assert compare_whole(comparison_of_a_layer(), team, "r1", 5, is_verified=True) == ""
    assert team.exchanged == ["state/5"]


def test_the_others_are_told_of_the_one_that_differs() -> None:
    weight = comparison_of_a_layer().whole()["parameter 'weight'"]
    team = Team(others(("r2", weight), ("r3", "digest 1")))

    said = compare_whole(comparison_of_a_layer(), team, "r1", 5, is_verified=True)

    assert said.startswith("at step 5 parameter 'weight' differs between replicas (digest ")
    assert said.endswith(" on r1, r2; digest 1 on r3)")


def test_one_that_differs_from_most_leaves() -> None:
    team = Team(others(("r2", "digest 1"), ("r3", "digest 1")))

    with pytest.raises(StateCorruptError, match=r"'weight' differs .* on r1; digest 1 on r2, r3"):
        compare_whole(comparison_of_a_layer(), team, "r1", 5, is_verified=True)


def test_the_script_is_blamed_where_nothing_is_verified() -> None:
    team = Team(others(("r2", "digest 1"), ("r3", "digest 1")))

    with pytest.raises(UsageError, match="the script changed it on some replicas only"):
        compare_whole(comparison_of_a_layer(), team, "r1", 5, is_verified=False)


@pytest.mark.parametrize("digests", [[1, 2], [1, 1, 2, 2], [1, 2, 3]])
def test_where_no_more_than_half_are_alike_nobody_is_right(digests: list[int]) -> None:
    replicas = [f"r{number}" for number in range(1, len(digests) + 1)]

    with pytest.raises(UsageError, match="nobody can say which are right"):
        part_with_the_wrong(digests, replicas, "r1", "at step 5 it differs")


def test_a_generation_that_ends_between_the_exchanges_blames_nobody() -> None:
    class Ended(Team):
        def exchange(self, name: str, payload: bytes) -> list[bytes] | None:
            return None if name.endswith("/names") else super().exchange(name, payload)

    weight = comparison_of_a_layer().whole()["parameter 'weight'"]
    team = Ended(others(("r2", weight), ("r3", "digest 1")))

    assert compare_whole(comparison_of_a_layer(), team, "r1", 5, is_verified=True) == ""
