"""Coordinators as they run live, told what a scenario file says.

Their driver, register and log are the real ones, and time is the file's: what the driver would tell
itself of time is left to the lines of the file.  Agents are nobody here (``live_agents``).
"""

from __future__ import annotations

import asyncio
import math
from pathlib import Path

from tests.support.player import Answer

from pliant.coordinator.driver import JobDriver
from pliant.coordinator.loop import Answered, Incoming
from pliant.coordinator.register import StoredRegister
from pliant.core.errors import ConflictError
from pliant.core.events import Event, Ticked
from pliant.core.job.state import JobSettings, Ready
from pliant.core.values import Incarnation
from pliant.machine.clock import Clock
from pliant.observe.log import EventLog
from pliant.wire.codec import Message


class FileTime(Clock):
    """The time that the lines of a scenario tell."""

    def __init__(self) -> None:
        super().__init__(lambda: 0.0)
        self.told_s = 0.0

    def now_s(self) -> float:
        return self.told_s


class MemoryPlace:
    """Where a register lies, for all coordinators of a job."""

    write_again_s = (0.0,)

    def __init__(self) -> None:
        self.data: bytes | None = None

    def read(self) -> bytes | None:
        return self.data

    def exchange(self, data: bytes, *, expected: bytes | None) -> bool:
        is_taken = self.data == expected
        if is_taken:
            self.data = data
        return is_taken


class Told(JobDriver):
    """Keeps what it is told by agents, and what its core has answered."""

    received: list[Message]
    answers: list[Ready]

    def receive(self, message: Message) -> None:
        self.received.append(message)
        super().receive(message)

    async def _carry_out(self, answered: Answered, *, is_told: bool) -> None:
        self.answers.append(answered.ready)
        await super()._carry_out(answered, is_told=is_told)


class LiveCoordinators:
    """The coordinators of one job, one after the other, as they run live."""

    due_s = math.inf
    """Until then their driver leaves time alone; ``controller.next_deadline_s`` must say so."""

    def __init__(
        self, settings: JobSettings, directory: Path, loop: asyncio.AbstractEventLoop
    ) -> None:
        self._settings = settings
        self._directory = directory
        self._loop = loop
        self._place = MemoryPlace()
        self._time = FileTime()
        self._drivers: list[Told] = []

    def begin(self, *, now_s: float) -> None:
        """Let a coordinator begin; those before it live on."""
        self._time.told_s = now_s
        driver = Told(
            settings=self._settings,
            register=StoredRegister(self._place),
            log=EventLog(self._directory / "events.jsonl", job="j"),
            metrics_path=self._directory / "metrics.jsonl",
            clock=self._time,
            boot=1,
        )
        driver.received, driver.answers = [], []
        driver.nodes._silent_s = math.inf  # as a file says it
        self._loop.run_until_complete(driver.begin())
        self._drivers.append(driver)

    @property
    def incarnation(self) -> Incarnation:
        """Return the incarnation of the newest coordinator."""
        return self._drivers[-1].incarnation

    def hear_event(self, event: Event, *, now_s: float, age: int) -> Answer:
        """Let the coordinator that ``age`` others have followed hear an event."""
        self._time.told_s = now_s
        return self._loop.run_until_complete(self._answers(event, age))

    async def _answers(self, event: Event | None, age: int) -> Answer:
        """Let a coordinator take one turn; without an event it finds one itself."""
        driver = self._drivers[-1 - age]
        before = driver.core.state.history.stale + driver.core.state.membership.stale
        driver.answers.clear()
        batch = [] if event is None or isinstance(event, Ticked) else [Incoming(event)]
        driver.core.forget_due()
        LiveCoordinators.due_s = -math.inf if isinstance(event, Ticked) else math.inf
        try:
            await driver._turn(batch)
        except ConflictError:
            raise ConflictError("another coordinator has taken over") from None
        after = driver.core.state.history.stale + driver.core.state.membership.stale
        return Answer(driver.answers[0], is_stale=after > before)

    def explain(self) -> str:
        """Return the reason of the newest coordinator's last decision; empty before the first."""
        decision = self._drivers[-1].core.state.sizing.decision
        return "" if decision is None else decision.reason

    def close(self) -> None:
        """Close the logs."""
        for driver in self._drivers:
            driver.log.close()
