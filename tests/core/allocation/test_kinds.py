"""A pool of several kinds is one pool for each, whatever happens to it."""

from __future__ import annotations

from typing import Any

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from pliant.core.allocation import (
    Action,
    Asked,
    Claim,
    Cordoned,
    Drained,
    Grant,
    Recovered,
    Refuse,
    Released,
    Team,
    TeamSet,
    TimePassed,
    Uncordoned,
    Withdrawn,
    kinds,
    new_pool,
    standing,
    step,
    summary,
)
from pliant.core.allocation.kinds import KindedPool, PoolBeginning
from pliant.core.errors import ConfigError

KINDS = ("cuda", "cpu", "cuda", "cpu", "cuda")


def idle(kinds_: tuple[str, ...]) -> KindedPool:
    return kinds.begun(PoolBeginning(devices=len(kinds_), kinds=kinds_), now_s=0.0)


def tell(pool: KindedPool, event: Any, now_s: float = 0.0) -> tuple[KindedPool, tuple[Action, ...]]:
    return kinds.step_kinds(pool, event, now_s=now_s)


def claim(name: str, kind: str = "", low: int = 1, high: int = 1, **more: Any) -> Claim:
    return Claim(name=name, device_kind=kind, min_replicas=low, ask_replicas=high, **more)


def test_a_claim_gets_devices_of_its_kind_and_of_the_first_if_it_asks_for_none() -> None:
    pool = idle(KINDS)

    pool, (grant,) = tell(pool, Asked(claim=claim("a", "cpu", 1, 5)))
    pool, (other,) = tell(pool, Asked(claim=claim("b", "", 1, 2)))

    assert isinstance(grant, Grant)
    assert isinstance(other, Grant)
    assert (grant.devices, other.devices) == ((1, 3), (0, 2))
    told = kinds.summary_of_kinds(pool)
    assert (told.free, told.usable, told.cordoned) == ((4,), 5, ())
    assert kinds.claims_of_kinds(pool) == ("a", "b")


@pytest.mark.parametrize(
    ("asks", "sentence"),
    [
        (claim("a", "rocm"), "there is no device of kind 'rocm'; there are cuda (3), cpu (2)"),
        (claim("a", "cpu", 3, 3), "it needs at least 3 devices, and the pool has 2 of cpu"),
        (claim("known", "cuda"), "it is of kind cpu already, and cannot become one of cuda"),
    ],
)
def test_what_no_kind_can_meet_is_refused(asks: Claim, sentence: str) -> None:
    pool, _ = tell(idle(KINDS), Asked(claim=claim("known", "cpu")))

    after, (refused,) = tell(pool, Asked(claim=asks))

    assert refused == Refuse(name=asks.name, reason=f"claim {asks.name} is refused: {sentence}")
    assert after == pool


def test_a_claim_that_waits_hears_of_devices_of_its_kind_alone() -> None:
    pool, _ = tell(idle(KINDS), Cordoned(devices=(0, 1), note="by ada: fan"))
    pool, _ = tell(pool, Asked(claim=claim("a", "cpu", 2, 2)))

    assert kinds.why_of(pool, "a") == (
        "needs 2 more: only 1 device of the pool may be in use; device 1 is cordoned by ada: fan"
    )


def test_a_pool_without_kinds_knows_none() -> None:
    pool = kinds.begun(PoolBeginning(devices=2), now_s=0.0)

    _, (refused,) = tell(pool, Asked(claim=claim("a", "cuda")))
    _, (given,) = tell(pool, Asked(claim=claim("a")))

    assert refused.reason.endswith("there is no device of kind 'cuda'; there are none with a kind")
    assert isinstance(given, Grant)


def test_what_one_kind_cannot_have_changes_none() -> None:
    pool, _ = tell(idle(KINDS), Asked(claim=claim("a", "cpu", 2, 2)))

    with pytest.raises(ConfigError, match="is below the minimum of 2 of its claim a"):
        tell(pool, TeamSet(team=Team(name="default", quota=1, borrow_limit=0)))


events = st.one_of(
    st.builds(
        lambda name, kind, low, more, urgent: Asked(
            claim=claim(
                name + kind,
                kind,
                low,
                low + more,
                priority="urgent" if urgent else "normal",
                can_suspend=True,
            )
        ),
        st.sampled_from("abc"),
        st.sampled_from(["cuda", "cpu"]),
        st.integers(1, 2),
        st.integers(0, 2),
        st.booleans(),
    ),
    st.builds(Withdrawn, name=st.sampled_from(["acuda", "bcuda", "acpu", "bcpu"])),
    st.builds(
        Released,
        name=st.sampled_from(["acuda", "bcuda", "ccuda", "acpu", "bcpu", "ccpu"]),
        devices=st.sets(st.integers(0, 4)).map(lambda found: tuple(sorted(found))),
    ),
    st.builds(
        lambda how, devices: how(devices=tuple(sorted(devices))),
        st.sampled_from([Cordoned, Drained, Uncordoned]),
        st.sets(st.integers(0, 4), min_size=1),
    ),
    st.just(TimePassed()),
)


@settings(max_examples=60)
@given(st.lists(events, max_size=25))
def test_each_kind_is_as_a_pool_of_its_devices_alone(happens: list[Any]) -> None:
    """And nobody is given a device of another kind, nor one that somebody has."""
    pool = idle(KINDS)
    alone = {
        kind: new_pool(5, foreign=[at for at, other in enumerate(KINDS) if other != kind])
        for kind in ("cuda", "cpu")
    }
    for now_s, event in enumerate(happens):
        known = {name: kinds.claim_kind(pool, name) for name in kinds.claims_of_kinds(pool)}
        pool, actions = tell(pool, event, now_s * 10.0)
        for kind in alone:
            if isinstance(event, Asked | Recovered):
                mine = event.claim.device_kind == kind
            elif isinstance(event, Withdrawn | Released):
                mine = (
                    known.get(event.name, "cuda") == kind
                )  # of one that is unknown the first hears
            else:
                mine = True
            theirs = event
            if isinstance(event, Cordoned | Drained | Uncordoned):
                devices = tuple(one for one in event.devices if KINDS[one] == kind)
                mine, theirs = bool(devices), type(event)(devices=devices)
            if mine:
                alone[kind], _ = step(alone[kind], theirs, now_s=now_s * 10.0)
        for action in actions:
            if isinstance(action, Grant):
                assert {KINDS[device] for device in action.devices} <= {action.name[1:]}
        for kind, one in alone.items():
            for name in kinds.claims_of_kinds(pool):
                if name.endswith(kind):
                    assert kinds.standing_of(pool, name) == standing(one, name)
        held = [
            device
            for name in kinds.claims_of_kinds(pool)
            for device in getattr(kinds.standing_of(pool, name), "devices", ())
        ]
        assert len(held) == len(set(held))
        told = kinds.summary_of_kinds(pool)
        assert told.usable == sum(summary(one).usable for one in alone.values())
        assert not set(told.free) & {*held, *told.cordoned}
