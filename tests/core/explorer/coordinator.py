"""The environment of the coordinator: what it hears and says, how it dies, and that time passes.

A coordinator may die between any two of its lines: before it hears something, or after it has
written the register and sent some of its commands; the others may then still arrive.  It may also
stay alive, and be heard by the agent, while the next one has begun.
"""

from __future__ import annotations

from typing import assert_never

from tests.core.explorer.checks import (
    check_end,
    check_expected,
    check_holder,
    check_order,
    check_publish,
    check_register,
    check_start,
)
from tests.core.explorer.process import Process
from tests.core.explorer.universe import Universe, recorded
from tests.core.explorer.workers import sign_of_life
from tests.core.explorer.world import World, change, find

from pliant.core.commands import (
    Command,
    Dismiss,
    EndJob,
    EndReplica,
    FallThrough,
    Prepare,
    Publish,
    Reform,
    Release,
    RollCall,
    StartReplica,
    Stop,
    Switch,
)
from pliant.core.events import Event, NodeJoined, Ticked
from pliant.core.membership.member_value import Member
from pliant.core.values import Incarnation, Register, ReplicaId


def hear(universe: Universe, world: World, event: Event) -> World:
    """Let the coordinator take one event; write its register, then send its commands."""
    if world.old >= 0:
        return heard_by_old(universe, world, event)
    world, commands = decide_and_write(universe, world, event)
    return send_all(universe, world, commands)


def send_all(universe: Universe, world: World, commands: tuple[Command, ...]) -> World:
    if any(isinstance(command, EndJob) for command in commands):
        world = world._replace(expected=world.expected | set(world.used))
    incarnation = recorded(universe, world).incarnation
    for command in commands:
        world = send(universe, world, command, incarnation)
    return world


def decide_and_write(
    universe: Universe, world: World, event: Event
) -> tuple[World, tuple[Command, ...]]:
    """Let the coordinator take one event and write its register."""
    state, register, commands = universe.answer(world.coordinator, event, world.now)
    world = world._replace(coordinator=state)
    return (world if register is None else write_register(universe, world, register)), commands


def heard_by_old(universe: Universe, world: World, event: Event) -> World:
    """Let the coordinator act that does not know of the next one; a write is a conflict."""
    state, register, commands = universe.answer(world.old, event, world.now)
    if register is not None or any(isinstance(c, Publish) for c in commands):
        return bring_agent(universe, world._replace(old=-1))
    incarnation = Incarnation(recorded(universe, world).incarnation - 1)
    world = world._replace(old=state)
    if any(isinstance(command, EndJob) for command in commands):
        world = world._replace(expected=world.expected | set(world.used))
    for command in commands:
        world = send(universe, world, command, incarnation)
    return world


def write_register(universe: Universe, world: World, register: Register) -> World:
    if world.register >= 0:
        check_register(recorded(universe, world), register)
    return world._replace(
        register=universe.registers.put(register),
        left_behind=world.left_behind.union(register.leavers),
    )


def send(universe: Universe, world: World, command: Command, incarnation: Incarnation) -> World:
    universe.said.append(command)
    match command:
        case StartReplica(replica=name):
            return start_replica(universe, world, name)
        case EndReplica():
            return doom(universe, world, command, incarnation)
        case EndJob(exit_code=code):
            return end_job(universe, world, code)
        case Prepare(order=order) | Switch(order=order) | Reform(order=order):
            check_order(universe, world, command, order)
            world = _with_leavers(world, command)
        case Dismiss(to=names) | Release(to=names):
            for name in names:
                if isinstance(command, Dismiss):
                    check_expected(universe, world, name, "dismissed")
                check_holder(universe, world, name)
        case Publish():
            check_publish(universe, world, command)
        case FallThrough() | Stop() | RollCall():
            pass
        case _:
            assert_never(command)
    number = universe.commands.put((command, incarnation))
    for name in command.to:
        process = find(world, name)
        if process is not None and process.alive:
            world = change(world, name, inbox=(*process.inbox, number))
    return world


def doom(universe: Universe, world: World, command: EndReplica, incarnation: Incarnation) -> World:
    # A drain is forgotten with its coordinator: then it is the newest that goes.
    if command.reason != "more than the target" or incarnation == 1:
        check_expected(universe, world, command.replica, "ended")
    return change(world, command.replica, doomed=True)


def start_replica(universe: Universe, world: World, name: ReplicaId) -> World:
    check_start(universe, world, name)
    process = Process(name=name, member=universe.members.put(Member(replica=name)))
    return world._replace(processes=(*world.processes, process), used=(*world.used, name))


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
    """Let another coordinator begin; the agent comes to it, at once or later."""
    job, register = universe.begin(recorded(universe, world), float(world.now))
    old = world.coordinator if is_old_alive else -1
    world = world._replace(coordinator=universe.states.put(job), old=old)
    world = write_register(universe, world, register)
    return world if is_old_alive else bring_agent(universe, world)


def bring_agent(universe: Universe, world: World) -> World:
    """Bring the agent to the newest coordinator, with what it runs."""
    running = tuple(process.name for process in world.processes if process.alive)
    joined = NodeJoined(node=universe.node, devices=universe.devices, replicas=running)
    return hear(universe, world, joined)


def tick(universe: Universe, world: World) -> World:
    """Let time pass until silence next means something; the living are heard from."""
    speaking = world.old if world.old >= 0 else world.coordinator
    deadline = universe.next_deadline(universe.states[speaking], float(world.now))
    world = world._replace(now=max(world.now + 1, int(-(-deadline // 1))))
    for process in world.processes:
        if process.alive and not process.hung and process.phase != "starting":
            mine = universe.members[process.member]
            world = hear(universe, world, sign_of_life(universe, process, mine))
    return hear(universe, world, Ticked())
