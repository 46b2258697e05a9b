"""The environment of the coordinator: what it hears and says, how it dies, and that time passes.

A coordinator may die between any two of its lines: before it hears something, or after it has
written the register and sent some of its commands; the others may then still arrive.  It may also
stay alive, and be heard by some agents, while the next one has begun.
"""

from __future__ import annotations

from dataclasses import replace
from typing import Any, assert_never

from tests.core.explorer.checks import (
    check_end,
    check_expected,
    check_holder,
    check_leaving,
    check_order,
    check_publish,
    check_register,
    check_start,
    is_late,
)
from tests.core.explorer.process import Process
from tests.core.explorer.universe import Universe, recorded
from tests.core.explorer.workers import die, sign_of_life, vanish
from tests.core.explorer.world import (
    Node,
    Violation,
    World,
    change,
    find,
    is_frozen,
    is_mute,
    left_on,
    node_of,
    running_on,
    with_node,
)

from pliant.core.commands import (
    Command,
    Dismiss,
    EndJob,
    EndReplica,
    ListCheckpoints,
    Prepare,
    Publish,
    Reform,
    Release,
    RollCall,
    SaveNow,
    SkipCalls,
    StartReplica,
    Stop,
    Switch,
)
from pliant.core.errors import EXIT_FAILED
from pliant.core.events import (
    Event,
    Exited,
    ExitKind,
    Finished,
    NodeJoined,
    NodeLeaving,
    NodeLost,
    NodeSilent,
    Running,
    Ticked,
)
from pliant.core.job.state import Job, JobPhase, ReplicaState
from pliant.core.membership.member import Member
from pliant.core.values import NO_GENERATION, Incarnation, NodeId, Register, ReplicaId

NODE_GRACE_S = 10
"""How long a node may be without a connection, as in ``coordinator.nodes``; its agent looks for a
coordinator just as long."""

NAP_S = 30
"""How long a coordinator is stopped: longer than anyone may be silent."""

GRACE_S = 25
"""How long replicas may take to leave, as in ``agent.agent_config``."""

LIST_S = 3
"""Between two lists of what an agent runs, as in ``agent.agent``."""

WorkerCommand = (
    Prepare
    | Switch
    | Reform
    | Dismiss
    | Release
    | Publish
    | SkipCalls
    | ListCheckpoints
    | Stop
    | SaveNow
    | RollCall
)


def hear(universe: Universe, world: World, event: Event, node: int | None = None) -> World:
    """Let a coordinator take one event, of a node or of people; then send what it says."""
    if world.old >= 0 and (node is None or world.nodes[node].follows_old):
        return heard_by_old(universe, world, event, node)
    world, commands, again = decide_and_write(universe, world, event)
    world = send_all(universe, world, commands)
    for command in again:
        world = send(universe, world, command, recorded(universe, world).incarnation, only=node)
    return world


def send_all(universe: Universe, world: World, commands: tuple[Command, ...]) -> World:
    if any(isinstance(command, EndJob) for command in commands):
        world = world._replace(expected=world.expected | set(world.used))
    incarnation = recorded(universe, world).incarnation
    for command in commands:
        world = send(universe, world, command, incarnation)
    return world


def decide_and_write(
    universe: Universe, world: World, event: Event
) -> tuple[World, tuple[Command, ...], tuple[Command, ...]]:
    """Let the coordinator take one event and write its register."""
    state, register, commands, again = universe.answer(world.coordinator, event, world.now)
    world = world._replace(coordinator=state)
    if isinstance(event, Finished) and event.lineage != world.heard_end[0]:
        world = world._replace(heard_end=(event.lineage, event.committed, world.now))
    if register is not None:
        world = write_register(universe, world, register)
    return world, commands, again


def heard_by_old(universe: Universe, world: World, event: Event, node: int | None) -> World:
    """Let the coordinator act that does not know of the next one; a write is a conflict."""
    state, register, commands, again = universe.answer(world.old, event, world.now)
    if register is not None or any(isinstance(c, Publish) for c in commands):
        return end_old(universe, world)
    incarnation = Incarnation(recorded(universe, world).incarnation - 1)
    world = world._replace(old=state)
    if any(isinstance(command, EndJob) for command in commands):
        world = world._replace(expected=world.expected | set(world.used))
    for command in commands:
        world = send(universe, world, command, incarnation)
    for command in again:
        world = send(universe, world, command, incarnation, only=node)
    return world


def end_old(universe: Universe, world: World) -> World:
    """The older coordinator ends; whoever was with it comes to the newest."""
    world = world._replace(old=-1)
    for number, node in enumerate(world.nodes):
        if node.follows_old and node.acts:
            world = join(universe, world, number)
        elif node.follows_old:
            lost = {"is_connected": False, "away_since": world.now}
            world = with_node(world, number, follows_old=False, **lost)
    return world


def write_register(universe: Universe, world: World, register: Register) -> World:
    if world.register >= 0:
        check_register(recorded(universe, world), register)
    end = register.outcome
    if end is not None and end.exit_code == EXIT_FAILED and end.leader is not None:
        is_told = end.leader in world.ended_well - world.passed_by
        is_cut = world.is_cut_short or not is_told
        world = world._replace(is_cut_short=is_cut)
    return world._replace(
        register=universe.registers.put(register),
        left_behind=world.left_behind.union(register.leavers),
    )


def send(
    universe: Universe,
    world: World,
    command: Command,
    incarnation: Incarnation,
    *,
    only: int | None = None,
) -> World:
    """Send a command to the agents that are connected to this coordinator.

    ``only``: to this node alone, for it is said again.
    """
    universe.said.append(command)
    is_old = incarnation < recorded(universe, world).incarnation
    if isinstance(command, StartReplica):
        return order_start(universe, world, command, is_old=is_old, is_again=only is not None)
    if isinstance(command, EndReplica):
        return order_end(universe, world, command, incarnation)
    if isinstance(command, EndJob):
        return end_job(universe, world, command.exit_code)
    check_command(universe, world, command, is_again=only is not None)
    if isinstance(command, Prepare | Switch | Reform):
        world = _with_leavers(world, command)
    if isinstance(command, Release) and recorded(universe, world).outcome is not None:
        world = _with_leader(universe, world, command)
    number = universe.commands.put((command, incarnation))
    for name in command.to:
        process = find(world, name)
        if process is None or not is_reached(world, process.node, is_old):
            continue
        unread = process.inbox if is_frozen(world, process) else process.inbox[-1:]
        if only in (None, process.node) and number not in unread:
            world = delivered(world, name, number)
    return world


def check_command(
    universe: Universe, world: World, command: WorkerCommand, *, is_again: bool
) -> None:
    """Check what a worker is told, as far as it may be wrong to tell it.

    Who is released again was let go while others held its state, and is in no later generation.
    """
    match command:
        case Prepare(order=order) | Switch(order=order) | Reform(order=order):
            check_order(universe, world, command, order)
        case Dismiss(to=names) | Release(to=names):
            for name in names:
                if isinstance(command, Dismiss):
                    check_expected(universe, world, name, "dismissed")
                if not is_again:
                    check_holder(universe, world, name)
        case Publish():
            check_publish(universe, world, command)
        case SkipCalls() | ListCheckpoints() | Stop() | SaveNow() | RollCall():
            pass
        case _:
            assert_never(command)


def is_reached(world: World, number: int, is_old: bool) -> bool:
    """Whether a node is connected to the older of two coordinators, or to the newer."""
    node = world.nodes[number]
    return node.is_connected and node.follows_old == is_old


def order_start(
    universe: Universe, world: World, command: StartReplica, *, is_old: bool, is_again: bool
) -> World:
    name, node = command.replica, universe.node_number(command.node)
    if not is_again:
        if name in world.used:
            raise Violation(f"the name {name} was given twice")
        world = world._replace(used=(*world.used, name))
    if name in world.begun or not is_reached(world, node, is_old):
        return world
    check_start(universe, world, name, node)
    process = Process(name=name, member=universe.members.put(Member(replica=name)), node=node)
    return world._replace(processes=(*world.processes, process), begun=world.begun | {name})


def order_end(
    universe: Universe, world: World, command: EndReplica, incarnation: Incarnation
) -> World:
    """Tell an agent to end a replica; of one that is gone, or that it never ran, it says so."""
    name = command.replica
    process = find(world, name)
    # A drain is forgotten with its coordinator: then it is the newest that goes.
    is_newest = command.reason.startswith("more than the target") and incarnation > 1
    # Whoever comes in its place looks which checkpoints there are by then.
    is_back = command.reason == "the job begins again"
    if not (is_newest or is_back or _is_past_its_call(universe, world, command, process)):
        check_expected(universe, world, name, "ended", command.reason)
    if process is not None and (is_mute(world, process) or process.is_locked):
        world = world._replace(given_up=world.given_up | {name})
    is_old = incarnation < recorded(universe, world).incarnation
    if process is not None and (process.alive or process.unreaped or process.exit is not None):
        is_told = is_reached(world, process.node, is_old) and process.alive
        return change(world, name, doomed=True) if is_told else world
    has_finished = name in {one for one, _ in world.finished}
    kind = ExitKind.FINISHED if has_finished else ExitKind.UNKNOWN
    known = universe.events.put(Exited(replica=name, kind=kind))
    for number, node in enumerate(world.nodes):
        if is_reached(world, number, is_old) and known not in node.outbox:
            world = with_node(world, number, outbox=(*node.outbox, known))
            break
    return world._replace(begun=world.begun | {name})


def _is_past_its_call(
    universe: Universe, world: World, command: EndReplica, process: Process | None
) -> bool:
    """Whether a replica without state has passed the call at which a new history begins."""
    if process is None or not command.reason.startswith("its script is past the call"):
        return False
    mine, restore = universe.members[process.member], recorded(universe, world).restore
    calls = {found.name: found.calls for found in world.storage}
    began = 0 if restore is None else calls.get(restore.checkpoint, 0)
    return not mine.has_state and mine.calls > began


def end_job(universe: Universe, world: World, code: int) -> World:
    check_end(universe, world, code)
    return world._replace(ended=code)


def _with_leavers(world: World, command: Prepare | Switch | Reform) -> World:
    """Note who is left behind; whom a Reform leaves out is a joiner, which comes again."""
    left = set(command.to) - set(command.order.replicas)
    if isinstance(command, Reform):
        return world
    if isinstance(command, Switch):
        world = world._replace(left_behind=world.left_behind | left)
    return world._replace(expected=world.expected | left)


def _with_leader(universe: Universe, world: World, command: Release) -> World:
    """Note who leads what follows the last step: the first of those that were released."""
    newest = recorded(universe, world).newest
    if newest is None or world.leader in newest.replicas:  # said again
        return world
    return world._replace(leader=command.to[0])


# --- coordinators come and go ------------------------------------------------------------


def crash(universe: Universe, world: World, commands: tuple[Command, ...], count: int) -> World:
    incarnation = recorded(universe, world).incarnation
    if any(isinstance(command, EndJob) for command in commands):
        world = world._replace(expected=world.expected | set(world.used))
    for command in commands[:count]:
        world = send(universe, world, command, incarnation)
    late = [c for c in commands[count:] if isinstance(c, Prepare | Switch | Reform)]
    unsent = tuple(universe.commands.put((command, incarnation)) for command in late)
    return take_over(universe, world._replace(unsent=unsent))


def delivered(world: World, name: ReplicaId, number: int) -> World:
    process = find(world, name)
    if process is None or not process.alive:
        return world
    return change(world, name, inbox=(*process.inbox, number))


def take_over(universe: Universe, world: World, *, is_old_alive: bool = False) -> World:
    """Let another coordinator begin; a lonely agent comes to it at once, several one by one."""
    job, register = universe.begin(recorded(universe, world), float(world.now))
    old = world.coordinator if is_old_alive else -1
    world = world._replace(coordinator=universe.states.put(job), old=old)
    world = write_register(universe, world, register)
    for number, node in enumerate(world.nodes):
        away: dict[str, Any] = {
            "is_known": False,
            "follows_old": is_old_alive and node.is_connected,
        }
        if not is_old_alive and node.is_connected:
            away |= {"is_connected": False, "away_since": world.now}
        world = with_node(world, number, **away)
    if len(world.nodes) > 1 or is_old_alive or world.nodes[0].is_cut or not world.nodes[0].acts:
        return world
    return join(universe, world, 0)


def join(universe: Universe, world: World, number: int) -> World:
    """Bring an agent to the newest coordinator, with what it runs."""
    is_known, running = world.nodes[number].is_known, running_on(world, number)
    world = with_node(world, number, is_connected=True, follows_old=False, is_known=True)
    if not is_known or running:
        node, devices = universe.node_name(number), universe.nodes[number]
        joined = NodeJoined(node=node, devices=devices, replicas=running)
        world = hear(universe, world, joined, number)
    return say_leaving(universe, world, number)


def say_leaving(universe: Universe, world: World, number: int) -> World:
    """Let an agent that was told to end say how long its replicas may take to leave."""
    node, name = world.nodes[number], universe.node_name(number)
    if node.leaves_by < 0 or world.ended is not None:
        return world
    notice_s = float(max(0, node.leaves_by - world.now))
    was_told = name in universe.states[world.coordinator].nodes.leaving
    world = hear(universe, world, NodeLeaving(node=name, notice_s=notice_s), number)
    if not was_told:
        check_leaving(universe, world, number)
    return world


def leave_old(universe: Universe, world: World, number: int) -> World:
    """Bring one agent from the older coordinator to the newest; with the last one it ends."""
    world = with_node(world, number, follows_old=False)
    if not any(node.follows_old for node in world.nodes):
        world = world._replace(old=-1)
    return join(universe, world, number)


# --- nodes come and go -------------------------------------------------------------------


def drop(world: World, number: int, *, is_cut: bool = False, loses: bool = True) -> World:
    """Break the connection of an agent; with ``loses`` what was on its way down is lost."""
    lost = {"is_connected": False, "is_cut": is_cut, "away_since": world.now}
    world = with_node(world, number, **lost)
    if is_cut:
        world = world._replace(finished=left_on(world, number))
    for process in world.processes if loses else ():
        if process.node == number and process.alive:
            world = change(world, process.name, inbox=(), doomed=False)
    return world


def reboot(universe: Universe, world: World, number: int) -> World:
    """Start an agent anew under its name; its workers died with the one before."""
    gone = frozenset(running_on(world, number))
    world = world._replace(given_up=world.given_up | gone, finished=left_on(world, number))
    world = with_node(world, number, is_stopped=False, leaves_by=-1)
    for process in world.processes:
        if process.node == number and (process.alive or process.unreaped):
            world = vanish(universe, world, process)
    if world.nodes[number].is_known:
        world = hear(universe, world, NodeLost(node=universe.node_name(number)), number)
        world = with_node(world, number, is_known=False)
    return join(universe, world, number)


def lose_nodes(universe: Universe, world: World, numbers: list[int]) -> World:
    """Let nodes count as lost; an agent that finds no coordinator gives up with its workers.

    Those that are lost at one moment a coordinator hears of in one event.
    """
    for process in world.processes:
        node = node_of(world, process)
        if process.node in numbers and process.alive and node.is_cut and node.acts:
            world = vanish(universe, world, process)
    for is_old in (False, True):
        lost = [
            n for n in numbers if world.nodes[n].is_known and world.nodes[n].follows_old is is_old
        ]
        for number in lost:
            world = with_node(world, number, is_known=False)
        if lost:
            first, *others = map(universe.node_name, lost)
            world = hear(universe, world, NodeLost(node=first, others=tuple(others)), lost[0])
    return world


def nap(universe: Universe, world: World) -> World:
    """Let a coordinator do nothing for long; those without a connection it has missed no longer.

    The clock of a driver does not count such a time.  The core excuses the silence of others by
    itself, but not who has a time to come in.
    """
    job: Job = universe.states[world.coordinator]
    coming = {name for name, one in job.replicas.items() if one.state is ReplicaState.STARTING}
    world = world._replace(
        now=world.now + NAP_S,
        expected=world.expected | coming | job.checkpoints.looking | set(job.checkpoints.outdated),
    )
    if (
        job.phase is JobPhase.RECOVERING
    ):  # so late it need not wait for who tells how they have ended
        world = world._replace(passed_by=world.passed_by | {name for name, _ in world.finished})
    for number, node in enumerate(world.nodes):
        world = with_node(world, number, away_since=node.away_since + NAP_S)
    return world


def told_to_end(universe: Universe, world: World, number: int) -> World:
    """Let the agent of a node hear that it is to end."""
    world = with_node(world, number, leaves_by=world.now + GRACE_S)
    return say_leaving(universe, world, number)


def may_leave(world: World, number: int) -> bool:
    """Whether an agent that was told to end has nothing to wait for, and nothing more to say."""
    node = world.nodes[number]
    if node.leaves_by < 0 or node.is_cut or not node.acts:
        return False
    here = [process for process in world.processes if process.node == number]
    if any(process.alive for process in here):
        return False
    is_late = world.now >= node.leaves_by
    unsaid = node.outbox or any(p.outbox or p.exit is not None for p in here)
    return (is_late or not running_on(world, number)) and not (node.is_connected and unsaid)


def leave(universe: Universe, world: World, number: int) -> World:
    """Let an agent leave, and say so if anybody hears it: it never comes back."""
    node = world.nodes[number]
    world = world._replace(finished=left_on(world, number))
    if node.is_connected and node.is_known:
        world = with_node(world, number, is_known=False)
        left = NodeLost(node=universe.node_name(number), has_left=True)
        world = hear(universe, world, left, number)
    lost = {"is_connected": False, "is_cut": True, "away_since": world.now, "follows_old": False}
    return with_node(world, number, **lost)


def end_late_leavers(universe: Universe, world: World) -> World:
    """Let the agents kill what has not left in the time that it had."""
    for process in world.processes:
        node = node_of(world, process)
        if 0 <= node.leaves_by <= world.now and node.acts and process.alive:
            world = die(universe, world, process, ExitKind.SIGNAL)
    return world


# --- time --------------------------------------------------------------------------------


def tick(universe: Universe, world: World) -> World:
    """Let time pass until silence next means something; the living are heard from."""
    if world.old >= 0 and not all(node.follows_old for node in world.nodes):
        world = end_old(universe, world)  # it looks into the register every few seconds
    speaking = world.old if world.old >= 0 else world.coordinator
    deadline = universe.next_deadline(universe.states[speaking], float(world.now))
    away = [n.away_since + NODE_GRACE_S + 1 for n in world.nodes if _is_missed(n)]
    grace = [n.leaves_by for n in world.nodes if n.leaves_by > world.now and n.acts]
    deadline = min([deadline, *away, *grace])
    if deadline > world.now + LIST_S and (told := _told_again(universe, world)) is not None:
        return told
    world = world._replace(now=max(world.now + 1, int(-(-deadline // 1))))
    silent = {p.name for p in world.processes if not node_of(world, p).is_connected}
    idle = {p.name for p in world.processes if p.stalled or is_mute(world, p)}
    idle |= {p.name for p in world.processes if p.is_locked and is_late(universe, world, p)}
    untold = {one for one, there in world.finished if not world.nodes[there].acts}
    world = world._replace(
        given_up=world.given_up | silent,
        expected=world.expected | idle,
        passed_by=world.passed_by | untold,
    )
    for process in world.processes:
        if process.alive and process.phase != "starting" and _is_spoken_of(world, process):
            world = _speak(universe, world, process)
    world = end_late_leavers(universe, world)
    away = [not n.is_connected and world.now - n.away_since > NODE_GRACE_S for n in world.nodes]
    world = lose_nodes(universe, world, [number for number, is_away in enumerate(away) if is_away])
    for number, node in enumerate(world.nodes):
        if node.is_heard:
            world = list_all(universe, world, number)
        elif node.is_connected and node.is_known:
            world = miss_agent(universe, world, number)
    return hear(universe, world, Ticked())


def miss_agent(universe: Universe, world: World, number: int) -> World:
    """Let a coordinator find that an agent, which is connected, says nothing.

    Others are started for those on their way there: once it is heard again some are too many.
    """
    world = hear(universe, world, NodeSilent(node=universe.node_name(number)), number)
    job: Job = universe.states[world.coordinator]
    coming = {name for name, one in job.replicas.items() if one.state is ReplicaState.STARTING}
    return world._replace(expected=world.expected | coming)


def _told_again(universe: Universe, world: World) -> World | None:
    """Let a little time pass in which agents list what they run; None if that changes nothing."""
    later = world._replace(now=world.now + LIST_S)
    for number, node in enumerate(later.nodes):
        if node.is_heard:
            later = list_all(universe, later, number)
    is_same = (later.processes, later.nodes) == (world.processes, world.nodes)
    return None if is_same and later.ended is None else later


def _speak(universe: Universe, world: World, process: Process) -> World:
    if not node_of(world, process).is_heard:
        return world
    sign = sign_of_life(universe, process, universe.members[process.member])
    if process.is_locked:
        idle = {"waiting": NO_GENERATION, "held_up_by": None, "is_spoken_for": True}
        sign = replace(sign, **idle)  # type: ignore[arg-type]  # by name
    return hear(universe, world, sign, process.node)


def _is_spoken_of(world: World, process: Process) -> bool:
    return process.is_locked or not is_frozen(world, process)


def list_all(universe: Universe, world: World, number: int) -> World:
    """Let an agent say what it runs: what its workers have not answered is said again."""
    name: NodeId = universe.node_name(number)
    listed = Running(node=name, replicas=running_on(world, number))
    return hear(universe, world, listed, number)


def _is_missed(node: Node) -> bool:
    return not node.is_connected and node.is_known
