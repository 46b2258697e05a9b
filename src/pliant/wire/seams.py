"""What the shells ask of each other, as Protocols of at most six methods.

Owns the seams where a test, a simulator or a cluster plugs in something else.  Knows no
implementation.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any, Protocol

from pliant.core.vocabulary import Command, Incarnation, NodeId, ReplicaId
from pliant.wire.codec import Message


class Log(Protocol):
    """Where a job writes what happened; ``observe.log.EventLog`` in production."""

    def write(self, kind: str, /, **values: Any) -> Mapping[str, Any]:
        """Append one record."""

    def write_value(self, value: object, /, **more: Any) -> Mapping[str, Any]:
        """Append a core value under its own name."""


class NodeChannel(Protocol):
    """The coordinator's way to one agent."""

    def send(self, command: Command, incarnation: Incarnation) -> None:
        """Queue a command; never blocks, drops it if the agent is gone."""


class Inbox(Protocol):
    """Where an agent puts what it and its workers have to say."""

    def put(self, message: Message, node: NodeId) -> None:
        """Take one message; never blocks."""


class OutputListener(Protocol):
    """Someone who follows the output of replicas as it is written."""

    def __call__(self, replica: ReplicaId, line: str, /) -> None:
        """Take one line, without its newline."""
