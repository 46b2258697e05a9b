"""What can happen next, in any state of the world: the generator of the search.

Owns which steps are possible, their names, and which may as well happen at once.  What a step does
is the environment's to say.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator
from functools import partial

from tests.core.explorer.checkpoints import ask_to_publish, damage, load
from tests.core.explorer.coordinator import (
    delivered,
    hear,
    join,
    leave,
    leave_old,
    may_leave,
    tick,
)
from tests.core.explorer.faults import Action, go_wrong
from tests.core.explorer.process import Post, Process
from tests.core.explorer.universe import Universe
from tests.core.explorer.workers import (
    built,
    commit,
    cross,
    die,
    end_null_round,
    enter,
    fail,
    finish,
    next_call,
    not_built,
    obey,
    receive,
    report_spare,
    resolve_headers,
    vote,
)
from tests.core.explorer.world import (
    World,
    all_posted,
    change,
    detail_of,
    find,
    has_posted,
    has_sent,
    is_apart,
    is_frozen,
    node_of,
    out_of_reach,
    peer_is_gone,
    place_of,
    posted,
    posted_null,
    with_node,
)

from pliant.core.commands import EndJob, EndReplica, StartReplica
from pliant.core.events import (
    DrainRequested,
    Event,
    Exited,
    ExitKind,
    Offered,
    Reclaimed,
    Scaled,
)
from pliant.core.membership import member as protocol
from pliant.core.membership.member import Member
from pliant.core.values import NO_CHECKPOINT, Order, ReplicaId

INTERRUPTIBLE = frozenset(
    {"spare", "computing", "voted", "header", "transfer", "loading", "held", "broken", "finished"}
)
"""Phases in which a Reform that is built is entered."""
BUILD_S = 30
"""How long a group is built, as in ``engine.comm.rendezvous``."""

PARTING = frozenset({"leaver", "finished", "broken", "spare"})
"""Phases in which a replica that was released exits."""


def actions(universe: Universe, world: World) -> Iterator[Action]:
    """Yield what can happen next, with its name; the fair scheduler takes the first."""
    if world.ended is not None:
        return
    if universe.is_eager and (action := eager(universe, world)) is not None:
        yield action
        return
    is_quiet = True
    for action in calm(universe, world):
        is_quiet = False
        yield action
    if world.faults.waits and is_quiet:
        faults = world.faults._replace(waits=world.faults.waits - 1)
        yield ("time passes",), partial(tick, universe, world._replace(faults=faults))
    if any(world.faults):
        yield from go_wrong(universe, world)


def calm(universe: Universe, world: World) -> Iterator[Action]:
    """Yield what can happen without anything going wrong."""
    for process in world.processes:
        yield from messages(universe, world, process)
    able = [process for process in world.processes if acts(world, process)]
    for process in able:
        yield from work(universe, world, process)
    able = [process for process in able if not process.stalled]
    for process in able:
        if process.phase == "computing" and universe.members[process.member].reform is None:
            yield next_step(universe, world, process, universe.members[process.member])
    yield from checkpointing(universe, world, able)
    yield from agents(universe, world)
    if world.unsent:
        yield from arriving(universe, world)
    if world.wishes:
        event = universe.events[world.wishes[0]]
        rest = world._replace(wishes=world.wishes[1:])
        rest = rest._replace(expected=rest.expected | sent_away(rest, event))
        yield ("someone asks:", event), partial(hear, universe, rest, event)


def eager(universe: Universe, world: World) -> Action | None:
    """Return an action that may as well happen now: waiting changes nothing for others.

    What it tells the coordinator may still arrive at any time, and what a dead replica had
    sent is stale once its exit is known.
    """
    for process in world.processes:
        is_known_dead = not process.alive and process.exit is None
        is_heard = node_of(world, process).is_heard
        has_news = is_heard and (process.outbox or process.exit is not None)
        if (universe.is_prompt or is_known_dead) and has_news:
            return next(messages(universe, world, process))
        if acts(world, process) and not process.stalled:
            if is_behind(process, universe.members[process.member]):
                return next(work(universe, world, process))
            if process.phase == "starting":
                return (process.name, "is spare"), partial(report_spare, universe, world, process)
            may_die = world.faults.kills and process.finishing
            if process.released and process.phase in PARTING and not may_die:
                return next(work(universe, world, process))
            mine = universe.members[process.member]
            order = protocol.entering(mine)
            if order is not None and not mine.built:
                for action in building(universe, world, process, mine):
                    return action
    return None


def acts(world: World, process: Process) -> bool:
    """Whether a process does anything."""
    return process.alive and not is_frozen(world, process)


def messages(universe: Universe, world: World, process: Process) -> Iterator[Action]:
    name, node = process.name, process.node
    agent = node_of(world, process)
    if process.outbox and agent.is_heard:
        event = universe.events[process.outbox[0]]
        rest = change(world, name, outbox=process.outbox[1:])
        yield ("coordinator hears", event), partial(hear, universe, rest, event, node)
    if process.exit is not None and agent.is_heard:
        event = Exited(replica=name, kind=process.exit, detail=detail_of(process))
        rest = change(world, name, exit=None)
        yield ("coordinator hears", event), partial(hear, universe, rest, event, node)
    if process.doomed and process.alive and agent.acts:
        yield ("the agent ends", name), partial(die, universe, world, process, ExitKind.SIGNAL)
    if process.inbox and agent.acts and acts(world, process):
        command, incarnation = universe.commands[process.inbox[0]]
        yield (
            (name, "gets", command),
            partial(obey, universe, world, process, command, incarnation),
        )


def agents(universe: Universe, world: World) -> Iterator[Action]:
    """What agents do of themselves: say what they were asked, come back, find the newest."""
    for number, node in enumerate(world.nodes):
        name = universe.node_name(number)
        if node.outbox and node.is_heard:
            event = universe.events[node.outbox[0]]
            rest = with_node(world, number, outbox=node.outbox[1:])
            yield ("coordinator hears", event), partial(hear, universe, rest, event, number)
        if not node.is_connected and not node.is_cut and node.acts:
            yield ("the agent of", name, "is back"), partial(join, universe, world, number)
        if may_leave(world, number):
            yield ("the agent of", name, "leaves"), partial(leave, universe, world, number)
        if node.follows_old and world.old >= 0 and node.acts:
            label = ("the agent of", name, "comes to the new coordinator")
            yield label, partial(leave_old, universe, world, number)


def sent_away(world: World, event: Event) -> frozenset[ReplicaId]:
    """Return whom a request of people or of the outside may end."""
    match event:
        case DrainRequested(replica=name):
            return frozenset({name})
        case Reclaimed(replicas=names):
            return frozenset(names)
        case Offered() | Scaled():
            return frozenset(world.used)
        case _:
            return frozenset()


def work(universe: Universe, world: World, process: Process) -> Iterator[Action]:
    """Yield what this worker's threads can do now."""
    name, mine = process.name, universe.members[process.member]
    yield from building(universe, world, process, mine)
    if process.stalled:
        return
    if process.phase == "starting":
        yield (name, "is spare"), partial(report_spare, universe, world, process)
    elif process.released and process.phase in PARTING:
        kind = ExitKind.FINISHED if process.finishing else ExitKind.LEFT
        yield (name, "exits"), partial(die, universe, world, process, kind)
    elif is_behind(process, mine):
        yield (name, "passes through a call"), partial(next_call, universe, world, process)
    elif may_enter(process, mine):
        order = protocol.entering(mine)
        assert order is not None
        label = (name, "enters", order.generation)
        yield label, partial(enter, universe, world, process, mine, order)
    elif mine.reform is not None and process.phase not in ("header", "transfer", "loading"):
        return
    elif is_left_out(universe, process, mine):
        yield (name, "is left out"), partial(change, world, name, phase="starting")
    elif process.phase == "held" and is_at_end_of_call(universe, mine):
        yield (name, "comes to its next call"), partial(next_call, universe, world, process)
    elif process.phase == "held" and not posted_null(process, mine):
        if number := protocol.ready_number(mine):
            post: Post = (mine.current, "null", process.round, number)
            yield (name, "is ready, held"), partial(posted, world, process, post)
    elif process.phase in ("voted", "header", "transfer", "held"):
        yield from collective(universe, world, process, mine)


def is_left_out(universe: Universe, process: Process, mine: Member) -> bool:
    """Whether a joiner is in a collective that a Reform without it has ended."""
    if process.phase not in ("header", "transfer", "loading"):
        return False
    if mine.has_state or mine.reform is not None:
        return False
    return protocol.is_sealed(mine, universe.orders[process.going].generation)


def is_behind(process: Process, mine: Member) -> bool:
    """Whether a joiner is to pass through the ``steps()`` call in which it waits."""
    waits = process.phase in ("spare", "broken") and not mine.has_state
    return waits and process.skip_calls > mine.calls


def building(universe: Universe, world: World, process: Process, mine: Member) -> Iterator[Action]:
    """The builder thread: groups come up once every member has begun."""
    order = protocol.entering(mine)
    if order is None or mine.built or process.name not in order.replicas:
        return
    generation = order.generation
    if not has_posted(process, generation, "build", 0) or generation in process.abandoned:
        return
    unreached = out_of_reach(world, process, order)
    if all_posted(world, order, "build", 0) is not None and not is_apart(world, order):
        label = (process.name, "has built", generation)
        yield label, partial(built, universe, world, process, generation)
    if unreached:
        told = (process.name, "cannot build", generation, "with", *unreached)
        yield told, partial(not_built, universe, world, process, generation, unreached)
    elif peer_is_gone(world, process, order) or is_waited_for_in_vain(world, process, order):
        label = (process.name, "cannot build", generation)
        yield label, partial(not_built, universe, world, process, generation)


def is_waited_for_in_vain(world: World, process: Process, order: Order) -> bool:
    """Whether one that is stopped has not come to build with it, in the time that a build has."""
    began = [post[3] for post in process.posts if post[:3] == (order.generation, "build", 0)]
    if not began or world.now < int(str(began[0])) + BUILD_S:
        return False
    peers = [find(world, name) for name in order.replicas]
    return any(
        peer is not None
        and peer.alive
        and is_frozen(world, peer)
        and not has_posted(peer, order.generation, "build", 0)
        for peer in peers
    )


def is_at_end_of_call(universe: Universe, mine: Member) -> bool:
    """Whether its ``steps()`` call is over, so that it goes on to the next, also to hold there."""
    return mine.calls < sum(end <= mine.committed for end in universe.call_ends)


def may_enter(process: Process, mine: Member) -> bool:
    if not mine.built or process.phase not in INTERRUPTIBLE:
        return False
    if mine.reform is not None:
        return not has_posted(process, mine.reform.generation, "header", 0)
    # A joiner is in no generation, so it has no boundary to wait for.
    return process.phase == "spare" and mine.ordered is not None


def next_step(universe: Universe, world: World, process: Process, mine: Member) -> Action:
    """Tail, boundary, and the next step up to its vote."""
    name = process.name
    if process.boundary:
        return (name, "crosses to", process.boundary), partial(
            cross, universe, world, process, mine
        )
    if is_at_end_of_call(universe, mine):
        return (name, "comes to its next call"), partial(next_call, universe, world, process)
    if mine.committed >= universe.steps or process.stop_seen:
        return (name, "finishes"), partial(finish, universe, world, process, mine)
    number = protocol.ready_number(mine)
    label = (name, "votes for", mine.committed, "in", mine.current, "ready for", number)
    return label, partial(vote, universe, world, process, mine, number)


def collective(
    universe: Universe, world: World, process: Process, mine: Member
) -> Iterator[Action]:
    """The collective it waits in completes here, or fails here; maybe either can happen."""
    order = universe.orders[place_of(process)]
    if protocol.is_sealed(mine, order.generation):
        return
    name, generation = process.name, order.generation
    if out_of_reach(world, process, order):
        yield (name, "is cut off in", generation), partial(fail, universe, world, process)
    completed = completion(universe, world, process, mine, order)
    if completed is not None:
        label = (name, "completes", process.phase, mine.committed, "in", generation)
        yield label, completed
    if peer_is_gone(world, process, order):
        label = (name, "fails", process.phase, mine.committed, "in", generation)
        yield label, partial(fail, universe, world, process)


def completion(
    universe: Universe, world: World, process: Process, mine: Member, order: Order
) -> Callable[[], World] | None:
    """Return what completing its collective does, if all have posted."""
    if process.phase == "transfer":
        resolution = universe.resolutions[process.resolution]
        senders = [order.replicas[rank] for rank in resolution.survivors]
        if all(has_sent(world, sender, order.generation) for sender in senders):
            return partial(receive, universe, world, process, resolution)
        return None
    kind, number = {
        "voted": ("metadata", mine.committed),
        "held": ("null", process.round),
        "header": ("header", 0),
    }[process.phase]
    values = all_posted(world, order, kind, number)
    if values is None:
        return None
    if process.phase == "voted":
        return partial(commit, universe, world, process, mine, values)
    if process.phase == "held":
        return partial(end_null_round, universe, world, process, mine, values)
    return partial(resolve_headers, universe, world, process, order, values)


def checkpointing(universe: Universe, world: World, able: list[Process]) -> Iterator[Action]:
    for process in able:
        mine = universe.members[process.member]
        if process.phase == "loading" and not protocol.is_sealed(
            mine, universe.orders[process.going].generation
        ):
            label = (process.name, "loads in", universe.orders[process.going].generation)
            yield label, partial(load, universe, world, process)
            if world.faults.damages and restores(universe, process):
                yield (process.name, "finds it damaged"), partial(damage, universe, world, process)
        if world.saves and process.phase == "computing" and all_have(universe, world, process):
            spent = world._replace(saves=world.saves - 1)
            yield (
                (process.name, "has saved", mine.committed),
                partial(ask_to_publish, universe, spent, process, mine),
            )


def restores(universe: Universe, process: Process) -> bool:
    """Whether there is a checkpoint that it loads: one may begin again with nothing."""
    restore = universe.orders[process.going].restore
    return restore is not None and restore.checkpoint != NO_CHECKPOINT


def all_have(universe: Universe, world: World, process: Process) -> bool:
    """Whether it leads its generation, and all members have committed what it has."""
    mine = universe.members[process.member]
    order = universe.orders[process.home]
    if order.replicas[0] != process.name or process.saving or not mine.committed:
        return False
    peers = [find(world, name) for name in order.replicas]
    counts = [universe.members[p.member].committed for p in peers if p is not None and p.alive]
    return len(counts) == len(order.replicas) and min(counts) >= mine.committed


def arriving(universe: Universe, world: World) -> Iterator[Action]:
    """The last orders of a dead coordinator arrive: they were recorded, so they may."""
    command, incarnation = universe.commands[world.unsent[0]]
    rest = world._replace(unsent=world.unsent[1:])
    assert not isinstance(command, StartReplica | EndReplica | EndJob)
    for name in command.to:
        rest = delivered(rest, name, universe.commands.put((command, incarnation)))
    yield ("late:", command), lambda: rest
