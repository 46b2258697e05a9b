"""Before a pool hands anything out anew it knows who holds what."""

from __future__ import annotations

from collections.abc import Iterable
from typing import Any

from pliant.core.tenancy import Demand
from pliant.pool.recovery import Recovery
from pliant.pool.state import SavedClaim, SavedPool
from pliant.wire.offers import Report

WANTED = Demand(min_replicas=1, ask_replicas=4)


def saved(name: str, *devices: int, pid: int = 1) -> SavedClaim:
    return SavedClaim(
        name=name,
        since=5.0,
        wanted=WANTED,
        pid=pid,
        started="77",
        revision=9,
        replicas=len(devices),
        devices=devices,
    )


def recovery(*claims: SavedClaim) -> Recovery:
    pool = SavedPool(name="default", life="old", size=8, devices=8, claims=claims)
    return Recovery(pool, life="new", now_s=0.0, silent_s=10.0)


def hear(
    one: Recovery, name: str, *holds: int, pid: int = 1, started: str = "77", **more: Any
) -> tuple[int, ...]:
    values = {"pool": "old", "revision": 9, **more}
    report = Report.model_validate({"wanted": WANTED, "holds": holds, "pid": pid, **values})
    return one.hear_early(name, report, started=started, since=50.0).claim.devices


def all_of(devices: Iterable[int]) -> set[int]:
    return set(devices)


def none_of(devices: Iterable[int]) -> set[int]:
    return set()


def test_it_is_over_when_everybody_of_the_file_has_reported() -> None:
    one = recovery(saved("gpt", 0, 1), saved("waits"))
    assert not one.is_over(now_s=0.0, unaccounted=set())

    assert hear(one, "gpt", 0, 1) == (0, 1)

    assert one.is_over(now_s=0.0, unaccounted=set())
    assert one.returned["gpt"].claim.since == 5.0


def test_what_a_claimant_holds_beyond_the_file_is_its_own_unless_it_is_anothers() -> None:
    one = recovery(saved("gpt", 0), saved("cnn", 1))

    assert hear(one, "gpt", 0, 1, 2) == (0, 2)
    assert hear(one, "cnn", 1, 2) == (1,)


def test_only_who_has_heard_the_last_offer_can_have_given_back_of_it() -> None:
    one = recovery(saved("gpt", 0, 1))

    def left(**more: Any) -> list[int]:
        hear(one, "gpt", 0, **more)
        return list(one.returned["gpt"].claim.leaving)

    assert left(revision=8) == []
    assert left(pool="a third life") == []
    assert left() == [1]


def test_the_dead_are_awaited_until_nothing_of_theirs_runs() -> None:
    one = recovery(saved("gpt", 0, 1))

    assert one.settle(now_s=0.0, is_alive=lambda _: False, used=all_of) == {"gpt": {0, 1}}
    assert not one.is_over(now_s=99.0, unaccounted=set())
    assert one.settle(now_s=0.0, is_alive=lambda _: False, used=none_of) == {}
    assert one.is_over(now_s=0.0, unaccounted=set())
    assert one.returned == {}


def test_who_lives_and_is_silent_keeps_what_it_uses_and_nothing_else() -> None:
    one = recovery(saved("busy", 0, 1), saved("idle", 2))

    def used(devices: Iterable[int]) -> set[int]:
        return set(devices) & {1}

    one.settle(now_s=9.0, is_alive=lambda _: True, used=used)
    assert not one.is_over(now_s=9.0, unaccounted=set())
    one.settle(now_s=10.0, is_alive=lambda _: True, used=used)

    assert one.is_over(now_s=10.0, unaccounted=set())
    assert {name: back.claim.devices for name, back in one.returned.items()} == {"busy": (0, 1)}


def test_another_process_of_a_name_inherits_nothing() -> None:
    one = recovery(saved("gpt", 0, 1))

    assert hear(one, "gpt", pid=2) == ()

    assert one.returned["gpt"].claim.since == 50.0
    assert not one.is_over(now_s=0.0, unaccounted=set())


def test_a_process_that_was_given_the_id_of_another_inherits_nothing() -> None:
    one = recovery(saved("gpt", 0, 1))

    assert hear(one, "gpt", started="78") == ()

    assert one.returned["gpt"].claim.since == 50.0


def test_devices_in_use_of_which_nothing_is_known_are_waited_for() -> None:
    one = recovery()

    assert not one.is_over(now_s=9.9, unaccounted={3})
    assert one.is_over(now_s=10.0, unaccounted={3})


def test_of_one_that_the_file_does_not_know_no_revision_counts() -> None:
    """The file was lost, and the clock went back meanwhile: new offers would seem the older."""
    one = recovery()

    hear(one, "gpt", 0, 1, pool="a life that nobody remembers", revision=10**12)

    assert one.returned["gpt"].offer("new", size=8).revision == 1
