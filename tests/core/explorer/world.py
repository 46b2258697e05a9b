"""A state of everything, as a value: hashable, compared by content.

Owns what a state consists of, and looking things up in it.  Knows nothing of what can happen.

The result of a step is modelled as the generation that computed it, as fast reduction makes it
differ between generations: two makers of one step, in one lineage, are two results.
"""

from __future__ import annotations

from functools import partial
from typing import Any, NamedTuple

from tests.core.explorer.process import Post, Process

from pliant.core.events import ExitKind
from pliant.core.membership.member import Member
from pliant.core.values import CheckpointInfo, Generation, Order, ReplicaId


class Violation(AssertionError):  # noqa: N818 - it is a finding, not an error
    """An invariant of the protocol does not hold."""


class Faults(NamedTuple):
    """What may still go wrong."""

    kills: int = 0
    hangs: int = 0
    breaks: int = 0
    """Collectives that fail although nobody died."""

    ticks: int = 0
    """Deadlines that pass although messages are on their way."""

    repeats: int = 0
    """Messages that arrive twice."""

    restarts: int = 0
    """Coordinators that die between two events; another takes over."""

    crashes: int = 0
    """Coordinators that die after writing the register; what was not sent may arrive late."""

    overlaps: int = 0
    """Coordinators that take over while the one before them goes on."""

    damages: int = 0
    """Checkpoints that turn out not to be whole."""

    drops: int = 0
    """Connections of an agent that break; it comes back, and what was on its way down is lost."""

    cuts: int = 0
    """Connections of an agent that break for ever; its workers still reach the others."""

    reboots: int = 0
    """Agents that die with their workers, and are started again under their name at once."""

    unreaped: int = 0
    """Processes that die and of whose end nobody ever hears."""

    beats: int = 0
    """Signs of life that are on their way for long."""

    lists: int = 0
    """Agents that list what they run although nothing was lost."""

    slows: int = 0
    """Replicas that take far longer than the others from then on."""

    locks: int = 0
    """Processes whose script keeps the interpreter lock: their agents say that they live."""

    stalls: int = 0
    """Replicas of several workers of which one hangs."""

    severs: int = 0
    """Pairs of nodes that do not reach each other any more, though both reach the coordinator."""

    mends: int = 0
    """Such pairs that reach each other again."""

    sleeps: int = 0
    """Machines that sleep, with all that runs there, or agents that are stopped alone."""

    wakes: int = 0
    """Of those, and of the processes that hang and the workers that stall, some that go on."""

    waits: int = 0
    """Deadlines that pass, with nothing on its way, before something else goes wrong."""

    naps: int = 0
    """Coordinators that are stopped for long, and go on."""

    leavings: int = 0
    """Agents that are told to end, and wait for their replicas to leave."""


NO_FAULTS = Faults()


class Node(NamedTuple):
    """One machine: its agent's connection to a coordinator."""

    is_connected: bool = True
    away_since: int = 0
    is_cut: bool = False
    """It never connects again."""

    is_known: bool = True
    """The newest coordinator has heard of it and has not lost it."""

    follows_old: bool = False
    """Its agent is with a coordinator that does not know yet that another has begun."""

    is_asleep: bool = False
    """Nothing on it does anything, until it wakes; its connection stays."""

    is_stopped: bool = False
    """The same of its agent alone: its workers go on."""

    outbox: tuple[int, ...] = ()
    """What its agent says of replicas that it has never run."""

    leaves_by: int = -1
    """When its agent, which was told to end, waits no longer; -1: it was not told."""

    @property
    def acts(self) -> bool:
        """Whether its agent does anything."""
        return not (self.is_asleep or self.is_stopped)

    @property
    def is_heard(self) -> bool:
        """Whether what its agent says comes to a coordinator."""
        return self.is_connected and self.acts


class History(NamedTuple):
    """What was committed in one lineage."""

    lineage: int
    start: int
    makers: tuple[int, ...] = ()
    """Which generation made step ``start``, and those after it."""

    @property
    def end(self) -> int:
        """Committed steps, those before it included."""
        return self.start + len(self.makers)


class World(NamedTuple):
    """One state of everything."""

    coordinator: int
    processes: tuple[Process, ...]
    faults: Faults
    wishes: tuple[int, ...]
    """Events from people that are still to come, in this order."""

    now: int = 0
    history: tuple[History, ...] = ()
    """Ghost: which generation made each committed step of each lineage, whoever committed it."""

    register: int = -1
    """Number of the register that storage holds."""

    old: int = -1
    """Number of the state of a coordinator that does not know yet that another has begun, and to
    which the agent still speaks; -1: none."""

    unsent: tuple[int, ...] = ()
    """What a dead coordinator had written and not sent; it may arrive now, in order, or never."""

    storage: tuple[CheckpointInfo, ...] = ()
    """Published checkpoints."""

    damaged: frozenset[str] = frozenset()
    """Those of them that cannot be loaded."""

    unawaited: frozenset[str] = frozenset()
    """Those of them that came once nobody waited any more for whoever was to publish them."""

    saves: int = 0
    """Checkpoints that may still be written."""

    nodes: tuple[Node, ...] = (Node(),)

    severed: frozenset[tuple[int, int]] = frozenset()
    """Pairs of nodes between which no connection can be made, lower number first."""

    used: tuple[ReplicaId, ...] = ()
    """Names given to replicas so far."""

    begun: frozenset[ReplicaId] = frozenset()
    """Those of them whose process was started."""

    given_up: frozenset[ReplicaId] = frozenset()
    """Replicas whose node was without a connection while time passed, or that were ended when
    nothing was heard of them: they may be lost."""

    parted: frozenset[ReplicaId] = frozenset()
    """Replicas that were there when the link of their node was mended: what was said of it before
    may still be heard."""

    expected: frozenset[ReplicaId] = frozenset()
    """Replicas that may be ended: drained, left behind, slow, silent while time passed, or of a job
    that is over."""

    left_behind: frozenset[ReplicaId] = frozenset()
    """Leavers of a generation that was recorded: no Reform may contain them (R12)."""

    finished: frozenset[tuple[ReplicaId, int]] = frozenset()
    """Replicas that have left by themselves after their last step, and the nodes whose agents
    remember it."""

    passed_by: frozenset[ReplicaId] = frozenset()
    """Those of them whose agents could not tell of it while time passed."""

    heard_end: tuple[int, int, int] = (0, 0, 0)
    """Of which lineage the newest coordinator has heard that the last step is done, how many steps
    that are, and when it heard it."""

    leader: ReplicaId | None = None
    """Who alone does after the last step what is to be done once; None before the last Release."""

    ended_well: frozenset[ReplicaId] = frozenset()
    """Replicas whose script has come to its end after the last step."""

    is_cut_short: bool = False
    """It was recorded that the leader's script did not come to its end, when it had not."""

    late: bool = False
    """A deadline passed although messages were on their way: the slow may be dropped."""

    ended: int | None = None


def find(world: World, name: ReplicaId) -> Process | None:
    for process in world.processes:
        if process.name == name:
            return process
    return None


def process_of(world: World, name: ReplicaId) -> Process:
    process = find(world, name)
    assert process is not None
    return process


def node_of(world: World, process: Process) -> Node:
    return world.nodes[process.node]


def is_frozen(world: World, process: Process) -> bool:
    """Whether a process that lives does nothing, as it is stopped or its machine sleeps."""
    return process.hung or process.is_locked or node_of(world, process).is_asleep


def is_mute(world: World, process: Process) -> bool:
    """Whether nothing is heard of a process that lives."""
    return process.hung or not node_of(world, process).acts


def left_on(world: World, number: int) -> frozenset[tuple[ReplicaId, int]]:
    """Return what the agents of the other nodes remember of those that have finished."""
    return frozenset(one for one in world.finished if one[1] != number)


def with_node(world: World, number: int, **fields: Any) -> World:
    nodes = list(world.nodes)
    nodes[number] = nodes[number]._replace(**fields)
    return world._replace(nodes=tuple(nodes))


def running_on(world: World, number: int) -> tuple[ReplicaId, ...]:
    """Return the names of what an agent takes for running."""
    return tuple(p.name for p in world.processes if p.node == number and (p.alive or p.unreaped))


def replaced(world: World, changed: Process) -> World:
    return world._replace(
        processes=tuple(changed if p.name == changed.name else p for p in world.processes)
    )


def change(world: World, name: ReplicaId, **fields: Any) -> World:
    process = find(world, name)
    return world if process is None else replaced(world, process._replace(**fields))


def posted(world: World, process: Process, post: Post) -> World:
    return change(world, process.name, posts=(*process.posts, post))


def has_posted(process: Process, generation: int, kind: str, number: int) -> bool:
    return any(post[:3] == (generation, kind, number) for post in process.posts)


def without(posts: tuple[Post, ...], generation: int) -> tuple[Post, ...]:
    return tuple(post for post in posts if post[0] != generation)


def place_of(process: Process) -> int:
    """Return the number of the order whose collective it waits in."""
    return process.home if process.phase in ("voted", "held") else process.going


def detail_of(process: Process) -> str:
    return "SIGKILL" if process.exit is ExitKind.SIGNAL else ""


def has_sent(world: World, name: ReplicaId, generation: Generation) -> bool:
    process = find(world, name)
    return process is not None and has_posted(process, generation, "send", 0)


def posted_null(process: Process, mine: Member) -> bool:
    return has_posted(process, mine.current, "null", process.round)


def peer_is_gone(world: World, process: Process, order: Order) -> bool:
    for name in order.replicas:
        if name != process.name:
            peer = find(world, name)
            if peer is None or not peer.alive or order.generation in peer.abandoned:
                return True
    return False


def out_of_reach(world: World, process: Process, order: Order) -> tuple[ReplicaId, ...]:
    """Return the living members of an order to which this one cannot connect."""
    if not world.severed:
        return ()
    peers = [peer for peer in map(partial(find, world), order.replicas) if peer and peer.alive]
    here = process.node
    return tuple(p.name for p in peers if (min(here, p.node), max(here, p.node)) in world.severed)


def is_apart(world: World, order: Order) -> bool:
    """Whether two living members of an order cannot connect to each other."""
    there = [find(world, name) for name in order.replicas]
    return any(peer and peer.alive and out_of_reach(world, peer, order) for peer in there)


def all_posted(world: World, order: Order, kind: str, number: int) -> tuple[Any, ...] | None:
    """Return what the members posted, in replica_rank order, or None if one has not."""
    values = []
    for name in order.replicas:
        process = find(world, name)
        if process is None:
            return None
        for generation, what, turn, value in process.posts:
            if generation == order.generation and what == kind and turn == number:
                values.append(value)
                break
        else:
            return None
    return tuple(values)
