"""Guards: what watches for differences between replicas that nobody would see, and its hooks.

Owns when they are asked, and what counts as a difference of two.  A guard is an object with some of
these hooks.  Must not know what any of them looks for.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping
from contextlib import contextmanager
from typing import TypeVar

Hook = Callable[..., None]

T = TypeVar("T")


class Guards:
    """Several, asked in their order; each only where it has something to do."""

    on_session: Hook
    """The session is open."""
    on_boundary: Hook
    """The session is between two steps, at work."""
    on_head: Hook
    """``(step)``: the script is in the head of a step; None: it is outside of steps."""
    on_step: Hook
    """``(step)``: a step is begun here, maybe for the second time."""
    on_batch: Hook
    """``(step)``: the session takes the next micro-batch, or finds that none is left."""
    on_given: Hook
    """``(step)``: the script computes it."""
    on_loss: Hook
    """``(loss)``: the script calls for its backward."""
    on_computed: Hook
    """All micro-batches of this replica are computed."""
    on_commit: Hook
    """``(leads)``: the step is committed, and this replica is to lead its tail, or another."""
    on_lead: Hook
    """``(step)``: the script asks in the tail of a step that this replica leads; None: it ends."""
    on_work: Hook
    """``(begins)``: the session does what the script may not, or has done it."""
    on_end: Hook
    """The session is closed; a second call does nothing."""

    def __init__(self, *guards: object) -> None:
        for name in Guards.__annotations__:
            hooks = [getattr(guard, name) for guard in guards if hasattr(guard, name)]
            setattr(self, name, _each_of(hooks))

    @contextmanager
    def paused(self) -> Iterator[None]:
        """Let the session do what the script may not."""
        self.on_work(True)
        try:
            yield
        finally:
            self.on_work(False)


def unlike(mine: Mapping[str, T], theirs: Mapping[str, T]) -> list[str]:
    """Return the names that both have with other values."""
    return sorted(name for name in mine.keys() & theirs.keys() if mine[name] != theirs[name])


def _each_of(hooks: list[Hook]) -> Hook:
    if len(hooks) == 1:
        return hooks[0]

    def call(*args: object) -> None:
        for hook in hooks:
            hook(*args)

    return call
