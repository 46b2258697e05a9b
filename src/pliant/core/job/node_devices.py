"""Devices of a job's nodes: how many are heard of, and on which no process is.

Must not know what they are wanted for.
"""

from __future__ import annotations

from pliant.core.job.state import Job
from pliant.core.values import NodeId


def heard_devices(job: Job) -> int:
    """Return how many devices there are on nodes that are not silent."""
    return sum(count for node, count in job.nodes.devices.items() if node not in job.nodes.silent)


def free_devices(job: Job) -> dict[NodeId, int]:
    """Return the nodes that have devices no process is on, with how many."""
    unused = job.nodes.leaving | job.nodes.silent
    free = {node: count for node, count in job.nodes.devices.items() if node not in unused}
    for replica in job.replicas.values():
        if replica.node in free:
            free[replica.node] -= 1
    return {node: count for node, count in free.items() if count > 0}
