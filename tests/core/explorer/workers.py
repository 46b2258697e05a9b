"""The environment of the workers: what each thread of a worker does, and what is done to it.

Owns the steps of the model that ``process`` describes, around the real ``core.membership.member``.
Whether a step can be taken is not asked here.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any, assert_never

from tests.core.explorer.checks import (
    check_counts,
    check_divided,
    check_entered,
    check_survivor,
    check_voter,
    check_without_state,
    record_commit,
)
from tests.core.explorer.dividing import divided, heard, known_pace, pace, sizes_of
from tests.core.explorer.process import Post, Process
from tests.core.explorer.universe import Universe, tell
from tests.core.explorer.world import (
    Violation,
    World,
    change,
    place_of,
    posted,
    process_of,
    replaced,
    without,
)

from pliant.core.commands import (
    Command,
    Dismiss,
    ListCheckpoints,
    Prepare,
    Publish,
    Reform,
    Release,
    RollCall,
    SkipCalls,
    Stop,
    Switch,
)
from pliant.core.errors import NoStateError
from pliant.core.events import (
    Broken,
    ExitKind,
    Finished,
    Prepared,
    Progressed,
    Refused,
    Registered,
    Saved,
    Spare,
    Switched,
)
from pliant.core.job.state import Job
from pliant.core.membership import member as protocol
from pliant.core.membership.member import Abandon, Build, Member
from pliant.core.membership.resolve import Resolution, resolve
from pliant.core.membership.transitions import Phase
from pliant.core.values import (
    NO_GENERATION,
    CheckpointInfo,
    Generation,
    Incarnation,
    Lineage,
    Order,
    ReplicaId,
)


def sign_of_life(universe: Universe, process: Process, mine: Member) -> Progressed:
    return Progressed(
        replica=process.name,
        generation=mine.current,
        committed=mine.committed if mine.has_state else 0,
        calls=mine.calls,
        waiting=generation_awaited(universe, process),
        held_up_by=1 if process.stalled else None,
        slow=process.slow,
    )


def generation_awaited(universe: Universe, process: Process) -> Generation:
    if process.stalled:
        return NO_GENERATION
    if process.phase == "voted":
        return universe.orders[process.home].generation
    if process.phase in ("header", "transfer"):
        return universe.orders[process.going].generation
    return NO_GENERATION


def publish(universe: Universe, world: World, process: Process, name: str) -> World:
    committed, _, lineage = name.partition("/")
    found = CheckpointInfo(
        name=name,
        committed=int(committed),
        lineage=Lineage(int(lineage)),
        calls=process.saved_calls,
    )
    if name not in [known.name for known in world.storage]:
        world = world._replace(storage=(*world.storage, found))
        job: Job = universe.states[world.coordinator]
        if job.membership.phase is Phase.LOST and process.name not in job.checkpoints.publishers:
            world = world._replace(unawaited=world.unawaited | {name})
    event = Saved(
        replica=process.name,
        lineage=found.lineage,
        committed=found.committed,
        checkpoint=name,
        calls=found.calls,
    )
    return tell(universe, change(world, process.name, saving=False), process.name, event)


def next_call(universe: Universe, world: World, process: Process) -> World:
    """Come to the next ``steps()`` call: a spare reports there, a member goes on training."""
    moved = universe.apply(process, _called)
    mine = universe.members[moved]
    phase = process.phase if mine.has_state else "starting"
    changed = change(world, process.name, member=moved, phase=phase)
    return tell(universe, changed, process.name, sign_of_life(universe, process, mine))


def report_spare(universe: Universe, world: World, process: Process) -> World:
    name = process.name
    event = Spare(
        replica=name,
        calls=universe.members[process.member].calls,
        num_slots=universe.num_slots,
        layout="l",
        endpoint=f"{name}:1",
        is_durable=universe.is_durable,
        checkpoints=world.storage,
        asked_by=process.looked[0],
        looked=process.looked[1],
    )
    changed = change(world, name, phase="spare", spare=universe.events.put(event))
    return tell(universe, changed, name, event)


def built(universe: Universe, world: World, process: Process, generation: Generation) -> World:
    moved, tasks = universe.move(process, protocol.on_built, generation)
    changed = change(world, process.name, member=moved)
    return perform(universe, changed, process.name, tasks)


def not_built(
    universe: Universe,
    world: World,
    process: Process,
    generation: Generation,
    unreached: tuple[ReplicaId, ...] = (),
) -> World:
    why = ("peer gone", unreached)
    moved, tasks = universe.move(process, protocol.on_build_failed, generation, *why)
    posts = without(process.posts, generation)
    changed = change(world, process.name, member=moved, posts=posts)
    return perform(universe, changed, process.name, tasks)


def enter(universe: Universe, world: World, process: Process, mine: Member, order: Order) -> World:
    changed = change(
        world, process.name, phase="header", going=universe.orders.put(order), boundary=0
    )
    flags = process.stop_seen, process.asked
    said = protocol.header(mine), known_pace(universe, process), flags
    post: Post = (order.generation, "header", 0, said)
    return posted(changed, process_of(changed, process.name), post)


def cross(universe: Universe, world: World, process: Process, mine: Member) -> World:
    name, order = process.name, mine.ordered
    if order is None or order.generation != process.boundary:
        raise Violation(f"{name} is to cross into {process.boundary} and has lost it")
    if name in order.replicas:
        return enter(universe, world, process, mine, order)
    moved = universe.apply(process, protocol.left)
    return change(world, name, member=moved, phase="leaver", boundary=0)


def finish(universe: Universe, world: World, process: Process, mine: Member) -> World:
    changed = change(world, process.name, phase="finished", finishing=True)
    event = Finished(replica=process.name, committed=mine.committed, lineage=mine.lineage)
    return tell(universe, changed, process.name, event)


def vote(
    universe: Universe, world: World, process: Process, mine: Member, number: Generation
) -> World:
    step = mine.committed
    check_voter(universe, world, process)
    moved = universe.apply(process, protocol.voted, step)
    said = number, mine.stopping, sizes_of(universe, process), pace(universe, process)
    post: Post = (mine.current, "metadata", step, said)
    posts = (*process.posts, post)
    return change(
        world, process.name, member=moved, phase="voted", posts=posts, asked=mine.stopping
    )


def receive(universe: Universe, world: World, process: Process, resolution: Resolution) -> World:
    moved = universe.apply(process, protocol.received, resolution)
    changed = change(world, process.name, member=moved)
    return entered(universe, changed, process.name, process.going)


def commit(
    universe: Universe, world: World, process: Process, mine: Member, values: tuple[Any, ...]
) -> World:
    moved = universe.apply(process, protocol.committed, mine.current)
    number = protocol.boundary(universe.members[moved], [ready for ready, *_ in values])
    check_divided(universe, process.name, [sizes for _, _, sizes, _ in values])
    return change(
        record_commit(universe, world, universe.members[moved]),
        process.name,
        member=moved,
        phase="computing",
        boundary=int(number),
        stop_seen=any(stop for _, stop, *_ in values),
        division=process.division if number else heard(universe, process, values),
    )


def end_null_round(
    universe: Universe, world: World, process: Process, mine: Member, values: tuple[Any, ...]
) -> World:
    number = protocol.boundary(mine, values)
    if not number:
        return change(world, process.name, round=process.round + 1)
    process = process._replace(boundary=int(number), round=0)
    return cross(universe, replaced(world, process), process, mine)


def resolve_headers(
    universe: Universe, world: World, process: Process, order: Order, said: tuple[Any, ...]
) -> World:
    headers = [header for header, *_ in said]
    process = process._replace(paces=tuple(known_us for _, known_us, _ in said))
    world = replaced(world, process)
    origin = None if order.origin is None else order.replicas.index(order.origin)
    try:
        resolution = resolve(headers, origin, order.restore)
    except NoStateError as error:
        check_without_state(universe, world, order, error)
        spent = world._replace(expected=world.expected | set(world.used))
        return fail(universe, spent, process)
    rank = order.replicas.index(process.name)
    moved = universe.apply(process, protocol.resolved, resolution, rank)
    mine = universe.members[moved]
    process = process._replace(
        stop_seen=process.stop_seen or is_stop_known(resolution, [flags for *_, flags in said])
    )
    world = replaced(world, process)
    if rank in resolution.commits:
        world = record_commit(universe, world, mine)
    met = [headers[place] for place in (*resolution.survivors, *resolution.joiners)]
    calls = {header.calls for header in met}
    if resolution.joiners and len(calls) > 1:
        process = process._replace(member=moved)
        return keep_apart(universe, world, process, order, resolution, max(calls))
    if rank not in resolution.survivors or resolution.restore is not None:
        number = universe.resolutions.put(resolution)
        phase = "loading" if rank in resolution.survivors else "transfer"
        return change(world, process.name, member=moved, phase=phase, resolution=number)
    check_survivor(mine, resolution)
    changed = change(world, process.name, member=moved)
    post: Post = (order.generation, "send", 0, None)
    changed = posted(changed, process_of(changed, process.name), post)
    return entered(universe, changed, process.name, process.going)


def is_stop_known(resolution: Resolution, flags: Sequence[tuple[bool, bool]]) -> bool:
    """Whether a survivor has agreed to stop: as ``engine.member.rendezvous`` asks them.

    Where all commit late nobody has seen what the metadata of their votes asked for.
    """
    said = [flags[rank] for rank in resolution.survivors]
    all_late = set(resolution.survivors) <= set(resolution.commits)
    return any(seen or (all_late and asked) for seen, asked in said)


def keep_apart(
    universe: Universe,
    world: World,
    process: Process,
    order: Order,
    resolution: Resolution,
    calls: int,
) -> World:
    """Not all are in the same ``steps()`` call: nobody gets state."""
    world = replaced(world, process)
    for rank in resolution.joiners:
        event = Refused(
            replica=order.replicas[rank],
            generation=order.generation,
            reason="another call",
            joiner=True,
            calls=calls,
        )
        world = tell(universe, world, process.name, event)
    return fail(universe, world, process_of(world, process.name))


def entered(universe: Universe, world: World, name: ReplicaId, where: int) -> World:
    process, order = process_of(world, name), universe.orders[where]
    before = universe.members[process.member].current
    moved = universe.apply(process, protocol.entered, order)
    mine = universe.members[moved]
    check_entered(universe, world, mine)
    gone = (*process.abandoned, int(before)) if before else process.abandoned
    is_done = mine.committed >= universe.steps or process.stop_seen
    changed = change(
        world,
        name,
        member=moved,
        phase="held" if order.hold and not is_done else "computing",
        home=where,
        going=-1,
        resolution=-1,
        round=0,
        boundary=0,
        abandoned=gone,
        paces=(),
        division=divided(universe, process),
    )
    check_counts(universe, changed, mine)
    event = Switched(replica=name, generation=order.generation, step=mine.committed)
    return tell(universe, changed, name, event)


def fail(universe: Universe, world: World, process: Process) -> World:
    generation = universe.orders[place_of(process)].generation
    moved, tasks = universe.move(process, protocol.on_broken, generation, "peer gone")
    gone = (*process.abandoned, int(generation))
    changed = change(world, process.name, member=moved, phase="broken", boundary=0, abandoned=gone)
    changed = perform(universe, changed, process.name, tasks)
    if universe.members[moved].has_state:
        return changed
    return change(changed, process.name, phase="starting")  # asks again


def obey(
    universe: Universe, world: World, process: Process, command: Command, incarnation: Incarnation
) -> World:
    """The link thread: one command of the coordinator."""
    name = process.name
    world = change(world, name, inbox=process.inbox[1:])
    process = process_of(world, name)
    match command:
        case Prepare(order=order):
            moved, tasks = universe.move(process, protocol.on_prepare, order, incarnation)
        case Switch(order=order):
            moved, tasks = universe.move(process, protocol.on_switch, order, incarnation)
        case Reform(order=order):
            moved, tasks = universe.move(process, protocol.on_reform, order, incarnation)
        case RollCall():
            moved, tasks = registration_of(universe, process, incarnation)
        case _ if incarnation < universe.members[process.member].incarnation:
            return world
        case Publish(checkpoint=checkpoint):
            return publish(universe, world, process, checkpoint)
        case Dismiss() if not process.stalled:
            return die(universe, world, process, ExitKind.LEFT)
        case Release():
            return change(world, name, released=True)
        case SkipCalls(calls=calls):
            told = max(process.skip_calls, calls)
            return change(world, name, skip_calls=told)
        case ListCheckpoints(number=number):
            world = change(world, name, looked=(incarnation, number))
            process = process_of(world, name)
            return report_spare(universe, world, process) if process.phase == "spare" else world
        case Stop():
            moved, tasks = universe.move(process, _stopping)
        case _:
            return world
    return perform(universe, change(world, name, member=moved), name, tasks)


def registration_of(
    universe: Universe, process: Process, incarnation: Incarnation
) -> tuple[int, Any]:
    said = universe.events[process.spare] if process.spare >= 0 else None
    moved, tasks = protocol.on_roll_call(
        universe.members[process.member],
        incarnation,
        spare=said if isinstance(said, Spare) else None,
        finished=process.finishing,
    )
    return universe.members.put(moved), tasks


def perform(
    universe: Universe, world: World, name: ReplicaId, tasks: tuple[protocol.Task, ...]
) -> World:
    for task in tasks:
        process = process_of(world, name)
        match task:
            case Build(order=order):
                world = posted(world, process, (order.generation, "build", 0, world.now))
            case Abandon(generation=generation):
                gone = (*process.abandoned, int(generation))
                world = change(world, name, abandoned=gone)
            case Prepared() | Refused() | Broken() | Registered():
                world = tell(universe, world, name, task)
            case _:
                assert_never(task)
    return world


def die(universe: Universe, world: World, process: Process, kind: ExitKind) -> World:
    """The process is gone; what it had sent is still on its way."""
    mine = universe.members[process.member]
    stub = Member(replica=process.name, has_state=mine.has_state, committed=mine.committed)
    dead = Process(
        name=process.name,
        member=universe.members.put(stub),
        phase="dead",
        posts=process.posts,
        outbox=process.outbox,
        stop_seen=process.stop_seen,
        exit=kind,
        node=process.node,
    )
    if kind is ExitKind.FINISHED:
        world = world._replace(ended_well=world.ended_well | {process.name})
        if not world.nodes[process.node].is_cut:  # else nobody hears of it, ever
            world = world._replace(finished=world.finished | {(process.name, process.node)})
    return replaced(world, dead)


def vanish(universe: Universe, world: World, process: Process, *, is_reaped: bool = True) -> World:
    """The process is gone, and nobody is there to say so."""
    world = die(universe, world, process, ExitKind.SIGNAL)
    unreaped = {"unreaped": not is_reaped}
    return change(world, process.name, exit=None, outbox=(), **unreaped)


def _called(mine: Member) -> Member:
    return protocol.call_finished(mine)


def _stopping(mine: Member) -> tuple[Member, tuple[()]]:
    return protocol.told_to_stop(mine), ()
