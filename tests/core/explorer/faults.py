"""What can go wrong next, as far as the faults of the world are not used up.

Owns the names of faults and when each can happen.  What it does is the environment's to say.
"""

from __future__ import annotations

import itertools
from collections.abc import Callable, Iterator
from functools import partial
from typing import Any

from tests.core.explorer.coordinator import (
    crash,
    decide_and_write,
    drop,
    hear,
    list_all,
    nap,
    reboot,
    take_over,
    tick,
    told_to_end,
)
from tests.core.explorer.process import Process
from tests.core.explorer.universe import Universe, tell
from tests.core.explorer.workers import die, fail, sign_of_life, vanish
from tests.core.explorer.world import (
    World,
    change,
    detail_of,
    is_frozen,
    node_of,
    place_of,
    replaced,
    with_node,
)

from pliant.core.events import Event, Exited, ExitKind, Spare, Ticked

Action = tuple[tuple[object, ...], Callable[[], World]]
"""What happens, as words and values for ``told``, and what computes the world after it."""


def go_wrong(universe: Universe, world: World) -> Iterator[Action]:
    faults = world.faults
    for process in world.processes:
        if process.alive and not is_frozen(world, process):
            yield from harm(universe, world, process)
    yield from lose_connections(universe, world)
    if faults.severs or faults.mends:
        yield from part(universe, world)
    if faults.sleeps:
        yield from fall_asleep(universe, world)
    if faults.wakes:
        yield from wake(universe, world)
    yield from lose_coordinator(universe, world)
    if faults.ticks:
        spent = world._replace(faults=faults._replace(ticks=faults.ticks - 1), late=True)
        yield ("a deadline passes",), partial(tick, universe, spent)


def harm(universe: Universe, world: World, process: Process) -> Iterator[Action]:
    """What may go wrong with one process."""
    faults, name = world.faults, process.name
    if faults.kills:
        spent = world._replace(faults=faults._replace(kills=faults.kills - 1))
        yield (name, "is killed"), partial(die, universe, spent, process, ExitKind.SIGNAL)
    if faults.hangs:
        spent = world._replace(faults=faults._replace(hangs=faults.hangs - 1))
        yield (name, "hangs"), partial(change, spent, name, hung=True)
    if faults.locks:
        spent = world._replace(faults=faults._replace(locks=faults.locks - 1))
        locked = partial(change, spent, name, locked_at=world.now)
        yield ("the script of", name, "keeps the interpreter lock"), locked
    yield from wear(universe, world, process)
    if faults.breaks and process.phase in ("voted", "header", "transfer"):
        order = universe.orders[place_of(process)]
        met = [p for p in world.processes if p.name in order.replicas]
        joiners = {p.name for p in met if not universe.members[p.member].has_state}
        spent = world._replace(
            faults=faults._replace(breaks=faults.breaks - 1), expected=world.expected | joiners
        )
        label = (name, "'s collective fails, nobody died")
        yield label, partial(fail, universe, spent, process)
    if faults.repeats:
        spent = world._replace(faults=faults._replace(repeats=faults.repeats - 1))
        for box in ("inbox", "outbox"):
            sent = getattr(process, box)
            # What a spare has seen is said again on a new connection alone, as it breaks.
            if sent and (box == "inbox" or not isinstance(universe.events[sent[0]], Spare)):
                twice = {box: (sent[0], *sent)}
                yield (name, box, "repeats"), partial(change, spent, name, **twice)
    if faults.unreaped:
        spent = world._replace(faults=faults._replace(unreaped=faults.unreaped - 1))
        label = (name, "dies, and is never reaped")
        yield label, partial(vanish, universe, spent, process, is_reaped=False)
    if faults.beats and process.phase not in ("starting", "dead"):
        spent = world._replace(faults=faults._replace(beats=faults.beats - 1))
        sign = sign_of_life(universe, process, universe.members[process.member])
        yield (name, "says", sign), partial(tell, universe, spent, name, sign)


def wear(universe: Universe, world: World, process: Process) -> Iterator[Action]:
    """A replica becomes slow, or one of its workers hangs."""
    faults, name = world.faults, process.name
    if faults.slows and not process.slow:
        slower = world._replace(
            faults=faults._replace(slows=faults.slows - 1), expected=world.expected | {name}
        )
        yield (name, "becomes slow"), partial(become, universe, slower, process, slow=30)
    if faults.stalls and process.phase != "starting" and not process.stalled:
        stuck = world._replace(faults=faults._replace(stalls=faults.stalls - 1))
        label = ("a worker of", name, "hangs")
        yield label, partial(become, universe, stuck, process, stalled=True)


def become(universe: Universe, world: World, process: Process, **fields: Any) -> World:
    """Change a process, which says so."""
    changed = process._replace(**fields)
    sign = sign_of_life(universe, changed, universe.members[process.member])
    return tell(universe, replaced(world, changed), process.name, sign)


def lose_connections(universe: Universe, world: World) -> Iterator[Action]:
    faults = world.faults
    for number, node in enumerate(world.nodes):
        if not node.is_connected:
            continue
        name = universe.node_name(number)
        if faults.drops:
            spent = world._replace(faults=faults._replace(drops=faults.drops - 1))
            yield ("the connection of", name, "breaks"), partial(drop, spent, number, loses=False)
            label = ("the connection of", name, "breaks; what was on its way is lost")
            yield label, partial(drop, spent, number)
            if faults.repeats:
                twice = spent._replace(faults=spent.faults._replace(repeats=faults.repeats - 1))
                label = (*label[:2], "breaks; what spares have seen is said again on the next")
                yield label, partial(drop, say_again(twice, number), number, loses=False)
        if faults.lists and node.acts:
            spent = world._replace(faults=faults._replace(lists=faults.lists - 1))
            label = ("the agent of", name, "lists what it runs")
            yield label, partial(list_all, universe, spent, number)
        if faults.cuts:
            spent = world._replace(faults=faults._replace(cuts=faults.cuts - 1))
            label = ("the connection of", name, "breaks for ever")
            yield label, partial(drop, spent, number, is_cut=True)
        if faults.leavings and node.acts and node.leaves_by < 0:
            spent = world._replace(faults=faults._replace(leavings=faults.leavings - 1))
            label = ("the agent of", name, "is told to end")
            yield label, partial(told_to_end, universe, spent, number)
        if faults.reboots and not node.is_asleep:
            spent = world._replace(faults=faults._replace(reboots=faults.reboots - 1))
            label = ("the agent of", name, "dies and is started anew")
            yield label, partial(reboot, universe, spent, number)


def say_again(world: World, number: int) -> World:
    """Let the spares of a node say once more what they have said last: nobody confirmed it."""
    for process in world.processes:
        if process.node == number and process.phase == "spare" and process.spare >= 0:
            world = change(world, process.name, outbox=(process.spare, *process.outbox))
    return world


def part(universe: Universe, world: World) -> Iterator[Action]:
    """Two nodes do not reach each other any more, or do again."""
    faults = world.faults
    for pair in itertools.combinations(range(len(world.nodes)), 2):
        one, other = map(universe.node_name, pair)
        if faults.severs and pair not in world.severed:
            spent = world._replace(faults=faults._replace(severs=faults.severs - 1))
            label = (one, "and", other, "do not reach each other any more")
            yield label, partial(_linked, spent, world.severed | {pair})
        if faults.mends and pair in world.severed:
            there = {p.name for p in world.processes if p.node in pair}
            spent = world._replace(
                faults=faults._replace(mends=faults.mends - 1), parted=world.parted | there
            )
            label = (one, "and", other, "reach each other again")
            yield label, partial(_linked, spent, world.severed - {pair})


def _linked(world: World, severed: frozenset[tuple[int, int]]) -> World:
    return world._replace(severed=severed)


def fall_asleep(universe: Universe, world: World) -> Iterator[Action]:
    """A machine sleeps with all that runs there, or its agent alone is stopped."""
    spent = world._replace(faults=world.faults._replace(sleeps=world.faults.sleeps - 1))
    for number, node in enumerate(world.nodes):
        name = universe.node_name(number)
        if not node.is_asleep:
            yield ("the machine", name, "sleeps"), partial(with_node, spent, number, is_asleep=True)
        if node.acts:
            label = ("the agent of", name, "is stopped")
            yield label, partial(with_node, spent, number, is_stopped=True)


def wake(universe: Universe, world: World) -> Iterator[Action]:
    """What slept, was stopped or hung goes on, however late, with what has come for it."""
    spent = world._replace(faults=world.faults._replace(wakes=world.faults.wakes - 1))
    for process in world.processes:
        if process.alive and process.hung:
            yield (process.name, "goes on"), partial(change, spent, process.name, hung=False)
        elif process.alive and process.is_locked:
            free = partial(change, spent, process.name, locked_at=-1)
            yield ("the script of", process.name, "lets go of the lock"), free
        elif process.alive and process.stalled and not is_frozen(world, process):
            label = ("the worker of", process.name, "goes on")
            yield label, partial(become, universe, spent, process, stalled=False)
    for number, node in enumerate(world.nodes):
        name = universe.node_name(number)
        if node.is_asleep:
            awake = partial(with_node, spent, number, is_asleep=False)
            yield ("the machine", name, "wakes"), awake
        if node.is_stopped:
            going = partial(with_node, spent, number, is_stopped=False)
            yield ("the agent of", name, "goes on"), going


def lose_coordinator(universe: Universe, world: World) -> Iterator[Action]:
    faults = world.faults
    if world.old >= 0:
        return
    if faults.restarts:
        spent = world._replace(faults=faults._replace(restarts=faults.restarts - 1))
        yield ("the coordinator dies; another takes over",), partial(take_over, universe, spent)
    if faults.overlaps:
        spent = world._replace(faults=faults._replace(overlaps=faults.overlaps - 1))
        label = ("another coordinator takes over; the old one lives",)
        yield label, partial(take_over, universe, spent, is_old_alive=True)
    if faults.naps:
        spent = nap(universe, world._replace(faults=faults._replace(naps=faults.naps - 1)))
        yield ("the coordinator sleeps",), partial(_linked, spent, spent.severed)
        label = ("the coordinator sleeps, and looks at the time first",)
        yield label, partial(hear, universe, spent, Ticked())
    if faults.crashes:
        spent = world._replace(faults=faults._replace(crashes=faults.crashes - 1))
        for process in world.processes:
            if heard := next_heard(universe, spent, process):
                yield from crashing(universe, *heard)


def next_heard(universe: Universe, world: World, process: Process) -> tuple[World, Event] | None:
    if not node_of(world, process).is_heard:
        return None
    if process.outbox:
        rest = change(world, process.name, outbox=process.outbox[1:])
        return rest, universe.events[process.outbox[0]]
    if process.exit is not None:
        event = Exited(replica=process.name, kind=process.exit, detail=detail_of(process))
        return change(world, process.name, exit=None), event
    return None


def crashing(universe: Universe, world: World, event: Event) -> Iterator[Action]:
    """Die after writing the register and sending the first so many commands."""
    written, commands, _ = decide_and_write(universe, world, event)
    for count in range(len(commands)):
        label = ("coordinator hears", event, "and dies after", count, "commands")
        yield label, partial(crash, universe, written, commands, count)
