"""What ``pliant`` does, with its fork servers forked from where torch is loaded already.

For forked stages alone: ``stage.start(FORKED_PLIANT, "run", ...)``.
"""

from __future__ import annotations

import sys
from collections.abc import Callable
from dataclasses import replace
from functools import partial
from pathlib import Path

from tests.live.forking import ForkedServer

from pliant.agent.node_facts import AgentConfig
from pliant.agent.output import OutputListener
from pliant.cli import start
from pliant.cli.main import code_of
from pliant.core.commands import EndJob
from pliant.run import local, separate
from pliant.run.separate import run_agent as agent_of


def run_agent(
    url: str,
    token_file: Path,
    config: AgentConfig,
    say: Callable[[str], None],
    listener: OutputListener,
) -> EndJob | None:
    """Run it with a fork server that is forked."""
    return agent_of(url, token_file, replace(config, start_server=ForkedServer), say, listener)


if __name__ == "__main__":
    forked = partial(local.run_job, start_server=ForkedServer)
    setattr(start, "run_job", forked)  # noqa: B010  # mypy: it is not exported
    setattr(separate, "run_agent", run_agent)  # noqa: B010  # as above
    sys.exit(code_of(sys.argv[1:]))
