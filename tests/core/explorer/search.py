"""Breadth-first search over worlds, and the promise that silence always ends.

Every state is visited once, shortest way first, so a counterexample is as short as can be.  From
every state a *fair run* is made: no further faults, everything delivered, everyone goes on, and
time passes when nothing else can happen; it must end the job.  Fair runs share what they visit.
"""

from __future__ import annotations

import itertools
import time
from dataclasses import dataclass
from typing import Any

from tests.core.explorer.coordinator import tick
from tests.core.explorer.generator import actions
from tests.core.explorer.universe import Universe
from tests.core.explorer.world import NO_FAULTS, Violation, World, is_mute

from pliant.core.commands import Prepare, Reform, Switch
from pliant.core.job.state import Job, JobPhase
from pliant.core.membership.state import members, outsiders

IN_PLACE = ("computing", "held", "spare")

MAX_TICKS = 80
"""Deadlines that may pass one after the other in a fair run before it counts as stuck."""

LIVENESS_S = 3000
"""How long a job may take to its end after the last fault, in seconds of the world."""


@dataclass
class Report:
    """What was searched."""

    states: int = 0
    depth: int = 0
    fair_states: int = 0
    slowest_s: int = 0
    """Longest time of the world from a state to the end of the job, nothing going wrong."""

    seconds: float = 0.0
    complete: bool = True
    """False: the bound on states was reached first."""

    violation: str = ""
    trace: str = ""

    def __str__(self) -> str:
        reach = "all states" if self.complete else "bounded"
        found = f"\n{self.violation}\n{self.trace}" if self.violation else ""
        return (
            f"{self.states} states ({reach}), depth {self.depth}, "
            f"{self.fair_states} more in fair runs, which end within {self.slowest_s} s of the "
            f"world, {self.seconds:.1f} s{found}"
        )


def explore(universe: Universe, start: World, *, max_states: int = 10**9) -> Report:
    """Visit every world reachable from ``start``, nearest first; stop at the first violation."""
    began = time.perf_counter()
    report = Report(states=1)
    parents: dict[World, World | None] = {start: None}
    live: dict[World, int] = {}
    level = [start]
    try:
        while level and report.complete:
            following: list[World] = []
            for world in level:
                here = world
                took_s = end_fairly(universe, world, live)
                report.slowest_s = max(report.slowest_s, took_s)
                for _, act in actions(universe, world):
                    after = universe.tidy(act())
                    if after in parents:
                        continue
                    parents[after] = world
                    following.append(after)
                if len(parents) >= max_states:
                    report.complete = False
                    break
            report.depth += bool(following)
            level = following
    except Violation as violation:
        report.violation = f"VIOLATION: {violation}"
        report.trace = _story(universe, parents, here, start)
    report.states, report.fair_states = len(parents), len(live)
    report.seconds = time.perf_counter() - began
    return report


def end_fairly(universe: Universe, world: World, live: dict[World, int]) -> int:
    """Play on without faults until the job ends or a world is met that is known to get there.

    Returns the time that takes.  ``live`` holds when the jobs of known worlds end.

    Raises:
        Violation: it never does, not in time, or it breaks an invariant on the way.
    """
    world = world._replace(faults=NO_FAULTS)
    passed: dict[World, None] = {}
    ticks, began = 0, world.now
    while not is_over(universe, world) and world not in live:
        if world in passed:
            raise Violation("silence does not end: the fair run goes round in a circle")
        passed[world] = None
        label, world = _fair_step(universe, world)
        ticks = ticks + 1 if label is None else 0
        if ticks > MAX_TICKS:
            raise Violation(f"silence does not end: {MAX_TICKS} deadlines passed")
        if world.now - began > LIVENESS_S:
            raise Violation(f"the job has not ended after {LIVENESS_S} s")
    ended = live.get(world, world.now)
    live.update(dict.fromkeys(passed, ended))
    if ended - began > LIVENESS_S:
        raise Violation(f"the job needs {ended - began} s to its end")
    return ended - began


def is_over(universe: Universe, world: World) -> bool:
    """Whether the job has ended, or only a person can help.

    That is so if it is offered less than its minimum, if the last holder of the state is silent for
    ever, or keeps the interpreter lock, and if too few devices are left on nodes that reach each
    other, are reached and awake, without those that the outside has taken back.
    """
    if world.ended is not None:
        return True
    job: Job = universe.states[world.coordinator]
    if job.phase is JobPhase.FINISHING:
        return False
    if job.offer.replicas is not None and job.offer.replicas < universe.min_replicas:
        return True
    mute = {p.name for p in world.processes if p.unreaped or is_mute(world, p)}
    holders = frozenset(members(job.membership)) - outsiders(job.membership)
    if holders and holders <= {process.name for process in world.processes if process.is_locked}:
        return True
    room = sum(universe.nodes[number] for number in reached(world)) - sum(
        process.unreaped and process.node in reached(world) for process in world.processes
    )
    room -= taken_back(universe, job)
    if world.severed:
        room = min(room, most_together(universe, world))
    return bool(job.membership.trouble.unheard & mute) or room < universe.min_replicas


def reached(world: World) -> list[int]:
    """Return the numbers of the nodes on which something may be started yet."""
    return [n for n, node in enumerate(world.nodes) if node.acts and not node.is_cut]


def taken_back(universe: Universe, job: Job) -> int:
    """Return how many devices the job takes for reclaimed, no more than were."""
    has = enumerate(universe.nodes)
    missing = sum(
        devices - job.nodes.devices.get(universe.node_name(n), devices) for n, devices in has
    )
    return min(missing, universe.reclaims)


def most_together(universe: Universe, world: World) -> int:
    """Return how many devices nodes have at most that all reach each other and a coordinator."""
    there = reached(world)
    groups = (
        group
        for count in range(len(there) + 1)
        for group in itertools.combinations(there, count)
        if not world.severed.intersection(itertools.combinations(group, 2))
    )
    return max(sum(universe.nodes[number] for number in group) for group in groups)


def settle(universe: Universe, world: World) -> World:
    """Play on until everyone trains, nobody has voted and nothing is on its way."""
    for _ in range(1000):
        processes = world.processes
        at_rest = [p.phase in IN_PLACE and not p.inbox and not p.outbox for p in processes]
        if all(at_rest) and any(p.phase != "spare" for p in processes):
            return world
        _, world = _fair_step(universe, world)
    raise Violation("the job does not start")


def _fair_step(universe: Universe, world: World) -> tuple[tuple[object, ...] | None, World]:
    """Do what comes first; time passes only when nothing else can happen."""
    for label, act in actions(universe, world):
        return label, universe.tidy(act())
    return None, universe.tidy(tick(universe, world))


def _story(
    universe: Universe, parents: dict[World, World | None], last: World, start: World
) -> str:
    """Tell how ``last`` came about, and how the fair run, or one more step, breaks the rule."""
    path = [last]
    while (before := parents[path[-1]]) is not None:
        path.append(before)
    path.reverse()
    spare = [f"{name}={n}" for name, n in start.faults._asdict().items() if n]
    lines = [f"from {len(start.processes)} replicas, faults: {' '.join(spare) or 'none'}"]
    for world, after in itertools.pairwise(path):
        lines += _told(universe, world, after)
    lines += _breaking_step(universe, last)
    return "\n".join(lines)


def _told(universe: Universe, world: World, after: World) -> list[str]:
    """Name the action between two worlds, and what the coordinator said."""
    for label, act in actions(universe, world):
        universe.said.clear()
        if universe.tidy(act()) == after:
            return [f"  {told(label)}", *_said(universe)]
    raise AssertionError("no action leads there")


def _breaking_step(universe: Universe, last: World) -> list[str]:
    """Find the action that violates right after ``last``, else tell the fair run from there."""
    for label, act in actions(universe, last):
        universe.said.clear()
        try:
            act()
        except Violation as violation:
            return [f"  {told(label)}", *_said(universe), f"  {violation}"]
    return story_of_end(universe, last)


def story_of_end(universe: Universe, last: World) -> list[str]:
    """Tell the fair run from here."""
    lines = ["  from here without faults:"]
    world = last._replace(faults=NO_FAULTS)
    while not is_over(universe, world) and len(lines) < 150:
        universe.said.clear()
        try:
            following = next(actions(universe, world), None)
            lines.append(f"    {told(following[0])}" if following else "    time passes")
            _, world = _fair_step(universe, world)
        except Violation as violation:
            return [*lines, *_said(universe), f"    {violation}"]
        lines += _said(universe)
    return lines


def _said(universe: Universe) -> list[str]:
    return [f"      -> {brief(command)}" for command in universe.said]


def told(label: tuple[object, ...]) -> str:
    """One action as a line."""
    return " ".join(
        brief(part) if hasattr(part, "__dataclass_fields__") else str(part) for part in label
    )


def brief(value: Any) -> str:
    """One event or command on part of a line."""
    name = type(value).__name__
    if isinstance(value, Prepare | Switch | Reform):
        restore = value.order.restore
        held = f" restore {restore.checkpoint}/{restore.lineage}" if restore else ""
        held += " hold" if value.order.hold else ""
        return f"{name}({value.order.generation}: {' '.join(value.order.replicas)}{held})"
    words = [
        str(part if not isinstance(part, tuple) else " ".join(map(str, part)))
        for slot in type(value).__dataclass_fields__
        if slot not in ("layout", "endpoint", "identity", "has_state", "reason", "spare")
        for part in [getattr(value, slot)]
    ]
    return f"{name}({' '.join(word for word in words if word)})"
