"""The living replicas of a job, as its event log tells of them.

Owns who lives and what each is doing.  Knows nothing of steps, checkpoints or the job's own state:
those are the board's (``observe.status``), which hands on the records that are about replicas.
"""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import dataclass, field
from enum import StrEnum

from pliant.core.values import Labels
from pliant.observe.log import Record, listed, members_of


def labels_in(record: Record) -> Labels:
    """Return the labels that a node has joined with."""
    pairs = (pair for pair in listed(record, "labels") if isinstance(pair, list))
    return tuple((str(pair[0]), str(pair[1])) for pair in pairs if len(pair) == 2)


class ReplicaActivity(StrEnum):
    """What a living replica is doing."""

    STARTING = "starting"
    SPARE = "spare"
    JOINING = "joining"
    TRAINING = "training"
    WAITING = "waiting"
    LEAVING = "leaving"
    FINISHED = "finished"


@dataclass(slots=True, kw_only=True)
class ReplicaStatus:
    """One living replica."""

    name: str
    state: ReplicaActivity
    pids: list[int] = field(default_factory=list)
    node: str = ""
    device: int | None = None
    device_name: str = ""


@dataclass(slots=True)
class LivingReplicas:
    """Eats the records about replicas, in file order."""

    named: dict[str, ReplicaStatus] = field(default_factory=dict)
    former: dict[str, ReplicaStatus] = field(default_factory=dict)
    """Those of the coordinator before, until their agent has said that they live."""

    silent: set[str] = field(default_factory=set)
    """Those whose node is not heard, and who may have the state of the run yet."""

    labels: dict[str, Labels] = field(default_factory=dict)
    """Of nodes."""

    is_holding: bool = False
    """The newest generation waits below the minimum."""

    members: tuple[str, ...] = ()
    """Of the newest generation, the first leads; none: nobody trains yet."""

    led: str = ""
    """Who led before, and may be in its last tail yet."""

    def leads(self, name: str) -> bool:
        """Whether a replica's tails are the job's; before the first step the oldest's are."""
        there = (one for one in (*self.members, *self.named) if one in self.named)
        return name in (next(there, name), self.led)

    def follow(self) -> None:
        """Another coordinator: they count again once their agent has said that they live."""
        self.former |= self.named
        self.named.clear()
        self.silent.clear()

    def add_node(self, record: Record) -> None:
        """An agent says whom it runs: they have lived through a change of coordinators.  Or it is
        not heard any more, and perhaps others neither.
        """
        if record["kind"] == "node_lost":
            self._lose_nodes(record)
            return
        node = str(record.get("node") or "")
        self.labels[node] = labels_in(record)
        here = list(map(str, listed(record, "replicas")))
        self._forget(name for name in self.silent - set(here) if self.named[name].node == node)
        self.silent.difference_update(here)
        for name in here:
            if name not in self.named:
                unknown = ReplicaStatus(name=name, state=ReplicaActivity.STARTING, node=node)
                self.named[name] = self.former.pop(name, unknown)

    def _lose_nodes(self, record: Record) -> None:
        """Nodes are not heard: of theirs nobody will say that they have ended.

        They may be waited for, so who trains there counts until others go on without it.
        """
        nodes = {str(record.get("node")), *map(str, listed(record, "others"))}
        there = {name: one for name, one in self.named.items() if one.node in nodes}
        has_state = (ReplicaActivity.TRAINING, ReplicaActivity.WAITING, ReplicaActivity.FINISHED)
        self.silent.update(name for name, one in there.items() if one.state in has_state)
        self._forget(there.keys() - self.silent)

    def add_order(self, record: Record) -> None:
        """An order of the coordinator says who is in the next generation, or in none."""
        if record["kind"] == "dismiss":
            for name in map(str, listed(record, "to")):
                self._set(name, ReplicaActivity.LEAVING)
            return
        order = record.get("order")
        if not isinstance(order, dict):
            return
        members = dict.fromkeys(members_of(order))
        if record["kind"] == "prepare":
            for name in members:
                if name in self.named and self.named[name].state is ReplicaActivity.SPARE:
                    self._set(name, ReplicaActivity.JOINING)
            return
        self.is_holding = bool(order.get("hold"))
        self.led = next(iter({*self.members[:1]} - members.keys()), "")
        self.members = tuple(members)
        self._forget(self.silent - members.keys())
        for name, replica in self.named.items():
            if replica.state is ReplicaActivity.TRAINING and name not in members:
                self._set(name, ReplicaActivity.LEAVING)

    def add(self, record: Record, name: str) -> None:
        """Take in one record about ``name``; kinds it does not know change nothing."""
        match record.get("kind"):
            case "start_replica":
                node = str(record.get("node") or "")
                self.named[name] = ReplicaStatus(
                    name=name, state=ReplicaActivity.STARTING, node=node
                )
            case "worker" if name in self.named and isinstance(record.get("pid"), int):
                if record["pid"] not in self.named[name].pids:  # told again: not known if heard
                    self.named[name].pids.append(record["pid"])
                if not record.get("worker"):
                    self.named[name].device = record.get("device")
                    self.named[name].device_name = str(record.get("device_name") or "")
            case "registered":
                self._on_registered(record, name)
            case "spare":
                self._set(name, ReplicaActivity.SPARE)
            case "switched":
                self._set(name, self._with_state())
            case "drain_requested":
                self._set(name, ReplicaActivity.LEAVING)
            case "finished":
                self._set(name, ReplicaActivity.FINISHED)
            case "exited":
                self._forget([name])
            case _:
                pass  # answers and heartbeats change no state here

    def _on_registered(self, record: Record, name: str) -> None:
        """One of them says where it stands."""
        if (replica := self.named.get(name)) is None:
            return
        if record.get("finished"):
            replica.state = ReplicaActivity.FINISHED
        elif record.get("leaving"):
            replica.state = ReplicaActivity.LEAVING
        elif record.get("has_state"):
            replica.state = self._with_state()
        elif record.get("spare"):
            replica.state = ReplicaActivity.SPARE

    def _with_state(self) -> ReplicaActivity:
        return ReplicaActivity.WAITING if self.is_holding else ReplicaActivity.TRAINING

    def _forget(self, names: Iterable[str]) -> None:
        for name in tuple(names):
            self.named.pop(name, None)
            self.silent.discard(name)

    def _set(self, name: str, state: ReplicaActivity) -> None:
        if name in self.named:
            self.named[name].state = state
