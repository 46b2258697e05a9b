"""The fork server of restart mode: forks one process for each replica, and imports no torch.

Knows nothing of scripts: what it forks is a restart worker (``worker``), which starts the processes
of its replica as programs of their own.

    agent ==> this --fork--> restart worker --exec--> processes of the script
"""

from __future__ import annotations

import socket
import sys

from pliant.engine.worker.fork_server import ForkServer, leave_signals_to_run
from pliant.restart.worker import run_restart_worker


def main() -> None:
    """Serve the socket whose number is the first argument."""
    leave_signals_to_run()
    agent = socket.socket(fileno=int(sys.argv[1]))
    agent.set_inheritable(False)
    ForkServer(agent, run_restart_worker, in_sessions=True).serve()


if __name__ == "__main__":
    main()
