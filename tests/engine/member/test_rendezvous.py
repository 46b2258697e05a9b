"""What members learn of each other where they meet: also that others have agreed to stop."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import replace
from types import SimpleNamespace
from typing import Any, cast

import pytest
import torch

from pliant.core.errors import UsageError
from pliant.core.membership import member as protocol
from pliant.core.membership.resolve import NO_STEP, Header
from pliant.core.values import NO_GENERATION, Generation, Lineage, Order, ReplicaId, Seat
from pliant.engine.comm.communicator import GroupBroken
from pliant.engine.member import rendezvous as meeting
from pliant.engine.member.membership_port import Ending
from pliant.engine.member.rendezvous import LoopFlags, meet

ORDER = Order(
    generation=Generation(3),
    members=tuple(Seat(replica=ReplicaId(name), endpoint=f"{name}:1") for name in ("r1", "r2")),
)


@contextmanager
def waiting(generation: Generation) -> Iterator[None]:
    del generation
    yield


def header(committed: int, *, voted: bool) -> Header:
    return Header(
        lineage=Lineage(1),
        committed=committed,
        made_by=Generation(1) if committed else NO_GENERATION,
        vote_step=committed if voted else NO_STEP,
        vote_generation=Generation(1) if voted else NO_GENERATION,
        has_state=True,
        calls=0,
    )


def met(
    mine: tuple[Header, LoopFlags], theirs: tuple[Header, LoopFlags], monkeypatch: Any
) -> Ending:
    """Return what a member learns that meets another one."""
    monkeypatch.setattr(protocol, "header", lambda member: mine[0])
    row = torch.tensor([*theirs[0].to_ints(), *map(int, theirs[1]), 0], dtype=torch.int64)
    group = SimpleNamespace(rank=1, all_gather=lambda own: torch.stack([row, own]))
    runtime = SimpleNamespace(member=None, waits=waiting, resolve=lambda *_: None)
    return meet(cast("Any", runtime), ORDER, cast("Any", group), mine[1], 0).ending


def flags(ending: Ending, asked: Ending) -> LoopFlags:
    return LoopFlags(ending, has_left_loop=False, asked=asked)


def test_who_commits_late_learns_that_the_others_have_agreed_to_stop(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    """Else it votes for a step for which nobody else will, until its notice is over."""
    stopped = header(1, voted=False), flags(Ending.OUTSIDE, Ending.OUTSIDE)
    late = header(0, voted=True), flags(Ending.NONE, Ending.NONE)

    assert met(late, stopped, monkeypatch) == Ending.OUTSIDE


def test_where_all_commit_late_what_their_votes_asked_for_is_agreed(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    late = header(0, voted=True), flags(Ending.NONE, Ending.NONE)
    asked = header(0, voted=True), flags(Ending.NONE, Ending.OUTSIDE)
    redone = header(0, voted=False), flags(Ending.NONE, Ending.OUTSIDE)

    assert met(late, asked, monkeypatch) == Ending.OUTSIDE
    assert met(late, redone, monkeypatch) == Ending.NONE
    assert len(late[0].to_ints()) == meeting._HEADER_INTS


def test_nobody_is_taken_in_whose_call_goes_to_another_step(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    """Also in a later call, of which the coordinator does not know how far it goes."""
    trains = header(203, voted=False), flags(Ending.NONE, Ending.NONE)._replace(total=240)
    joins = replace(header(0, voted=False), has_state=False), trains[1]._replace(total=40)
    between = joins[0], joins[1]._replace(total=0)

    with pytest.raises(UsageError, match=r"its steps\(\) goes to step 40, the run"):
        met(joins, trains, monkeypatch)
    with pytest.raises(GroupBroken, match="r1 goes to step 40 instead of 240"):
        met(trains, joins, monkeypatch)
    met(between, trains, monkeypatch)
