"""A host that may coordinate a job of several: it runs replicas, and coordinates when it is to.

Owns one agent for the whole life of the process, and a coordinator beside it while this host is the
one that coordinates.  When it is to be is for ``core.takeover`` to say, and who counts for the
register.  Decides nothing about the job.

    follow:      agent --> whichever place of the list answers; the sign beside the register watched
    coordinate:  register --> serve --> the same agent comes here; until the job ends, another host
                 has taken over, or the register is out of sight: then it follows again
"""

from __future__ import annotations

import asyncio
import logging
import socket
from collections.abc import Callable
from contextlib import AbstractContextManager, suppress
from dataclasses import dataclass, field
from pathlib import Path
from urllib.parse import urlsplit

from pliant.agent.agent import Agent
from pliant.agent.node_facts import AgentConfig
from pliant.coordinator.register import StoredRegister
from pliant.core.commands import EndJob
from pliant.core.errors import ConflictError
from pliant.core.takeover import (
    Watch,
    knocked,
    looked,
    looking_again,
    steps_down,
    why_take_over,
)
from pliant.http.server import PortInUseError, open_socket
from pliant.machine import run_files
from pliant.machine.clock import Clock
from pliant.machine.event_loop import aside, cancelled, within
from pliant.run.hosting import Host, Observer, hosted, refuse_second
from pliant.run.job_config import JobConfig
from pliant.run.register_location import RegisterLocation, listed, open_told_location, places_of
from pliant.run.run_directory import TOKEN_S, lasting_token, locked, missing_token, read_token
from pliant.run.separate import follows_another, told_to_end

LOOK_S = 0.5
"""Between two looks of a host that follows; less than what a clock takes for sleep, in seconds."""

_log = logging.getLogger(__name__)


@dataclass(slots=True, kw_only=True, eq=False)
class Candidate:
    """A host that may coordinate; ``run``, once."""

    config: JobConfig
    agent: AgentConfig
    join: str
    """The places of all that may coordinate."""

    turn: int
    """Which of them is this host's, from 0."""

    token_file: Path
    observed: Callable[[], AbstractContextManager[Observer]]
    """Follows the job while it is coordinated here."""

    say: Callable[[str], None]
    """Tells people what this host does, and why."""

    _observer: Observer | None = field(init=False, default=None)
    _agent: Agent = field(init=False)
    _serving: asyncio.Task[None] | None = field(init=False, default=None)
    _clock: Clock = field(init=False, default_factory=Clock)
    _watch: Watch | None = field(init=False, default=None)
    _has_taken_part: bool = field(init=False, default=False)
    _tokenless_since_s: float | None = field(init=False, default=None)

    def __post_init__(self) -> None:
        self._agent = Agent(self.agent, listener=self._on_output)

    async def run(self) -> EndJob | None:
        """Take part in a job, and coordinate it when that is this host's turn; None if interrupted.

        Raises:
            ConfigError: the job cannot run like this.
            PermanentError: the coordinator refuses this host, or none was found for too long.
        """
        location = await aside(
            open_told_location, self.config.register, self.config.out, self.config.environ
        )
        try:
            while True:
                if (reason := await self._follow(location)) is None:
                    return self._agent.ended
                self.say(f"this host coordinates the job: {reason}")
                if (end := await self._coordinate(location)) is not None:
                    return end
                self._watch = looking_again(self._clock.now_s())
        finally:
            if self._serving is not None:
                await cancelled(self._serving)
            await self._agent.close()

    async def _follow(self, location: RegisterLocation) -> str | None:
        """Follow until this host is to coordinate, and return why; None: its part is over."""
        looking = asyncio.create_task(self._watch_sign(location))
        try:
            with told_to_end(self.say) as (interrupted, hurried):
                while not interrupted.is_set():
                    self._serve_if_there_is_a_token()
                    self._require_token(self._clock.now_s())
                    self._has_taken_part |= self._agent.is_connected
                    if self._is_over():
                        return None
                    if (reason := self._reason_to_coordinate()) is not None:
                        return reason
                    await within(interrupted.wait(), LOOK_S)
                await self._agent.depart(hurried)
                return None
        finally:
            await cancelled(looking)

    async def _watch_sign(self, location: RegisterLocation) -> None:
        """Look at the sign of the coordinator, as long as the storage takes to show it."""
        while True:
            with suppress(OSError):  # it was not seen; the sign counts as it was before
                found = await aside(location.read_sign)
                self._watch = looked(self._watch, found, now_s=self._clock.now_s())
            await self._knock()
            await asyncio.sleep(2 * LOOK_S)

    async def _knock(self) -> None:
        """See whether anybody listens where the coordinator says that it is."""
        watch = self._watch
        if watch is None or watch.seen is None or self._agent.is_connected:
            return
        is_refused = await _refuses(watch.seen.url)
        if self._watch is watch:
            self._watch = knocked(watch, is_refused=is_refused, now_s=self._clock.now_s())

    def _reason_to_coordinate(self) -> str | None:
        config = self.config
        address, port = config.host if config.tls else config.address, config.port
        return why_take_over(
            self._watch,
            own_place=f"[{address}]:{port}" if ":" in address else f"{address}:{port}",
            turn=self.turn,
            is_connected=self._agent.is_connected,
            now_s=self._clock.now_s(),
        )

    async def _coordinate(self, location: RegisterLocation) -> EndJob | None:
        """Coordinate until the job ends; None: it goes on, and another host is to coordinate."""
        config = self.config
        try:
            sock = open_socket(config.address, config.port)
        except PortInUseError as error:
            self.say(f"this host cannot coordinate now: {error}")
            return None
        refuse_second(config.name, config.state.jobs, besides=config.out)
        try:
            with sock:
                token = await aside(self._token, location)
                return await self._coordinate_at(sock, token, location)
        except (ConflictError, OSError) as error:
            self.say(f"this host coordinates no longer: {error}")
            return None
        finally:
            self._observer = None

    async def _coordinate_at(
        self, sock: socket.socket, token: str, location: RegisterLocation
    ) -> EndJob | None:
        config = self.config
        with locked(config.out, alone=False), self.observed() as self._observer:
            async with hosted(
                config,
                token=token,
                follows=self._goes_on(),
                is_asked=not self._has_taken_part,
                is_apart=True,
                own=self._agent.life,
                sock=sock,
                observer=self._observer,
                location=location,
            ) as host:
                return await self._until_the_end(host)

    def _token(self, location: RegisterLocation) -> str:
        """Return the token; a job that another host has begun has one already."""
        path = self.token_file
        found = None if path.exists() else StoredRegister(location.register).read()
        if found is not None and found.outcome is None:
            sign = location.read_sign()
            raise missing_token(path, str(location.register) if sign is None else sign.url)
        return lasting_token(path)

    def _goes_on(self) -> bool:
        """Whether the job has begun: for who has taken part also if it ended unseen."""
        config = self.config
        if self._has_taken_part and run_files.holds_run(config.out):
            return True
        return follows_another(config)

    async def _until_the_end(self, host: Host) -> EndJob:
        self._has_taken_part = True
        ending = asyncio.create_task(host.until_the_end())
        num_candidates = len(listed(self.join))
        try:
            while not ending.done():
                self._serve_if_there_is_a_token()
                await asyncio.wait({ending}, timeout=LOOK_S)
                unseen_s = host.unseen_s
                if steps_down(unseen_s=unseen_s, num_candidates=num_candidates):
                    raise ConflictError(f"its register has not been seen for {unseen_s:.0f} s")
                if not ending.done() and self._is_over():
                    break  # its own agent may not take part: the others go on
            return await ending
        finally:
            await cancelled(ending)

    def _serve_if_there_is_a_token(self) -> None:
        path = self.token_file
        if self._serving is None and path.exists():
            places = places_of(self.join)
            self._serving = asyncio.create_task(self._agent.serve(places, read_token(path)))

    def _require_token(self, now_s: float) -> None:
        """Wait for the token for a while only, once another host coordinates."""
        sign = None if self._watch is None else self._watch.seen
        if self._serving is not None or sign is None:
            self._tokenless_since_s = None
        elif self._tokenless_since_s is None:
            self._tokenless_since_s = now_s
        elif now_s - self._tokenless_since_s > TOKEN_S:
            raise missing_token(self.token_file, sign.url)

    def _is_over(self) -> bool:
        """Whether this host's agent has ended."""
        if self._serving is None or not self._serving.done():
            return False
        self._serving.result()
        return True

    def _on_output(self, worker: str, line: str) -> None:
        if self._observer is not None:
            self._observer.output(worker, line)


async def _refuses(url: str) -> bool:
    """Whether the host of a place says that nobody listens there; one that says nothing does not.

    Another process that listens there by now counts as the coordinator: the sign tells them apart.
    """
    try:
        place = urlsplit(url)
        opening = asyncio.open_connection(place.hostname, place.port)
        if (opened := await within(opening, LOOK_S)) is not None:
            opened[1].close()
    except ConnectionRefusedError:
        return True
    except (OSError, ValueError):
        return False
    return False
