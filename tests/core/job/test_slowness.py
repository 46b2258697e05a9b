"""Who is slow is remembered from when on, and told once it lasts."""

from __future__ import annotations

from pliant.core.job.slowness import Slowness, among, heard, times, told
from pliant.core.table import Table
from pliant.core.values import ReplicaId

R1, R2 = ReplicaId("r1"), ReplicaId("r2")
NOTHING: Slowness = Table()


def test_it_is_slow_since_it_said_so_first() -> None:
    known = heard(heard(NOTHING, R1, 20, 10.0), R1, 30, 50.0)

    assert (known[R1].tenths, known[R1].since_s) == (30, 10.0)
    assert heard(known, R1, 30, 60.0) is known
    assert heard(known, R1, 0, 70.0) == heard(NOTHING, R2, 0, 70.0) == NOTHING


def test_people_hear_of_it_once_it_lasts() -> None:
    known = heard(heard(NOTHING, R1, 20, 10.0), R2, 35, 40.0)

    early, nobody = told(known, 60.0, 60.0)
    later, who = told(known, 70.0, 60.0)

    assert (early, nobody) == (known, [])
    assert who == [R1]
    assert told(later, 71.0, 60.0) == (later, [])
    assert times(known, 70.0) == []
    assert times(later, 70.0) == [(R1, 2.0, 60.0)]


def test_the_gone_are_forgotten() -> None:
    known = heard(heard(NOTHING, R1, 20, 10.0), R2, 35, 40.0)
    assert set(among(known, {R2})) == {R2}
