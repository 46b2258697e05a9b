"""What one member accepts, says and does; late and repeated news changes nothing."""

from __future__ import annotations

from dataclasses import replace

import pytest

from pliant.core.errors import TransitionError
from pliant.core.events import Broken, Prepared, Refused, Registered
from pliant.core.membership import member as protocol
from pliant.core.membership.member import Abandon, Build, Member
from pliant.core.membership.resolve import resolve
from pliant.core.values import Generation, Incarnation, Order, ReplicaId, Seat

A, B, C = (ReplicaId(name) for name in "abc")
ONE, TWO = Incarnation(1), Incarnation(2)


def order(generation: int, *replicas: ReplicaId) -> Order:
    seats = tuple(Seat(replica=r, endpoint=f"{r}:1") for r in replicas)
    return Order(generation=Generation(generation), members=seats)


def in_generation(number: int, replica: ReplicaId = A, *, committed: int = 7) -> Member:
    return Member(
        replica=replica,
        incarnation=ONE,
        committed=committed,
        made_by=Generation(number),
        has_state=True,
        current=Generation(number),
    )


def switching(member: Member, target: Order) -> Member:
    member, _ = protocol.on_prepare(member, target, ONE)
    member, _ = protocol.on_built(member, target.generation)
    member, _ = protocol.on_switch(member, target, ONE)
    return member


def reforming(member: Member, target: Order) -> Member:
    member, _ = protocol.on_reform(member, target, ONE)
    member, _ = protocol.on_built(member, target.generation)
    return member


def test_a_prepared_member_answers_when_its_groups_are_built() -> None:
    target = order(2, A, B)

    member, tasks = protocol.on_prepare(in_generation(1), target, ONE)
    assert tasks == (Build(order=target),)
    member, tasks = protocol.on_built(member, Generation(2))

    assert tasks == (Prepared(replica=A, generation=Generation(2)),)
    assert protocol.ready_number(member) == 0


def test_a_leaver_answers_at_once_and_builds_nothing() -> None:
    member, tasks = protocol.on_prepare(in_generation(1, C), order(2, A, B), ONE)

    assert tasks == (Prepared(replica=C, generation=Generation(2)),)
    member, _ = protocol.on_switch(member, order(2, A, B), ONE)
    assert protocol.ready_number(member) == 2
    assert protocol.left(member).leaving


def test_a_repeated_prepare_repeats_the_answer() -> None:
    member, _ = protocol.on_prepare(in_generation(1), order(2, A, B), ONE)
    assert protocol.on_prepare(member, order(2, A, B), ONE) == (member, ())
    member, _ = protocol.on_built(member, Generation(2))

    again, tasks = protocol.on_prepare(member, order(2, A, B), ONE)

    assert (again, tasks) == (member, (Prepared(replica=A, generation=Generation(2)),))


def test_a_newer_attempt_abandons_the_older_one() -> None:
    member, _ = protocol.on_prepare(in_generation(1), order(2, A, B), ONE)

    member, tasks = protocol.on_prepare(member, order(3, A), ONE)

    assert tasks == (Abandon(generation=Generation(2)), Build(order=order(3, A)))
    assert protocol.on_built(member, Generation(2)) == (member, ())


def test_after_a_switch_no_other_prepare_is_accepted() -> None:
    """Trace 3: both would say "I may switch" and enter different generations."""
    member = switching(in_generation(1), order(2, A, B))

    assert protocol.on_prepare(member, order(3, A, C), ONE) == (member, ())
    assert protocol.ready_number(member) == 2


def test_a_switch_for_what_was_not_prepared_is_stale() -> None:
    member, _ = protocol.on_prepare(in_generation(1), order(3, A), ONE)

    assert protocol.on_switch(member, order(2, A, B), ONE) == (member, ())


@pytest.mark.parametrize(
    ("numbers", "expected"), [((2, 2, 2), 2), ((2, 0, 2), 0), ((2, 3), 0), ((0, 0), 0)]
)
def test_the_boundary_is_where_all_name_the_same_number(
    numbers: tuple[int, ...], expected: int
) -> None:
    member = switching(in_generation(1), order(2, A, B))

    assert protocol.boundary(member, [Generation(n) for n in numbers]) == expected


def test_a_member_that_learns_that_the_new_group_is_broken_goes_back_to_zero() -> None:
    member = switching(in_generation(1), order(2, A, B))

    member, tasks = protocol.on_broken(member, Generation(2), "connection reset")

    broken = Broken(replica=A, generation=Generation(2), reason="connection reset")
    assert tasks == (broken,)
    assert protocol.ready_number(member) == 0
    assert protocol.on_broken(member, Generation(2), "again") == (member, ())


def test_what_all_have_named_is_entered_even_if_it_broke_meanwhile() -> None:
    """The others have crossed; staying behind would split the members."""
    member = switching(in_generation(1), order(2, A, B))
    numbers = [protocol.ready_number(member)] * 2
    member, _ = protocol.on_broken(member, Generation(2), "connection reset")

    assert protocol.boundary(member, numbers) == 2


def test_a_member_whose_own_group_broke_is_ready_for_nothing() -> None:
    """It cannot cross from there: what the others need to hear is that they must reform."""
    member = switching(in_generation(1), order(2, A, B))
    assert protocol.ready_number(member) == 2

    member, _ = protocol.on_broken(member, Generation(1), "reset")

    assert protocol.ready_number(member) == 0


def test_a_broken_group_is_told_once() -> None:
    member, tasks = protocol.on_broken(in_generation(1), Generation(1), "reset")

    assert tasks == (Broken(replica=A, generation=Generation(1), reason="reset"),)
    assert protocol.on_broken(member, Generation(1), "reset") == (member, ())


def test_a_reform_seals_everything_older() -> None:
    member = protocol.voted(switching(in_generation(1), order(2, A, B)), 7)

    member, tasks = protocol.on_reform(member, order(3, A), ONE)

    assert tasks == (
        Abandon(generation=Generation(2)),
        Abandon(generation=Generation(1)),
        Build(order=order(3, A)),
    )
    assert protocol.is_sealed(member, Generation(1))
    assert protocol.ready_number(member) == 0
    with pytest.raises(TransitionError):
        protocol.committed(member, Generation(1))
    assert protocol.header(member).vote_step == 7


def test_a_late_reform_is_stale() -> None:
    member, _ = protocol.on_reform(in_generation(1), order(3, A), ONE)

    assert protocol.on_reform(member, order(3, A), ONE) == (member, ())
    assert protocol.on_reform(member, order(2, A, B), ONE) == (member, ())


def test_no_reform_reaches_a_member_that_has_left_or_is_not_in_it() -> None:
    gone = protocol.left(switching(in_generation(1, C), order(2, A, B)))

    assert protocol.on_reform(gone, order(3, A, B, C), ONE) == (gone, ())
    assert protocol.on_reform(in_generation(1, C), order(3, A, B), ONE)[1] == ()


def test_a_joiner_that_is_left_out_of_a_reform_is_a_spare_again() -> None:
    joiner = switching(Member(replica=C), order(2, A, B, C))

    left_out, tasks = protocol.on_reform(joiner, order(3, A, B), ONE)

    assert tasks == (Abandon(generation=Generation(2)),)
    assert protocol.is_sealed(left_out, Generation(2))
    assert protocol.entering(left_out) is None
    assert protocol.entering(protocol.on_prepare(left_out, order(4, A, C), ONE)[0]) == order(
        4, A, C
    )


def test_commands_of_an_older_incarnation_are_refused() -> None:
    member, _ = protocol.on_prepare(in_generation(1), order(2, A, B), TWO)

    assert protocol.on_switch(member, order(2, A, B), ONE) == (member, ())
    assert protocol.on_prepare(member, order(3, A, B), ONE) == (member, ())
    assert protocol.on_reform(member, order(3, A, B), ONE) == (member, ())


def test_a_build_that_fails_asks_for_a_new_attempt_and_blames_nobody() -> None:
    """A joiner's build fails, too, when an old member dies: it is no reason to drop the joiner."""
    member, _ = protocol.on_prepare(in_generation(1), order(2, A, B), ONE)
    spare, _ = protocol.on_prepare(Member(replica=B), order(2, A, B), ONE)

    assert protocol.on_build_failed(member, Generation(2), "late")[1] == (
        Abandon(generation=Generation(2)),
        Refused(replica=A, generation=Generation(2), reason="late", joiner=False),
    )
    assert protocol.on_build_failed(spare, Generation(2), "late")[1][1] == Refused(
        replica=B, generation=Generation(2), reason="late", joiner=False
    )


def test_a_reform_that_cannot_be_built_is_broken() -> None:
    member, _ = protocol.on_reform(in_generation(1), order(2, A, B), ONE)

    _, tasks = protocol.on_build_failed(member, Generation(2), "no route")

    assert tasks == (Broken(replica=A, generation=Generation(2), reason="no route"),)


def test_a_step_commits_once_and_only_after_its_vote() -> None:
    member = in_generation(1)
    with pytest.raises(TransitionError):
        protocol.committed(member, Generation(1))

    member = protocol.committed(protocol.voted(member, 7), Generation(1))

    assert (member.committed, member.made_by, member.vote) == (8, 1, None)
    with pytest.raises(TransitionError):
        protocol.committed(member, Generation(1))


def test_nobody_votes_out_of_turn_or_in_a_sealed_generation() -> None:
    sealed, _ = protocol.on_reform(in_generation(1), order(2, A), ONE)

    for member, step in ((in_generation(1), 8), (sealed, 7), (Member(replica=A), 0)):
        with pytest.raises(TransitionError):
            protocol.voted(member, step)


def test_a_survivor_that_had_voted_commits_under_the_generation_of_its_vote() -> None:
    behind = protocol.voted(in_generation(1, B), 7)
    behind = reforming(behind, order(3, A, B))
    ahead = reforming(in_generation(1, committed=8), order(3, A, B))
    resolution = resolve([protocol.header(ahead), protocol.header(behind)])

    behind = protocol.resolved(behind, resolution, 1)

    assert (behind.committed, behind.made_by, behind.vote) == (8, 1, None)
    assert protocol.entered(behind, order(3, A, B)).current == 3


def test_one_that_is_cut_off_and_its_heir_commit_the_same_step_and_no_other() -> None:
    """A is out of the coordinator's reach when all have voted; B is reformed without it."""
    cut, heir = (protocol.voted(in_generation(1, replica), 7) for replica in (A, B))
    cut = protocol.committed(cut, Generation(1))
    alone = order(2, B)
    heir = reforming(heir, alone)
    assert protocol.is_sealed(heir, Generation(1))

    resolution = resolve([protocol.header(heir)])
    heir = protocol.entered(protocol.resolved(heir, resolution, 0), alone)

    assert resolution.commits == (0,)
    assert (heir.committed, heir.made_by) == (cut.committed, cut.made_by) == (8, 1)
    assert protocol.voted(heir, 8).vote == (8, 2)  # A waits for one of B in generation 1


def test_a_step_that_is_redone_loses_its_vote() -> None:
    voter = reforming(protocol.voted(in_generation(1), 7), order(2, A, B))
    other = reforming(in_generation(1, B), order(2, A, B))
    resolution = resolve([protocol.header(voter), protocol.header(other)])

    assert protocol.resolved(voter, resolution, 0).vote is None


def test_a_receiver_reports_no_state_until_the_last_digest_matched() -> None:
    joiner = switching(Member(replica=B, incarnation=ONE), order(2, A, B))
    resolution = resolve([protocol.header(in_generation(1)), protocol.header(joiner)])

    receiving = protocol.resolved(joiner, resolution, 1)
    assert protocol.header(receiving).has_state is False
    with pytest.raises(TransitionError):
        protocol.entered(receiving, order(2, A, B))
    holding = protocol.received(receiving, resolution)

    assert (holding.committed, holding.made_by, holding.has_state) == (7, 1, True)
    assert protocol.entered(holding, order(2, A, B)) == replace(
        holding, current=Generation(2), prepared=None, ordered=None, built=False
    )


def test_the_origin_of_a_run_holds_its_first_state() -> None:
    spares = [switching(Member(replica=name), order(1, A, B)) for name in (A, B)]
    resolution = resolve([protocol.header(m) for m in spares], origin_rank=0)

    first = protocol.resolved(spares[0], resolution, 0)
    second = protocol.resolved(spares[1], resolution, 1)

    assert (first.has_state, second.has_state) == (True, False)
    assert protocol.received(second, resolution).committed == 0


def test_a_generation_that_was_sealed_meanwhile_is_not_entered() -> None:
    member = switching(in_generation(1), order(2, A, B))
    member, _ = protocol.on_reform(member, order(3, A), ONE)

    with pytest.raises(TransitionError):
        protocol.entered(member, order(2, A, B))
    member, _ = protocol.on_built(member, Generation(3))
    with pytest.raises(TransitionError, match="enter 2"):
        protocol.entered(member, order(2, A, B))


# --- another coordinator ------------------------------------------------------------------


def stands(member: Member, incarnation: Incarnation = TWO) -> Registered:
    _, tasks = protocol.on_roll_call(member, incarnation, spare=None, finished=False)
    (registered,) = tasks
    assert isinstance(registered, Registered)
    return registered


def test_who_has_answered_a_roll_call_refuses_the_coordinator_before_it() -> None:
    """Trace 4: what it has told the new one must stay true."""
    member, tasks = protocol.on_roll_call(in_generation(1), TWO, spare=None, finished=False)
    assert len(tasks) == 1

    assert protocol.on_prepare(member, order(2, A, B), ONE) == (member, ())
    assert protocol.on_reform(member, order(2, A, B), ONE) == (member, ())
    assert protocol.on_roll_call(member, ONE, spare=None, finished=False) == (member, ())


def test_a_registration_says_in_which_generations_a_member_stands() -> None:
    member = switching(in_generation(1), order(2, A, B))

    said = stands(member)

    assert (said.asked_by, said.current, said.prepared, said.ordered) == (2, 1, 2, 2)
    assert (said.committed, said.has_state, said.broken) == (7, True, False)


def test_a_registration_does_not_forget_a_broken_group() -> None:
    """Trace 13: its Broken went to a coordinator that has died."""
    member, _ = protocol.on_broken(in_generation(1), Generation(1), "reset")

    assert stands(member).broken


def test_a_group_that_an_accepted_reform_has_sealed_counts_as_broken() -> None:
    member, _ = protocol.on_reform(in_generation(1), order(2, A, B), ONE)

    assert stands(member).broken


def test_a_joiner_registers_without_a_committed_count() -> None:
    joiner = Member(replica=C, committed=7, prepared=order(2, A, C))

    said = stands(joiner)

    assert (said.committed, said.has_state, said.prepared, said.ordered) == (0, False, 2, 0)
