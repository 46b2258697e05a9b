"""Whatever happens to a pool, in any order and with claimants that take their time, holds.

Claimants here obey late, in pieces, or only when their notice is over.  After every event the
incremental pool is compared with one that is computed from scratch (``allocation_oracle``).
"""

from __future__ import annotations

import math
from collections.abc import Callable
from dataclasses import dataclass, field, replace
from typing import Any

import pytest
from hypothesis import HealthCheck, settings
from hypothesis import strategies as st
from hypothesis.stateful import RuleBasedStateMachine, initialize, invariant, precondition, rule
from tests.core.allocation.oracle import Oracle, Want, rebuilt, recomputed

from pliant.core.allocation import (
    Action,
    Asked,
    Claim,
    ClassSet,
    Cordoned,
    DevicesSet,
    Drained,
    Event,
    Grant,
    Opened,
    Overdue,
    Pool,
    PoolRules,
    PriorityClass,
    Reclaim,
    Recovered,
    Refuse,
    Released,
    Shrink,
    Suspend,
    Team,
    TeamSet,
    TimePassed,
    Uncordoned,
    Withdrawn,
    new_pool,
    next_deadline_s,
    standing,
    step,
    summary,
    why,
)
from pliant.core.allocation import decide as inside
from pliant.core.allocation.draft import Draft
from pliant.core.allocation.state import EXPECTING, ClaimEntry
from pliant.core.tenancy import Kind

pytestmark = pytest.mark.timeout(120)

NAMES = tuple("abcdefg")
CLASSES = ("urgent", "high", "normal", "low")
SIZES = st.sampled_from([None, None, None, (1, 2, 4, 8), (2, 3, 6), (2, 4, 6, 8)])

reclaims = st.builds(
    Reclaim,
    from_=st.sampled_from(["lower_priority", "lower_priority", "same_team", "never"]),
    by=st.none() | st.sampled_from([("urgent",), ("high", "urgent"), ()]),
)
limits = st.none() | st.integers(0, 8)
teams = st.builds(
    Team, name=st.sampled_from("xy"), quota=limits, borrow_limit=limits, reclaim=reclaims
)


@st.composite
def claims(draw: st.DrawFn) -> Claim:
    low = draw(st.integers(1, 4))
    kind: Kind = draw(st.sampled_from(["elastic", "elastic", "fixed"]))
    return Claim(
        name=draw(st.sampled_from(NAMES)),
        team=draw(st.sampled_from(["default", "x", "y"])),
        priority=draw(st.sampled_from(CLASSES)),
        kind=kind,
        min_replicas=low,
        ask_replicas=low if kind == "fixed" else draw(st.integers(low, 9) | st.just(0)),
        sizes=None if kind == "fixed" else draw(SIZES),
        num_slots=draw(st.sampled_from([None, None, 8, 12])),
        can_suspend=draw(st.booleans()),
        notice_s=draw(st.sampled_from([1.0, 30.0])),
        since=float(draw(st.integers(0, 5))),
    )


@dataclass
class Claimant:
    """What a claimant knows: only what it was told."""

    devices: set[int] = field(default_factory=set)
    to: int = 0
    must: set[int] = field(default_factory=set)
    is_suspended: bool = False

    @property
    def excess(self) -> int:
        return len(self.devices) - self.to


class PoolMachine(RuleBasedStateMachine):
    """Events in any order, and what must hold after each."""

    def __init__(self) -> None:
        super().__init__()
        self.now_s = 0.0
        self.pool = new_pool(0)
        self.claimants: dict[str, Claimant] = {}
        self.is_settled = True

    # --- the world

    @initialize(
        size=st.integers(1, 10),
        rules=st.sampled_from(
            [
                PoolRules(),
                PoolRules(rest_s=0.0),
                PoolRules(min_gain=0.01, rest_s=5.0),
                PoolRules(patience_s=4.0),
            ]
        ),
        of_x=teams,
        of_y=teams,
    )
    def opens(self, size: int, rules: PoolRules, of_x: Team, of_y: Team) -> None:
        both = (replace(of_x, name="x"), replace(of_y, name="y"))
        self.pool = new_pool(size, teams=both, rules=rules)

    @rule(claim=claims())
    def asks(self, claim: Claim) -> None:
        if self.is_ghost(claim.name):
            return
        self.apply(Asked(claim=claim))

    @rule(claim=claims(), data=st.data())
    def asks_for_more_or_less(self, claim: Claim, data: st.DataObject) -> None:
        known = standing(self.pool, claim.name)
        if known is None or known.is_withdrawn or known.claim.kind == "fixed":
            return
        ask = data.draw(st.integers(known.claim.min_replicas, 9))
        self.apply(Asked(claim=replace(known.claim, ask_replicas=ask)))

    @rule(name=st.sampled_from(NAMES), slowly=st.booleans())
    def leaves(self, name: str, slowly: bool) -> None:
        self.apply(Withdrawn(name=name))
        if name in self.claimants:
            self.claimants[name].to = 0
            if not slowly:
                self.gives_all(name)

    @rule(data=st.data())
    def obeys_in_part(self, data: st.DataObject) -> None:
        owing = [name for name, one in self.claimants.items() if one.excess > 0]
        if owing:
            name = data.draw(st.sampled_from(sorted(owing)))
            count = data.draw(st.integers(1, self.claimants[name].excess))
            self.gives(name, count, last=data.draw(st.booleans()))

    @rule()
    def everybody_obeys(self) -> None:
        for name, one in list(self.claimants.items()):
            if one.excess > 0:
                self.gives(name, one.excess)

    @rule(name=st.sampled_from(NAMES), device=st.integers(0, 9))
    def loses_a_device(self, name: str, device: int) -> None:
        if name in self.claimants:
            self.claimants[name].devices.discard(device)
            self.claimants[name].must.discard(device)
        self.apply(Released(name=name, devices=(device,)))

    @rule(count=st.integers(0, 10))
    def capacity_changes(self, count: int) -> None:
        self.apply(DevicesSet(count=count))

    @rule(kind=st.sampled_from([Cordoned, Drained, Uncordoned, Uncordoned]), data=st.data())
    def device_is_marked(self, kind: Callable[..., Event], data: st.DataObject) -> None:
        if self.pool.size:
            devices = st.sets(st.integers(0, self.pool.size - 1), min_size=1, max_size=2)
            chosen = tuple(sorted(data.draw(devices)))
            if kind is Uncordoned:
                self.apply(Uncordoned(devices=chosen))
            else:
                self.apply(kind(devices=chosen, note=data.draw(st.sampled_from(["", "by ada"]))))

    @rule(team=teams)
    def team_changes(self, team: Team) -> None:
        limit = math.inf if team.borrow_limit is None else (team.quota or 0) + team.borrow_limit
        bases = [
            entry.base
            for _, entry in self.pool.entries.items()
            if entry.claim.team == team.name and not entry.is_withdrawn
        ]
        if max(bases, default=0) <= limit:
            self.apply(TeamSet(team=team))

    @rule(name=st.sampled_from(CLASSES), value=st.sampled_from([1000, 100, 50, 0, -100]))
    def class_changes(self, name: str, value: int) -> None:
        self.apply(ClassSet(priority=PriorityClass(name=name, value=value)))

    @rule(after_s=st.sampled_from([0.5, 2.0, 10.0, 100.0]))
    def time_passes(self, after_s: float) -> None:
        self.now_s += after_s
        self.apply(TimePassed())

    @precondition(lambda self: len(self.claimants) > 1)
    @rule()
    def pool_restarts(self) -> None:
        """A new pool learns from its file and from reports who holds what.

        Limits may have come between a claim that is gone and what it still holds: it is refused,
        and its devices are cordoned, as those of any stranger.
        """
        old = self.pool
        self.pool = new_pool(
            old.size,
            classes=old.classes.values(),
            teams=old.teams.values(),
            rules=old.rules,
            is_open=False,
        )
        self.apply(DevicesSet(count=old.limit))
        if old.cordoned:
            cordoned = tuple(d for d in range(old.size) if old.cordoned >> d & 1)
            self.apply(Cordoned(devices=cordoned))
        for name, one in list(self.claimants.items()):
            known = standing(old, name)
            if known is None:
                continue
            event = Recovered(
                claim=known.claim,
                devices=tuple(sorted(one.devices)),
                is_suspended=known.is_suspended and not one.devices,
            )
            if any(isinstance(action, Refuse) for action in self.apply(event)):
                assert known.is_withdrawn
                self.apply(Cordoned(devices=tuple(sorted(one.devices))))
                del self.claimants[name]
                continue
            one.must = set()
            one.to = self.standing(name).replicas
            one.is_suspended = self.standing(name).is_suspended
            if known.is_withdrawn:
                self.apply(Withdrawn(name=name))
                one.to = 0
        self.apply(Opened())

    # --- everything comes to rest

    @rule()
    def comes_to_rest(self) -> None:
        """Under constant input, with everybody obeying: a bounded number of actions, then none."""
        actions = 0
        for _ in range(200):
            owing = [name for name, one in self.claimants.items() if one.excess > 0]
            for name in owing:
                actions += len(self.gives(name, self.claimants[name].excess))
            deadline_s = next_deadline_s(self.pool)
            if not owing and deadline_s == math.inf:
                break
            if not owing:
                self.now_s = max(self.now_s, deadline_s)
                actions += len(self.apply(TimePassed()))
        else:
            pytest.fail(f"never at rest after {actions} actions")
        bound = 4 * (len(self.claimants) + 1) * (self.pool.size + 1)
        assert actions <= bound
        self.now_s += 10_000
        assert self.apply(TimePassed()) == ()
        self.nobody_waits_in_vain()

    def nobody_waits_in_vain(self) -> None:
        """At rest: everybody has its share, and what is idle is of no use to anybody who asks.

        Where more is promised than there is, as a claim that cannot be cut has lost devices, the
        first who misses some waits for all of them: a minimum comes whole, and sizes as they are.
        """
        missing = any(entry.share > entry.keeps for _, entry in self.pool.entries.items())
        assert self.slack < 0 or not missing
        for *_, first in list(self.pool.lists[EXPECTING].get((), ()))[:1]:
            entry = self.pool.entries.get(first)
            assert entry is not None
            reach = entry.keeps + self.num_free
            assert reach < entry.share
            assert entry.fit(reach) <= entry.keeps
        told = summary(self.pool)
        assert told.share <= told.usable or not self.pool.takeable

    # --- what always holds

    @invariant()
    def every_device_has_one_holder(self) -> None:
        held = [device for one in self.claimants.values() for device in one.devices]
        assert len(held) == len(set(held))
        assert all(device < self.pool.size for device in held)
        for name, one in self.claimants.items():
            known = standing(self.pool, name)
            assert (set(known.devices) if known else set()) == one.devices

    @invariant()
    def nothing_is_promised_twice(self) -> None:
        if self.pool.is_open:
            assert self.slack >= 0 or not self.pool.takeable

    @invariant()
    def claimants_were_told_what_the_pool_thinks(self) -> None:
        for name, one in self.claimants.items():
            known = standing(self.pool, name)
            if known is not None and not known.is_withdrawn and self.pool.is_open:
                assert not one.to or one.must >= set(known.drain)
                assert one.to == known.replicas or one.excess <= 0
                assert one.is_suspended == known.is_suspended or not one.to

    @invariant()
    def quotas_are_kept(self) -> None:
        if not self.pool.is_open:
            return
        for use in summary(self.pool).teams:
            team = use.team
            if team.borrow_limit is None:
                continue
            if use.share > (team.quota or 0) + team.borrow_limit:
                assert not [one for one in self.pool.takeable if one[1] == team.name]

    @invariant()
    def minimums_are_whole(self) -> None:
        for _, entry in self.pool.entries.items():
            if entry.claim.kind == "fixed" and not entry.is_withdrawn:
                assert entry.share <= entry.claim.min_replicas

    @invariant()
    def nobody_who_fits_waits(self) -> None:
        """Work conserving, at every moment: what nobody has is of no use to whoever asks."""
        if not self.pool.is_open:
            return
        oracle = Oracle(self.pool, self.pool, now_s=self.now_s)
        for want in oracle.wants():
            team = want.entry.claim.team
            fits = want.count <= min(oracle.slack, oracle.limit(team) - oracle.used(team))
            assert not fits or oracle.is_held_back(want)

    @invariant()
    def no_priority_is_inverted(self) -> None:
        """Nobody waits for a minimum that idle devices and those it may take would make up."""
        if not self.pool.is_open:
            return
        oracle = Oracle(self.pool, self.pool, now_s=self.now_s)
        for want in oracle.wants():
            team = want.entry.claim.team
            if not want.minimum or oracle.is_held_back(want):
                continue
            room = oracle.limit(team) - oracle.used(team)
            rule_ = self.pool.teams[team].reclaim
            may = rule_.from_ != "never" and (
                rule_.by is None or want.entry.claim.priority in rule_.by
            )
            if may and want.count <= room:
                below = sum(yields(one, want) for one in oracle.entries.values())
                assert want.count > oracle.slack + below

    @invariant()
    def the_lists_are_those_of_the_claims(self) -> None:
        assert rebuilt(self.pool) == self.pool

    @invariant()
    def everything_can_be_explained(self) -> None:
        for name in NAMES:
            assert "\n" not in why(self.pool, name)
        cordoned = {device for device in range(self.pool.size) if self.pool.cordoned >> device & 1}
        assert self.pool.notes.keys() <= cordoned, "who is back is not explained away"

    # --- helpers

    @property
    def num_free(self) -> int:
        """Devices that could be handed out now."""
        pool = self.pool
        taken = pool.held | pool.cordoned
        free = pool.size - (taken & ((1 << pool.size) - 1)).bit_count()
        return max(0, min(free, pool.limit - (pool.held & ~pool.drained).bit_count()))

    @property
    def slack(self) -> int:
        told = summary(self.pool)
        return told.usable - told.share

    def standing(self, name: str) -> Any:
        found = standing(self.pool, name)
        assert found is not None
        return found

    def is_ghost(self, name: str) -> bool:
        known = standing(self.pool, name)
        return known is not None and known.is_withdrawn

    def apply(self, event: Event) -> tuple[Action, ...]:
        before = self.pool
        self.pool, actions = step(before, event, now_s=self.now_s)
        assert step(before, event, now_s=self.now_s) == (self.pool, actions)  # pure
        applied = decided_later(before, event, now_s=self.now_s)
        expected = recomputed(applied, before, now_s=self.now_s)
        shares = {
            name: entry.share for name, entry in self.pool.entries.items() if not entry.is_withdrawn
        }
        assert shares == expected, (
            shares,
            expected,
            {n: e.share for n, e in before.entries.items()},
        )
        if self.pool.is_open:
            for action in actions:
                self.hear(action, before)
        return actions

    def hear(self, action: Action, before: Pool) -> None:
        assert "\n" not in action.reason
        if isinstance(action, Refuse | Overdue):
            return
        one = self.claimants.setdefault(action.name, Claimant())
        known = self.standing(action.name)
        match action:
            case Grant():
                assert not one.devices & set(action.devices)
                assert not any(self.pool.cordoned >> device & 1 for device in action.devices)
                one.devices |= set(action.devices)
                one.to = action.to
                one.is_suspended = False
                assert action.to >= known.claim.min_replicas or action.to == known.share
            case Shrink():
                kept = one.devices - one.must
                one.to = action.to
                one.must |= set(action.devices)
                assert one.must <= one.devices
                if 0 < action.to < known.claim.min_replicas:
                    assert len(kept) < known.claim.min_replicas or known.share <= action.to, kept
                self.is_needed(action, before)
            case Suspend():
                assert known.claim.can_suspend
                one.to = 0
                one.is_suspended = True

    def is_needed(self, action: Shrink, before: Pool) -> None:
        """What is taken for somebody is not more than that one gets, where sizes are free."""
        if not action.for_ or self.standing(action.name).claim.sizes is not None:
            return
        victim = before.entries.get(action.name)
        taker = before.entries.get(action.for_)
        assert victim is not None
        gained = self.standing(action.for_).share - (taker.share if taker else 0)
        assert victim.share - self.standing(action.name).share <= gained or self.slack == 0

    def gives(self, name: str, count: int, *, last: bool = False) -> tuple[Action, ...]:
        one = self.claimants[name]
        order = sorted(one.devices - one.must, reverse=not last)
        back = (sorted(one.must & one.devices) + order)[:count]
        one.devices -= set(back)
        one.must -= set(back)
        return self.apply(Released(name=name, devices=tuple(back)))

    def gives_all(self, name: str) -> None:
        one = self.claimants.pop(name)
        self.apply(Released(name=name, devices=tuple(one.devices)))


def yields(one: ClaimEntry, want: Want) -> int:
    """What a claim of the same team would have to give to somebody below its minimum."""
    if one.claim.team != want.entry.claim.team or one.value > want.entry.value:
        return 0
    is_droppable = one.claim.can_suspend or not one.held
    if one.value < want.entry.value and is_droppable:
        return one.share
    return max(0, one.share - one.base)


def decided_later(before: Pool, event: Event, *, now_s: float) -> Pool:
    """Return the pool with the event applied and nothing decided yet."""
    draft = Draft(before, now_s=now_s)
    inside._wake(draft)
    inside._apply(draft, event)
    return draft.pool()


TestPool = PoolMachine.TestCase
TestPool.settings = settings(
    max_examples=25,
    stateful_step_count=25,
    deadline=None,
    suppress_health_check=list(HealthCheck),
)


@pytest.mark.soak
@pytest.mark.timeout(3600)
def test_nothing_breaks_a_pool_in_the_long_run() -> None:
    from hypothesis.stateful import run_state_machine_as_test

    run_state_machine_as_test(
        PoolMachine,
        settings=settings(
            max_examples=1_000,
            stateful_step_count=50,
            deadline=None,
            suppress_health_check=list(HealthCheck),
        ),
    )
