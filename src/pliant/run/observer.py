"""Who follows what a command hosts: a live panel, plain lines, a test."""

from __future__ import annotations

from typing import Protocol

from pliant.observe.log import Record


class Observer(Protocol):
    """Someone who follows a job; called on its event loop."""

    def record(self, record: Record) -> None:
        """Take one record of the event log."""

    def output(self, replica: str, text: str) -> None:
        """Take one line that a replica printed, without its newline."""
