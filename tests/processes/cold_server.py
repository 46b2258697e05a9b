"""A fork server that imports nothing slow: for tests of processes, not of training."""

from __future__ import annotations

from pliant.engine.worker import fork_server

if __name__ == "__main__":
    fork_server.WARM_MODULES = ()
    fork_server.main()
