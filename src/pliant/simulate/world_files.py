"""The files of a simulation, or what is generated in place of one, read into one world."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path

from pliant.core.errors import ConfigError
from pliant.core.policy.decide import Policy
from pliant.machine.files import read_named
from pliant.simulate import generate
from pliant.simulate.simulation import SimulatedWorld
from pliant.spec.cluster import ClusterSpec, load_cluster
from pliant.spec.pool import MOST_DEVICES
from pliant.spec.trace import Change, parse_trace
from pliant.spec.workload import WorkloadJob, parse_workload


def read_world(cluster: Path, workload: str, *, policy: Policy) -> SimulatedWorld:
    """Read a cluster's file and a workload, with the traces that they name.

    Raises:
        ConfigError: a file cannot be read, or says what cannot be; file and line are named.
    """
    if policy.spares:
        raise ConfigError("spares are not simulated; leave spares=0 in the policy")
    spec = load_cluster(read_named(cluster), source=str(cluster)).spec
    _require_generators(spec, cluster)
    jobs, source = read_workload(workload)
    beside = cluster.parent
    return SimulatedWorld(
        cluster=spec,
        jobs=jobs,
        capacity={
            entry.name: _changes(entry.capacity, beside, generate.spot, most=entry.count)
            for entry in spec.nodes
            if entry.capacity is not None
        },
        load={
            entry.name: _changes(entry.load, beside, generate.day, most=MOST_DEVICES)
            for entry in spec.inference
        },
        policy=policy,
        source=source,
    )


def read_workload(workload: str) -> tuple[list[WorkloadJob], str]:
    """Return the jobs of a file or of ``mix:...``, and what to call their source."""
    if generate.is_generator(workload):
        return generate.mix(workload), workload
    return parse_workload(read_named(Path(workload)), source=workload), workload


def _changes(
    text: str, beside: Path, generated: Callable[[str], list[Change]], *, most: int
) -> list[Change]:
    """Read a trace beside the cluster's file, or generate one."""
    if generate.is_generator(text):
        return generated(text)
    path = beside / text
    return parse_trace(read_named(path), source=str(path), most=most)


def _require_generators(spec: ClusterSpec, cluster: Path) -> None:
    """Refuse a generator where what it generates is not wanted."""
    for place, text, wanted in (
        *((f"capacity of nodes {one.name}", one.capacity or "", "spot") for one in spec.nodes),
        *((f"load of inference {one.name}", one.load, "day") for one in spec.inference),
    ):
        if generate.is_generator(text) and text.partition(":")[0] != wanted:
            raise ConfigError(
                f"{cluster}: the {place} cannot be {text}; write {wanted}: or the path of a trace"
            )
