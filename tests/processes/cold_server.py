"""A fork server that imports nothing slow: for tests of processes, not of training."""

from __future__ import annotations

from pliant.engine import forkserver

if __name__ == "__main__":
    forkserver.WARM_MODULES = ()
    forkserver.main()
