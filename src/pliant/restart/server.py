"""The fork server of restart mode: forks one process for each replica, and imports no torch.

Knows nothing of scripts: what it forks is a restart worker (``worker``), which starts the processes
of its replica as programs of their own.

    agent ==> this --fork--> restart worker --exec--> processes of the script
"""

from __future__ import annotations

import asyncio
import os
import shlex
import signal
import socket
import subprocess
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
    signal.signal(signal.SIGINT, lambda *_: None)  # as what else ends jobs: the run has it stop
    code = EXIT_FAILED
    try:
        try:
            left = asyncio.run(_run(assignment, link))
            code = 0 if left.kind in (ExitKind.FINISHED, ExitKind.LEFT) else EXIT_FAILED
        except (NotRunError, ConfigError, OSError) as error:
            kind = ExitKind.USAGE if isinstance(error, ConfigError) else ExitKind.SHORT
            kind = error.kind if isinstance(error, NotRunError) else kind
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
        _run_script("PRE_TRAIN")
        await worker.serve()
    except Left as left:
        if left.kind is ExitKind.FINISHED:
            return _run_script("POST_TRAIN", left)
        return left
    finally:
        worker.close()
        del locks
    raise AssertionError("it stopped serving")


def _run_script(which: str, left: Left | None = None) -> Left:
    """Run what people want to be run before or after the training, on each host.

    Raises:
        Left: it has failed.
    """
    script = os.environ.get(f"PET_{which}_SCRIPT")
    words = shlex.split(os.environ.get(f"PET_{which}_ARGS") or "")
    if script:
        shell = [] if os.access(script, os.X_OK) else ["sh"]
        found = subprocess.run([*shell, script, *words], check=False)  # noqa: S603  # as asked for
        if found.returncode:
            what = f"{script} ({which.lower().replace('_', '-')} script)"
            failed = Left(ExitKind.SCRIPT, f"{what} exited with code {found.returncode}")
            if left is None:
                raise failed
            return failed
    return left or Left(ExitKind.FINISHED)


def main() -> None:
    """Serve the socket whose number is the first argument."""
    leave_signals_to_run()
    agent = socket.socket(fileno=int(sys.argv[1]))
    agent.set_inheritable(False)
    ForkServer(agent, run_restart_worker, in_sessions=True).serve()


if __name__ == "__main__":
    main()
