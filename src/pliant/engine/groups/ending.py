"""How a group ends: why, whether it has, and the errors that tell its users.

Owns the reason of an end, given once from any thread.  Must not know what a group does.
"""

from __future__ import annotations

import threading
import traceback
from collections.abc import Callable, Iterator
from contextlib import contextmanager

from pliant.core.errors import PliantError


class GroupBroken(PliantError):  # noqa: N818  an event of a run, not a mistake
    """The group of one generation is of no more use: a peer failed, or it was abandoned."""

    def __init__(self, generation: int, reason: str, *, unreached: tuple[str, ...] = ()) -> None:
        """``unreached``: members to which no connection can be made from here."""
        super().__init__(f"group of generation {generation}: {reason}")
        self.generation = generation
        self.reason = reason
        self.unreached = unreached


class LeftAlone(GroupBroken):
    """Another member has gone on without giving what this one waits for."""


class OperationFailed(Exception):  # noqa: N818  becomes GroupBroken
    """A job found that its group is of no more use; the text is one sentence."""


class LayoutMismatch(PliantError):  # noqa: N818
    """This worker's model differs from the members'; the text is one sentence for the user."""


class Abort:
    """A reason to give up, set once from any thread; wakes whoever waits."""

    def __init__(self) -> None:
        self._lock = threading.Lock()
        self._callbacks: list[Callable[[], None]] = []
        self.reason: str | None = None

    def set(self, reason: str) -> None:
        """Give the reason; the first one counts."""
        with self._lock:
            if self.reason is not None:
                return
            self.reason = reason
            callbacks, self._callbacks = self._callbacks, []
        for callback in callbacks:
            callback()

    @contextmanager
    def calling(self, callback: Callable[[], None]) -> Iterator[None]:
        """Call ``callback`` if the reason is set within, or was before; on whoever sets it."""
        with self._lock:
            is_set = self.reason is not None
            if not is_set:
                self._callbacks.append(callback)
        if is_set:
            callback()
        try:
            yield
        finally:
            with self._lock:
                if callback in self._callbacks:
                    self._callbacks.remove(callback)


class GroupEnd:
    """Whether a group has ended, and why; any thread may set it."""

    __slots__ = ("_lock", "ended", "generation", "reason")

    def __init__(self, generation: int) -> None:
        self._lock = threading.Lock()
        self.generation = generation
        self.ended = False
        self.reason: str | None = None
        """Why it is of no more use; None while it is whole, and if it was retired."""

    def set(self, reason: str | None) -> None:
        """End the group, broken if there is a reason; the first one counts."""
        with self._lock:
            if reason is not None and self.reason is None:
                self.reason = reason
            self.ended = True

    def error(self) -> GroupBroken:
        """Return what whoever still uses the group is to get."""
        return GroupBroken(self.generation, self.reason or "it is no longer in use")


def let_go(error: BaseException) -> None:
    """Drop what the frames of an error hold: it would keep windows and buffers in memory."""
    link: BaseException | None = error
    while link is not None:
        traceback.clear_frames(link.__traceback__)
        link = link.__context__
    if isinstance(error, GroupBroken):  # one sentence says it all
        error.__traceback__ = error.__context__ = None
