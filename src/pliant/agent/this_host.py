"""What of an agent those use that run workers with it: one value, made once."""

from __future__ import annotations

import os
from collections.abc import Callable, Coroutine
from dataclasses import dataclass
from typing import Any

from pliant.agent.fork_servers import ForkServers
from pliant.agent.node_facts import AgentConfig
from pliant.agent.output import OutputListener
from pliant.agent.placement import Devices
from pliant.agent.work import JobHere
from pliant.core.values import Incarnation, ReplicaId
from pliant.wire.codec import Message
from pliant.wire.launch import Assignment


@dataclass(frozen=True, slots=True, kw_only=True)
class ThisHost:
    """The job, the devices and the fork server of this host, and who hears what workers print."""

    config: AgentConfig
    job: JobHere
    devices: Devices
    servers: ForkServers
    listener: OutputListener
    send: Callable[[Message], None]
    """Says something to the coordinator, when there is one."""

    refuse: Callable[[str, str], None]
    """Counts what a worker has said that cannot be taken, with the reason."""

    spawn: Callable[[Coroutine[Any, Any, None]], None]

    def assignment(self, replica: ReplicaId, incarnation: Incarnation) -> Assignment | None:
        """Return what each worker of a replica is told, but for what is its own.

        None: there is no job, or no fork server that could start one.
        """
        if (work := self.job.work) is None or not self.servers.may_start:
            return None
        return Assignment(
            replica=replica,
            work=work,
            address=self.config.address,
            incarnation=incarnation,
            pid=os.getpid(),
            locks=str(self.config.locks or ""),
            workers_per_replica=work.workers_per_replica,
        )
