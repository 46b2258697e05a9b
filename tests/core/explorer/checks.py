"""What must never happen: the invariants of the protocol, each checked where it would be broken.

Every one raises ``Violation``.  Knows nothing of what can happen next.
"""

from __future__ import annotations

from tests.core.explorer.process import Process
from tests.core.explorer.universe import Universe, count_committed, history_of, holders_of, recorded
from tests.core.explorer.world import Violation, World, find, is_mute, running_on

from pliant.core.commands import Prepare, Publish, Reform, Switch
from pliant.core.errors import NoStateError
from pliant.core.job.state import Job, JobPhase, is_durable
from pliant.core.membership.member import Member
from pliant.core.membership.resolve import Resolution
from pliant.core.membership.state import Timeouts, members
from pliant.core.membership.transitions import Phase
from pliant.core.values import NO_CHECKPOINT, Order, Register, ReplicaId

HANG_S = 300.0
"""From when a member counts as hung; shorter than a job's: until then a sign of life is a deadline
that passes."""

START_S = 100.0
"""How long a roll call waits for one that lives and cannot speak; shorter than a job's, too."""

APART = "its node does not reach the others"
"""Why one is ended whose node could not reach another a while ago."""


def check_register(before: Register, after: Register) -> None:
    """Numbers only grow, also over restarts."""
    for name in ("incarnation", "number", "lineage", "named"):
        if getattr(after, name) < getattr(before, name):
            raise Violation(f"the register's {name} went back: {before}, {after}")
    if before.newest is None:
        return
    if after.newest is None and after.lineage == before.lineage:
        raise Violation(f"the register forgot its newest generation: {before}")
    if after.newest is not None and after.newest.generation < before.newest.generation:
        raise Violation(f"the register's newest generation went back: {before}, {after}")
    if before.restore is not None and after.restore is None:
        raise Violation(f"the register forgot its restore: {before}")


def check_start(universe: Universe, world: World, name: ReplicaId, node: int) -> None:
    devices = universe.nodes[node]
    left = {one for one, there in world.finished if world.nodes[there].acts} - world.passed_by
    left -= world.left_behind  # of a leaver it may not know yet
    left -= world.given_up  # it was lost, and has come to its end since
    if left:
        raise Violation(f"{name} started although {min(left)} has finished and left")
    lineage, count, heard_at = world.heard_end
    job: Job = universe.states[world.coordinator]
    if (
        lineage == recorded(universe, world).lineage
        and count >= count_committed(universe, world)
        and world.now < heard_at + Timeouts().step_s
        and job.membership.phase is not Phase.LOST
    ):
        raise Violation(f"{name} started although it was heard that the last step is done")
    if len(running_on(world, node)) >= devices:
        raise Violation(f"{name} started while all {devices} devices run a process")


def check_end(universe: Universe, world: World, code: int) -> None:
    """A job ends well when all is trained, and for want of state only when there is none."""
    count, holders = count_committed(universe, world), holders_of(universe, world)
    if code == 0 and count < universe.steps and not universe.may_stop:
        raise Violation(f"the job ends well after {count} steps")
    if code == 4 and holders and not world.late:
        raise Violation(f"the job ends for want of state, which {holders} hold")
    missing = world.damaged | world.unawaited
    whole = [found.name for found in world.storage if found.name not in missing]
    if code == 4 and whole:
        raise Violation(f"the job ends for want of state, which is in {whole}")
    if code == 4 and not count:
        raise Violation("the job ends for want of state before a step was made")
    if code == 0 and world.leader not in world.ended_well:
        raise Violation(f"the job ends well, and the script of {world.leader} was not at its end")
    is_asked = code == 3 and universe.may_stop
    if not (code in (0, 4) or is_asked or _may_fail(universe, world, code)):
        raise Violation(f"the job ends with code {code}")


def _may_fail(universe: Universe, world: World, code: int) -> bool:
    """Whether a job may end like this though nobody has asked for it and its state is not lost.

    So it is where nobody can tell how the leader's script has ended, or that was recorded of one
    that took too long; where the devices that are left, or not taken back, are too few; and where
    those that were late count as scripts that do not come to ``steps()``.
    """
    outcome, told = recorded(universe, world).outcome, {name for name, _ in world.finished}
    is_untold = outcome is not None and outcome.leader not in {None, *told}
    if code == 1 and (is_untold or world.is_cut_short or world.late):
        return True
    minimum = universe.min_replicas
    is_short = universe.devices - universe.reclaims < minimum
    if code in (1, 2) and (
        is_short or any(n.is_cut or n.leaves_by >= 0 or not n.acts for n in world.nodes)
    ):
        return True
    # The time that a job waits for nodes has passed, and too few are there.
    there = [number for number, node in enumerate(world.nodes) if node.is_heard]
    return code == 2 and world.late and sum(map(universe.nodes.__getitem__, there)) < minimum


def check_publish(universe: Universe, world: World, command: Publish) -> None:
    lineage = recorded(universe, world).lineage
    if not command.checkpoint.endswith(f"/{lineage}"):
        raise Violation(f"{command.checkpoint} is published in lineage {lineage}")


def check_order(
    universe: Universe, world: World, command: Prepare | Switch | Reform, order: Order
) -> None:
    register = recorded(universe, world)
    newest = register.newest.generation if register.newest else 0
    if order.restore is not None and order.restore != register.restore:
        raise Violation(f"{order.restore} is used before it is in the register")
    if (order.restore is None) != (order.origin is None or register.restore is None):
        raise Violation(f"generation {order.generation} has an origin without its restore")
    if order.generation > register.number:
        raise Violation(f"generation {order.generation} is used before it is in the register")
    if isinstance(command, Reform) and world.left_behind & set(order.replicas):
        raise Violation(f"Reform {order.generation} contains a leaver")
    if not isinstance(command, Prepare) and order.generation != newest:
        raise Violation(f"{type(command).__name__} {order.generation} is not in the register")
    size = len(order.members)
    if size > min(universe.max_replicas, universe.num_slots, universe.devices):
        raise Violation(f"generation {order.generation} has {size} members")
    if size < universe.min_replicas and not order.hold:
        raise Violation(f"generation {order.generation} trains with {size} members")


def check_expected(
    universe: Universe, world: World, name: ReplicaId, verb: str, reason: str = ""
) -> None:
    process = find(world, name)
    if process is None or not process.alive or is_mute(world, process) or world.late:
        return
    if process.stalled or _may_be_apart(universe, world, process, reason):
        return
    if world.nodes[process.node].leaves_by >= 0:
        return
    # Who keeps it since later is no less hung; and before the first step all go with such a one.
    locked = [p for p in world.processes if p.alive and p.is_locked]
    if verb == "dismissed" and process.is_locked and not universe.members[process.member].has_state:
        return  # two attempts with it have failed (R6)
    if process.is_locked and reason.startswith("no step ended for"):
        return  # that counts from the last step, not from when it took the lock
    are_alike = process.is_locked or not count_committed(universe, world)
    if are_alike and any(is_late(universe, world, other, reason) for other in locked):
        return
    mine = universe.members[process.member]
    if mine.has_state and mine.lineage < recorded(universe, world).lineage:
        return
    job: Job = universe.states[world.coordinator]
    is_over = count_committed(universe, world) >= universe.steps or process.stop_seen
    is_over |= universe.may_stop and job.phase is JobPhase.FINISHING
    if name not in world.expected | world.given_up and not is_over:
        raise Violation(f"the healthy replica {name} is {verb}")


def check_voter(universe: Universe, world: World, process: Process) -> None:
    """Nobody votes for a step for which a member of its generation will never vote."""
    mine = universe.members[process.member]
    for other in world.processes:
        theirs = universe.members[other.member]
        is_there = other.alive and other.phase == "finished" and theirs.current == mine.current
        if is_there and theirs.committed == mine.committed < universe.steps:
            raise Violation(f"{process.name} waits for {other.name}, which has stopped")


def is_late(universe: Universe, world: World, process: Process, reason: str = "") -> bool:
    """Whether one whose script keeps the lock may be ended for it.

    Who holds the state only once it counts as hung, or a roll call ends; whoever is on its way in
    keeps others waiting.
    """
    mine, patience_s = universe.members[process.member], HANG_S
    if reason.startswith("did not say where it stands"):
        patience_s = START_S
    return not mine.has_state or world.now - process.locked_at >= patience_s


def _may_be_apart(universe: Universe, world: World, process: Process, reason: str) -> bool:
    """Whether its node does not reach another, or did not when what is said of it was true.

    Who was started since the link was mended may be sent away only as long as the coordinator
    remembers that it was not, and does not try it.
    """
    if process.name in world.parted or any(process.node in pair for pair in world.severed):
        return True
    job: Job = universe.states[world.coordinator]
    node = universe.node_name(process.node)
    return reason == APART and any(node in pair for pair in job.nodes.apart)


def check_holder(universe: Universe, world: World, name: ReplicaId) -> None:
    """Nobody is told to exit who alone has what was committed, and is in no checkpoint."""
    process = find(world, name)
    mine = universe.members[process.member] if process is not None else None
    if mine is None or not mine.has_state or count_committed(universe, world) >= universe.steps:
        return
    if mine.lineage < recorded(universe, world).lineage:
        return
    if any(other.stop_seen for other in world.processes):
        return
    whole = [found for found in world.storage if found.name not in world.damaged]
    if any((found.lineage, found.committed) >= (mine.lineage, mine.committed) for found in whole):
        return
    # A holder whose death nobody could know of yet counts.
    known = [p for p in world.processes if p.name != name and (p.alive or p.exit is not None)]
    others = [universe.members[p.member] for p in known]
    if not any(other.has_state and other.committed >= mine.committed for other in others):
        raise Violation(f"{name} is told to exit and is the only holder of its state")


def check_leaving(universe: Universe, world: World, number: int) -> None:
    """Who is on a node that leaves is let go only if others have the state, or could come.

    Or if it is saved before: what becomes of the last holder then, ``check_holder`` says.
    """
    job: Job = universe.states[world.coordinator]
    if universe.node_name(number) not in job.nodes.leaving or not members(job.membership):
        return
    if is_durable(job):
        return
    names = map(universe.node_name, range(len(universe.nodes)))
    stay = {
        n
        for n, name in enumerate(names)
        if name in job.nodes.devices and name not in job.nodes.leaving
    }
    there = [process for process in world.processes if process.node in stay]
    if any(p.alive or p.exit is not None or p.unreaped for p in there):
        return
    if not any(universe.nodes[n] > len(running_on(world, n)) for n in stay):
        raise Violation(f"all may go from n{number + 1}, where alone the state is")


def record_commit(universe: Universe, world: World, mine: Member) -> World:
    """Note who made the step just committed; a second maker is a second result."""
    step, maker = mine.committed - 1, int(mine.made_by)
    past = history_of(universe, world, mine.lineage)
    if past.start <= step < past.end:
        if past.makers[step - past.start] != maker:
            raise Violation(
                f"{mine.replica} commits step {step} made by {maker}; "
                f"it was committed as made by {past.makers[step - past.start]}"
            )
        return world
    if step != past.end:
        raise Violation(f"{mine.replica} commits step {step} after {past.end} steps")
    others = tuple(h for h in world.history if h.lineage != mine.lineage)
    longer = past._replace(makers=(*past.makers, maker))
    return world._replace(history=tuple(sorted((*others, longer))))


def check_restored(world: World, checkpoint: str) -> None:
    there = {found.name for found in world.storage}
    if checkpoint == NO_CHECKPOINT and there - world.unawaited:
        raise Violation(f"the run begins again at step 0, though {min(there)} was published")
    if checkpoint != NO_CHECKPOINT and checkpoint not in there:
        raise Violation(f"{checkpoint} is restored and was never published")


def check_survivor(mine: Member, resolution: Resolution) -> None:
    if (mine.committed, mine.made_by) != (resolution.committed, resolution.made_by):
        raise Violation(f"{mine.replica} survives with {mine.committed} made by {mine.made_by}")


def check_without_state(universe: Universe, world: World, order: Order, why: NoStateError) -> None:
    holders = holders_of(universe, world)
    if holders:
        raise Violation(f"{order.generation}: {why}; {holders} hold it") from why


def check_entered(universe: Universe, world: World, mine: Member) -> None:
    """Who enters a generation has what its lineage committed, and no other result of it."""
    past, name = history_of(universe, world, mine.lineage), mine.replica
    if mine.committed > past.start:
        if past.makers[mine.committed - 1 - past.start] != mine.made_by:
            raise Violation(f"{name} enters with a step {mine.committed - 1} of {mine.made_by}")
    elif mine.committed < past.start:
        raise Violation(f"{name} enters lineage {mine.lineage} with {mine.committed} steps")


def check_divided(universe: Universe, name: ReplicaId, said: list[tuple[int, ...]]) -> None:
    """All who commit a step have computed by one division, and every slot was somebody's."""
    if len(set(said)) != 1:
        raise Violation(f"{name} commits a step that was divided in several ways: {said}")
    if universe.is_balanced and (sum(said[0]) != universe.num_slots or min(said[0]) < 1):
        raise Violation(f"{name} commits a step of which the replicas have {said[0]} slots")


def check_counts(universe: Universe, world: World, entered: Member) -> None:
    """Members of a generation are never more than one step apart."""
    counts = [entered.committed]
    for process in world.processes:
        mine = universe.members[process.member]
        is_same = (mine.current, mine.lineage) == (entered.current, entered.lineage)
        if process.alive and mine.has_state and is_same:
            counts.append(mine.committed)
    if max(counts) - min(counts) > 1:
        raise Violation(f"members of {entered.current} have committed {sorted(counts)} steps")
