"""After a loss the survivors agree on one history, from their headers alone."""

from __future__ import annotations

import itertools

import pytest

from pliant.core.errors import NoStateError
from pliant.core.membership import member as protocol
from pliant.core.membership.member import Member
from pliant.core.membership.resolve import Header, resolve
from pliant.core.values import Generation, Lineage, Order, ReplicaId, Restore, Seat


def at(
    committed: int,
    made_by: int,
    *,
    vote: tuple[int, int] | None = None,
    lineage: int = 1,
    calls: int = 0,
) -> Header:
    step, generation = vote or (-1, 0)
    return Header(
        lineage=Lineage(lineage),
        committed=committed,
        made_by=Generation(made_by),
        vote_step=step,
        vote_generation=Generation(generation),
        has_state=True,
        calls=calls,
    )


EMPTY = Header(lineage=Lineage(1), committed=0, made_by=Generation(0), has_state=False, calls=0)


def test_survivors_who_all_voted_commit_from_their_own_memory() -> None:
    resolution = resolve([at(7, 1, vote=(7, 1)), at(7, 1, vote=(7, 1))])

    assert (resolution.survivors, resolution.commits) == ((0, 1), (0, 1))
    assert (resolution.committed, resolution.made_by) == (8, 1)


def test_a_step_that_one_survivor_has_not_voted_for_is_redone() -> None:
    resolution = resolve([at(7, 1, vote=(7, 1)), at(7, 1)])

    assert (resolution.survivors, resolution.commits) == ((0, 1), ())
    assert (resolution.committed, resolution.made_by) == (7, 1)


def test_one_who_voted_commits_what_another_has_committed() -> None:
    """Trace 1: no state moves between survivors, so nobody's only copy is overwritten."""
    resolution = resolve([at(8, 1), at(7, 1, vote=(7, 1))])

    assert (resolution.survivors, resolution.commits, resolution.joiners) == ((0, 1), (1,), ())
    assert (resolution.committed, resolution.made_by) == (8, 1)


def test_one_step_is_recovered_at_a_time() -> None:
    """Whoever already votes for the next step waits for the one that is a step behind."""
    resolution = resolve([at(8, 1, vote=(8, 1)), at(7, 1, vote=(7, 1))])

    assert resolution.commits == (1,)
    assert resolution.committed == 8


def test_votes_of_different_generations_do_not_add_up() -> None:
    resolution = resolve([at(7, 1, vote=(7, 2)), at(7, 1, vote=(7, 1))])

    assert resolution.commits == ()
    assert resolution.committed == 7


def test_a_vote_of_another_generation_than_the_commit_does_not_make_a_survivor() -> None:
    resolution = resolve([at(8, 2), at(7, 1, vote=(7, 1))])

    assert (resolution.survivors, resolution.joiners) == ((0,), (1,))


def test_who_has_the_newest_step_of_another_generation_receives_it() -> None:
    """That cannot be; if it is, two results of one step must not both go on."""
    resolution = resolve([at(7, 3), at(7, 4), at(7, 4)])

    assert (resolution.survivors, resolution.joiners) == ((1, 2), (0,))
    assert resolution.made_by == 4


def test_members_without_state_have_no_say() -> None:
    """Trace 10: the joiner has neither commit nor vote, and what all survivors voted for counts."""
    resolution = resolve([at(7, 1, vote=(7, 1)), EMPTY, at(7, 1, vote=(7, 1))])

    assert (resolution.commits, resolution.joiners) == ((0, 2), (1,))
    assert resolution.committed == 8


def test_the_highest_lineage_counts_however_short_it_is() -> None:
    resolution = resolve([at(90, 3), at(40, 5, lineage=2)])

    assert (resolution.survivors, resolution.joiners) == ((1,), (0,))
    assert (resolution.lineage, resolution.committed) == (2, 40)


def test_a_first_generation_takes_its_state_from_the_origin() -> None:
    resolution = resolve([EMPTY, EMPTY, EMPTY], origin_rank=1)

    assert (resolution.survivors, resolution.joiners) == ((1,), (0, 2))


def test_the_origin_does_not_matter_once_anyone_holds_state() -> None:
    resolution = resolve([EMPTY, at(0, 0)], origin_rank=0)

    assert (resolution.survivors, resolution.joiners) == ((1,), (0,))


RESTORE = Restore(checkpoint="step-8", committed=8, lineage=Lineage(2))


def test_nobody_holds_the_state_of_a_restore_before_it_is_loaded() -> None:
    resolution = resolve([EMPTY, EMPTY], origin_rank=1, restore=RESTORE)
    assert (resolution.survivors, resolution.joiners) == ((1,), (0,))

    seats = tuple(Seat(replica=ReplicaId(name), endpoint="") for name in "ab")
    order = Order(generation=Generation(1), members=seats, restore=RESTORE)
    joiner = Member(replica=ReplicaId("b"), prepared=order, ordered=order, built=True)
    origin = protocol.resolved(joiner, resolution, 1)
    assert not origin.has_state
    origin = protocol.received(origin, resolution)

    assert (origin.has_state, origin.committed, origin.lineage) == (True, 8, 2)


def test_nothing_is_restored_where_somebody_holds_the_state() -> None:
    resolution = resolve([EMPTY, at(9, 3, lineage=2)], origin_rank=0, restore=RESTORE)

    assert resolution.restore is None
    assert (resolution.survivors, resolution.committed) == ((1,), 9)


def test_without_state_and_origin_the_run_is_lost() -> None:
    with pytest.raises(NoStateError, match="none of 2 members holds the state"):
        resolve([EMPTY, EMPTY])


def test_the_order_of_the_members_does_not_matter() -> None:
    headers = [at(8, 1), at(7, 1, vote=(7, 1)), EMPTY, at(7, 1)]
    expected = resolve(headers)

    for order in itertools.permutations(range(4)):
        resolution = resolve([headers[i] for i in order])
        assert {order[r] for r in resolution.survivors} == set(expected.survivors)
        assert {order[r] for r in resolution.commits} == set(expected.commits)
        assert (resolution.committed, resolution.made_by) == (8, 1)


def test_headers_survive_their_fixed_size_form() -> None:
    for header in (EMPTY, at(7, 1, vote=(7, 1), lineage=3, calls=2)):
        assert Header.from_ints(header.to_ints()) == header
