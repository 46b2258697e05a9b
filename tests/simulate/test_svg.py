"""Scales are round, and pictures of nothing are pictures."""

from __future__ import annotations

import pytest

from pliant.simulate import svg
from pliant.simulate.svg import Band


@pytest.mark.parametrize(("most", "end"), [(0.0, 1.0), (7.0, 8.0), (96.0, 100.0), (256.0, 300.0)])
def test_an_axis_ends_at_a_round_number(most: float, end: float) -> None:
    assert svg._nice(most) == end
    assert svg._ticks(end)[-1] <= end
    assert 2 <= len(svg._ticks(end)) <= 7


def test_a_picture_of_nothing_can_be_drawn() -> None:
    assert svg.areas("nothing", [], 60.0, "devices").count("<svg") == 1


def test_layers_of_nothing_are_not_in_the_legend() -> None:
    drawn = svg.areas("x", [Band("a", "#000", [1.0]), Band("b", "#111", [0.0])], 60.0, "devices")

    assert "</i>a</span>" in drawn
    assert "</i>b</span>" not in drawn
