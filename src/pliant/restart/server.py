"""The fork server of restart mode: forks one process for each replica, and imports no torch.

Knows nothing of scripts: what it forks is a restart worker (``worker``), which starts the processes
of its replica as programs of their own.

    agent ==> this --fork--> restart worker --exec--> processes of the script
"""

from __future__ import annotations

import asyncio
import os
import socket
import sys
from typing import NoReturn

from pliant.core.errors import EXIT_FAILED, ConfigError
from pliant.core.events import ExitKind
from pliant.engine.worker.bootstrap import GOODBYE_S, NotRunError, confine, lock_device
from pliant.engine.worker.fork_server import ForkServer, leave_signals_to_run
from pliant.engine.worker.link import Link
from pliant.restart.worker import Left, RestartWorker
from pliant.wire.launch import Assignment
from pliant.wire.messages import Ended


def run_restart_worker(assignment: Assignment, control: socket.socket) -> NoReturn:
    """Be a worker of a job in restart mode and end the process; never returns."""
    link = Link(control, assignment.replica, incarnation=assignment.incarnation)
    link.start()
    code = EXIT_FAILED
    try:
        try:
            left = asyncio.run(_run(assignment, link))
            code = 0 if left.kind in (ExitKind.FINISHED, ExitKind.LEFT) else EXIT_FAILED
        except (NotRunError, ConfigError, OSError) as error:
            kind = error.kind if isinstance(error, NotRunError) else ExitKind.SHORT
            left = Left(kind, str(error))
        link.send(Ended(replica=assignment.replica, kind=left.kind, detail=str(left)))
        link.close(GOODBYE_S)
    finally:
        os._exit(code)


async def _run(assignment: Assignment, link: Link) -> Left:
    locks = [lock_device(assignment, one) for one in (assignment.device, *assignment.beside)]
    if assignment.workers_per_replica > 1:  # as torchrun does
        os.environ.setdefault("OMP_NUM_THREADS", "1")
    confine(assignment, own=None)
    os.chdir(assignment.work.cwd)
    worker = RestartWorker(assignment, link)
    try:
        await worker.serve()
    except Left as left:
        return left
    finally:
        worker.close()
        del locks
    raise AssertionError("it stopped serving")


def main() -> None:
    """Serve the socket whose number is the first argument."""
    leave_signals_to_run()
    agent = socket.socket(fileno=int(sys.argv[1]))
    agent.set_inheritable(False)
    ForkServer(agent, run_restart_worker, in_sessions=True).serve()


if __name__ == "__main__":
    main()
