"""A worker script without torch: a member that answers every order and counts steps by time.

Arguments: number of steps, seconds of a step.  Commits are not agreed between members; only the
processes and what they say are real.
"""

from __future__ import annotations

import os
import sys
import threading
import time

from pliant.core.commands import (
    Command,
    Dismiss,
    Prepare,
    Reform,
    Release,
    SkipCalls,
    Stop,
    Switch,
)
from pliant.core.events import ExitKind, Finished, Prepared, Progressed, Spare, Switched
from pliant.core.values import Generation, Incarnation, Order
from pliant.engine.worker.bootstrap import worker_context
from pliant.wire.messages import Committed


class Member:
    """What an engine is to the protocol."""

    def __init__(self, steps: int, step_s: float) -> None:
        context = worker_context()
        assert context is not None
        self.context = context
        self.steps, self.step_s = steps, step_s
        self.lock = threading.Lock()
        self.generation = Generation(0)
        self.committed = 0
        self.entering: Order | None = None
        self.stopping = False
        self.released = threading.Event()

    def obey(self, command: Command, _: Incarnation) -> None:
        me = self.context.replica
        send = self.context.link.send
        with self.lock:
            match command:
                case Prepare(order=order):
                    send(Prepared(replica=me, generation=order.generation))
                case Switch(order=order) | Reform(order=order):
                    self.entering = order
                case Release() | Dismiss():
                    self.released.set()
                case Stop():
                    self.stopping = True
                case SkipCalls():
                    pass
                case _:
                    raise AssertionError(command)

    def beat(self) -> Progressed:
        return Progressed(
            replica=self.context.replica,
            generation=self.generation,
            committed=self.committed,
            calls=0,
        )

    def run(self) -> None:
        me, link = self.context.replica, self.context.link
        link.attach(self.obey, self.beat)
        link.send(Spare(replica=me, calls=0, num_slots=8, layout="l", endpoint=f"127.0.0.1:{me}"))
        while self.committed < self.steps and not self.released.wait(self.step_s):
            with self.lock:
                if self.entering is not None:
                    order, self.entering = self.entering, None
                    if me in order.replicas:
                        self.generation = order.generation
                        link.send(
                            Switched(replica=me, generation=order.generation, step=self.committed)
                        )
            if self.generation:
                self.commit()
            if self.stopping:
                break
        if not self.released.is_set():
            link.send(Finished(replica=me, committed=self.committed))
            self.released.wait(30)
            self.context.end_as(ExitKind.FINISHED)
        else:
            self.context.end_as(ExitKind.LEFT)

    def commit(self) -> None:
        self.context.link.send(
            Committed(
                replica=self.context.replica,
                generation=self.generation,
                step=self.committed,
                mono_s=time.monotonic(),
                loss=1.0 / (1 + self.committed),
                grad_norm=None,
                samples=8,
                step_s=self.step_s,
                parts_us=(0, int(1e6 * self.step_s), 0, 0),
            ),
            urgent=False,
        )
        self.committed += 1


if __name__ == "__main__":
    sys.stdout.write(f"fake worker {sys.argv[1:]} {os.getpid()}\n")
    Member(int(sys.argv[1]), float(sys.argv[2])).run()
    sys.stdout.write("fake worker ends\n")
