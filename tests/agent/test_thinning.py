"""The coordinator gets as many heartbeats as it asks for, and each that says something new."""

from __future__ import annotations

from dataclasses import replace
from itertools import pairwise

import pytest

from pliant.agent.thinning import Thinning
from pliant.core.events import Progressed
from pliant.core.values import Generation, ReplicaId

BEAT = Progressed(replica=ReplicaId("r1"), generation=Generation(3), committed=7, calls=0)


def moments_s(thinning: Thinning, every_s: float) -> list[float]:
    """Return when a heartbeat goes up, of one each half second or a little sooner."""
    beats = [0.49 * number for number in range(20)]
    return [now_s for now_s in beats if thinning.is_needed(BEAT, now_s, every_s)]


@pytest.mark.parametrize("every_s", [0.0, 0.5])
def test_of_few_replicas_all_heartbeats_go_up(every_s: float) -> None:
    assert len(moments_s(Thinning(), every_s)) == 20


def test_of_many_as_many_go_up_as_are_asked_for() -> None:
    sent_s = moments_s(Thinning(), 2.5)

    pauses_s = [after - before for before, after in pairwise(sent_s)]
    assert len(sent_s) == 4
    assert all(2.25 <= pause_s <= 2.75 for pause_s in pauses_s)


@pytest.mark.parametrize(
    "news",
    [
        replace(BEAT, generation=Generation(4)),
        replace(BEAT, calls=1),
        replace(BEAT, is_spoken_for=True),
        replace(BEAT, held_up_by=1),
    ],
)
def test_what_is_new_goes_up_at_once(news: Progressed) -> None:
    thinning = Thinning()
    assert thinning.is_needed(BEAT, 0.0, 2.5)

    assert not thinning.is_needed(replace(BEAT, committed=8, waiting=Generation(3)), 0.5, 2.5)
    assert thinning.is_needed(news, 1.0, 2.5)


def test_each_replica_has_its_own_turn() -> None:
    thinning = Thinning()
    assert thinning.is_needed(BEAT, 0.0, 2.5)

    assert thinning.is_needed(replace(BEAT, replica=ReplicaId("r2")), 0.1, 2.5)
    thinning.forget(BEAT.replica)
    assert thinning.is_needed(BEAT, 0.2, 2.5)
