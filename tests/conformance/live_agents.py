"""A live coordinator with live agents, whose workers are fakes: told what a scenario file says.

Where a line tells what a worker or a node does, that happens: the worker says it to its agent, its
process ends, the agent connects or falls silent.  The coordinator must hear just that, over its
WebSocket; whoever is told something in answer must hear it, and nothing before it.  What no agent
says the coordinator is told as it stands, and it is written down in ``told``.

    worker --socket pair--> agent --WebSocket--> channel --> driver --> core
    fake                    live                 live        live
"""

from __future__ import annotations

import asyncio
import math
from collections import Counter
from collections.abc import Mapping, Sequence
from dataclasses import replace
from functools import partial
from itertools import chain
from pathlib import Path

import pytest
from tests.conformance.live import LiveCoordinators
from tests.conformance.live_node import (
    DEADLINE_S,
    KILLED,
    NEVER_S,
    LiveNode,
    Switchboard,
    labels_of,
    stop_time,
    until,
)
from tests.support.notation import line_of, parse, render_command, words_of
from tests.support.player import Answer

from pliant.coordinator.loop import Incoming
from pliant.coordinator.nodes import JobNodes
from pliant.core.commands import Command, EndJob, EndReplica, Prepare, Reform, StartReplica
from pliant.core.events import (
    AgentEvent,
    DiedTogether,
    Event,
    Exited,
    ExitKind,
    NodeFailed,
    NodeJoined,
    NodeLeaving,
    NodeLost,
    NodeSilent,
    Progressed,
    Running,
    WorkerEvent,
)
from pliant.core.job.state import JobSettings
from pliant.core.values import Incarnation, NodeId, ReplicaId
from pliant.wire.codec import Envelope
from pliant.wire.messages import AgentLeft, Noted, Work


class LiveAgents(LiveCoordinators):
    """The coordinators of one job, one after the other, and its agents."""

    def __init__(
        self,
        settings: JobSettings,
        directory: Path,
        loop: asyncio.AbstractEventLoop,
        switchboard: Switchboard,
        patch: pytest.MonkeyPatch,
        *,
        exits: Mapping[ReplicaId, Exited],
        to_lose: Sequence[str],
    ) -> None:
        """``exits``: how replicas end, some of them while their agent is cut off; ``to_lose``: what
        is lost on its way to an agent, as the file has it.
        """
        super().__init__(settings, directory, loop)
        self.told: list[str] = []
        """What no agent has said; after a ``+`` what one says and the file does not."""

        self._exits = exits
        self._to_lose = list(to_lose)
        self._lost: list[Command] = []
        self._switchboard = switchboard
        self._nodes: dict[NodeId, LiveNode] = {}
        self._unsaid: list[Event] = []
        """What the coordinator could have heard, and the file has not said yet."""

        self._before: Noted | None = None
        """What a worker has said just before, and must be heard before."""

        self._ends_due: Counter[ReplicaId] = Counter()
        self._ends_heard: Counter[ReplicaId] = Counter()
        """How often agents had to report the end of a replica, and how often they did."""

        here = str(directory)
        switchboard.work = Work(job="j", command=("script.py",), cwd=here, out=here)
        stop_time(patch, self._time, self._shows_life)

    def begin(self, *, now_s: float) -> None:
        """Let a coordinator begin; those before it live on, and nobody is connected to them."""
        for node in self._nodes.values():
            self._loop.run_until_complete(self._cut_off(node))
        super().begin(now_s=now_s)
        self._switchboard.driver = self._drivers[-1]
        self._lose_orders(self._drivers[-1].nodes)

    def close(self) -> None:
        """End the agents; nobody may have heard more than the file says."""
        self._loop.run_until_complete(self._close())
        super().close()

    async def _answers(self, event: Event | None, age: int) -> Answer:
        if age and event is not None:
            self.told.append(f"old {line_of(event)}")
            return await super()._answers(event, age)
        heard = event
        if isinstance(event, NodeLost) and event.has_left and self._are_connected(event):
            await self._leaves(self._nodes[event.node])
            heard = await self._heard(event)
        elif isinstance(event, NodeLost) and self._are_connected(event):
            heard = None  # silence
            for name in (event.node, *event.others):
                await self._fall_silent(self._nodes[name])
        elif isinstance(event, NodeSilent):
            heard = None
            self._say_nothing(event)
        elif isinstance(event, WorkerEvent | AgentEvent):
            if await self._happens(event):
                heard = await self._heard(event)
            else:
                self.told.append(line_of(event))
        answer = await super()._answers(heard, 0)
        for command in answer.ready.commands:
            await self._arrives(command)
        for command in answer.ready.again:
            if isinstance(event, Running):
                await self._arrives(command, self._nodes.get(event.node))
        return answer

    def _lose_orders(self, nodes: JobNodes) -> None:
        """Let some orders be lost on the way."""
        send = nodes.send

        def send_most(command: Command, incarnation: Incarnation) -> None:
            if (line := render_command(command)) in self._to_lose:
                self._to_lose.remove(line)
                self._lost.append(command)
                tuple(nodes._addressees(command))  # it takes note of where a replica is started
            else:
                send(command, incarnation)

        nodes.send = send_most  # type: ignore[method-assign]

    # --- what happens at an agent -----------------------------------------------------

    async def _happens(self, event: WorkerEvent | AgentEvent) -> bool:
        """Let happen what the event tells of; False: no agent would say so."""
        match event:
            case NodeJoined():
                return await self._comes(event)
            case NodeLost() | NodeSilent() | DiedTogether():
                return False  # silence
            case NodeLeaving(node=name):
                if is_connected := self._is_connected(name):
                    agent = self._nodes[name].agent
                    agent.send(event)
                return is_connected
            case NodeFailed(node=name, reason=reason):
                if is_connected := self._is_connected(name):
                    self._nodes[name].agent._fail(reason)
                return is_connected
            case Running(node=name, replicas=replicas, ailing=ailing):
                if not self._is_connected(name) or set(self._nodes[name].runs) != set(replicas):
                    return False
                devices = self._nodes[name].agent._devices
                devices.cordon(chain.from_iterable(map(devices.devices_of, ailing)))  # for a moment
                await self._nodes[name].list_what_runs(self._has_news)
                devices.cordon(())
                return True
            case Exited(replica=replica, kind=kind):
                node = self._home(replica)
                if node is None or kind is ExitKind.UNKNOWN:
                    return event in self._unsaid
                self._end_process(node, event)
                return True
            case _:
                return await self._says(event)

    async def _says(self, event: WorkerEvent) -> bool:
        if (node := self._home(event.replica)) is None:
            return False
        worker = node.workers[event.replica]
        if isinstance(event, Progressed) and event.is_spoken_for:
            await node.look_at_workers(lambda: True)  # from now on it has said nothing
            worker.shows_life = True
            await node.look_at_workers(self._has_news)
            worker.shows_life = False
        elif isinstance(event, Progressed):
            worker.say(event)
        else:
            self._before = Noted(replica=event.replica, text="something comes")
            worker.say(self._before, event)
        return True

    def _end_process(self, node: LiveNode, exited: Exited) -> None:
        node.end_process(exited)
        self._ends_due[exited.replica] += 1

    async def _heard(self, event: Event) -> Event:
        """Wait until the coordinator has heard this; what it hears before that is yet unsaid."""
        while not (found := [one for one in self._unsaid if _is_alike(one, event)]):
            news = await self._drivers[-1]._inbox.take_events(DEADLINE_S)
            assert news, f"nobody has heard {line_of(event)}, but {self._unsaid}"
            self._keep(news)
        self._unsaid.remove(found[0])
        received, self._drivers[-1].received = self._drivers[-1].received, []
        if self._before is not None:
            order = received.index(self._before) < received.index(found[0])
            assert order, f"{line_of(event)} was heard before what was said before"
            self._before = None
        return found[0]

    def _keep(self, news: Sequence[Incoming]) -> None:
        self._unsaid += [one.event for one in news]
        ends = [one.event for one in news if isinstance(one.event, Exited)]
        self._ends_heard.update(end.replica for end in ends)

    async def _hear_all(self, node: LiveNode) -> None:
        """Let the coordinator hear all that an agent has to say to what it was told."""
        await node.be_read()
        while self._has_news():
            self._keep(await self._drivers[-1]._inbox.take_events(DEADLINE_S))

    def _has_news(self) -> bool:
        return not self._drivers[-1]._inbox._queue.empty()

    def _home(self, replica: ReplicaId) -> LiveNode | None:
        """Return where a replica lives, if its agent is connected."""
        homes = (node for node in self._nodes.values() if replica in node.workers)
        return next((node for node in homes if node.is_connected), None)

    def _shows_life(self, pid: int) -> bool:
        workers = [one for node in self._nodes.values() for one in node.workers.values()]
        return any(one.pid == pid and one.shows_life for one in workers)

    # --- agents come and go -------------------------------------------------------------

    async def _comes(self, joined: NodeJoined) -> bool:
        """Let an agent connect; False: the core would not be told of it."""
        node = self._nodes.get(joined.node)
        if node is not None and not node.is_cut_off:
            return False
        if node is not None and not self._is_another(node, joined):
            return await self._comes_back(node, joined)
        if node is not None:
            await node.close()
        self._nodes[joined.node] = LiveNode(joined, self._switchboard.url, self._directory)
        return not joined.replicas

    def _is_another(self, node: LiveNode, joined: NodeJoined) -> bool:
        """Whether the agent was started anew: nobody has seen the replicas of that before end, or
        its job had ended.
        """
        unseen = [
            name
            for name in node.runs
            if name not in self._exits or self._exits[name].kind is ExitKind.UNKNOWN
        ]
        return node.agent.ended is not None or bool(unseen and not joined.replicas)

    async def _comes_back(self, node: LiveNode, joined: NodeJoined) -> bool:
        if set(joined.replicas) - set(node.runs):
            return False
        for name in set(node.runs) - set(joined.replicas):
            kind, detail = KILLED
            killed = Exited(replica=name, kind=kind, detail=detail)
            self._end_process(node, self._exits.get(name, killed))
        await until(lambda: node.runs == joined.replicas, "replicas end while it is cut off")
        life = self._drivers[-1].nodes.life_of(node.name)
        node.is_cut_off = False
        await until(lambda: node.is_connected, f"{node.name} comes back")
        return bool(joined.replicas) or life != node.agent.life

    async def _cut_off(self, node: LiveNode) -> None:
        """End the connection of an agent, all of which was read."""
        if node.is_connected:
            await self._hear_all(node)
            known = self._drivers[-1].nodes._nodes[node.name]
            assert known.channel is not None
            node.is_cut_off = True
            known.channel.hang_up()
            await until(lambda: known.channel is None, f"{node.name} is cut off")
            await until(lambda: not node.agent.is_connected, f"{node.name} is cut off")
        node.is_cut_off = True

    async def _fall_silent(self, node: LiveNode) -> None:
        """Cut an agent off, and let it be silent for long enough already."""
        nodes = self._drivers[-1].nodes
        nodes._away_s = -math.inf
        await self._cut_off(node)
        nodes._away_s = NEVER_S

    async def _leaves(self, node: LiveNode) -> None:
        """Let an agent say that it leaves, all else of which was read; it does not come back."""
        await self._hear_all(node)
        node.agent.send(AgentLeft(node=node.name))
        node.is_cut_off = True

    def _say_nothing(self, silent: NodeSilent) -> None:
        """Let agents that are connected have said nothing for long enough already."""
        nodes = self._drivers[-1].nodes
        nodes._look_at_s = -math.inf
        for name in (silent.node, *silent.others):
            nodes._nodes[name].speaks, nodes._nodes[name].heard_s = False, -math.inf

    def _is_connected(self, name: NodeId) -> bool:
        return name in self._nodes and self._nodes[name].is_connected

    def _are_connected(self, lost: NodeLost) -> bool:
        return all(map(self._is_connected, (lost.node, *lost.others)))

    # --- what agents and workers are told -----------------------------------------------

    async def _arrives(self, command: Command, at: LiveNode | None = None) -> None:
        """Wait until all have heard this who can, and had heard nothing else before.

        ``at``: of those of this node alone.
        """
        if command in self._lost:
            self._lost.remove(command)
            return
        what = render_command(command)
        match command:
            case StartReplica(replica=replica, node=name):
                if self._is_connected(name):
                    home = self._nodes[name]
                    await until(lambda: home.has_heard_of(replica), what)
            case EndReplica(replica=replica):
                told = self._drivers[-1].nodes._homes.get(replica)
                node = at if told is None or at is not None else self._nodes.get(told)
                await self._is_ended(replica, node, what)
            case EndJob():
                for one in self._nodes.values():
                    if one.is_connected:
                        await asyncio.wait_for(one.be_ended(), DEADLINE_S)
                        assert one.agent.ended == command, f"{one.name} has not heard {what}"
            case _:
                for replica in command.to:
                    of = self._home(replica)
                    if of is not None and at in (None, of):
                        heard = of.workers[replica].heard
                        await until(partial(len, heard), f"{replica} hears: {what}")
                        _compare(heard.popleft(), command, self.incarnation, replica)

    async def _is_ended(self, replica: ReplicaId, node: LiveNode | None, what: str) -> None:
        """Wait until a replica's end is asked for; one that is gone its agent answers for."""
        if node is None or not node.is_connected:
            return
        if replica in node.workers:
            await until(lambda: node.server.to_end, what)
            assert node.server.to_end.popleft() == replica, what
            return
        self._ends_due[replica] += 1
        await self._hear_all(node)
        assert self._ends_heard[replica] == self._ends_due[replica], what

    async def _close(self) -> None:
        for node in self._nodes.values():
            for replica, worker in node.workers.items():
                assert not worker.heard, f"{replica} has heard more: {worker.heard}"
            if node.workers:
                assert not node.server.to_end, f"{node.name} has ended more: {node.server.to_end}"
        assert not self._to_lose, f"never said: {self._to_lose}"
        for node in self._nodes.values():
            if node.is_connected:
                await self._hear_all(node)
        self.told += [f"+ {line_of(event)}" for event in self._unsaid]
        for node in self._nodes.values():
            await node.close()


def exits_of(text: str) -> dict[ReplicaId, Exited]:
    """Return how a file says that its replicas end."""
    lines = (words_of(line) for line in text.splitlines() if line.startswith("at "))
    ends = [event for words in lines if words[2] == "exit" for event in parse(words[2:])]
    return {end.replica: end for end in ends if isinstance(end, Exited)}


def _compare(heard: Envelope, said: Command, by: Incarnation, replica: ReplicaId) -> None:
    """See that a worker hears what a coordinator's core has said; with the secret of a generation
    if it is of it.
    """
    message = heard.message
    sentence = f"{replica} has heard {heard}, and not {said} of {by}"
    assert not isinstance(said, StartReplica | EndReplica | EndJob), sentence
    assert isinstance(message, type(said)), sentence
    assert (heard.incarnation, replica in message.to) == (by, True), sentence
    if isinstance(message, Prepare | Reform):
        assert bool(message.secret) == (replica in message.order.replicas), sentence
        message = replace(message, secret="")
    assert replace(message, to=said.to) == said, sentence


def _is_alike(one: Event, other: Event) -> bool:
    """Whether an agent says what a file says: of itself it says more."""
    if isinstance(one, NodeJoined) and isinstance(other, NodeJoined):
        return one == replace(other, life=one.life, labels=labels_of(one.node, other.labels))
    return one == other
