"""``python -m pliant`` is ``pliant``; and what a process does before it imports anything.

An agent that is told to end before it has begun is gone at once: it runs nothing yet.  As the first
process of a container it would hear no signal that it does not handle, and get every process whose
parent has ended: then it is a child of one that passes on signals, and reaps.  Knows nothing of
commands but the name of one.
"""

from __future__ import annotations

import os
import signal
import sys

HEEDED = (signal.SIGTERM, signal.SIGINT, signal.SIGHUP, signal.SIGUSR1, signal.SIGUSR2)


def main() -> None:
    """Run the command line."""
    if sys.argv[1:2] == ["agent"]:
        signal.signal(signal.SIGTERM, lambda *_: os._exit(0))
    if os.getpid() == 1:
        _become_child_of_first()

    from pliant.cli.main import main as run

    run()


def _become_child_of_first() -> None:
    """Go on in a child; this process ends with its exit code, and the container with this one."""
    signal.pthread_sigmask(signal.SIG_BLOCK, (*HEEDED, signal.SIGCHLD))  # none is lost meanwhile
    child = os.fork()
    if child == 0:
        signal.pthread_sigmask(signal.SIG_UNBLOCK, (*HEEDED, signal.SIGCHLD))
        return
    while True:
        number = signal.sigwait((*HEEDED, signal.SIGCHLD))
        if number != signal.SIGCHLD:
            os.kill(child, number)
            continue
        ended = 1
        while ended > 0:
            ended, status = os.waitpid(-1, os.WNOHANG)
            if ended == child:
                code = os.waitstatus_to_exitcode(status)
                os._exit(code if code >= 0 else 128 - code)


if __name__ == "__main__":
    main()
