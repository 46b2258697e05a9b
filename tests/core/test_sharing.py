"""Who may do what with a pool that several users share."""

from __future__ import annotations

from dataclasses import replace

from hypothesis import given
from hypothesis import strategies as st

from pliant.core import sharing
from pliant.core.sharing import BURST, MOST_CLAIMS, MOST_NOTICE_S, REST_S, Allowance, Visitor
from pliant.core.tenancy import Demand

ADA = Visitor(uid=1001, pid=7, user="ada")
BOB = Visitor(uid=1002, pid=8, user="bob")
OWNER = Visitor(uid=1000, pid=9, user="cy", is_owner=True)
FOR_ADA = {"vision": ("ada",)}


URGENT = {"urgent": ()}


def refused(who: Visitor, wanted: Demand, *, before: Demand | None = None) -> str:
    return sharing.claim_refusal(who, wanted, before=before, teams=FOR_ADA, classes=URGENT)


def test_no_user_has_a_claim_of_anothers_name() -> None:
    assert sharing.claim_name("ada", "gpt") != sharing.claim_name("bob", "gpt")
    assert sharing.is_of("ada", "ada/gpt")
    assert not sharing.is_of("ada", "ad/gpt")
    assert not sharing.is_of("ad", "ada/gpt")


def test_what_is_everybodys_is_for_the_owner_to_change() -> None:
    assert sharing.administration_refusal(OWNER, owner="cy") == ""
    assert sharing.administration_refusal(BOB, owner="cy") == (
        "only cy, whose pool it is, and root may do this; you are bob"
    )


def test_a_team_and_a_class_are_for_those_who_are_named() -> None:
    def refusal(who: Visitor, team: str, priority: str) -> str:
        wanted = Demand(team=team, priority=priority)
        return refused(who, wanted)

    assert refusal(ADA, "vision", "normal") == ""
    assert refusal(BOB, "vision", "normal") == "team vision is for ada, and you are bob"
    assert refusal(BOB, "default", "normal") == ""
    assert refusal(ADA, "vision", "urgent") == (
        "class urgent is for nobody but its owner, and you are ada"
    )
    assert refusal(OWNER, "vision", "urgent") == ""


def test_who_is_taken_off_a_team_may_go_on_as_before_and_change_nothing_to_it() -> None:
    before = Demand(team="vision", priority="normal", ask_replicas=4)

    assert refused(BOB, replace(before, ask_replicas=2), before=before) == ""
    assert "class urgent is for" in refused(BOB, replace(before, priority="urgent"), before=before)
    assert "team vision is for ada" in refused(BOB, before, before=Demand(team="default"))
    assert "team vision is for ada" in refused(BOB, before)


def test_no_claim_takes_longer_to_give_back_than_others_can_wait() -> None:
    long = Demand(notice_s=7200)

    assert refused(BOB, Demand(notice_s=MOST_NOTICE_S)) == ""
    assert refused(BOB, long) == (
        "a notice of 7200 s is too long for a pool that users share; ask for 3600 s at most"
    )
    assert refused(BOB, long, before=Demand()) == refused(BOB, long)
    assert refused(BOB, long, before=long) == ""
    assert refused(OWNER, long) == ""


def test_one_user_has_so_many_claims_and_no_more() -> None:
    assert sharing.crowd_refusal(ADA, claims=MOST_CLAIMS - 1) == ""
    assert "ada has 64 claims" in sharing.crowd_refusal(ADA, claims=MOST_CLAIMS)


@given(st.lists(st.floats(0, 30), max_size=300), st.floats(0, 1e6))
def test_nobody_changes_more_than_is_allowed_and_everybody_may_again(
    waits: list[float], begin_s: float
) -> None:
    """Whatever the pace: a burst and what time has given, and the wait that was said is enough."""
    allowance, now_s, made = Allowance(at_s=begin_s), begin_s, 0
    for wait_s in waits:
        now_s += wait_s
        allowance, again_s = sharing.spend(allowance, now_s=now_s)
        made += again_s == 0.0
        assert made <= BURST + (now_s - begin_s) / REST_S + 1e-3
        assert 0.0 <= again_s <= REST_S
        if again_s:
            _, still_s = sharing.spend(allowance, now_s=now_s + again_s + 1e-3)
            assert still_s == 0.0


def test_a_clock_that_stands_still_gives_nothing() -> None:
    allowance = Allowance(at_s=5.0)
    for _ in range(BURST):
        allowance, again_s = sharing.spend(allowance, now_s=5.0)
        assert again_s == 0.0

    assert sharing.spend(allowance, now_s=5.0)[1] == REST_S
    assert sharing.spend(allowance, now_s=4.0)[1] == REST_S
