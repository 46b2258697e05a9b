"""The files of a simulation, read into one world."""

from __future__ import annotations

from collections.abc import Mapping
from pathlib import Path

from pliant.core.errors import ConfigError
from pliant.core.policy.decide import Policy
from pliant.machine.files import read_named
from pliant.simulate.simulation import SimulatedWorld
from pliant.spec.cluster import ClusterFile
from pliant.spec.load import parse
from pliant.spec.pool import MOST_DEVICES
from pliant.spec.trace import Change, parse_trace
from pliant.spec.workload import WorkloadJob, made_elastic, parse_workload


def read_world(
    cluster: Path,
    workload: str,
    *,
    policy: Policy,
    capacity: Mapping[str, str] | None = None,
    elastic_from: int | None = None,
) -> SimulatedWorld:
    """Read a cluster's file and a workload, with the traces that they name.

    ``capacity`` are traces in place of those of the file, by the name of the nodes; their paths are
    as people type them.  ``elastic_from`` makes jobs of so many devices elastic.

    Raises:
        ConfigError: a file cannot be read, or says what cannot be; file and line are named.
    """
    spec = parse(ClusterFile, read_named(cluster), source=str(cluster)).spec
    jobs = read_workload(workload)
    jobs = jobs if elastic_from is None else made_elastic(jobs, least=elastic_from)
    nodes = {one.name: one.capacity for one in spec.nodes}
    counts = {one.name: one.count for one in spec.nodes}
    there = _traces(cluster, nodes, capacity)
    return SimulatedWorld(
        cluster=spec,
        jobs=jobs,
        capacity={name: changes for name, (_, changes) in there.items()},
        policy=policy,
        source=workload,
        notes=tuple(
            f"{where}: of up to {most} nodes the {counts[name]} of the file count"
            for name, (where, changes) in there.items()
            if (most := max(change.devices for change in changes)) > counts[name]
        ),
    )


def read_workload(workload: str) -> list[WorkloadJob]:
    """Return the jobs of a file."""
    text = read_named(Path(workload)).removeprefix("\ufeff")  # spreadsheets begin with a mark
    return parse_workload(text, source=workload)


def _traces(
    cluster: Path, own: Mapping[str, str | None], given: Mapping[str, str] | None
) -> dict[str, tuple[str, list[Change]]]:
    """Return each trace of a cluster's file, or the one in its place, with what names it."""
    found: dict[str, tuple[str, str]] = {}
    for name, text in own.items():
        if text:
            found[name] = f"{cluster}: capacity of nodes {name}", str(cluster.parent / text)
    for name, text in (given or {}).items():
        if name not in own:
            there = ", ".join(sorted(own)) or "none"
            raise ConfigError(f"{cluster} has no nodes {name}; there are {there}")
        found[name] = f"--capacity {name}", text
    return {name: (where, _changes(text, where)) for name, (where, text) in found.items()}


def _changes(text: str, where: str) -> list[Change]:
    """Read a trace; ``where`` names it.

    Raises:
        ConfigError: it cannot be read.
    """
    try:
        trace = read_named(Path(text))
    except ConfigError as error:
        raise ConfigError(f"{where}: {error}") from None
    return parse_trace(trace, source=text, most=MOST_DEVICES)
