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

import logging
from collections import Counter
from collections.abc import Sequence
from dataclasses import replace
from pathlib import Path

from pliant.coordinator.host_groups import HostGroups
from pliant.coordinator.journal import (
    LOGGED_AS,
    InputLog,
    NoteLog,
    Snapshots,
    hold_back_of_many,
    write_changes,
    write_policy,
    write_unlogged_order,
    write_what_is_held,
)
from pliant.coordinator.keepers import LedgerKeeper, OutputKeeper
from pliant.coordinator.loop import Answered, CoreHolder, GroupCommit, Inbox, Incoming, Turn
from pliant.coordinator.nodes import JobNodes, NodeChannel
from pliant.coordinator.outbox import Outbox
from pliant.coordinator.register import HeldRegister, StoredRegister
from pliant.core.agreement import NodeFacts
from pliant.core.commands import Command, EndJob, Publish
from pliant.core.errors import EXIT_FAILED
from pliant.core.events import (
    Event,
    NodeFailed,
    NodeJoined,
    NodeLost,
    Progressed,
    Running,
    StopRequested,
    SuspendRequested,
)
from pliant.core.host_groups import GroupRule
from pliant.core.job.crash_loop import recent_losses
from pliant.core.job.state import JobSettings, Ready
from pliant.core.membership.failure.worker_activity import held_up_by
from pliant.core.text import worker_name
from pliant.core.values import Incarnation, NodeId
from pliant.machine.clock import TICK_S, Clock
from pliant.observe.history import History
from pliant.observe.log import EventLog
from pliant.observe.status import Board
from pliant.wire import messages
from pliant.wire.codec import EVENTS, Message

LOOK_S = 2.0
"""Between two looks into the register whether another coordinator has taken over, in seconds."""

NOT_KEPT = (
    "its script keeps no checkpoints (Session(checkpoint=...)), so it cannot be suspended: where"
    " the outside takes its base, every step is lost"
)

_log = logging.getLogger(__name__)


class JobDriver:
    """Runs one job's core until it ends the job."""

    def __init__(
        self,
        *,
        settings: JobSettings,
        register: StoredRegister,
        log: EventLog,
        metrics_path: Path,
        clock: Clock,
        boot: int,
        workers_per_replica: int = 1,
        hosts_per_replica: int = 1,
        may_lose_all: bool = False,
    ) -> None:
        """``boot``: of this machine, as agents on it tell theirs; ``may_lose_all``: the outside may
        take every node of the job."""
        self.history = History()
        self.refused: Counter[str] = Counter()
        """Messages that could not be read or were not the sender's to say, by sender."""

        self._settings = settings
        self.nodes = JobNodes(settings.node_s, settings.silent_s, are_joint=hosts_per_replica > 1)
        self.log = log
        self.core = CoreHolder(settings, self.refuse)
        self._has_begun = False
        self.register = HeldRegister(register, is_sole=not settings.nodes_may_come)
        self._is_gone_told = False
        self._is_kept_told = not may_lose_all
        self._orders = Outbox(self.nodes)
        self._notes = NoteLog(log, metrics_path)
        self._inputs = InputLog(log, settings)
        self._clock = clock
        self._boot = boot
        self._workers_per_replica = workers_per_replica
        rule = GroupRule.of(
            settings.placement, hosts=hosts_per_replica, workers=workers_per_replica
        )
        self._joint_hosts = HostGroups(rule, self.nodes, log)
        self._inbox = Inbox()
        self._joint = GroupCommit(
            core=self.core,
            register=self.register,
            nodes=self.nodes,
            inbox=self._inbox,
            now_s=clock.now_s,
        )
        self._look_at_s = 0.0
        self._committed_s: float | None = None
        self._failure: str | None = None
        self._end: EndJob | None = None
        self._snapshots = Snapshots(log)
        self._ledgers = LedgerKeeper(log.path.parent)
        self._printed = OutputKeeper(log.path.parent)
        log.subscribe(lambda record: self.history.add(record))

    @property
    def board(self) -> Board:
        """What the job is doing now."""
        return self.history.board

    @property
    def incarnation(self) -> Incarnation:
        """Number of this coordinator; known once it has begun."""
        return self.core.state.membership.incarnation

    @property
    def is_kept_nowhere(self) -> bool:
        """Whether its script has come, and keeps no checkpoints."""
        return self.core.state.start.reference is not None and not self.core.demand.can_suspend

    @property
    def is_calm(self) -> bool:
        """Whether no change of the members is under way."""
        return self._has_begun and self.core.is_calm

    @property
    def idle_s(self) -> float | None:
        """Seconds since a step was committed, but for those in which this process was stopped."""
        return None if self._committed_s is None else self._clock.now_s() - self._committed_s

    @property
    def waits_for(self) -> list[str]:
        """Members that the others wait for in this step; nobody before the job has begun."""
        return sorted(held_up_by(self.core.state.membership)) if self._has_begun else []

    def losses(self) -> tuple[int, int]:
        """Return how many losses count against the restart budget now, and the budget."""
        budget = self._settings.restart_budget
        if not self._has_begun:
            return 0, budget
        return len(recent_losses(self.core.state, self._settings, self._clock.now_s())), budget

    # --- from agents and people --------------------------------------------------

    def put(self, event: Event) -> None:
        """Queue an event."""
        self._inbox.put(event)

    async def ask(self, event: Event) -> Ready | None:
        """Queue an event of a person and return what the core said; ``None``: the job is over."""
        return None if self._end is not None else await self._inbox.ask(event)

    def receive(self, message: Message) -> None:
        """Take one message of an agent: an event for the core, or a note for the log."""
        if isinstance(message, NodeJoined):
            return  # its channel says so, see ``attach``
        if isinstance(message, Running) and self._end is not None:
            self.nodes.send_to(message.node, self._end, self.incarnation)
        if type(message) in EVENTS:
            self.put(message)  # type: ignore[arg-type]  # EVENTS are the events
        else:
            self._on_note(message)

    def attach(self, joined: NodeJoined, channel: NodeChannel) -> None:
        """Note that an agent is connected; again, if its connection had broken.

        One that was started anew runs nothing of what the agent before it ran.
        """
        room = joined.devices // self._workers_per_replica
        own = self.nodes.own(joined.node, joined.replicas)
        joined = replace(joined, devices=room, replicas=own)
        life, is_known = self.nodes.life_of(joined.node), self.nodes.is_known(joined)
        self.nodes.attach(joined, channel)
        if self._end is not None:
            self.nodes.send_to(joined.node, self._end, self.incarnation)
        if life is not None and joined.life.follows(life):
            self.put(NodeLost(node=joined.node))
        if joined.replicas or not is_known:
            self.put(joined)

    def learn(self, joined: NodeJoined, facts: NodeFacts) -> None:
        """Note what a node is like that has joined, and with which hosts it is one."""
        self.nodes.learn(joined.node, facts)
        self._joint_hosts.greet(joined, facts, now_s=self._clock.now_s())

    def node_of(self, host: NodeId) -> NodeId | None:
        """Return the node that a host is, or is one of several of; None: it has not come."""
        head = self._joint_hosts.head_of(host)
        return head if self.nodes.life_of(head) is not None else None

    def detach(self, node: NodeId, channel: NodeChannel) -> None:
        """Note that a connection ended; the node is lost only some time after."""
        self.nodes.detach(node, channel, now_s=self._clock.now_s())

    def refuse(self, sender: str, reason: str) -> None:
        """Count a message that could not be read; tell the 1st, 2nd, 4th, 8th ... of a sender."""
        count = self.refused[sender] = self.refused[sender] + 1
        if count.bit_count() == 1:
            _log.warning("refused (%s, %d so far): %s", sender, count, reason)

    # --- the loop ----------------------------------------------------------------------

    async def run(self) -> EndJob:
        """Drive the core until it ends the job; return how it ended.

        Raises:
            ConflictError: another coordinator has taken over.
        """
        if not self._has_begun:
            await self.begin()
        if self.core.state.sizing.policy is not None:  # of a coordinator before
            write_policy(self.log, self.core.state.sizing.policy)
        try:
            while self._end is None:
                await self._look_at_register()
                now_s = self._clock.now_s()
                self._stop_if_register_is_gone()
                await self._joint_hosts.join_due(now_s, self.register.confirm, self.incarnation)
                due_s = self.core.due_s(now_s) - now_s
                await self._turn(await self._inbox.take_events(min(max(due_s, 0.0), TICK_S)))
                await write_what_is_held(self.log, self._inbox)
                self._snapshots.write_if_due(self.history)
                self._inputs.write_state_if_due(self.core.state)
                self._ledgers.look_if_due(self._clock.now_s())
        finally:
            self._inbox.close()
            self._inputs.write_quiet()
            self.log.release()
        await self._snapshots.write_last(self.history)
        return self._end

    async def begin(self, *, is_asked: bool = False) -> None:
        """Take over: write the next incarnation before anything is said or heard (R2).

        ``is_asked``: somebody wants a job that has ended to go on.

        Raises:
            ConflictError: another coordinator does the same at this moment.
            PermanentError: the register cannot be read or written.
        """
        recorded = await self.register.read()
        now_s = self._clock.now_s()
        ready = self.core.begin(now_s=now_s, register=recorded, is_asked=is_asked)
        self._has_begun = True
        if ready.register is not None:
            await self.register.write(ready.register)
        await self._command(ready)
        self._look_at_s = now_s + LOOK_S
        self.history = await self._snapshots.read()
        self._notes.remember(self.board.timeline.commits)
        self.log.speak_for(self.incarnation)
        write_unlogged_order(self.log, recorded, self.board.timeline)
        self._inputs.begin(now_s=now_s, register=recorded, is_asked=is_asked)

    def end(self, end: EndJob) -> None:
        """Tell the agents of an end that the core did not decide on."""
        if self._end is None:
            self.log.write_value(end, by="process")
            self._send(end, self.incarnation)

    async def _look_at_register(self) -> None:
        """End this coordinator soon if another has taken over, even if it has nothing to say."""
        now_s = self._clock.now_s()
        if now_s >= self._look_at_s or self._clock.has_slept:
            self._clock.has_slept = False
            self._look_at_s = now_s + LOOK_S
            was_reached = self.register.trouble is None
            try:
                await self.register.confirm_if_changed()
            except OSError as error:  # it was not seen; whatever needs it asks again
                if was_reached:
                    _log.warning("the register could not be read: %s", error)

    def _stop_if_register_is_gone(self) -> None:
        """Ask for the last boundary: what is kept there another may go on from."""
        if self.register.is_gone and not self._is_gone_told:
            self._is_gone_told = True
            self.put(SuspendRequested(reason="the directory of the run is gone"))
            self.put(StopRequested())  # where its script keeps no checkpoints

    async def _turn(self, batch: Sequence[Incoming]) -> None:
        """Let the core answer what is there, and then the time that has passed.

        What it answers to many events is carried out once all of it is in the register.  Where many
        replicas die at once, those that are left hear at once of the last generation that comes of
        it, and of no other.
        """
        heard = Turn()
        try:
            hold_back_of_many(self.log, len(self.core.state.replicas))
            await self._joint.to(batch, heard)
            self._orders.begin(heard.answers)
            num_told = self._tell_at_once(heard.answers)
            for number, answered in enumerate(heard.answers):
                await self._carry_out(answered, is_told=number < num_told)
            if heard.is_asked:
                self.log.release()
            heard.answer_all()
        finally:
            self._inbox.put_back(heard.later)
            for one in heard.taken:
                one.answer(None)
        if self._failure is not None and self._end is None:
            end = EndJob(exit_code=EXIT_FAILED, reason=self._failure)
            await self.register.confirm()  # R20
            self.end(end)

    def _tell_at_once(self, answers: Sequence[Answered]) -> int:
        """Send what needs no further look, before anything is logged; return of how many all."""
        for number, answered in enumerate(answers):
            ready = answered.ready
            if any(isinstance(command, Publish | EndJob) for command in ready.commands):
                return number
            self._orders.send_again(answered.event, ready)
            for command in ready.commands:
                self._send(command, ready.incarnation)
        return len(answers)

    async def _carry_out(self, answered: Answered, *, is_told: bool) -> None:
        """Log an event and its answer; ``is_told``: its commands are sent already (R2)."""
        event, ready = answered.event, answered.ready
        if event is None:
            return
        self._inputs.write_event(event, ready, states=answered.states, now_s=answered.now_s)
        if not is_told:
            self._orders.send_again(event, ready)
        if answered.states is not None:
            write_changes(self.log, *answered.states, now_s=answered.now_s)
        await self._command(ready, is_told=is_told)
        self.board.stale = answered.stale
        if not self._is_kept_told and self.core.state.start.reference is not None:
            self._is_kept_told = True
            if self.is_kept_nowhere:
                self.log.write("note", text=NOT_KEPT)

    async def _command(self, ready: Ready, *, is_told: bool = False) -> None:
        for command in ready.commands:
            if isinstance(command, Publish | EndJob):  # R20
                await self.register.confirm()
            if isinstance(command, Publish) and self.register.is_gone:
                command = replace(command, is_register_gone=True)
            self.log.write_value(command)
            if not is_told:
                self._send(command, ready.incarnation)

    def _send(self, command: Command, incarnation: Incarnation) -> None:
        if isinstance(command, EndJob):
            self._end = command
        self._orders.send(command, incarnation, self.core.living)

    # --- the log ----------------------------------------------------------------------

    def _on_note(self, note: Message) -> None:
        self._notes.write_note(note)
        match note:
            case messages.Committed():
                self._on_committed(note)
            case messages.SaveFailed(reason=reason, committed=committed, retry_s=None):
                self._failure = self._failure or f"no checkpoint since step {committed}: {reason}"
            case messages.LedgerGrown() | messages.OutputGrown() if not self._has_worker(note):
                self.refuse("agent", f"{worker_name(note.replica, note.worker)} was never started")
            case messages.LedgerGrown():
                self._ledgers.append(note)
            case messages.OutputGrown():
                self._printed.append(note)
            case messages.AgentFailed(node=node, reason=reason):
                self.put(NodeFailed(node=node, reason=reason))
            case messages.AgentLeft(node=node):
                self.put(NodeLost(node=self.nodes.forget(node), has_left=True))
            case messages.HostAlone():
                now_s = self._clock.now_s()
                if (wrong := self._joint_hosts.hear_alone(note, now_s=now_s)) is not None:
                    self.refuse("agent", wrong)
            case messages.Alive(node=node, refused=refused):
                self.refused[f"workers of {node}"] = refused
            case _:
                if type(note) not in LOGGED_AS:
                    self.refuse("agent", f"{type(note).__name__} is no note")

    def _has_worker(self, note: messages.LedgerGrown | messages.OutputGrown) -> bool:
        """Whether a worker is one of this job: an agent names others only to fill the disk."""
        is_one = (note.worker or 0) < self._workers_per_replica
        return is_one and self._has_begun and self.core.has_named(note.replica)

    def _on_committed(self, note: messages.Committed) -> None:
        if not self._notes.commits_once(note.step, note.generation):
            return
        self._committed_s = self._clock.now_s()
        self.put(  # a dead worker's last heartbeat may be older than its last commit
            Progressed(
                replica=note.replica, generation=note.generation, committed=note.step + 1, calls=0
            )
        )
        self._notes.write_commit(note, is_here=self.nodes.is_on(note.replica, self._boot))
