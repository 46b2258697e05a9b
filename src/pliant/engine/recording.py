"""Recording: what a script comes to, step by step, written down for ``pliant check``.

Owns what is recorded and when, and what a script under check does otherwise than it always does: it
ends after so many steps, waits at a boundary until the change has come that is to happen there, or
kills itself.  Must not know who compares, nor with what.

    began     a session is made             holds     it waits for the change
    call      of steps(): its total         samples   of a micro-batch that is entered, by a digest
    loss      of a micro-batch              gradient  of a committed step, by a digest
    state     at a boundary: everything     logged    by session.log
    printed   where session.leader is true

A line is written at once: a replica may die the moment after.
"""

from __future__ import annotations

import json
import sys
import threading
import time
from collections.abc import Callable, Mapping
from dataclasses import is_dataclass
from pathlib import Path
from typing import Any, Self

import torch
import xxhash

from pliant.core.checked import CheckOrders
from pliant.core.membership.member import ready_number
from pliant.engine.device import here
from pliant.engine.guard.comparison import StateComparison
from pliant.engine.guard.script_variables import ScriptVariables
from pliant.engine.member.membership_port import WorkerMembership
from pliant.engine.worker.bootstrap import WorkerContext, check_orders
from pliant.engine.worker.reporter import Printer
from pliant.testing import faults

HOLD_S = 45.0
"""Longest wait for a change, in seconds: a hundred times what one takes."""

LOOK_S = 0.02
"""Between two looks while it is awaited, in seconds."""


class Recorder:
    """Of one session under check."""

    def __init__(self, orders: CheckOrders, context: WorkerContext | None) -> None:
        self._orders = orders
        self._replica = "alone" if context is None else context.replica
        self._place = 0 if context is None else context.assignment.place
        self._follows = context is not None and bool(context.worker)
        began = f"{self._replica}.{self._place}-{time.time_ns()}"
        path = Path(orders.recordings, f"{began}.jsonl")
        self._file = path.open("a", buffering=1, encoding="utf-8")
        self._leads: Callable[[], bool] = lambda: False
        self._committed: Callable[[], int] = lambda: 0
        self._calls, self._given = 0, list[object]()
        self._is_recording = self._is_inside = False
        if sys.stdout is not None:
            sys.stdout = _Overheard(sys.stdout, self._printed)
        if orders.fault:
            faults.install_plan(orders.fault, replica=self._replica)

    @classmethod
    def asked(cls, context: WorkerContext | None) -> Self | None:
        """Return one if this script is being checked."""
        orders = check_orders()
        return None if orders is None else cls(orders, context)

    def watch(
        self,
        comparison: StateComparison,
        variables: ScriptVariables,
        *,
        leads: Callable[[], bool],
        committed: Callable[[], int],
        facts: Mapping[str, Any],
    ) -> None:
        """Record these from now on."""
        self._comparison, self._variables = comparison, variables
        self._leads, self._committed = leads, committed
        self._write("began", -1, **facts)

    def last(self, total: int) -> int:
        """Return where a call of ``steps()`` ends that goes to ``total``."""
        self._calls += 1
        self._write("call", -1, {str(self._calls): total})
        return min(total, self._orders.steps)

    def enter(self, step: int, slot: int, batch: Any) -> None:
        """The script computes this micro-batch now."""
        self._is_inside = True
        hashed = xxhash.xxh3_64()
        parts = _feed(hashed, batch)
        words = self._variables.words(self._given)  # which hold the last ones at this moment
        self._given = [batch, *parts]
        name = f"micro-batch {slot}"
        self._write("samples", step, {name: hashed.hexdigest()}, variables=words)

    def computed(self, step: int, slot: int, loss: torch.Tensor) -> None:
        """A micro-batch has this loss."""
        self._given.append(loss)
        self._write("loss", step, {f"micro-batch {slot}": repr(float(loss.detach()))})

    def commit(self, step: int, gradient: object) -> None:
        """A step is committed here."""
        self._is_inside = False
        self._write("gradient", step, {"": str(gradient)})

    def logged(self, step: int, values: Mapping[str, float]) -> None:
        """The leader logs these."""
        self._write("logged", step, {name: repr(value) for name, value in values.items()})

    def pass_boundary(self, membership: WorkerMembership, *, has_run: bool, is_last: bool) -> None:
        """Record the state between two steps, if it is of this replica's own; wait if need be."""
        committed = membership.member.committed
        if has_run or not committed:
            words = self._variables.words(self._given)
            self._write("state", committed - 1, self._comparison.whole(), variables=words)
        self._is_recording = True
        if not is_last:
            self._hold(membership, committed)

    def _hold(self, membership: WorkerMembership, committed: int) -> None:
        first = self._orders.hold_from
        if first is None or committed < first or self._follows or self._may_go_on(membership):
            return
        self._write("holds", committed - 1)
        membership.tell_busy(HOLD_S)
        deadline_s, pause = time.monotonic() + HOLD_S, threading.Event()
        while not self._may_go_on(membership):
            pause.wait(LOOK_S)
            if time.monotonic() > deadline_s:
                Path(self._orders.recordings, "go").touch()  # it does not come
        if self._orders.holds_once:
            Path(self._orders.recordings, "go").touch()
        membership.tell_busy(0.0)

    def _may_go_on(self, membership: WorkerMembership) -> bool:
        member, wanted = membership.member, self._orders.hold_for
        is_over = member.leaving or member.broken or member.reform is not None
        if member.stopping or is_over or Path(self._orders.recordings, "go").exists():
            return True
        if not wanted:
            return False
        if ready_number(member) and member.ordered is not None:
            return len(member.ordered.replicas) >= wanted
        # Of the members' own place a replica of several workers asks all of them, and none follows.
        return membership.team(member.current).place[1] >= wanted

    def _printed(self, text: str) -> None:
        if self._is_recording and not self._is_inside and self._leads():
            self._write("printed", self._committed() - 1, text=text)

    def _write(
        self, kind: str, step: int, values: Mapping[str, Any] | None = None, **more: Any
    ) -> None:
        line = {"kind": kind, "replica": self._replica, "place": self._place, "step": step}
        self._file.write(json.dumps({**line, "values": values or {}, **more}) + "\n")


class QuietPrinter(Printer):
    """Keeps silent on what is logged: when that is printed depends on the time."""

    def logged(self, step: int, values: Mapping[str, float]) -> None:
        """Say nothing."""


class _Overheard:
    """A stream, and who hears what is written to it."""

    def __init__(self, stream: Any, hear: Callable[[str], None]) -> None:
        self._stream, self._hear = stream, hear

    def write(self, text: str) -> Any:
        self._hear(text)
        return self._stream.write(text)

    def __getattr__(self, name: str) -> Any:
        return getattr(self._stream, name)


def _feed(hashed: Any, value: Any) -> list[object]:
    """Take a micro-batch into a digest, but for what it is not known of; return its parts."""
    if isinstance(value, torch.Tensor) and value.layout is torch.strided:
        hashed.update(f"{value.dtype}{tuple(value.shape)}{here.device.word(value)}".encode())
    elif isinstance(value, Mapping):
        return [part for pair in value.items() for part in _feed(hashed, pair)]
    elif isinstance(value, list | tuple):
        hashed.update(str(len(value)).encode())
        return [*value, *(inner for part in value for inner in _feed(hashed, part))]
    elif is_dataclass(value) and not isinstance(value, type):
        return _feed(hashed, vars(value))
    else:
        known = isinstance(value, str | bytes | int | float | None)
        hashed.update(repr(value if known else type(value)).encode())
    return []
