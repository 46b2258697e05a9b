"""Drives the core: events in, register written, commands out, everything logged.

Owns the one queue of a job and the order of things (R1, R2): take an event, ask the core, write
the register, only then send the commands.  Another driver may have gone before it, and one may
follow while it still lives: what the log tells of the first is taken up, and the second is noticed
by the register.  Decides nothing; an ``if`` about whether to resize does not belong here.  Knows
nothing of HTTP: agents are channels, people are events.

    agents, people, time --> queue --> core.step --> register (fsync) --> channels
                                           |
                                           +--> event log --> board (status, metrics)
"""

from __future__ import annotations

import asyncio
import contextlib
import json
import logging
from collections import Counter
from collections.abc import Iterable
from dataclasses import dataclass, field
from pathlib import Path

from pliant.coordinator.register import RegisterFile
from pliant.core.commands import Command, EndJob, EndReplica, Publish, StartReplica
from pliant.core.errors import PermanentError
from pliant.core.events import Event, Exited, NodeJoined, NodeLost, Progressed, Ticked
from pliant.core.exits import EXIT_FAILED
from pliant.core.job import controller
from pliant.core.job.state import Job, JobSettings, Ready
from pliant.core.policy.decide import Policy
from pliant.core.tenancy import Demand
from pliant.core.values import NO_GENERATION, Generation, Incarnation, NodeId, Register, ReplicaId
from pliant.machine.clock import TICK_S, Clock
from pliant.observe.log import EventLog, Record, fields_of, plain, read
from pliant.observe.status import Board
from pliant.spec.policy import document_of
from pliant.wire.codec import EVENTS, Message
from pliant.wire.messages import (
    AgentFailed,
    Alive,
    Committed,
    IntervalChosen,
    Logged,
    Noted,
    Planned,
    SaveFailed,
    Started,
    Traceback,
    Usage,
)
from pliant.wire.ports import NodeChannel

KEPT_STEPS = 1000
"""How many steps back a second report of a commit is still recognised."""

WRITE_AGAIN_S = (0.1, 0.3, 1.0, 3.0)
"""Pauses after a write of the register that failed; together less than a heartbeat's patience, in
seconds."""

LOOK_S = 2.0
"""Between two looks into the register whether another coordinator has taken over, in seconds."""

NODE_GRACE_S = 10.0
"""How long a node may be without a connection before it counts as lost, in seconds."""

LOGGED_AS: dict[type, str] = {
    IntervalChosen: "interval_chosen",
    Logged: "metrics",
    Noted: "note",
    Planned: "plan",
    SaveFailed: "save_failed",
    Started: "worker",
    Traceback: "traceback",
    Usage: "usage",
}
"""Notes that go into the log as they are, by the kind that they have there."""

_log = logging.getLogger(__name__)


@dataclass(slots=True)
class _Node:
    """One agent: its channel while it is connected, and how long it has been away."""

    channel: NodeChannel | None
    away_since_s: float = 0.0


@dataclass(frozen=True, slots=True)
class _Asked:
    """An event and, if someone waits for it, where the core's answer goes."""

    event: Event
    answer: asyncio.Future[Ready | None] | None = None


@dataclass(slots=True)
class Tally:
    """What was dropped, by cause; for metrics."""

    refused: Counter[str] = field(default_factory=Counter)
    """Messages that could not be read or were not the sender's to say, by sender."""


class JobDriver:
    """Runs one job's core until it ends the job."""

    def __init__(
        self,
        *,
        settings: JobSettings,
        register: RegisterFile,
        log: EventLog,
        metrics_path: Path,
        clock: Clock,
    ) -> None:
        self.board = Board()
        self.tally = Tally()
        self.log = log
        self._state: Job
        self._settings = settings
        self._register_file = register
        self._register: Register | None = None
        self._metrics_path = metrics_path
        self._clock = clock
        self._queue: asyncio.Queue[_Asked] = asyncio.Queue()
        self._nodes: dict[NodeId, _Node] = {}
        self._homes: dict[ReplicaId, NodeId] = {}
        self._committed: dict[int, Generation] = {}
        self._look_at_s = 0.0
        self._failure: str | None = None
        self._end: EndJob | None = None
        self._is_over = False
        self._hung_up = asyncio.Event()
        log.subscribe(self.board.add)

    @property
    def incarnation(self) -> Incarnation:
        """Number of this coordinator; known once it has begun."""
        return self._state.membership.incarnation

    @property
    def policy(self) -> Policy:
        """What counts now: what someone has set, or what the job was started with."""
        return self._state.policy or self._settings.policy

    @property
    def demand(self) -> Demand:
        """What the outside must know of the job now; known once it has begun."""
        return controller.demand(self._state, settings=self._settings)

    # --- from agents and people --------------------------------------------------

    def put(self, event: Event) -> None:
        """Queue an event."""
        self._queue.put_nowait(_Asked(event))

    async def ask(self, event: Event) -> Ready | None:
        """Queue an event of a person and return what the core said; ``None``: the job is over."""
        if self._end is not None or self._is_over:
            return None
        answer: asyncio.Future[Ready | None] = asyncio.get_running_loop().create_future()
        self._queue.put_nowait(_Asked(event, answer))
        return await answer

    def hear(self, message: Message, node: NodeId) -> None:
        """Take one message of an agent: an event for the core, or a note for the log."""
        if isinstance(message, NodeJoined):
            return  # its channel says so, see ``attach``
        if type(message) in EVENTS:
            self.put(message)  # type: ignore[arg-type]  # EVENTS are the events
        else:
            self._note(message)

    def attach(self, joined: NodeJoined, channel: NodeChannel) -> None:
        """Note that an agent is connected; again, if its connection had broken.

        One that runs workers is told to the core each time: what was sent to it may be lost.
        """
        known = joined.node in self._nodes
        self._nodes[joined.node] = _Node(channel)
        if self._end is not None:
            channel.send(self._end, self.incarnation)
        self._homes.update(dict.fromkeys(joined.replicas, joined.node))
        if joined.replicas or not known:
            self.put(joined)

    def detach(self, node: NodeId, channel: NodeChannel) -> None:
        """Note that a connection ended; the node is lost only after ``NODE_GRACE_S``."""
        if node in self._nodes and self._nodes[node].channel is channel:
            self._nodes[node] = _Node(None, self._clock.now_s())
        if all(known.channel is None for known in self._nodes.values()):
            self._hung_up.set()

    def refuse(self, sender: str, reason: str) -> None:
        """Count a message that could not be read."""
        self.tally.refused[sender] += 1
        _log.warning("refused a message of %s: %s", sender, reason)

    # --- the loop ----------------------------------------------------------------------

    async def run(self) -> EndJob:
        """Drive the core until it ends the job; return how it ended.

        Raises:
            ConflictError: another coordinator has taken over.
        """
        if self._register is None:
            await self.begin()
        if self._state.policy is not None:  # of a coordinator before
            self._write_policy()
        try:
            while self._end is None:
                await self._look()
                due_s = controller.next_deadline_s(self._state) - self._clock.now_s()
                asked = None
                with contextlib.suppress(TimeoutError):
                    async with asyncio.timeout(min(max(due_s, 0.0), TICK_S)):
                        asked = await self._queue.get()
                await self._turn(asked)
        finally:
            self._is_over = True
            while not self._queue.empty():
                _give_up(self._queue.get_nowait())
        return self._end

    async def begin(self) -> None:
        """Take over: write the next incarnation before anything is said or heard (R2).

        Raises:
            ConflictError: another coordinator does the same at this moment.
            PermanentError: the register cannot be read or written.
        """
        recorded = await asyncio.to_thread(self._register_file.read)
        now_s = self._clock.now_s()
        self._state, ready = controller.begin(
            now_s=now_s, settings=self._settings, register=recorded
        )
        self._register = recorded
        await self._carry_out(ready)
        self._look_at_s = now_s + LOOK_S
        for record in (await asyncio.to_thread(read, self.log.path)).records:
            self._remember(record)
        self.log.speak_for(self.incarnation)

    def _remember(self, record: Record) -> None:
        """Take up what the coordinators before have told; replicas report some commits again."""
        self.board.add(record)
        step, generation = record.get("step"), record.get("generation")
        if record.get("kind") == "commit" and isinstance(step, int) and isinstance(generation, int):
            self._commits_once(step, Generation(generation))

    def end(self, end: EndJob) -> None:
        """Tell the agents of an end that the core did not decide on."""
        if self._end is None:
            self._execute(end, self.incarnation)

    async def hung_up(self, limit_s: float) -> None:
        """Wait until every agent has closed its connection, for so long at most."""
        if any(known.channel is not None for known in self._nodes.values()):
            self._hung_up.clear()
            with contextlib.suppress(TimeoutError):
                async with asyncio.timeout(limit_s):
                    await self._hung_up.wait()

    async def _look(self) -> None:
        """End this coordinator soon if it is no longer the newest, even if it has nothing to say.

        Raises:
            ConflictError: another has taken over.
        """
        now_s = self._clock.now_s()
        if now_s >= self._look_at_s or self._clock.has_slept:
            self._clock.has_slept = False
            self._look_at_s = now_s + LOOK_S
            await self._confirm()

    async def _confirm(self) -> None:
        if self._register is not None:
            await asyncio.to_thread(self._register_file.confirm, self._register)

    async def _turn(self, asked: _Asked | None) -> None:
        """Let the core answer one event, and then the time that has passed."""
        now_s = self._clock.now_s()
        if asked is not None:
            try:
                ready = await self._step(asked.event, now_s)
                if asked.answer is not None and not asked.answer.done():
                    asked.answer.set_result(ready)
            finally:
                _give_up(asked)
        for node in self._silent_nodes(now_s):
            await self._step(NodeLost(node=node), now_s)
        if now_s >= controller.next_deadline_s(self._state):
            await self._step(Ticked(), now_s)
        if self._failure is not None and self._end is None:
            end = EndJob(exit_code=EXIT_FAILED, reason=self._failure)
            await self._carry_out(Ready(incarnation=self.incarnation, commands=(end,)))

    def _silent_nodes(self, now_s: float) -> list[NodeId]:
        """Forget the nodes that have been without a connection for too long."""
        silent = [
            node
            for node, known in self._nodes.items()
            if known.channel is None and now_s - known.away_since_s > NODE_GRACE_S
        ]
        for node in silent:
            del self._nodes[node]
        return silent

    async def _step(self, event: Event, now_s: float) -> Ready:
        policy = self.policy
        self._state, ready = controller.step(
            self._state, event, now_s=now_s, settings=self._settings
        )
        self._write_event(event, ready, now_s)
        if self.policy != policy:
            self._write_policy()
        await self._carry_out(ready)
        self.board.stale = self._state.stale + self._state.membership.stale
        return ready

    async def _carry_out(self, ready: Ready) -> None:
        """Write the register, and only once that is confirmed carry out the commands."""
        if ready.register is not None and ready.register != self._register:
            await self._write_register(ready.register)
        for command in ready.commands:
            if isinstance(command, Publish | EndJob):  # R20
                await self._confirm()
            self._execute(command, ready.incarnation)

    async def _write_register(self, register: Register) -> None:
        """Write, and where it is not known whether that worked, look and write again (R2).

        Raises:
            ConflictError: another coordinator has taken over.
            PermanentError: storage does not take it.
        """
        expected, failure = self._register, OSError()
        for wait_s in WRITE_AGAIN_S:
            try:
                await asyncio.to_thread(self._register_file.write, register, expected=expected)
            except OSError as error:
                failure = error
                _log.warning("the register could not be written: %s", error)
                await asyncio.sleep(wait_s)
                if await asyncio.to_thread(self._register_file.read) == register:
                    expected = register  # it was written, but perhaps not yet durably
            else:
                self._register = register
                return
        raise PermanentError(f"the register cannot be written: {failure}") from failure

    def _execute(self, command: Command, incarnation: Incarnation) -> None:
        self.log.write_value(command)
        match command:
            case StartReplica(replica=replica, node=node):
                self._homes[replica] = node
                self._send(command, {node}, incarnation)
            case EndReplica(replica=replica):
                home = self._homes.get(replica)
                self._send(command, self._nodes if home is None else {home}, incarnation)
            case EndJob():
                self._end = command
                self._send(command, self._nodes, incarnation)
            case _:
                homes = {self._homes[name] for name in command.to if name in self._homes}
                self._send(command, homes, incarnation)

    def _send(self, command: Command, nodes: Iterable[NodeId], incarnation: Incarnation) -> None:
        for node in nodes:
            known = self._nodes.get(node)
            if known is not None and known.channel is not None:
                known.channel.send(command, incarnation)

    # --- the log ----------------------------------------------------------------------

    def _write_event(self, event: Event, ready: Ready, now_s: float) -> None:
        """Log an event; a tick or heartbeat without effect would only fill the disk."""
        silent = isinstance(event, Ticked | Progressed) and not ready.commands
        if not silent:
            self.log.write_value(event)
        if isinstance(event, Exited):
            self._homes.pop(event.replica, None)
        if ready.decision is not None:
            decision = ready.decision
            wait_s = decision.earliest_s - now_s if decision.is_waiting else None
            self.log.write_value(decision, looks_again_s=wait_s)
        if ready.declined is not None:
            self.log.write_value(ready.declined)
        for sentence in ready.notes:
            self.log.write("note", text=sentence)

    def _write_policy(self) -> None:
        self.log.write(
            "policy_changed",
            policy=document_of(self.policy),
            min_replicas=self.policy.min_replicas,
            max_replicas=self.policy.max_replicas,
        )

    def _note(self, note: Message) -> None:
        if type(note) in LOGGED_AS:
            self.log.write(LOGGED_AS[type(note)], **fields_of(note))
        match note:
            case Committed():
                self._on_committed(note)
            case Logged(step=step, values=values):
                self._append_metrics(step, values)
            case SaveFailed(reason=reason, committed=committed, retry_s=None):
                self._give_up(f"no checkpoint since step {committed}: {reason}")
            case AgentFailed(reason=reason):  # nothing to decide: nothing can be started any more
                self._give_up(reason)
            case Alive(node=node, refused=refused):
                self.tally.refused[f"workers of {node}"] = refused
            case _:
                if type(note) not in LOGGED_AS:
                    self.refuse("agent", f"{type(note).__name__} is no note")

    def _give_up(self, reason: str) -> None:
        """End the job for what the core does not decide on."""
        if self._failure is None:
            self._failure = reason

    def _on_committed(self, note: Committed) -> None:
        """Log a step once: every member reports it, the first to be heard counts.

        A step that comes again in a newer generation was lost and done again, and is logged again.
        """
        if not self._commits_once(note.step, note.generation):
            return
        self.put(  # a dead worker's last heartbeat may be older than its last commit
            Progressed(
                replica=note.replica,
                generation=note.generation,
                committed=note.step + 1,
                calls=0,
            )
        )
        self.log.write(
            "commit",
            step=note.step,
            generation=note.generation,
            loss=note.loss,
            grad_norm=note.grad_norm,
            samples=note.samples,
            step_s=note.step_s,
            by=note.replica,
            mono=note.mono_s,
        )

    def _commits_once(self, step: int, generation: Generation) -> bool:
        """Whether this commit was not known yet; from now on it is."""
        if generation <= self._committed.get(step, NO_GENERATION):
            return False
        self._committed[step] = generation
        self._committed.pop(step - KEPT_STEPS, None)
        return True

    def _append_metrics(self, step: int, values: dict[str, float]) -> None:
        with self._metrics_path.open("a", encoding="utf-8") as file:
            file.write(json.dumps(plain({"step": step, **values})) + "\n")


def _give_up(asked: _Asked) -> None:
    """Tell who asked and has no answer that the job, or this coordinator, is over."""
    if asked.answer is not None and not asked.answer.done():
        asked.answer.set_result(None)
