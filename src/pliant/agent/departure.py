"""How an agent leaves that was told to end: its replicas first, between two steps.

Owns how long they may take, and what is said of that.  Decides nothing: who leaves when is the
core's; what is still there after the grace the agent ends.

    told to end --> NodeLeaving --> the core lets them go --> nothing runs here --> AgentLeft
                                            grace over, or told again --> killed --^
"""

from __future__ import annotations

import asyncio
import time
from collections.abc import Callable, Sized

from pliant.core.events import NodeLeaving
from pliant.core.values import NodeId
from pliant.machine.event_loop import within
from pliant.wire.codec import Message

LOOK_S = 0.1
"""Between two looks whether all have left, in seconds."""


class Departure:
    """One agent's; nothing until ``begun``."""

    def __init__(self, node: NodeId, grace_s: float) -> None:
        self._node = node
        self._grace_s = grace_s
        self._until_s: float | None = None

    @property
    def has_grace(self) -> bool:
        """Whether they have any time."""
        return self._grace_s > 0

    def begun(self) -> NodeLeaving:
        """Let the grace begin; return what is said of it."""
        self._until_s = time.monotonic() + self._grace_s
        return NodeLeaving(node=self._node, notice_s=self._grace_s)

    def words(self) -> list[Message]:
        """Return what a coordinator is told of it that may be a new one."""
        return [NodeLeaving(node=self._node, notice_s=self._left_s())] if self._until_s else []

    def _left_s(self) -> float:
        return max(0.0, (self._until_s or 0.0) - time.monotonic())

    async def over(
        self, here: Callable[[], Sized], ended: asyncio.Event, hurried: asyncio.Event
    ) -> None:
        """Wait until nothing runs here, the job or the grace is over, or somebody is in a hurry."""
        while here() and not (ended.is_set() or hurried.is_set()):
            if (left_s := self._left_s()) <= 0:
                return
            await within(hurried.wait(), min(left_s, LOOK_S))
