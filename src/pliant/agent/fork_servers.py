"""The fork servers of one agent: one at a time, and once more after a death.

Owns how often one is started.  A server that dies takes its workers with it; after a second death
none is started any more.  Knows nothing of replicas.
"""

from __future__ import annotations

import logging
from collections.abc import Callable, Coroutine, Sequence
from pathlib import Path
from typing import Any

from pliant.agent.launcher import MAX_SERVER_LIVES, Launcher
from pliant.agent.node_facts import AgentConfig
from pliant.machine import run_files
from pliant.wire import launch
from pliant.wire.messages import Work

_log = logging.getLogger(__name__)


class ForkServers:
    """Nothing until ``start``; ``close`` once, at the end."""

    def __init__(
        self,
        config: AgentConfig,
        *,
        spawn: Callable[[Coroutine[Any, Any, None]], None],
        on_report: Callable[[launch.Report], None],
        on_death: Callable[[], None],
        on_end: Callable[[str], None],
    ) -> None:
        """``on_death``: the workers of a server are gone; ``on_end``: before that, if no other
        will be started, and why.
        """
        self._config = config
        self._spawn = spawn
        self._on_report = on_report
        self._on_death = on_death
        self._on_end = on_end
        self._work: Work | None = None
        self._launcher: Launcher | None = None
        self._dead: list[Launcher] = []
        self._lives = 0
        self._is_guarding = False

    @property
    def may_start(self) -> bool:
        """Whether there is one that can be asked for workers."""
        return self._launcher is not None

    def start(self, work: Work) -> None:
        """Start one, which imports for a second or two; returns at once."""
        self._work = work
        self._lives += 1
        self._launcher = Launcher(
            on_report=self._on_report,
            on_gone=self._on_gone,
            start_server=self._config.start_server,
        )
        self._launcher.start(
            environment=self._config.environment,
            cwd=Path(work.cwd),
            log=Path(work.out) / run_files.LOGS / "forkserver.log",
        )
        if self._is_guarding:
            self.guard()

    def guard(self) -> None:
        """Tell the server, and each after it, which files to remove if this process is killed.

        Once they are there: what lies there before may be another's.
        """
        self._is_guarding = True
        self.ask(launch.GuardFiles(paths=tuple(map(str, self._config.guarded))))

    def ask(self, request: launch.Request, fds: Sequence[int] = ()) -> None:
        """Send a request, with the files that it needs; without a server it is lost."""
        if self._launcher is not None:
            self._launcher.ask(request, fds)

    def meeting_place(self) -> Path:
        """Return the directory of the replicas that have several workers.

        Raises:
            OSError: there is no place for it, or no server.
        """
        if self._launcher is None:
            raise OSError("its agent has failed")
        return self._launcher.meeting_place()

    def give_up(self) -> None:
        """Start no other one."""
        self._lives = MAX_SERVER_LIVES

    async def close(self) -> None:
        """End the server and its workers, and wait until they are gone."""
        launcher, self._launcher = self._launcher, None
        if launcher is not None:
            await launcher.close()
        for dead in self._dead:
            await dead.close()

    def _on_gone(self, launcher: Launcher) -> None:
        """The fork server died: so did its workers.  Try once more."""
        _log.warning("the fork server %s died", launcher.pid)
        self._dead.append(launcher)
        launcher.kill()  # it may only have closed its socket
        self._spawn(launcher.close())
        if self._lives >= MAX_SERVER_LIVES or self._work is None:
            self._launcher = None
            self._on_end("the fork server died; see logs/forkserver.log")
        else:
            self.start(self._work)
        self._on_death()
