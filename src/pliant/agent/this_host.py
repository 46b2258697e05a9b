"""What of an agent those use that run workers with it: one value, made once.

Owns nothing.
"""

from __future__ import annotations

from collections.abc import Callable, Coroutine
from dataclasses import dataclass
from typing import Any

from pliant.agent.fork_servers import ForkServers
from pliant.agent.node_facts import AgentConfig
from pliant.agent.output import OutputListener
from pliant.agent.placement import Devices
from pliant.agent.work import JobHere


@dataclass(frozen=True, slots=True, kw_only=True)
class ThisHost:
    """The job, the devices and the fork server of this host, and who hears what workers print."""

    config: AgentConfig
    job: JobHere
    devices: Devices
    servers: ForkServers
    listener: OutputListener
    refuse: Callable[[str, str], None]
    """Counts what a worker has said that cannot be taken, with the reason."""

    spawn: Callable[[Coroutine[Any, Any, None]], None]
