"""The environment of checkpoints: a worker has saved one, loads one, and may find it damaged."""

from __future__ import annotations

from tests.core.explorer.checks import check_restored
from tests.core.explorer.process import Post, Process
from tests.core.explorer.universe import Universe, recorded, tell
from tests.core.explorer.workers import entered
from tests.core.explorer.world import World, change, posted, process_of

from pliant.core.events import PublishAsked, Unrestorable
from pliant.core.membership import member as protocol
from pliant.core.membership.member import Member


def ask_to_publish(universe: Universe, world: World, process: Process, mine: Member) -> World:
    name = f"{mine.committed}/{mine.lineage}"
    event = PublishAsked(
        replica=process.name, lineage=mine.lineage, committed=mine.committed, checkpoint=name
    )
    return tell(
        universe,
        change(world, process.name, saving=True, saved_calls=mine.calls),
        process.name,
        event,
    )


def load(universe: Universe, world: World, process: Process) -> World:
    resolution = universe.resolutions[process.resolution]
    order = universe.orders[process.going]
    assert resolution.restore is not None
    name = resolution.restore.checkpoint
    if name in world.damaged:
        event = Unrestorable(
            replica=process.name, generation=order.generation, checkpoint=name, reason="damaged"
        )
        gone = (*process.abandoned, int(order.generation))
        world = change(world, process.name, phase="broken", abandoned=gone)
        return tell(universe, world, process.name, event)
    if resolution.restore.lineage == recorded(universe, world).lineage:
        check_restored(world, name)  # else it wakes late, and nobody goes on from what it loads
    moved = universe.apply(process, protocol.received, resolution)
    world = change(world, process.name, member=moved)
    post: Post = (order.generation, "send", 0, None)
    world = posted(world, process_of(world, process.name), post)
    return entered(universe, world, process.name, process.going)


def damage(universe: Universe, world: World, process: Process) -> World:
    restore = universe.resolutions[process.resolution].restore
    assert restore is not None
    faults = world.faults._replace(damages=world.faults.damages - 1)
    damaged = world.damaged | {restore.checkpoint}
    return load(universe, world._replace(faults=faults, damaged=damaged), process)
