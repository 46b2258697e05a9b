"""A worker is called after its replica, and by its place where there are several."""

from __future__ import annotations

import pytest

from pliant.core.worker_names import is_follower, order_of, replica_of, worker_name


@pytest.mark.parametrize(
    ("worker", "name", "follows"),
    [(None, "r3", False), (0, "r3.0", False), (1, "r3.1", True), (12, "r3.12", True)],
)
def test_a_name_tells_the_replica_and_whether_the_worker_speaks_for_it(
    worker: int | None, name: str, follows: bool
) -> None:
    assert worker_name("r3", worker) == name
    assert replica_of(name) == "r3"
    assert is_follower(name) is follows


def test_names_are_sorted_by_their_numbers() -> None:
    names = ["forkserver", "r10.0", "r2.10", "r2.9", "r2", "r1.0"]

    assert sorted(names, key=order_of) == ["r1.0", "r2", "r2.9", "r2.10", "r10.0", "forkserver"]
