"""Fault injection: what a test makes a worker do to itself at a named point.

Owns the points' names, the plan of faults and the one hook that the engine's probe calls.  Knows
nothing of torch, of the engine or of a job; without ``install`` it does nothing.

A plan is text, so that it travels as a script's argument: ``r2@vote:7=SIGKILL,r1@tail=hang:2.5``.
``docs/howto/test-against-faults.md`` has the form.  Each fault happens once.
"""

from __future__ import annotations

import ctypes
import os
import re
import signal
import threading
from collections.abc import Callable
from dataclasses import dataclass

POINTS = frozenset(
    {
        *("build", "prepared", "boundary", "transfer", "reform"),  # a resize
        *("micro_batch", "bucket", "reduced", "vote", "commit", "tail", "evaluate"),  # a step
        *("save", "share", "publish", "restore"),  # a checkpoint
    }
)
"""Every phase in which a fault can be placed; the engine passes each of them."""

_FORM = re.compile(r"([^=@]+)@([^=:]*)(?::(\d+)(\+?))?=(.+)")

Hook = Callable[[str, int], None]
"""Gets the point's name and the number of steps committed so far."""

installed: Hook | None = None
"""What the engine's probe calls; None outside of tests."""


class InjectedError(RuntimeError):
    """The fault that a plan asked for with ``raise``."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Fault:
    """One thing that goes wrong in one replica, once."""

    replica: str
    point: str
    action: str

    step: int = 0
    """Steps committed when it happens."""

    or_later: bool = True
    """Whether it happens at a later step if the replica did not pass the point in this one."""

    def __post_init__(self) -> None:
        if self.point not in POINTS:
            raise ValueError(f"unknown point {self.point!r}; one of {', '.join(sorted(POINTS))}")
        kind = self.action.partition(":")[0]
        if kind not in {"raise", "hang", "lock"} and not hasattr(signal, kind):
            raise ValueError(
                f"unknown action {self.action!r}: a signal's name, hang:S, lock:S or raise"
            )

    def fits(self, point: str, step: int) -> bool:
        """Return whether this fault is due here."""
        is_due = step >= self.step if self.or_later else step == self.step
        return self.point == point and is_due

    def happen(self) -> None:
        """Do it, to the calling process."""
        kind, _, value = self.action.partition(":")
        if kind == "raise":
            raise InjectedError(f"{self.replica} at {self.point} of step {self.step}")
        if kind == "hang":
            threading.Event().wait(float(value))
            return
        if kind == "lock":
            ctypes.PyDLL(None).usleep(int(1e6 * float(value)))  # as many a C extension does
            return
        os.kill(os.getpid(), getattr(signal, kind))


def parse(text: str) -> tuple[Fault, ...]:
    """Read a plan of faults.

    Raises:
        ValueError: the text does not follow the form.
    """
    return tuple(_parse_one(part.strip()) for part in text.split(",") if part.strip())


def install(hook: Hook | None) -> None:
    """Call ``hook`` at every point from now on; None takes it out."""
    global installed  # one per process, like a signal handler
    installed = hook


def install_plan(plan: str, *, replica: str) -> None:
    """Let the faults of ``plan`` that name ``replica`` happen in this process."""
    waiting = [fault for fault in parse(plan) if fault.replica in (replica, "*")]

    def hook(point: str, step: int) -> None:
        for fault in waiting:
            if fault.fits(point, step):
                waiting.remove(fault)
                fault.happen()
                return

    install(hook)


def _parse_one(text: str) -> Fault:
    found = _FORM.fullmatch(text)
    if found is None:
        raise ValueError(f"a fault looks like r2@vote:7=SIGKILL, got {text!r}")
    replica, point, step, plus, action = found.groups()
    when, or_later = int(step or 0), not step or bool(plus)
    return Fault(replica=replica, point=point, action=action, step=when, or_later=or_later)
