"""What replicas print on nodes that do not see the directory of the run.

Owns the files in which it is kept beside those of the coordinator's own node, as bounded as those.
Their agents tell it; what they left out is named by a line.  What another coordinator was told
before may be written twice, as nobody knows how much of it that was.
"""

from __future__ import annotations

import logging
from pathlib import Path

from pliant.core.counts import counted
from pliant.core.worker_names import worker_name
from pliant.machine import run_files
from pliant.machine.rotating_file import RotatingFile
from pliant.wire.messages import OutputGrown

_log = logging.getLogger(__name__)


class OutputKeeper:
    """Keeps that of one job."""

    def __init__(self, out: Path) -> None:
        self._logs = out / run_files.LOGS
        self._ends: dict[str, int] = {}
        """How far each worker's output was told."""

    def append(self, grown: OutputGrown) -> None:
        """Write what a worker printed elsewhere, unless that was told before."""
        name = worker_name(grown.replica, grown.worker)
        known, end = self._ends.get(name, grown.offset), grown.offset + len(grown.text)
        if end <= known:
            return
        text = grown.text[max(0, known - grown.offset) :]
        if (missing := grown.offset - known) > 0:
            text = f"(pliant: {counted(missing, 'letter')} left out; its node has them)\n{text}"
        try:
            file = RotatingFile(self._logs / f"{name}.log")
        except OSError as error:  # who looks for it will miss it; the run does not
            _log.warning("what %s printed could not be written: %s", name, error)
            return
        file.write(text.encode("utf-8", "replace"))
        file.close()
        self._ends[name] = end
