"""The workers of a replica compute its slots in passes."""

from __future__ import annotations

from typing import Any
from unittest.mock import MagicMock

import pytest

from pliant.core.errors import UsageError
from pliant.core.step.passes import Pass
from pliant.engine.data.slots import _OpenSlot
from pliant.engine.data.team_slots import TeamSlots


def of_a_sharded_model() -> TeamSlots:
    team: Any = MagicMock(is_sharded=True, shard=0)
    names = ("sums", "buffers", "schedule", "loader", "ledger", "scaler", "stages")
    return TeamSlots(team, num_parameters=1, **{name: MagicMock() for name in names})


def test_a_schedule_and_a_sharded_model_are_refused() -> None:
    with pytest.raises(UsageError, match=r"step\.pipeline of a model under fully_shard"):
        of_a_sharded_model().pipeline(lambda: None, None)


def test_a_sharded_model_needs_every_backward() -> None:
    slots = of_a_sharded_model()
    slots._pass = Pass(places=range(1), computed=(0,))
    slots._open = _OpenSlot(MagicMock(), MagicMock())

    with pytest.raises(UsageError, match=r"step\.backward was not called for a micro-batch"):
        slots._end_pass()
