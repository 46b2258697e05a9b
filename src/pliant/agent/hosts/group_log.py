"""What a host says to its people of the host group that it is to be in.

Owns the words, and that none comes twice.  Knows nothing of links.
"""

from __future__ import annotations

import logging
from collections.abc import Sequence

from pliant.core.text import counted, in_words
from pliant.core.values import NodeId
from pliant.wire.messages import Work

_log = logging.getLogger(__name__)


class GroupLog:
    """Of one agent at ``address``."""

    def __init__(self, address: str) -> None:
        self._address = address
        self._lacks = ""
        self._missed: Sequence[NodeId] = ()
        self._has_waited = False

    def say_lack(self, why: str, again_s: float) -> None:
        """It cannot be one with others."""
        if why != self._lacks:
            _log.warning(
                "this host cannot be one with others: %s; it tries again every %g s", why, again_s
            )
        self._lacks, self._has_waited = why, False

    def say_missed(self, missed: Sequence[NodeId]) -> None:
        """The last attempt failed, with those of ``missed``, or a link to them fell silent; the
        same object is of one attempt.
        """
        self._lacks = ""
        if missed is self._missed or not missed:
            return
        self._missed = missed
        _log.warning(
            "this host and %s did not reach each other: open the ports above 1023 of %s to them, "
            "and theirs to it; it is tried again, after 5 min at most",
            in_words(missed),
            self._address,
        )

    def say_waits(self, work: Work) -> None:
        """It still waits for others."""
        if self._has_waited:
            return
        self._has_waited = True
        _log.warning(
            "this host waits for %s: a replica of job %s is on %s",
            counted(work.hosts_per_replica - 1, "other host"),
            work.job,
            counted(work.hosts_per_replica, "host"),
        )

    def begin_anew(self) -> None:
        """It is part of a host group: what comes when it is alone again is said again."""
        self._has_waited = False
