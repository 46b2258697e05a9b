"""Worker 0 speaks for its replica once every follower has answered, and not before."""

from __future__ import annotations

from itertools import permutations

import pytest
from hypothesis import given
from hypothesis import strategies as st

from pliant.core.membership.follower_answers import (
    Answer,
    Asked,
    Built,
    Failed,
    FollowersSaid,
    Kept,
    Lost,
    NotBuilt,
    Received,
    Reduced,
    Voted,
    Whole,
    conclude,
    give_up,
    hear_answer,
    joint_digests,
    taken,
)
from pliant.core.values import Generation, ReplicaId

G1, G2, G3 = Generation(1), Generation(2), Generation(3)
NOBODY = FollowersSaid(places=(1, 2))


def after(*answers: Answer, said: FollowersSaid = NOBODY) -> FollowersSaid:
    for answer in answers:
        said = hear_answer(said, answer)
    return said


def reduced(place: int, generation: Generation = G2, step: int = 7) -> Reduced:
    return Reduced(place=place, generation=generation, step=step)


def failed(place: int, generation: Generation = G2) -> Failed:
    return Failed(place=place, generation=generation, reason="a peer is gone")


def test_a_result_is_complete_when_every_follower_has_its_own() -> None:
    assert conclude(after(reduced(1)), Reduced, G2, 7) is None
    assert conclude(after(reduced(2), reduced(1)), Reduced, G2, 7) == Whole(
        answers=(reduced(1), reduced(2))
    )


def test_one_that_failed_breaks_the_generation_for_all() -> None:
    said = after(reduced(1), failed(2))

    assert conclude(said, Reduced, G2, 7) == Lost(reason="worker 2: a peer is gone")


def test_a_refusal_stays_one_when_the_group_breaks_of_it() -> None:
    refusal = Failed(place=1, generation=G2, reason="its model is another one", is_refusal=True)

    found = conclude(after(refusal, failed(1)), Received, G2)

    assert found == Lost(reason="worker 1: its model is another one", is_refusal=True)


def test_answers_of_another_generation_or_step_do_not_count() -> None:
    said = after(reduced(1), reduced(2, G1), failed(2, G1))
    assert conclude(said, Reduced, G2, 7) is None

    said = after(reduced(1), reduced(2, step=6))
    assert conclude(said, Reduced, G2, 7) is None


def test_an_answer_counts_once_so_a_step_that_is_done_again_waits_again() -> None:
    said = after(reduced(1), reduced(2))

    assert conclude(taken(said, Reduced), Reduced, G2, 7) is None


def test_an_answer_to_an_older_question_takes_nothing_back() -> None:
    said = after(Built(place=1, generation=G3), Built(place=2, generation=G3))

    late = after(Built(place=1, generation=G2), said=said)

    assert isinstance(conclude(late, Built, G3), Whole)


def test_a_generation_that_was_given_up_keeps_nobody_waiting() -> None:
    said = give_up(after(reduced(1)), G2)

    assert conclude(said, Reduced, G2, 7) == Lost(reason="generation 2 was given up")
    assert after(reduced(2), said=said) == said


def test_giving_up_what_was_prepared_leaves_the_current_generation_whole() -> None:
    said = give_up(after(reduced(1), Built(place=1, generation=G3)), G3)

    assert isinstance(conclude(after(reduced(2), said=said), Reduced, G2, 7), Whole)
    assert isinstance(conclude(said, Built, G3), Lost)


def test_the_unreached_of_a_group_that_was_not_built_are_told() -> None:
    answer = NotBuilt(place=2, generation=G3, reason="late", unreached=(ReplicaId("r4"),))

    lost = conclude(after(Built(place=1, generation=G3), answer), Built, G3)
    assert lost == Lost(reason="worker 2: late", unreached=(ReplicaId("r4"),))


def test_a_state_that_a_follower_refuses_is_told_from_one_that_did_not_come() -> None:
    answer = Failed(place=1, generation=G2, reason="another shape", is_refusal=True)

    lost = conclude(after(answer), Received, G2)
    assert isinstance(lost, Lost)
    assert lost.is_refusal


def test_a_checkpoint_that_a_follower_cannot_load_is_told_from_a_state_that_did_not_come() -> None:
    answer = Failed(place=2, generation=G2, reason="a digest does not match", is_damage=True)

    lost = conclude(after(answer), Received, G2)
    assert isinstance(lost, Lost)
    assert (lost.is_damage, lost.is_refusal) == (True, False)


def test_what_is_kept_is_kept_by_all() -> None:
    one, other = (Kept(place=place, generation=G2) for place in (1, 2))

    assert conclude(after(one), Kept, G2) is None
    assert conclude(after(one, other), Kept, G2) == Whole(answers=(one, other))
    assert conclude(taken(after(one, other), Kept), Kept, G2) is None


EVERYTHING: list[tuple[Asked, list[Answer]]] = [
    (Reduced, [reduced(1), reduced(2), failed(2), reduced(1, G1), reduced(2, step=6)]),
    (
        Built,
        [
            Built(place=1, generation=G2),
            Built(place=2, generation=G2),
            NotBuilt(place=1, generation=G2, reason="late"),
            Built(place=2, generation=G1),
            NotBuilt(place=2, generation=G3, reason="of the next one"),
        ],
    ),
]


@pytest.mark.parametrize(("kind", "answers"), EVERYTHING)
def test_in_every_order_a_replica_is_whole_only_if_all_said_so_and_nobody_failed(
    kind: Asked, answers: list[Answer]
) -> None:
    for order in permutations([*answers, None]):
        said, heard, is_given_up = NOBODY, list[Answer](), False
        for event in order:
            if event is None:
                said, is_given_up = give_up(said, G2), True
            else:
                said = hear_answer(said, event)
                heard.append(event)
            found = conclude(said, kind, G2, 7)

            good = [a for a in heard if type(a) is kind and _is_awaited(a)]
            bad = [a for a in heard if isinstance(a, Failed | NotBuilt) and a.generation == G2]
            newest = {a.place: a for a in heard if type(a) is kind}  # a later one replaces it
            is_all = {p for p, a in newest.items() if _is_awaited(a)} == {1, 2}
            if isinstance(found, Whole):
                assert len(good) >= 2
                assert not bad
                assert not is_given_up
            elif isinstance(found, Lost):
                assert bad or is_given_up
            else:
                assert not bad
                assert not is_given_up
                assert kind is not Reduced or not is_all


def _is_awaited(answer: Answer) -> bool:
    return answer.generation == G2 and getattr(answer, "step", 7) == 7


@given(
    st.permutations(
        [Voted(place=p, generation=G2, step=7, stop=False, digests=(p,)) for p in (1, 2)]
    )
)
def test_votes_come_back_by_place_in_whatever_order_they_came(votes: list[Voted]) -> None:
    found = conclude(after(*votes), Voted, G2, 7)

    assert isinstance(found, Whole)
    assert [one.place for one in found.answers] == [1, 2]


def test_a_replica_says_one_digest_for_all_its_workers() -> None:
    one = joint_digests((5, 6, 0), [(7, 0, 8)], unknown=0)

    assert one[1:] == (0, 0)
    assert one[0] not in (5, 7, 0)
    assert one == joint_digests((5, 6, 0), [(7, 0, 8)], unknown=0)
    assert one[0] != joint_digests((7, 6, 0), [(5, 0, 8)], unknown=0)[0]
    assert joint_digests((5, 6), [], unknown=0) == (5, 6)
