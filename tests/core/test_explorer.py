"""In every state of the explorer, up to a bound, what must hold does, and silence ends.

The default bounds take seconds; ``soak`` walks further.  Any of them can be repeated or enlarged
with ``python -m tests.core.explorer``.
"""

from __future__ import annotations

import os
import random
import sys

import pytest
from tests.core.explorer.cases import Case, prepare, run
from tests.core.explorer.search import explore
from tests.core.explorer.walk import SLEEPERS, walk_many
from tests.core.explorer.world import Faults

from pliant.core.events import (
    DrainRequested,
    Offered,
    PolicySet,
    Reclaimed,
    Scaled,
    StopRequested,
)
from pliant.core.policy.decide import Policy
from pliant.core.values import ReplicaId

R1, R2, R3 = (ReplicaId(name) for name in ("r1", "r2", "r3"))
DRAIN = DrainRequested(replica=R1, notice_s=1000.0)
GROW = Scaled(target=2)

DEFAULT = {
    "a start from nothing, and a kill": Case(members=0, devices=1, steps=1, faults=Faults(kills=1)),
    "a join and a kill": Case(
        members=1, devices=2, steps=1, wishes=(GROW,), faults=Faults(kills=1)
    ),
    "a kill and its replacement": Case(devices=2, steps=1, faults=Faults(kills=1)),
    "a drain": Case(devices=2, wishes=(DRAIN,)),
    "a collective that fails although nobody died": Case(
        devices=2, steps=1, faults=Faults(breaks=1)
    ),
    "a join whose collective fails": Case(
        members=1, devices=2, steps=1, wishes=(GROW,), faults=Faults(breaks=1)
    ),
    "a hang": Case(devices=2, steps=1, faults=Faults(hangs=1)),
    "a join that hangs": Case(
        members=1, devices=2, steps=1, wishes=(GROW,), faults=Faults(hangs=1), is_prompt=True
    ),
    "a join and a deadline that passes too early": Case(
        members=1, devices=2, steps=1, wishes=(GROW,), faults=Faults(ticks=1)
    ),
    "a join and a message that arrives twice": Case(
        members=1, devices=2, steps=1, wishes=(GROW,), faults=Faults(repeats=1)
    ),
    "a join into a job that comes to its next call": Case(
        members=1, devices=2, steps=2, call_ends=(1,), wishes=(GROW,)
    ),
    "a kill below the minimum": Case(
        devices=2, min_replicas=2, steps=1, faults=Faults(kills=1), is_prompt=True
    ),
    "a kill below the minimum, which is lowered then": Case(
        devices=2, min_replicas=2, max_replicas=2, steps=1, faults=Faults(kills=1), is_prompt=True,
        wishes=(PolicySet(policy=Policy(max_replicas=2, start_replicas=2)),),
    ),
    "a stop": Case(devices=2, wishes=(StopRequested(),), may_stop=True),
    "a stop and a broken collective": Case(
        devices=2, steps=3, wishes=(StopRequested(),), may_stop=True, faults=Faults(breaks=1),
        is_prompt=True,
    ),
    "a restore of a checkpoint that may be damaged": Case(
        members=0, devices=2, steps=3, storage=((1, 1), (2, 1)),
        faults=Faults(damages=1, kills=1), is_prompt=True,
    ),
    "a checkpoint and two kills": Case(
        members=1, devices=1, saves=1, faults=Faults(kills=2)
    ),
    "a coordinator that dies": Case(devices=2, steps=1, faults=Faults(restarts=1)),
    "a coordinator that dies while a replica joins": Case(
        members=1, devices=2, steps=1, wishes=(GROW,), faults=Faults(restarts=1), is_prompt=True
    ),
    "a coordinator that dies in the middle of what it says": Case(
        members=1, devices=2, steps=1, wishes=(GROW,), faults=Faults(crashes=1), is_prompt=True
    ),
    "two coordinators": Case(devices=2, steps=1, faults=Faults(overlaps=1)),
    "a coordinator that dies while the job ends": Case(
        devices=2, steps=1, faults=Faults(crashes=2)
    ),
    "a stop, and a coordinator that dies while the job ends": Case(
        members=1, devices=1, steps=2, wishes=(StopRequested(),), may_stop=True,
        faults=Faults(crashes=1, restarts=1),
    ),
    "a connection that breaks": Case(devices=2, steps=1, faults=Faults(drops=1)),
    "a join over a connection that breaks": Case(
        members=1, devices=1, others=(1,), steps=1, wishes=(GROW,), faults=Faults(drops=1),
        is_prompt=True,
    ),
    "a node that is cut off for ever": Case(
        devices=1, others=(2,), steps=2, faults=Faults(cuts=1), is_prompt=True
    ),
    "an agent that is started anew": Case(devices=2, steps=2, faults=Faults(reboots=1)),
    "a join, and an agent that is started anew": Case(
        members=1, devices=1, others=(1,), steps=1, wishes=(GROW,), faults=Faults(reboots=1),
        is_prompt=True,
    ),
    "an exit that is never reported": Case(
        devices=2, steps=1, faults=Faults(unreaped=1), is_prompt=True
    ),
    "two nodes and a coordinator that dies": Case(
        devices=1, others=(1,), steps=1, faults=Faults(restarts=1), is_prompt=True
    ),
    "two nodes at two coordinators": Case(
        devices=1, others=(1,), steps=1, faults=Faults(overlaps=1), is_prompt=True
    ),
    "nodes that do not reach each other any more": Case(
        devices=1, others=(1,), max_replicas=2, steps=1, faults=Faults(severs=1), is_prompt=True
    ),
    "an agent that lists what it runs, and a join": Case(
        members=1, devices=2, steps=1, wishes=(GROW,), faults=Faults(lists=1), is_prompt=True
    ),
    "a warm spare and a kill": Case(
        devices=3, spares=1, steps=1, faults=Faults(kills=1), is_prompt=True
    ),
    "a replica of which one worker hangs": Case(
        devices=2, steps=1, faults=Faults(stalls=1), is_prompt=True
    ),
    "a join where a worker of the only member hangs": Case(
        members=1, devices=2, steps=1, wishes=(GROW,), faults=Faults(stalls=1), is_prompt=True
    ),
    "slots that are divided by speed, a slow replica and a kill": Case(
        devices=2, steps=1, is_balanced=True, faults=Faults(slows=1, kills=1), is_prompt=True
    ),
    "two of three nodes that are cut off": Case(
        devices=1, others=(1, 1), members=3, steps=1, faults=Faults(cuts=2), is_prompt=True
    ),
    "an offer that shrinks and grows again": Case(
        devices=2, steps=1, wishes=(Offered(replicas=1), Offered(replicas=2)), is_prompt=True
    ),
    "a reclaim and a kill": Case(
        devices=2, steps=1, wishes=(Reclaimed(replicas=(R1,), notice_s=1000.0),),
        faults=Faults(kills=1), is_prompt=True, may_stop=True,
    ),
    "a kill, and a coordinator that dies holding": Case(
        members=1, devices=1, saves=1, faults=Faults(kills=1, restarts=1), is_prompt=True
    ),
    "a hang that ends": Case(
        devices=2, steps=1, faults=Faults(hangs=1, wakes=1, waits=4), is_prompt=True
    ),
    "a join, and a machine that sleeps and wakes": Case(
        members=1, devices=1, others=(1,), steps=1, wishes=(GROW,),
        faults=Faults(sleeps=1, wakes=1, waits=4), is_prompt=True,
    ),
    "a worker that hangs and goes on": Case(
        devices=2, steps=1, faults=Faults(stalls=1, wakes=1, waits=4), is_prompt=True
    ),
    "nodes that reach each other again": Case(
        devices=1, others=(1,), max_replicas=2, steps=1,
        faults=Faults(severs=1, mends=1, waits=4), is_prompt=True,
    ),
    "a join while a script keeps the interpreter lock": Case(
        members=1, devices=2, steps=1, wishes=(GROW,), faults=Faults(locks=1, wakes=1, waits=4),
        is_prompt=True,
    ),
    "two nodes whose agents are told to end": Case(
        devices=1, others=(1,), steps=1, faults=Faults(leavings=2), is_prompt=True
    ),
    "a coordinator that sleeps": Case(devices=2, steps=1, faults=Faults(naps=1), is_prompt=True),
}  # fmt: skip

SOAK = {
    "two nodes whose agents are told to end, and a checkpoint": Case(
        devices=1, others=(1,), saves=1, faults=Faults(leavings=2), is_prompt=True
    ),
    "two nodes whose agents are told to end, and a kill": Case(
        devices=1, others=(2,), steps=1, faults=Faults(leavings=2, kills=1), is_prompt=True
    ),
    "a leaver, and a hang that ends": Case(
        devices=2, wishes=(DRAIN,), faults=Faults(hangs=1, wakes=1, waits=4), is_prompt=True
    ),
    "a hang that ends, and a coordinator that dies": Case(
        devices=2, steps=1, faults=Faults(hangs=1, wakes=1, waits=4, restarts=1), is_prompt=True
    ),
    "a hang that ends while the members hold": Case(
        devices=2, min_replicas=2, steps=1, faults=Faults(kills=1, hangs=1, wakes=1, waits=4),
        is_prompt=True,
    ),
    "a hang that ends, a join and a next call": Case(
        members=1, devices=2, steps=2, call_ends=(1,), wishes=(GROW,),
        faults=Faults(hangs=1, wakes=1, waits=4), is_prompt=True,
    ),
    "a stop, and a hang that ends": Case(
        devices=2, wishes=(StopRequested(),), may_stop=True,
        faults=Faults(hangs=1, wakes=1, waits=4), is_prompt=True,
    ),
    "a machine that sleeps and wakes, and a kill": Case(
        devices=1, others=(2,), steps=1, faults=Faults(sleeps=1, kills=1, wakes=1, waits=4),
        is_prompt=True,
    ),
    "a machine that sleeps and wakes, a checkpoint and a kill": Case(
        members=1, devices=2, saves=1, faults=Faults(sleeps=1, kills=1, wakes=1, waits=5),
        is_prompt=True,
    ),
    "a machine that sleeps and wakes, and two coordinators": Case(
        devices=1, others=(1,), steps=1, faults=Faults(sleeps=1, overlaps=1, wakes=1, waits=4),
        is_prompt=True,
    ),
    "a machine that sleeps and wakes, a join and a coordinator that dies in the middle": Case(
        members=1, devices=1, others=(1,), steps=1, wishes=(GROW,),
        faults=Faults(sleeps=1, crashes=1, wakes=1, waits=4), is_prompt=True,
    ),
    "three nodes of which two reach each other again": Case(
        devices=1, others=(1, 1), members=3, steps=1, faults=Faults(severs=1, mends=1, waits=5),
        is_prompt=True,
    ),
    "nodes that reach each other again, of which both are needed": Case(
        devices=1, others=(1,), min_replicas=2, max_replicas=2, steps=1,
        faults=Faults(severs=1, mends=1, waits=6), is_prompt=True,
    ),
    "a script that keeps the interpreter lock, and a kill": Case(
        devices=2, steps=1, faults=Faults(locks=1, kills=1, wakes=1, waits=4), is_prompt=True
    ),
    "a script that keeps the interpreter lock, and a leaver": Case(
        devices=2, wishes=(DRAIN,), faults=Faults(locks=1, wakes=1, waits=3), is_prompt=True
    ),
    "a script that keeps the interpreter lock, and a coordinator that dies": Case(
        devices=2, steps=1, faults=Faults(locks=1, restarts=1, wakes=1, waits=4), is_prompt=True
    ),
    "a kill below the minimum, and a spare whose script keeps the lock on its way": Case(
        devices=2, min_replicas=2, steps=2, call_ends=(1,), faults=Faults(kills=1, locks=1),
        is_prompt=True,
    ),
    "a coordinator that sleeps, a join and a kill": Case(
        members=1, devices=2, steps=1, wishes=(GROW,), faults=Faults(naps=1, kills=1),
        is_prompt=True,
    ),
    "a slow replica whose place a spare takes": Case(
        devices=3, spares=1, steps=1, replaces_slow=True, faults=Faults(slows=1, ticks=2),
        is_prompt=True,
    ),
    "slots that are divided by speed, a join and a kill": Case(
        members=1, devices=2, steps=2, is_balanced=True, wishes=(GROW,),
        faults=Faults(slows=1, kills=1), is_prompt=True,
    ),
    "a worker that hangs while the members hold": Case(
        devices=2, min_replicas=2, steps=1, faults=Faults(kills=1, stalls=1), is_prompt=True
    ),
    "a replica of which one worker hangs, and a coordinator that dies": Case(
        devices=2, steps=1, faults=Faults(stalls=1, restarts=1), is_prompt=True
    ),
    "three nodes of which two do not reach each other, and a kill": Case(
        devices=1, others=(1, 1), members=3, steps=1, faults=Faults(severs=1, kills=1),
        is_prompt=True,
    ),
    "nodes that do not reach each other, and a coordinator that dies": Case(
        devices=1, others=(2,), members=3, steps=1, faults=Faults(severs=1, restarts=1),
        is_prompt=True,
    ),
    "lists, a kill and a coordinator that dies": Case(
        devices=2, steps=1, faults=Faults(lists=2, kills=1, restarts=1), is_prompt=True
    ),
    "a sign of life that is late, and a kill": Case(
        devices=2, steps=1, faults=Faults(beats=1, kills=1), is_prompt=True
    ),
    "two connections that break": Case(
        members=1, devices=1, others=(1,), steps=1, wishes=(GROW,), faults=Faults(drops=2)
    ),
    "a connection that breaks, and a kill": Case(
        devices=1, others=(2,), steps=1, faults=Faults(drops=1, kills=1), is_prompt=True
    ),
    "a connection that breaks for longer than a node may be away": Case(
        devices=1, others=(2,), steps=1, faults=Faults(drops=1, ticks=1), is_prompt=True
    ),
    "a node that is cut off, and a coordinator that dies": Case(
        devices=1, others=(1,), steps=1, faults=Faults(cuts=1, restarts=1), is_prompt=True
    ),
    "a join, two nodes and two coordinators": Case(
        members=1, devices=1, others=(1,), steps=1, wishes=(GROW,), faults=Faults(overlaps=1),
        is_prompt=True,
    ),
    "three members and two kills": Case(
        members=3, devices=3, steps=1, faults=Faults(kills=2), is_prompt=True
    ),
    "three members, a kill and a broken collective": Case(
        members=3, devices=3, steps=1, faults=Faults(kills=1, breaks=1), is_prompt=True
    ),
    "three members and a kill, every order of messages": Case(
        members=3, devices=3, steps=1, faults=Faults(kills=1)
    ),
    "two members, a joiner and a kill": Case(
        wishes=(Scaled(target=3),), steps=1, faults=Faults(kills=1), is_prompt=True
    ),
    "a joiner, a leaver and a kill": Case(
        wishes=(Scaled(target=3), DRAIN), steps=1, faults=Faults(kills=1), is_prompt=True
    ),
    "a leaver and a kill": Case(devices=2, wishes=(DRAIN,), faults=Faults(kills=1)),
    "two kills": Case(devices=2, faults=Faults(kills=2)),
    "two kills below the minimum": Case(
        min_replicas=2, steps=1, faults=Faults(kills=2)
    ),
    "a join and a kill, nothing reduced": Case(
        members=1, devices=2, wishes=(GROW,), faults=Faults(kills=1), is_eager=False
    ),
    "a join, a next call and a kill": Case(
        members=1, devices=2, steps=2, call_ends=(1,), wishes=(GROW,), faults=Faults(kills=1)
    ),
    "two members, a joiner, a next call and a kill": Case(
        steps=2, call_ends=(1,), wishes=(Scaled(target=3),), faults=Faults(kills=1), is_prompt=True
    ),
    "a join, a next call and a broken collective": Case(
        members=1, devices=2, steps=2, call_ends=(1,), wishes=(GROW,), faults=Faults(breaks=1)
    ),
    "a hang and a kill": Case(devices=2, steps=1, faults=Faults(hangs=1, kills=1)),
    "a leaver and a hang": Case(devices=2, wishes=(DRAIN,), faults=Faults(hangs=1)),
    "a join and two coordinators": Case(
        members=1, devices=2, steps=1, wishes=(GROW,), faults=Faults(overlaps=1), is_prompt=True
    ),
    "two coordinators, one after the other": Case(
        devices=2, steps=1, faults=Faults(restarts=2)
    ),
    "a kill and a coordinator that dies": Case(
        devices=2, steps=1, faults=Faults(kills=1, restarts=1)
    ),
    "a kill and a coordinator that dies in the middle": Case(
        devices=2, steps=1, faults=Faults(kills=1, crashes=1)
    ),
    "a kill and two coordinators": Case(devices=2, steps=1, faults=Faults(kills=1, overlaps=1)),
    "a join, a kill and a coordinator that dies in the middle": Case(
        members=1, devices=2, steps=1, wishes=(GROW,), faults=Faults(kills=1, crashes=1)
    ),
    "a join, a message that arrives twice and a coordinator that dies in the middle": Case(
        members=1, devices=2, steps=1, wishes=(GROW,), faults=Faults(crashes=1, repeats=1)
    ),
    "a leaver and a coordinator that dies in the middle": Case(
        devices=2, steps=1, wishes=(DRAIN,), faults=Faults(crashes=1)
    ),
    "a leaver, a kill and a coordinator that dies": Case(
        devices=2, steps=1, wishes=(DRAIN,), faults=Faults(kills=1, restarts=1)
    ),
    "a checkpoint, two kills and two coordinators": Case(
        devices=2, saves=1, faults=Faults(kills=2, overlaps=1), is_prompt=True
    ),
    "a checkpoint, two kills and a coordinator that dies in the middle": Case(
        devices=2, saves=1, faults=Faults(kills=2, crashes=1), is_prompt=True
    ),
    "two checkpoints, three kills and a damage": Case(
        members=1, devices=1, saves=2, faults=Faults(kills=3, damages=1)
    ),
    "a hold and a coordinator that dies": Case(
        devices=2, min_replicas=2, steps=1, faults=Faults(kills=1, restarts=1), is_prompt=True
    ),
    "three members, a kill and a coordinator that dies": Case(
        members=3, devices=3, steps=1, faults=Faults(kills=1, restarts=1), is_prompt=True
    ),
    "a join, a next call and a coordinator that dies": Case(
        members=1, devices=2, steps=2, call_ends=(1,), wishes=(GROW,), faults=Faults(restarts=1)
    ),
    "a stop and a coordinator that dies": Case(
        devices=2, wishes=(StopRequested(),), may_stop=True, faults=Faults(restarts=1)
    ),
    "a hang and a coordinator that dies": Case(
        devices=2, steps=1, faults=Faults(hangs=1, restarts=1)
    ),
    "a restore, a kill and a coordinator that dies": Case(
        members=0, devices=2, steps=3, storage=((1, 1), (2, 1)),
        faults=Faults(damages=1, kills=1, restarts=1), is_prompt=True,
    ),
    "everything once": Case(
        members=1, devices=2, steps=1, wishes=(GROW,),
        faults=Faults(kills=1, breaks=1, ticks=1, repeats=1), is_prompt=True,
    ),
}  # fmt: skip


@pytest.mark.parametrize("name", DEFAULT)
def test_every_state_keeps_the_invariants_and_silence_ends(name: str) -> None:
    report = run(DEFAULT[name])
    sys.stdout.write(f"{name}: {report}\n")

    assert not report.violation, f"{report}"
    assert report.states > 50


@pytest.mark.soak
@pytest.mark.timeout(1800)
@pytest.mark.parametrize("name", SOAK)
def test_every_state_of_a_larger_bound_keeps_them_too(name: str) -> None:
    report = run(SOAK[name], max_states=400_000)
    sys.stdout.write(f"{name}: {report}\n")

    assert not report.violation, f"{report}"


def test_a_walk_through_a_world_in_which_anything_happens_ends_in_time() -> None:
    """The first of them, always the same: a failure names its seed."""
    walks = walk_many(range(60))
    sys.stdout.write(f"{walks}\n")

    assert not walks.violation, f"{walks}"
    assert walks.faults > 60


@pytest.mark.soak
@pytest.mark.timeout(7200)
def test_other_walks_end_in_time_too() -> None:
    first = int(os.environ.get("SEED") or random.randrange(1_000_000_000))
    walks = walk_many(range(first, first + int(os.environ.get("CASES") or 20_000)))
    sys.stdout.write(f"{walks}\n")

    assert not walks.violation, f"{walks}"


def test_a_walk_in_which_what_stops_goes_on_ends_in_time() -> None:
    walks = walk_many(range(20), most_of=SLEEPERS)
    sys.stdout.write(f"{walks}\n")

    assert not walks.violation, f"{walks}"
    assert walks.faults > 20


@pytest.mark.soak
@pytest.mark.timeout(7200)
def test_other_walks_in_which_what_stops_goes_on_end_in_time_too() -> None:
    first = int(os.environ.get("SEED") or random.randrange(1_000_000_000))
    seeds = range(first, first + int(os.environ.get("CASES") or 20_000))
    walks = walk_many(seeds, most_of=SLEEPERS)
    sys.stdout.write(f"{walks}\n")

    assert not walks.violation, f"{walks}"


def test_a_bound_that_was_reached_is_reported() -> None:
    report = run(Case(devices=2, steps=1, faults=Faults(kills=1)), max_states=50)

    assert not report.complete
    assert "(bounded)" in str(report)


def test_a_counterexample_is_told_step_by_step() -> None:
    """The universe is told of fewer devices than the controller: it starts one too many."""
    universe, start = prepare(Case(members=1, devices=2, steps=1, wishes=(GROW,)))
    universe.nodes = (1,)

    report = explore(universe, start)

    assert report.violation == "VIOLATION: r2 started while all 1 devices run a process"
    assert report.trace.splitlines() == [
        "from 1 replicas, faults: none",
        "  someone asks: Scaled(2)",
        "      -> StartReplica(r2 n1)",
        "  r2 started while all 1 devices run a process",
    ]
