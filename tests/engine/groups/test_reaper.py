"""Groups are destroyed in the background, in their time."""

from __future__ import annotations

import threading
import time

from pliant.engine.groups.reaper import EndedGroup, GroupReaper


class Body(EndedGroup):
    """Can be destroyed at the given attempt."""

    def __init__(self, attempts: int = 1) -> None:
        self.attempts = attempts
        self.destroyed_at = 0.0
        self.destroyed = threading.Event()

    def destroy(self) -> bool:
        self.attempts -= 1
        if self.attempts:
            return False
        self.destroyed_at = time.monotonic()
        self.destroyed.set()
        return True


def test_an_abandoned_group_does_not_wait_for_one_in_its_grace_period() -> None:
    reaper, retired, abandoned = GroupReaper(), Body(), Body()

    reaper.destroy_later(retired, grace_s=0.3)
    reaper.destroy_later(abandoned)

    assert abandoned.destroyed.wait(5)
    assert retired.destroyed.wait(5)
    assert retired.destroyed_at - abandoned.destroyed_at > 0.1


def test_what_cannot_be_destroyed_yet_is_tried_again_and_counts_until_then() -> None:
    reaper, stuck = GroupReaper(), Body(attempts=3)

    reaper.destroy_later(stuck)

    assert not reaper.wait_until_below(1, deadline_s=0.0) or stuck.destroyed.is_set()
    assert reaper.wait_until_below(1, deadline_s=5)
    assert stuck.destroyed.is_set()
    assert reaper.pending == 0


def test_retired_groups_do_not_hold_up_who_waits_for_abandoned_ones() -> None:
    reaper = GroupReaper()

    reaper.destroy_later(Body(), grace_s=30)

    assert reaper.wait_until_below(1, deadline_s=0)
    assert reaper.pending == 1
