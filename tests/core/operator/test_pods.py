"""What scenarios do not show: a plan whose actions got lost."""

from __future__ import annotations

from tests.core.operator.play import Happenings, Play, new_world

from pliant.core.operator.actions import DeletePod
from pliant.core.operator.plan import plan


def test_a_failure_counts_once_however_often_it_is_seen() -> None:
    world = new_world(["min=1", "max=1"])
    Play(world).settle("")
    Happenings(world).fail("base-0", "OOMKilled")
    for _ in range(3):
        made = plan(world.snapshot(), world.now_s)
        world.status = made.status

    assert [one.reason for one in world.status.memory.failures] == ["OOMKilled"]
    assert [type(action) for action in made.actions] == [DeletePod]
    assert made.events == ()
