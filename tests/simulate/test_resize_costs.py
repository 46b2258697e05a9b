"""A way of resizing is named, with seconds where it takes some."""

from __future__ import annotations

import pytest

from pliant.core.errors import ConfigError
from pliant.simulate.resize_costs import IN_PLACE, STATIC, costs_of


def test_a_way_is_found_by_its_name_and_may_say_its_restart() -> None:
    assert costs_of("in-place") is IN_PLACE
    assert costs_of(" static ") is STATIC
    assert (costs_of("restart:60").restart_s, costs_of("restart:60").name) == (60.0, "restart:60")
    assert costs_of("restart:60").checkpoint_every_s == 600.0
    often = costs_of("restart:60:300")
    assert (often.restart_s, often.checkpoint_every_s, often.name) == (60, 300, "restart:60:300")
    assert costs_of("pause:5").join_pause_s == costs_of("pause:5").loss_pause_s == 5.0


@pytest.mark.parametrize(
    "text",
    [
        "teleport",
        "restart:",
        "restart:soon",
        "pause",
        "in-place:1e9",
        "restart:60:",
        "restart:60:x",
    ],
)
def test_what_is_no_way_is_refused_with_what_there_is(text: str) -> None:
    with pytest.raises(ConfigError, match="no way of resizing"):
        costs_of(text)
