"""Events come in order and together, and who asked is always answered."""

from __future__ import annotations

import asyncio

from pliant.coordinator.inbox import MOST_AT_ONCE, Inbox
from pliant.core.events import Scaled, Ticked


def test_what_is_there_is_taken_together_and_in_order() -> None:
    async def scene() -> None:
        inbox = Inbox()
        events = [Scaled(target=target) for target in range(MOST_AT_ONCE + 1)]
        for event in events:
            inbox.put(event)

        first, second = await inbox.take_events(1.0), await inbox.take_events(1.0)

        assert [one.event for one in (*first, *second)] == events
        assert len(second) == 1
        assert not await inbox.take_events(0.0)

    asyncio.run(scene())


def test_who_asks_as_it_closes_is_told_that_there_is_no_answer() -> None:
    async def scene() -> None:
        inbox = Inbox()
        asked = asyncio.create_task(inbox.ask(Ticked()))
        await asyncio.sleep(0)

        inbox.close()

        assert await asked is None
        assert await inbox.ask(Ticked()) is None

    asyncio.run(scene())
