"""A script without torch for replicas of several workers.

The first worker is a fake member of the job; the others hold until it says that they are done, as
an engine's followers would.

Arguments: number of steps, seconds of a step.
"""

from __future__ import annotations

import contextlib
import os
import socket
import sys
import threading
from pathlib import Path

sys.path.insert(0, str(Path(__file__).resolve().parents[2]))

from tests.processes.fake_worker import Member

from pliant.core.events import ExitKind
from pliant.engine.worker.bootstrap import worker_context

context = worker_context()
assert context is not None
own = context.assignment
path = str(Path(own.inner) / "held")
steps, step_s = sys.argv[1:]

sys.stdout.write(f"meets in {own.inner}\n")

if own.place == 0:
    with socket.socket(socket.AF_UNIX) as listener:
        listener.bind(f"{path}.new")
        listener.listen()
        Path(f"{path}.new").rename(path)
        others = [listener.accept()[0] for _ in range(own.workers_per_replica - 1)]
    Member(int(steps), float(step_s)).run()
    for other in others:
        other.sendall(b"done")
else:
    first = socket.socket(socket.AF_UNIX)
    while True:
        with contextlib.suppress(FileNotFoundError):
            first.connect(path)
            break
        threading.Event().wait(0.01)
    sys.stdout.write(f"holds {os.getpid()}\n")
    if first.recv(4) != b"done":
        threading.Event().wait(30)  # the first is gone: the agent ends the others
    context.end_as(ExitKind.FINISHED)
