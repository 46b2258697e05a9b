"""Elastic events in a script: the processes are to end soon, and may save before.

Owns what a script sees of its page (``page``).  Without one, outside restart mode, there are none.
"""

from __future__ import annotations

import os
from dataclasses import dataclass
from pathlib import Path

from pliant.core.errors import ConfigError
from pliant.restart.page import PAGE_VARIABLE, Page


@dataclass(frozen=True, slots=True)
class ElasticEvent:
    """All processes of the job are to end, and most of them start again at another size."""

    reason: str
    """``resize``, or ``stop``: for good."""

    deadline: float
    """When they are ended that still run, as of ``time.time()``."""

    old_size: int
    """Number of processes now."""

    new_size: int
    """Number of processes that start then; 0: none."""

    leaving: bool
    """None starts in the place of this one."""

    def saved(self, step: int, path: str | os.PathLike[str] = "") -> None:
        """Say that the state of a step is on storage, so that nothing is lost; then exit.

        Raises:
            ConfigError: of the first process: there is nothing at this path.
        """
        place = os.fspath(path)
        is_first = os.environ.get("RANK", "0") == "0"  # others may only know that it writes
        if place and "://" not in place and is_first and not Path(place).exists():
            raise ConfigError(f"event.saved({step}, {place!r}): there is nothing; save it before")
        if _page is not None:
            _page.save(step, place)


_page: Page | None = None
_opened_by = 0
_event: ElasticEvent | None = None


def elastic_event() -> ElasticEvent | None:
    """Return the event that all processes of the job see at this call; None: there is none.

    Call it once after each step, in every process: all see it at the same number of calls.  Takes
    some microseconds, and waits for nobody.  Answers None outside ``pliant run --mode restart``.
    """
    global _page, _opened_by, _event
    if not _opened_by:
        _opened_by = os.getpid()
        path = os.environ.get(PAGE_VARIABLE)
        _page = Page(Path(path)) if path else None
    if _page is None or os.getpid() != _opened_by:  # a loader process has the page as well
        return None
    found = _page.call()
    if found is not None and _event is None:
        _event = ElasticEvent(**found)
    return None if found is None else _event
