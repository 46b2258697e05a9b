"""Scales are round, and pictures of nothing are pictures."""

from __future__ import annotations

import math

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
    assert svg.bars("nothing", [], [], unit="hours").count("<svg") == 1


def test_a_line_leaves_out_what_has_no_value() -> None:
    drawn = svg.lines("x", ["a", "b"], [Band("y", "#000", [1.0, math.nan])], unit="hours")

    assert drawn.count("<circle") == 1
    assert "nan" not in drawn


def test_of_a_setting_without_room_below_its_bar_only_the_value_is_written() -> None:
    names = [f"scalingTimeoutInSeconds={value}" for value in range(10, 17)]

    few, many = (
        svg.bars("x", some, [Band("y", "#000", [1.0] * len(some))], unit="hours")
        for some in (names[:2], names)
    )

    assert ">scalingTimeoutInSeconds=10</text>" in few
    assert ">10</text>" in many
    assert ">scalingTimeoutInSeconds=10</text>" not in many


def test_layers_of_nothing_are_not_in_the_legend() -> None:
    drawn = svg.areas("x", [Band("a", "#000", [1.0]), Band("b", "#111", [0.0])], 60.0, "devices")

    assert "</i>a</span>" in drawn
    assert "</i>b</span>" not in drawn
