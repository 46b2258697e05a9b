"""Guards are asked in their order, each only where it has something to do."""

from __future__ import annotations

import pytest

from pliant.engine.guard.base import Guards
from pliant.engine.guard.differences import Differences
from pliant.engine.guard.files import FileRecord
from pliant.engine.guard.loss_graph import LossGraph
from pliant.engine.guard.script_calls import OtherLoaders, ScriptCalls
from pliant.engine.sharding.fsdp import FsdpSettings


class Noting:
    """Notes what it is asked."""

    def __init__(self, name: str, asked: list[object]) -> None:
        self.name, self.asked = name, asked

    def on_step(self, step: int) -> None:
        self.asked.append((self.name, step))

    def on_work(self, begins: bool) -> None:
        self.asked.append(begins)


def test_each_is_asked_in_order_where_it_has_the_hook() -> None:
    asked: list[object] = []
    guards = Guards(Noting("a", asked), None, Noting("b", asked))

    guards.on_session()
    guards.on_step(3)

    assert asked == [("a", 3), ("b", 3)]


def test_the_session_is_at_work_until_it_is_done_also_where_it_fails() -> None:
    asked: list[object] = []

    with pytest.raises(OSError, match="gone"), Guards(Noting("a", asked)).paused():
        raise OSError("gone")

    assert asked == [True, False]


@pytest.mark.parametrize(
    "kind", [Differences, FileRecord, LossGraph, OtherLoaders, ScriptCalls, FsdpSettings]
)
def test_no_guard_has_a_hook_that_nobody_calls(kind: type) -> None:
    hooks = {name for name in vars(kind) if name.startswith("on_")}

    assert hooks
    assert hooks <= Guards.__annotations__.keys()
