"""What the shells ask of each other, as Protocols of at most six methods.

Owns the seams where a test, a simulator or a cluster plugs in something else.  Knows no
implementation.
"""

from __future__ import annotations

from typing import Protocol

from pliant.core.commands import Command
from pliant.core.values import Incarnation


class NodeChannel(Protocol):
    """The coordinator's way to one agent."""

    def send(self, command: Command, incarnation: Incarnation) -> None:
        """Queue a command; never blocks, drops it if the agent is gone."""

    def send_encoded(self, message: bytes) -> None:
        """The same of one that is encoded."""

    def hang_up(self) -> None:
        """End the connection: the agent has another one, or another agent has its name."""


class OutputListener(Protocol):
    """Someone who follows the output of workers as it is written."""

    def __call__(self, worker: str, line: str, /) -> None:
        """Take one line of a worker, by its name, without its newline."""
