"""Small worlds to simulate."""

from __future__ import annotations

import math
from typing import Any

from pliant.core.policy.decide import Policy
from pliant.simulate.resize_costs import IN_PLACE, ResizeCosts
from pliant.simulate.simulation import SimulatedWorld, Simulation
from pliant.spec.cluster import ClusterSpec
from pliant.spec.trace import Change
from pliant.spec.workload import WorkloadJob


def cluster(devices: int, **fields: Any) -> ClusterSpec:
    """Return devices of one node each; ``fields`` of the spec as its file has them."""
    nodes = fields.pop("nodes", [{"name": "all", "count": devices}])
    return ClusterSpec.model_validate({"nodes": nodes, **fields})


def job(name: str, work_s: float, devices: int = 1, **fields: Any) -> WorkloadJob:
    """Return a job that arrives at once and has one size, unless something else is said."""
    sizes = {"min_devices": devices, "max_devices": devices}
    return WorkloadJob(**{"name": name, "arrival_s": 0.0, "work_s": work_s, "devices": devices,
                          **sizes, **fields})  # fmt: skip


def changes(*steps: tuple[float, int]) -> list[Change]:
    """Return a trace."""
    return [Change(at_s=at_s, devices=devices) for at_s, devices in steps]


def simulated(
    jobs: list[WorkloadJob],
    spec: ClusterSpec,
    costs: ResizeCosts = IN_PLACE,
    *,
    policy: Policy | None = None,
    until_s: float = math.inf,
    **world: Any,
) -> Simulation:
    """Simulate to the end."""
    given = SimulatedWorld(cluster=spec, jobs=jobs, policy=policy or Policy(), **world)
    simulation = Simulation(given, costs, until_s=until_s)
    simulation.run()
    return simulation
