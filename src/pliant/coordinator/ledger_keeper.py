"""The ledgers of a job's replicas, kept short while it runs.

Owns when that is looked at.  What may go is for ``observe.condensing`` to say.  It is done on
another thread; a coordinator that cannot do it goes on, and tries again when there is more.
"""

from __future__ import annotations

import asyncio
import logging
from pathlib import Path

from pliant.machine.event_loop import aside
from pliant.observe.condensing import condense, ledger_bytes

LEDGER_BYTES = 64 << 20
"""What the ledgers of a job may have: more is condensed.  What has to stay may be more: the newest
1,000 steps, or the epoch of a sampler, and the part that each replica writes to."""

LOOK_S = 30.0
"""Between two looks, in seconds; a look is one listing of a directory."""

_log = logging.getLogger(__name__)


class LedgerKeeper:
    """Keeps those of one job."""

    def __init__(self, out: Path) -> None:
        self._out = out
        self._most_bytes = LEDGER_BYTES
        self._look_at_s: float | None = None
        self._looking: asyncio.Task[None] | None = None

    def look_if_due(self, now_s: float) -> None:
        """Condense the ledgers, on another thread, if they have grown enough."""
        if self._look_at_s is None:
            self._look_at_s = now_s + LOOK_S
        if now_s >= self._look_at_s and (self._looking is None or self._looking.done()):
            self._look_at_s = now_s + LOOK_S
            self._looking = asyncio.create_task(self._condense_aside())

    async def _condense_aside(self) -> None:
        try:
            await aside(self._condense)
        except OSError as error:
            _log.warning("the ledgers could not be condensed: %s", error)

    def _condense(self) -> None:
        """Condense them; where much stays, or all, not again before there is half a bound more."""
        if ledger_bytes(self._out) <= self._most_bytes:
            return
        try:
            condense(self._out)
        finally:
            self._most_bytes = max(LEDGER_BYTES, ledger_bytes(self._out) + LEDGER_BYTES // 2)
