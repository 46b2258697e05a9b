"""A spare that may not join is told in what it differs; the outside, what the job can use."""

from __future__ import annotations

import pytest

from pliant.core.events import Spare
from pliant.core.job.state import demand_of, difference
from pliant.core.policy.decide import Policy
from pliant.core.values import ReplicaId

RUN = "weight float32 [1, 4]\nbias float32 [1]\nlayout a"


def spare(layout: str) -> Spare:
    return Spare(replica=ReplicaId("r1"), calls=0, num_slots=8, layout=layout, endpoint="r1:1")


@pytest.mark.parametrize(
    ("layout", "sentence"),
    [
        (RUN, None),
        (
            "weight float32 [1, 4]\nlayout b",
            "its model lacks bias float32 [1], which the run has",
        ),
        (
            "weight float32 [1, 4]\nbias float32 [1]\nmore float32 [2]\nlayout b",
            "its model has more float32 [2], which the run has not",
        ),
        (
            "weight float32 [1, 5]\nbias float32 [1]\nlayout b",
            "its model has weight float32 [1, 5] where the run has weight float32 [1, 4]",
        ),
        ("layout b", "its model lacks weight float32 [1, 4], which the run has"),
        ("weight float32 [1, 4]", "its model has other parameters than the run's"),
    ],
)
def test_another_model_is_named_by_its_first_difference(layout: str, sentence: str | None) -> None:
    assert difference(spare(layout), spare(RUN)) == sentence


@pytest.mark.parametrize(
    ("policy", "ask", "least", "sizes"),
    [
        (Policy(min_replicas=2), 5, 2, None),
        (Policy(min_replicas=2, replica_increment_step=1), 5, 2, None),
        (Policy(min_replicas=2, replica_increment_step=2), 7, 2, (2, 4, 6)),
        (Policy(min_replicas=2, replica_discrete_values=(2, 4, 8)), 4, 2, (2, 4)),
        (Policy(min_replicas=2, replica_increment_step=2, spares=1), 7, 2, None),
    ],
)
def test_the_outside_is_told_the_sizes_of_which_others_are_of_no_use(
    policy: Policy, ask: int, least: int, sizes: tuple[int, ...] | None
) -> None:
    demand = demand_of(policy, ask_replicas=ask)

    assert (demand.min_replicas, demand.ask_replicas, demand.sizes) == (least, ask, sizes)
