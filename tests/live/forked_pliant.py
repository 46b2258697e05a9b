"""What ``pliant`` does, with its fork servers forked from where torch is loaded already.

For forked stages alone: ``stage.start(FORKED_PLIANT, "run", ...)``.
"""

from __future__ import annotations

import sys
from functools import partial

from tests.live.forking import ForkedServer

from pliant.cli import start
from pliant.cli.main import code_of
from pliant.run import local, separate

if __name__ == "__main__":
    forked = partial(local.run_job, start_server=ForkedServer)
    setattr(start, "run_job", forked)  # noqa: B010  # mypy: it is not exported
    separate.run_agent = partial(separate.run_agent, start_server=ForkedServer)
    sys.exit(code_of(sys.argv[1:]))
