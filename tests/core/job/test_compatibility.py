"""A spare that may not join is told in what it differs."""

from __future__ import annotations

import pytest

from pliant.core.events import Spare
from pliant.core.job.compatibility import difference
from pliant.core.values import ReplicaId

RUN = "weight float32 [1, 4]\nbias float32 [1]\nlayout a"


def spare(layout: str) -> Spare:
    return Spare(replica=ReplicaId("r1"), calls=0, num_slots=8, layout=layout, endpoint="r1:1")


@pytest.mark.parametrize(
    ("layout", "sentence"),
    [
        (RUN, None),
        ("weight float32 [1, 4]\nlayout b", "its model lacks bias float32 [1], which the run has"),
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
