"""One replica as its agent sees it: its workers, from the request to start them until all are gone.

Owns what makes several processes one replica: who of them speaks, whose end is the end of all, and
that they live only together.  Of a host group the last of them are on other hosts, whose agents do
the same for their own (``hosts.member``).  Knows nothing of starting processes, of devices,
or of the coordinator.

    worker 0  --events, notes--------> the coordinator, as the only worker of a replica would
    worker 1  --notes, signs of life-> (told of, or counted)

    the first that ends, and not in order --> the others are killed --> one exit: of that first one
"""

from __future__ import annotations

from collections.abc import Sequence
from functools import partial

from pliant.agent.hosts.link import HostLink
from pliant.agent.hosts.remote_worker import RemoteWorker
from pliant.agent.output import RuledOutput
from pliant.agent.this_host import ThisHost
from pliant.agent.worker import Worker
from pliant.agent.workers_here import SILENT_LOOKS, ReplicaWorkers, not_started
from pliant.core.commands import Command
from pliant.core.events import Exited, ExitKind, Progressed
from pliant.core.values import Incarnation, NodeId, ReplicaId
from pliant.wire.codec import Message
from pliant.wire.host_records import KillPart, StartPart
from pliant.wire.launch import Assignment
from pliant.wire.messages import Ended, Started, Traceback, Usage

ORDERLY = (ExitKind.FINISHED, ExitKind.LEFT)
"""Ends after which the other workers of a replica are given the time to end as well."""


class LocalReplica(ReplicaWorkers):
    """The workers of one replica; one worker is a replica, too, and has no directory."""

    def __init__(
        self,
        name: ReplicaId,
        devices: Sequence[int],
        host: ThisHost,
        *,
        parts: Sequence[HostLink] = (),
    ) -> None:
        """It has one worker on each device, and as many on each of ``parts``; in restart mode one
        that starts a process of the script for each device.
        """
        num_here = 1 if host.job.starts_all else len(devices)
        here, beside = dict(enumerate(devices[:num_here])), devices[num_here:]
        is_alone = len(here) == 1 and not parts
        super().__init__(name, here, host, beside=beside, is_alone=is_alone)
        self._parts = _divided(parts, len(devices))
        self.elsewhere = {
            place: RemoteWorker(
                name,
                part.other,
                worker=place,
                on_message=partial(self._hear_worker, place),
                on_refusal=host.refuse,
            )
            for part, places in self._parts
            for place in places
        }
        """Workers of other hosts, by their places."""
        self._workers: dict[int, Worker | RemoteWorker] = {**self.here, **self.elsewhere}
        self._exits: dict[int, Exited] = {}
        self._first: int | None = None
        self._last_words: dict[int, list[Message]] = {}
        self._is_silent = self._is_end_asked = False
        rules = () if host.job.work is None else host.job.work.log_rules
        self._ruled = RuledOutput(rules, self._break_rule)
        if rules:
            self._listener = self._hear_line

    def start(self, assignment: Assignment) -> None:
        """Ask for a process for each worker, here and on the other hosts."""
        super().start(assignment)
        for part, places in self._parts:
            incarnation = assignment.incarnation
            part.say(StartPart(replica=self.name, places=places, incarnation=incarnation))

    def send(self, command: Command, incarnation: Incarnation) -> None:
        """Pass a command on to the worker that speaks for the replica."""
        self._ruled.take_command(command)
        self.here[0].send(command, incarnation)

    def request_end(self) -> None:
        """Have all workers killed, those as well that have no process yet."""
        self._is_end_asked = True
        for worker in self.here.values():
            worker.is_end_requested = True
        self._kill()

    def started(self, place: int, pid: int, elsewhere: int | None = None) -> None:
        """Note the process of a worker, and tell of it; kill one whose end was asked for before.

        ``elsewhere``: the device of one that is on another host.
        """
        device, name = elsewhere, ""
        if place in self.here:
            device, name = self._host.config.of_pool(self._devices[place])
            self.here[place].started(pid)
        if self._is_killed:  # perhaps before anything was asked to start it
            self._kill()
        self._host.send(
            Started(
                replica=self.name,
                node=self._host.config.node,
                pid=pid,
                device=device,
                device_name=name,
                worker=self._workers[place].worker,
            )
        )

    def unsaid_life(self) -> Progressed | None:
        """Return a sign of life if all workers live and the one that speaks has not said so.

        While one of the others shows no life this says nothing, nor is passed on what worker 0
        says of its own: a replica lives as long as all of its workers do.
        """
        self._ruled.look_for_silence()
        said = [worker.unsaid_life() for worker in self.here.values()]
        self._is_silent = any(
            worker.silent_looks >= SILENT_LOOKS and place not in self._exits
            for place, worker in self._workers.items()
            if place
        )
        return None if self._is_silent else said[0]

    def fail(self, why: str) -> Exited:
        """Return how it has ended where no worker could be started."""
        return not_started(self.name, why)

    async def reap(self, place: int, returncode: int) -> Exited | None:
        """Take the last words of a worker that was reaped; of the last one, return how all ended.

        Unless it ended in order the others are killed at once.
        """
        if returncode:
            self._end_others(place)
        exited = await self._workers[place].exit(returncode)
        if exited.kind not in ORDERLY:
            self._end_others(place)
        self._exits[place] = exited
        if len(self._exits) < len(self._workers):
            return None
        first = self._first or 0
        for message in self._last_words.pop(first, ()):
            self._host.send(message)
        return self._exits[first]

    def lose(self, host: NodeId, why: str) -> list[int]:
        """Count as ended whom a host runs that is lost; return who has not been reaped before."""
        lost = [place for place, one in self.elsewhere.items() if one.host == host]
        fresh = [place for place in lost if not self.elsewhere[place].is_reaped]
        for place in lost:
            self.elsewhere[place].lost(why)
        return fresh

    def _hear_line(self, worker: str, line: str) -> None:
        self._host.listener(worker, line)
        self._ruled.hear_line(line)

    def _break_rule(self, why: str) -> None:
        """Have all killed for a log rule that is broken."""
        self._note_end(0)
        self.here[0].fail_with(why)
        self._kill()

    def _end_others(self, place: int) -> None:
        """Kill the others, because of this worker or of one that was first."""
        self._note_end(place)
        if len(self._exits) + 1 < len(self._workers):
            self._kill()

    def _kill(self) -> None:
        self._kill_here()
        for part, _ in self._parts:
            part.say(KillPart(replica=self.name, is_asked=self._is_end_asked))

    def _note_end(self, place: int) -> None:
        """Take note of who has ended, or said so, first: what the others say follows from it."""
        if self._first is None:
            self._first = place

    def _hear_worker(self, place: int, message: Message) -> None:
        self._ruled.take_message(message)
        match message:
            case Ended(kind=kind):
                if kind not in ORDERLY:
                    self._note_end(place)
            case Progressed() if place or self._is_silent:
                pass
            case Traceback() | Usage() if len(self._workers) > 1:
                self._last_words.setdefault(place, []).append(message)
            case _:
                self._host.send(message)


def _divided(parts: Sequence[HostLink], each: int) -> list[tuple[HostLink, tuple[int, ...]]]:
    """Return the places of the workers of each host but this one, which has the first of them."""
    return [
        (part, tuple(range(number * each, (number + 1) * each)))
        for number, part in enumerate(parts, 1)
    ]
