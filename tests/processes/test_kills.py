"""A kill at any moment loses nothing, whatever is trained and whoever is killed.

One table: every two levels of its columns are together in some row, but for pairs that cannot be.
Each row is a job of real processes; it ends with the digest of the same model trained alone in
this process.  By default the first row of each moment runs for replicas of one worker, and of a
few moments for those of two; the others are for ``make soak``.
"""

from __future__ import annotations

from collections.abc import Callable, Collection
from itertools import combinations, product
from pathlib import Path
from typing import Any, NamedTuple

import pytest
from tests.processes.elastic import Outcome, reference, run, run_until_over
from tests.processes.launching import RunningJob

pytestmark = [pytest.mark.processes, pytest.mark.timeout(240)]

STEP = ("micro_batch", "bucket", "reduced", "vote", "commit", "tail")

RESIZE = {
    "build": "r4{place}@build",
    "prepared": "r1{place}@prepared:3+",
    "boundary": "r1{place}@boundary:3+",
    "transfer, of who gives": "r1{place}@transfer:3+",
    "transfer, of who takes": "r4{place}@transfer",
    "reform": "r1{place}@reform:2+",
}
"""Who is killed where, once r2 was killed in step 2, so that r4 comes in its place."""

ONE, FIRST, SECOND = "of one worker", "first of two", "second of two"

OFTEN_OF_TWO = ("reduced", "commit", "transfer, of who gives")
"""Moments of which a row of two workers runs by default."""

OF_THE_FIRST = ("vote", "boundary", "reform")
"""Moments of the first worker alone, which speaks for its replica."""

UNFROZEN = 8
"""Steps after which the model that is frozen at first is not: a run must not end before."""


class Row(NamedTuple):
    """A kill, and the job that it happens to."""

    moment: str
    who: str
    model: str
    way: str


LEVELS = (
    (*STEP, "evaluate", *RESIZE),
    (ONE, FIRST, SECOND),
    ("frozen", "moe", "cnn", "judged"),
    ("windows", "sockets"),
)


def is_possible(row: Row) -> bool:
    if (row.moment == "evaluate") != (row.model == "judged"):  # the others evaluate nothing
        return False
    return row.who != SECOND or row.moment not in OF_THE_FIRST


def pairs_of(row: Row) -> set[tuple[Any, ...]]:
    return set(combinations(enumerate(row), 2))


def all_pairs() -> list[Row]:
    """Return few rows that hold every pair which a possible row holds."""
    possible = [row for row in map(Row._make, product(*LEVELS)) if is_possible(row)]
    missing = set[Any]().union(*map(pairs_of, possible))
    rows = []
    while missing:
        rows.append(max(possible, key=lambda row: len(pairs_of(row) & missing)))
        missing -= pairs_of(rows[-1])
    return rows


TABLE = all_pairs()


def rows(
    chosen: Callable[[Row], bool], moments: Collection[str] = LEVELS[0]
) -> pytest.MarkDecorator:
    """Return the rows of a test; the first one of each of these moments runs by default."""
    quick, cases = set(moments), []
    for row in filter(chosen, TABLE):
        marks = [] if row.moment in quick else [pytest.mark.soak]
        quick.discard(row.moment)
        cases.append(pytest.param(row, marks=marks, id=", ".join(row)))
    return pytest.mark.parametrize("row", cases)


def test_the_table_is_short_and_has_every_moment_for_whoever_may_be_killed_there() -> None:
    assert len(TABLE) < 50
    assert {row.moment for row in TABLE} == set(LEVELS[0])
    for moment in LEVELS[0]:
        who = {row.who for row in TABLE if row.moment == moment}
        assert who == ({ONE, FIRST} if moment in OF_THE_FIRST else {ONE, FIRST, SECOND})


@rows(lambda row: row.moment in STEP and row.who == ONE)
def test_a_kill_in_a_step_loses_nothing(tmp_path: Path, row: Row) -> None:
    lose_nothing(tmp_path, row)


@rows(lambda row: row.moment == "evaluate" and row.who == ONE)
def test_a_kill_in_an_evaluation_loses_nothing(tmp_path: Path, row: Row) -> None:
    lose_nothing(tmp_path, row)


@rows(lambda row: row.moment in RESIZE and row.who == ONE)
def test_a_kill_in_a_resize_loses_nothing(tmp_path: Path, row: Row) -> None:
    lose_nothing(tmp_path, row)


@rows(lambda row: row.who != ONE, OFTEN_OF_TWO)
def test_a_kill_of_one_of_two_workers_loses_nothing(tmp_path: Path, row: Row) -> None:
    lose_nothing(tmp_path, row)


def lose_nothing(directory: Path, row: Row) -> None:
    """Play the kill of a row."""
    place = ".1" if row.who == SECOND else ""
    workers = 1 if row.who == ONE else 2
    if row.moment in RESIZE:
        plan = f"r2{place}@tail:2=SIGKILL,{RESIZE[row.moment].format(place=place)}=SIGKILL"
    else:
        step = 7 if row.moment == "evaluate" else 6
        plan = f"r2{place}@{row.moment}:{step}=SIGKILL"
    outcome = play(
        directory,
        row.model,
        plan,
        workers=workers,
        replicas=3 if row.moment in RESIZE or workers == 1 else 2,
        num_workers=int(row.model == "cnn"),
        windows_above=0 if row.way == "windows" else 1 << 40,
    )
    if row.moment in STEP and row.who == ONE and row.model != "cnn":
        # Of one with loaders the end may be told after the others have found their step broken.
        assert len(outcome.kinds("reform")) == 1


@pytest.mark.parametrize(
    ("model", "plan"),
    [
        ("cnn", "r1@commit:6=SIGKILL,r2@vote:6=SIGKILL"),
        ("judged", "r1@evaluate:7=SIGKILL,r3@reform=SIGKILL"),
    ],
)
def test_two_kills_at_once_lose_nothing(tmp_path: Path, model: str, plan: str) -> None:
    play(tmp_path, model, plan, replicas=3)


def play(directory: Path, model: str, plan: str, **more: Any) -> Outcome:
    """Let everybody whom a plan names be killed, and compare with the run alone."""
    victims = {fault.partition("@")[0].partition(".")[0] for fault in plan.split(",")}

    def killed(job: RunningJob) -> set[str]:
        ends = job.records("exited")
        return {end["replica"] for end in ends if end["exited_kind"] == "signal"}

    def wait_for_kills(job: RunningJob) -> None:
        job.wait_for(lambda: victims <= killed(job), f"{sorted(victims)} are killed")
        job.wait_for_steps(UNFROZEN + 1)

    more = {"faults": plan, "restarts": 9, **more}
    if "+" in plan or "r4" in plan:  # of a change, which comes when it comes
        outcome = run_until_over(directory, model, wait_for_kills, pace=0.03, **more)
    else:
        outcome = run(directory, model, 14, lambda job: None, **more)
    outcome.check(reference(model, outcome.steps))
    assert victims <= killed(outcome.job)
    return outcome
