"""Each key once, when it is due, and never to two at a time."""

from __future__ import annotations

import asyncio
import random

from pliant.kube.queue import WorkQueue
from pliant.machine.event_loop import within


def test_a_key_is_handed_out_once_and_again_if_something_was_heard_meanwhile() -> None:
    async def play() -> None:
        queue: WorkQueue[str] = WorkQueue(random.Random(1))
        for _ in range(5):
            queue.add("a")
        queue.add("b", 0.01)
        queue.add("later", 3600.0)
        assert await queue.next_key() == "a"
        queue.add("a")
        assert await queue.next_key() == "b"
        assert await within(queue.next_key(), 0.05) is None  # a is being worked on
        queue.done("a")
        assert await queue.next_key() == "a"
        queue.add("later", 0.0)  # the earlier moment counts
        assert await queue.next_key() == "later"

    asyncio.run(play())


def test_failures_in_a_row_are_further_apart_up_to_a_bound() -> None:
    now_s = 0.0
    queue: WorkQueue[str] = WorkQueue(random.Random(1), monotonic=lambda: now_s)
    pauses = [queue.failed("a") for _ in range(20)]
    assert pauses[0] < 0.06
    assert 15 <= pauses[-1] <= 30
    assert queue.failed("a", at_least_s=90) == 90
    queue.succeeded("a")
    assert queue.failed("a") < 0.06
    assert len(queue) == 0
