"""What was not measured costs nothing and scales perfectly; what was measured counts."""

from __future__ import annotations

import pytest

from pliant.core.policy.costs import (
    RIPE,
    Costs,
    committed,
    crossed,
    interrupted,
    marginal_efficiency,
    predicted_step_s,
    started,
    stay_that_pays_s,
    worthwhile,
)


def trained(costs: Costs, size: int, step_s: float, num_steps: int = RIPE + 1) -> Costs:
    """Let so many replicas commit steps of this length."""
    now_s = costs.committed_at
    for _ in range(num_steps):
        now_s += step_s
        costs = committed(costs, size=size, num_steps=1, now_s=now_s)
    return costs


def test_the_time_of_a_step_is_known_after_a_few() -> None:
    assert trained(Costs(), 2, 0.5, RIPE).step_time_s(2) is None
    assert trained(Costs(), 2, 0.5).step_time_s(2) == 0.5


def test_several_steps_told_at_once_are_shared_out() -> None:
    costs = committed(Costs(), size=2, num_steps=1, now_s=0.0)

    costs = committed(costs, size=2, num_steps=4, now_s=2.0)

    assert costs.step_s[2] == (0.5,)


def test_a_planned_change_costs_what_its_step_took_longer() -> None:
    costs = crossed(trained(Costs(), 2, 0.5))

    costs = committed(costs, size=3, num_steps=1, now_s=costs.committed_at + 0.75)

    assert costs.pause_time_s == 0.25
    assert 3 not in costs.step_s


def test_steps_across_a_change_that_are_told_at_once_tell_nothing() -> None:
    costs = crossed(trained(Costs(), 2, 0.5))

    after = committed(costs, size=2, num_steps=2, now_s=costs.committed_at + 9.0)

    assert (after.step_s, after.pause_s) == (costs.step_s, ())


def test_a_loss_is_neither_a_step_nor_a_planned_change() -> None:
    costs = interrupted(crossed(trained(Costs(), 2, 0.5)))

    after = committed(costs, size=1, num_steps=1, now_s=costs.committed_at + 9.0)

    assert after.pause_s == ()
    assert after.step_s == costs.step_s


def test_steps_of_nobody_knows_how_many_measure_nothing() -> None:
    """After a loss the next change was ordered before a step of the survivors was heard of."""
    costs = interrupted(trained(Costs(), 1, 0.5))

    after = trained(costs, costs.size, 0.5, 2 * RIPE)

    assert after.step_s == costs.step_s
    assert predicted_step_s(after, 4, 8) == 0.125


@pytest.mark.parametrize(("size", "step_s"), [(2, 1.0), (4, 0.5), (5, 0.5), (7, 0.5), (8, 0.25)])
def test_a_size_that_nobody_tried_takes_as_long_as_its_slots(size: int, step_s: float) -> None:
    assert predicted_step_s(trained(Costs(), 2, 1.0), size, 8) == step_s


def test_the_marginal_efficiency_is_a_share_of_one_replica() -> None:
    costs = trained(trained(Costs(), 2, 1.0), 4, 0.8)

    assert marginal_efficiency(Costs(), 2, 4, 8) == 1.0
    assert marginal_efficiency(costs, 2, 4, 8) == pytest.approx(0.25)
    assert worthwhile(costs, (1, 2, 4), 0.3, 8) == 2
    assert worthwhile(costs, (1, 2, 4), 0.2, 8) == 4


def test_growth_pays_after_the_start_and_two_pauses_worth_of_its_gain() -> None:
    costs = crossed(trained(Costs(), 2, 1.0))
    costs = started(committed(costs, size=2, num_steps=1, now_s=costs.committed_at + 1.5), 4.0)

    assert stay_that_pays_s(Costs(), 2, 4, 8) == 0.0
    assert stay_that_pays_s(costs, 2, 4, 8) == 4.0 + 2 * 0.5 / (2.0 - 1.0)
    assert stay_that_pays_s(costs, 4, 5, 8) == 0.0, "no faster: taken for the copy it holds"
