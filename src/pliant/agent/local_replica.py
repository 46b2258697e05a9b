"""One replica as its agent sees it: its workers, from the request to start them until all are gone.

Owns what makes several processes one replica: the private directory in which they meet, who of
them speaks, whose end is the end of all, and that they live only together.  Of a host group the
last of them are on other hosts, whose agents do the same for their own (``part_replica``).  Knows
nothing of starting processes, of devices, or of the coordinator.

    worker 0  --events, notes--------> the coordinator, as the only worker of a replica would
    worker 1  --notes, signs of life-> (told of, or counted)

    the first that ends, and not in order --> the others are killed --> one exit: of that first one
"""

from __future__ import annotations

import asyncio
import os
import re
import shutil
from collections.abc import Callable, Mapping, Sequence
from dataclasses import replace
from functools import partial
from itertools import chain
from pathlib import Path

from pliant.agent.hosts.link import HostLink
from pliant.agent.hosts.remote_worker import RemoteWorker
from pliant.agent.node_facts import PoolDevice
from pliant.agent.output import OutputListener
from pliant.agent.worker import LOOK_S, Worker
from pliant.core.commands import Command
from pliant.core.events import Exited, ExitKind, Progressed
from pliant.core.values import Incarnation, NodeId, ReplicaId
from pliant.machine.files import PRIVATE_DIRECTORY
from pliant.wire.codec import Message
from pliant.wire.host_records import KillPart, StartPart
from pliant.wire.launch import Assignment, KillReplica, Request, StartWorker
from pliant.wire.messages import Ended, Started, Traceback, Usage

ORDERLY = (ExitKind.FINISHED, ExitKind.LEFT)
"""Ends after which the other workers of a replica are given the time to end as well."""

NAME = re.compile(r"[A-Za-z0-9][A-Za-z0-9_.-]{0,63}")  # it becomes a file name

END_S = 2.0
"""How long an agent that was told to end waits for its replicas to be gone, in seconds."""

SILENT_LOOKS = 3
"""Looks in a row that find no life in a follower, after which its replica shows none: it speaks
and is looked at every half second, and what is late by a little is not silent."""


def not_started(replica: ReplicaId, why: str) -> Exited:
    """Return how one has ended that never had a process."""
    detail = f"it could not be started: {why}"
    return Exited(replica=replica, kind=ExitKind.SIGNAL, detail=detail)


class LocalReplica:
    """The workers of one replica; one worker is a replica, too, and has no directory."""

    def __init__(
        self,
        name: ReplicaId,
        devices: Sequence[PoolDevice],
        *,
        ask: Callable[[Request, Sequence[int]], None],
        on_message: Callable[[Message], None],
        on_refusal: Callable[[str, str], None],
        parts: Sequence[HostLink] = (),
    ) -> None:
        """It has one worker on each device, and as many on each of ``parts``; ``ask`` asks the
        fork server.
        """
        self.name = name
        self.here = [
            Worker(
                name,
                worker=index if parts or len(devices) > 1 else None,
                on_message=partial(self._hear_worker, index),
                on_refusal=on_refusal,
            )
            for index in range(len(devices))
        ]
        self.elsewhere = {
            place: RemoteWorker(
                name,
                part.other,
                worker=place,
                on_message=partial(self._hear_worker, place),
                on_refusal=on_refusal,
            )
            for part, places in _divided(parts, len(devices))
            for place in places
        }
        """Workers of other hosts, by their places."""
        self.workers: list[Worker | RemoteWorker] = [*self.here, *self.elsewhere.values()]
        self._parts = _divided(parts, len(devices))
        self._devices = tuple(devices)
        self._ask = ask
        self._on_message = on_message
        self._exits: dict[int, Exited] = {}
        self._first: int | None = None
        self._last_words: dict[int, list[Message]] = {}
        self._is_silent = False
        self._ends: list[tuple[int, int, int]] = []
        self._directory = ""
        self._is_killed = False

    async def open(
        self, logs: Path, listener: OutputListener, meeting_place: Callable[[], Path]
    ) -> None:
        """Open what the workers need: sockets, pipes, the directory in which they meet.

        ``meeting_place``: returns the directory in which that lies, if there is to be one.

        Raises:
            OSError: there is no room for all of it; ``close`` closes what is open.
        """
        for worker in self.here:
            self._ends.append(await worker.open(logs / f"{worker.name}.log", listener))
        if len(self.workers) > 1:
            directory = meeting_place() / self.name
            directory.mkdir(mode=PRIVATE_DIRECTORY)
            self._directory = str(directory)

    def start(self, assignment: Assignment) -> None:
        """Ask for a process for each worker, which is told the same as the only one would be."""
        count, ends, self._ends = len(self.workers), self._ends, []
        for index, (device, own) in enumerate(zip(self._devices, ends, strict=True)):
            told = replace(
                assignment,
                place=index,
                workers_per_replica=count,
                inner=self._directory,
                device=device.number,
                device_name=device.name,
            )
            self._ask(StartWorker(assignment=told), own)
        for part, places in self._parts:
            incarnation = assignment.incarnation
            part.say(StartPart(replica=self.name, places=places, incarnation=incarnation))

    def send(self, command: Command, incarnation: Incarnation) -> None:
        """Pass a command on to the worker that speaks for the replica."""
        self.workers[0].send(command, incarnation)

    def request_end(self) -> None:
        """Have all workers killed, those as well that have no process yet."""
        for worker in self.workers:
            worker.request_end()
        self._kill(is_asked=True)

    @property
    def directory(self) -> Path | None:
        """Where the workers meet, if they do."""
        return Path(self._directory) if self._directory else None

    def started(
        self, index: int, pid: int, *, node: NodeId, elsewhere: int | None = None
    ) -> Started:
        """Note the process of a worker, and word it; kill one whose replica was killed before.

        ``elsewhere``: the device of one that is on another host.
        """
        worker = self.workers[index]
        device = self._devices[index].number if index < len(self.here) else elsewhere
        worker.started(pid)
        if self._is_killed:  # perhaps before anything was asked to start it
            self._kill(is_asked=worker.is_end_requested)
        return Started(replica=self.name, node=node, pid=pid, device=device, worker=worker.worker)

    def unsaid_life(self) -> Progressed | None:
        """Return a sign of life if all workers live and the one that speaks has not said so.

        While one of the others shows no life this says nothing, nor is passed on what worker 0
        says of its own: a replica lives as long as all of its workers do.
        """
        said = [worker.unsaid_life() for worker in self.workers]
        self._is_silent = any(
            worker.silent_looks >= SILENT_LOOKS and index not in self._exits
            for index, worker in enumerate(self.workers)
            if index
        )
        return None if self._is_silent else said[0]

    async def reap(self, index: int, returncode: int) -> Exited | None:
        """Take the last words of a worker that was reaped; of the last one, return how all ended.

        Unless it ended in order the others are killed at once.
        """
        if returncode:
            self._end_others(index)
        exited = await self.workers[index].exit(returncode)
        if exited.kind not in ORDERLY:
            self._end_others(index)
        self._exits[index] = exited
        if len(self._exits) < len(self.workers):
            return None
        first = self._first or 0
        for message in self._last_words.pop(first, ()):
            self._on_message(message)
        return self._exits[first]

    async def drain(self) -> None:
        """Read what is left of the output of all."""
        for worker in self.workers:
            await worker.drain()

    def lose(self, host: NodeId, why: str) -> list[int]:
        """Count as ended whom a host runs that is lost; return who has not been reaped before."""
        lost = [place for place, one in self.elsewhere.items() if one.host == host]
        fresh = [place for place in lost if not self.elsewhere[place].is_reaped]
        for place in lost:
            self.elsewhere[place].lost(why)
        return fresh

    def close(self) -> None:
        """Close and remove everything that belongs to the replica; again: nothing."""
        for worker in self.workers:
            worker.close()
        ends, self._ends = self._ends, []
        for end in chain.from_iterable(ends):
            os.close(end)
        if self._directory:
            shutil.rmtree(self._directory, ignore_errors=True)

    def _end_others(self, index: int) -> None:
        """Kill the others, because of this worker or of one that was first."""
        self._note_end(index)
        if len(self._exits) + 1 < len(self.workers):
            self._kill()

    def _kill(self, *, is_asked: bool = False) -> None:
        self._is_killed = True
        self._ask(KillReplica(replica=self.name), ())
        for part, _ in self._parts:
            part.say(KillPart(replica=self.name, is_asked=is_asked))

    def _note_end(self, index: int) -> None:
        """Take note of who has ended, or said so, first: what the others say follows from it."""
        if self._first is None:
            self._first = index

    def _hear_worker(self, index: int, message: Message) -> None:
        """Pass on what a worker says, as far as it is for others."""
        match message:
            case Ended(kind=kind):
                if kind not in ORDERLY:
                    self._note_end(index)
            case Progressed() if index or self._is_silent:
                pass
            case Traceback() | Usage() if len(self.workers) > 1:
                self._last_words.setdefault(index, []).append(message)
            case _:
                self._on_message(message)


def _divided(parts: Sequence[HostLink], each: int) -> list[tuple[HostLink, tuple[int, ...]]]:
    """Return the places of the workers of each host but this one, which has the first of them."""
    return [
        (part, tuple(range(number * each, (number + 1) * each)))
        for number, part in enumerate(parts, 1)
    ]


async def speak_for_workers(
    replicas: Mapping[ReplicaId, LocalReplica], send: Callable[[Message], None]
) -> None:
    """Speak for workers that live and cannot say so; one that was stopped stays silent."""
    while True:
        for replica in replicas.values():
            if (life := replica.unsaid_life()) is not None:
                send(life)
        await asyncio.sleep(LOOK_S)


async def end_all(replicas: Mapping[ReplicaId, LocalReplica]) -> None:
    """Kill these, and wait until they are gone from here, for ``END_S`` at most."""
    for replica in replicas.values():
        replica.request_end()
    looks = 40
    for _ in range(looks):
        if not replicas:
            return
        await asyncio.sleep(END_S / looks)
