"""The outside is told what the job can use."""

from __future__ import annotations

import pytest

from pliant.core.job.state import demand_of
from pliant.core.policy.decide import Policy


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
