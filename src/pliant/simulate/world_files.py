"""The files of a simulation, or what is generated in place of one, read into one world."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping
from pathlib import Path

from pliant.core.errors import ConfigError
from pliant.core.policy.decide import Policy
from pliant.machine.files import read_named
from pliant.simulate import generate
from pliant.simulate.simulation import SimulatedWorld
from pliant.spec.cluster import load_cluster
from pliant.spec.exported_jobs import (
    Export,
    is_kubernetes,
    is_sacct,
    made_elastic,
    parse_kubernetes_jobs,
    parse_sacct,
)
from pliant.spec.pool import MOST_DEVICES
from pliant.spec.trace import Change, parse_trace
from pliant.spec.workload import parse_workload


def read_world(
    cluster: Path,
    workload: str,
    *,
    policy: Policy,
    capacity: Mapping[str, str] | None = None,
    load: Mapping[str, str] | None = None,
    elastic_from: int | None = None,
) -> SimulatedWorld:
    """Read a cluster's file and a workload, with the traces that they name.

    ``capacity`` and ``load`` are traces in place of those of the file, by the name of the nodes or
    of the service; their paths are as people type them.  ``elastic_from`` makes jobs of so many
    devices elastic.

    Raises:
        ConfigError: a file cannot be read, or says what cannot be; file and line are named.
    """
    spec = load_cluster(read_named(cluster), source=str(cluster)).spec
    beside = cluster.parent
    traces = {one.name: _placed(one.capacity, beside) for one in spec.nodes if one.capacity}
    loads = {one.name: _placed(one.load, beside) for one in spec.inference}
    counts = {one.name: one.count for one in spec.nodes}
    places = {name: f"{cluster}: capacity of nodes {name}" for name in traces}
    places |= {name: f"--capacity {name}" for name in capacity or {}}
    load_places = {name: f"{cluster}: load of service {name}" for name in loads}
    load_places |= {name: f"--load {name}" for name in load or {}}
    _put_in_place(traces, capacity or {}, among=counts, what="nodes", where=cluster)
    _put_in_place(loads, load or {}, among=loads, what="inference", where=cluster)
    found = read_workload(workload)
    jobs = found.jobs if elastic_from is None else made_elastic(found.jobs, least=elastic_from)
    needs = {
        name: _changes(text, "day", generate.day, where=load_places[name])
        for name, text in loads.items()
    }
    for service in spec.inference:
        last_s, again_s = needs[service.name][-1].at_s, service.repeat_in_seconds
        if again_s is not None and last_s >= again_s:
            raise ConfigError(
                f"{cluster}: the load of service {service.name} changes at {last_s:g} s, and begins"
                f" again at {again_s:g} s already (repeatInSeconds)"
            )
    capacity_of = {
        name: _changes(text, "spot", generate.spot, where=places[name])
        for name, text in traces.items()
    }
    return SimulatedWorld(
        cluster=spec,
        jobs=jobs,
        capacity=capacity_of,
        load=needs,
        policy=policy,
        source=workload,
        notes=(
            *(f"{workload}: {note}" for note in found.notes),
            *(
                f"{places[name]}: of up to {most} nodes the {counts[name]} of the file count"
                for name, changes in capacity_of.items()
                if (most := max(change.devices for change in changes)) > counts[name]
            ),
        ),
        cluster_source=str(cluster),
    )


def read_workload(workload: str) -> Export:
    """Return the jobs of a file, whose first line says of which kind it is, or of ``mix:...``."""
    if generate.is_generator(workload):
        if not workload.startswith("mix:"):
            raise ConfigError(f"{workload} generates no jobs; write mix: or the path of a workload")
        return Export(jobs=generate.mix(workload), notes=())
    text = read_named(Path(workload)).removeprefix("\ufeff")  # spreadsheets begin with a mark
    if is_kubernetes(text):
        return parse_kubernetes_jobs(text, source=workload)
    if is_sacct(text):
        return parse_sacct(text, source=workload)
    jobs = parse_workload(text, source=workload)
    silent = [job.line for job in jobs if job.began_s is None]
    notes: tuple[str, ...] = ()
    if silent and len(silent) < len(jobs):
        notes = (f"began_s is empty in line {min(silent)}: nothing is compared with what happened",)
    return Export(jobs=jobs, notes=notes)


def _placed(text: str, beside: Path) -> str:
    """Return the path of a trace that a file names; a generator stays what it is."""
    return text if generate.is_generator(text) else str(beside / text)


def _put_in_place(
    traces: dict[str, str],
    given: Mapping[str, str],
    *,
    among: Iterable[str],
    what: str,
    where: Path,
) -> None:
    names = sorted(among)
    for name, text in given.items():
        if name not in names:
            there = ", ".join(names) or "none"
            raise ConfigError(f"{where} has no {what} {name}; there are {there}")
        traces[name] = text


def _changes(
    text: str, wanted: str, generated: Callable[[str], list[Change]], *, where: str
) -> list[Change]:
    """Read a trace, or generate one; ``where`` names it.

    Raises:
        ConfigError: it cannot be read, or generates something else than is wanted.
    """
    if not generate.is_generator(text):
        try:
            trace = read_named(Path(text))
        except ConfigError as error:
            raise ConfigError(f"{where}: {error}") from None
        return parse_trace(trace, source=text, most=MOST_DEVICES)
    if text.partition(":")[0] != wanted:
        raise ConfigError(
            f"{text} cannot stand for a trace here; write {wanted}: or the path of a trace"
        )
    return generated(text)
