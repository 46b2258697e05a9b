"""Random walks through worlds that are too large to be searched: many faults, many replicas.

A walk draws what may go wrong and what people ask for, takes so many steps at random, and then must
end like any state of a search: without further faults, in a bounded time of its world.
"""

from __future__ import annotations

import random
import time
from dataclasses import dataclass, field, replace
from functools import partial

from tests.core.explorer.cases import Case, prepare
from tests.core.explorer.coordinator import tick
from tests.core.explorer.generator import actions
from tests.core.explorer.search import brief, end_fairly, story_of_end, told
from tests.core.explorer.universe import Universe
from tests.core.explorer.world import NO_FAULTS, Faults, Violation, World

from pliant.core.events import DrainRequested, Event, Offered, Reclaimed, Scaled
from pliant.core.values import ReplicaId

FAULT_SHARE = 0.2
"""How often a step is a fault, while there are any left."""

PATIENCE_SHARE = 0.5
"""How often time passes first where nothing else can happen and something may yet go wrong: what
wakes then wakes late."""

MOST_OF = Faults(
    kills=2, hangs=1, breaks=1, ticks=1, repeats=2, restarts=1, crashes=1, overlaps=1, damages=1,
    drops=2, cuts=2, reboots=1, unreaped=1, beats=2, lists=3, severs=2, slows=2, stalls=1, locks=1,
    mends=2, sleeps=2, wakes=3, naps=1, leavings=2,
)  # fmt: skip
"""How many of each kind a walk may meet."""


SLEEPERS = Faults(
    kills=1, hangs=2, breaks=1, repeats=1, restarts=1, crashes=1, drops=1, severs=2, stalls=1,
    mends=2, sleeps=2, wakes=4, naps=1, overlaps=1, lists=2, damages=1, locks=2,
)  # fmt: skip
"""The same for walks in which most of what stops goes on."""


@dataclass
class Walks:
    """What was walked."""

    walks: int = 0
    states: set[World] = field(default_factory=set)
    faults: int = 0
    slowest_s: int = 0
    seconds: float = 0.0
    violation: str = ""

    def __str__(self) -> str:
        found = f"\n{self.violation}" if self.violation else ""
        return (
            f"{self.walks} walks with {self.faults} faults, {len(self.states)} states, slowest end "
            f"{self.slowest_s} s after the last fault, {self.seconds:.1f} s{found}"
        )


def walk_many(seeds: range, *, steps: int = 120, most_of: Faults = MOST_OF) -> Walks:
    """Walk once for each seed; stop at the first violation."""
    found, began = Walks(), time.perf_counter()
    for seed in seeds:
        walk(seed, found, steps=steps, most_of=most_of)
        found.walks += 1
        if found.violation:
            break
    found.seconds = time.perf_counter() - began
    return found


def walk(seed: int, found: Walks, *, steps: int, most_of: Faults) -> None:
    """Walk once, with what this seed draws."""
    drawn = random.Random(seed)
    case = draw_case(drawn, most_of)
    universe, world = prepare(case)
    labels = [f"seed {seed}: {replace(case, faults=NO_FAULTS)}", f"  {case.faults}"]
    try:
        for _ in range(drawn.randint(5, steps)):
            if world.ended is not None:
                break
            following = _step(universe, world, drawn, labels)
            found.faults += sum(world.faults) - sum(following.faults)
            world = following
            found.states.add(world)
        found.slowest_s = max(found.slowest_s, end_fairly(universe, world, {}))
    except Violation as violation:
        end = story_of_end(universe, world)
        found.violation = "\n".join([f"VIOLATION: {violation}", *labels, *end])


def _step(universe: Universe, world: World, drawn: random.Random, labels: list[str]) -> World:
    calm = list(actions(universe, world._replace(faults=NO_FAULTS)))
    wild = []
    if any(world.faults) and (not calm or drawn.random() < FAULT_SHARE):
        known = {label for label, _ in calm}
        wild = [one for one in actions(universe, world) if one[0] not in known]
    if not calm and (not wild or drawn.random() < PATIENCE_SHARE):
        wild = [(("time passes",), partial(tick, universe, world))]
    label, act = drawn.choice(wild or calm)
    labels.append(f"  {told(label)}")
    universe.said.clear()
    after = universe.tidy(act())
    labels.extend(f"      -> {brief(command)}" for command in universe.said)
    return after if wild else after._replace(faults=world.faults)


def draw_case(drawn: random.Random, most_of: Faults) -> Case:
    """Draw a job, what people and the outside ask of it, and what may go wrong."""
    sizes = drawn.choice([(3,), (2, 2), (1, 2), (2, 1, 1), (1, 1, 1)])
    members = drawn.randint(1, sum(sizes))
    kinds = drawn.sample([k for k in Faults._fields if getattr(most_of, k)], drawn.randint(1, 5))
    faults = Faults(**{kind: drawn.randint(1, getattr(most_of, kind)) for kind in kinds})
    faults = _with_ends(drawn, faults, most_of)
    is_balanced, is_watched = drawn.random() < 0.3, bool(faults.slows) and drawn.random() < 0.7
    wishes = tuple(_draw_wish(drawn, members) for _ in range(drawn.randint(0, 2)))
    return Case(
        members=members,
        devices=sizes[0],
        others=sizes[1:],
        # Where nodes that hold the state are apart, the budget bounds the trying to be two.
        min_replicas=drawn.choice([1, 2]) if members > 1 and not faults.severs else 1,
        max_replicas=4,
        spares=1 if is_watched else drawn.choice([0, 0, 0, 1]),
        steps=drawn.randint(1, 24 if is_balanced else 5),
        is_balanced=is_balanced,
        replaces_slow=is_watched,
        call_ends=drawn.choice([(), (), (1,)]),
        wishes=wishes,
        saves=drawn.choice([0, 0, 1, 2]),
        faults=faults,
        is_prompt=drawn.random() < 0.5,
        is_eager=drawn.random() < 0.8,
        may_stop=True,
    )


def _with_ends(drawn: random.Random, faults: Faults, most_of: Faults) -> Faults:
    """Let what ends begin, and mostly end what could."""
    rests = ("hangs", "stalls", "sleeps", "locks")
    if faults.wakes and not any(getattr(faults, kind) for kind in rests):
        faults = faults._replace(**{drawn.choice(rests): 1})
    if faults.mends and not faults.severs:
        faults = faults._replace(severs=1)
    if most_of.wakes and any(getattr(faults, kind) for kind in rests) and drawn.random() < 0.7:
        faults = faults._replace(wakes=drawn.randint(1, most_of.wakes))
    if most_of.mends and faults.severs and drawn.random() < 0.7:
        faults = faults._replace(mends=drawn.randint(1, most_of.mends))
    return faults


def _draw_wish(drawn: random.Random, members: int) -> Event:
    name = ReplicaId(f"r{drawn.randint(1, members)}")
    wishes: list[Event] = [
        Scaled(target=drawn.randint(1, 4)),
        DrainRequested(replica=name, notice_s=drawn.choice([5.0, 1000.0])),
        Offered(replicas=drawn.randint(1, 4), notice_s=drawn.choice([None, 5.0])),
        Reclaimed(replicas=(name,), notice_s=drawn.choice([5.0, 1000.0])),
    ]
    return drawn.choice(wishes)
