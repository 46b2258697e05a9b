"""Who is parted with when the state of the replicas differs, and when nobody is."""

from __future__ import annotations

from collections.abc import Mapping, Sequence

import pytest
import torch
from tests.engine.state.test_training_state import state_of

from pliant.core.errors import StateCorruptError, UsageError
from pliant.engine.state import naming
from pliant.engine.state.comparison import StateComparison
from pliant.engine.state.verification import compare_whole, part_with_the_wrong


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


def comparison() -> StateComparison:
    torch.manual_seed(1)
    return StateComparison(state_of(torch.nn.Linear(2, 2)), dict)


def others(*who: tuple[str, str]) -> list[dict[str, str]]:
    """Say what others have: all alike, but of some one weight."""
    names = comparison().whole()
    return [{**names, "parameter 'weight'": weight, "": name} for name, weight in who]


def test_what_is_alike_is_exchanged_once() -> None:
    weight = comparison().whole()["parameter 'weight'"]
    team = Team(others(("r2", weight), ("r3", weight)))

    assert compare_whole(comparison(), team, "r1", 5, is_verified=True) == ""
    assert team.exchanged == ["state/5"]


def test_the_others_are_told_of_the_one_that_differs() -> None:
    weight = comparison().whole()["parameter 'weight'"]
    team = Team(others(("r2", weight), ("r3", "digest 1")))

    said = compare_whole(comparison(), team, "r1", 5, is_verified=True)

    assert said.startswith("at step 5 parameter 'weight' differs between replicas (digest ")
    assert said.endswith(" on r1, r2; digest 1 on r3)")


def test_one_that_differs_from_most_leaves() -> None:
    team = Team(others(("r2", "digest 1"), ("r3", "digest 1")))

    with pytest.raises(StateCorruptError, match=r"'weight' differs .* on r1; digest 1 on r2, r3"):
        compare_whole(comparison(), team, "r1", 5, is_verified=True)


def test_the_script_is_blamed_where_nothing_is_verified() -> None:
    team = Team(others(("r2", "digest 1"), ("r3", "digest 1")))

    with pytest.raises(UsageError, match="the script changed it on some replicas only"):
        compare_whole(comparison(), team, "r1", 5, is_verified=False)


@pytest.mark.parametrize("digests", [[1, 2], [1, 1, 2, 2], [1, 2, 3]])
def test_where_no_more_than_half_are_alike_nobody_is_right(digests: list[int]) -> None:
    replicas = [f"r{number}" for number in range(1, len(digests) + 1)]

    with pytest.raises(UsageError, match="nobody can say which are right"):
        part_with_the_wrong(digests, replicas, "r1", "at step 5 it differs")


def test_a_generation_that_ends_between_the_exchanges_blames_nobody() -> None:
    class Ended(Team):
        def exchange(self, name: str, payload: bytes) -> list[bytes] | None:
            return None if name.endswith("/names") else super().exchange(name, payload)

    weight = comparison().whole()["parameter 'weight'"]
    team = Ended(others(("r2", weight), ("r3", "digest 1")))

    assert compare_whole(comparison(), team, "r1", 5, is_verified=True) == ""
