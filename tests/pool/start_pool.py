"""What `pliant pool start` does, with other waits than those of people.

python tests/pool/start_pool.py SILENT_S GRACE_S pool start ...
"""

from __future__ import annotations

import sys
from dataclasses import replace

from pliant.cli.main import code_of
from pliant.pool.claims import PoolSettings
from pliant.run import pool_host
from pliant.run.pool_config import PoolConfig

RUN = pool_host.run_pool

if __name__ == "__main__":
    settings = PoolSettings(silent_s=float(sys.argv[1]), grace_s=float(sys.argv[2]))

    def run(config: PoolConfig, *, listener: pool_host.Listener) -> int:
        return RUN(replace(config, settings=settings), listener=listener)

    pool_host.run_pool = run
    sys.exit(code_of(sys.argv[3:]))
