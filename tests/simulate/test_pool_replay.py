"""The log of a pool is shared out once more by the same core, and compared."""

from __future__ import annotations

from pathlib import Path

import pytest
from tests.simulate.recorded_pool import a_pool

from pliant.simulate.replay import Break, Turn, replayed
from pliant.simulate.replay_log import EVENT_KINDS, OF_POOLS, SAID_KINDS, entries, is_pool_log
from pliant.simulate.replay_telling import Account


def account_of(log: Path) -> Account:
    account = Account(is_pool=True)
    for step in replayed(entries(log)):
        account.add(step)
    return account


@pytest.fixture
def log(tmp_path: Path) -> Path:
    return a_pool(tmp_path / "events.jsonl")


def test_every_answer_is_given_again(log: Path) -> None:
    begins, *turns = replayed(entries(log))

    account = account_of(log)

    assert isinstance(begins, Turn)
    assert begins.beginning is not None
    assert begins.beginning.teams[0].quota == 2
    assert [turn.now_s for turn in turns if isinstance(turn, Turn)][:3] == [0.0, 1.25, 10.0]
    assert (account.inputs, account.unknown, account.difference) == (7, 0, None)
    assert account.sentence.endswith("the core decides the same as was recorded")
    assert is_pool_log(log)


def test_another_answer_is_named_and_what_follows_is_not_certain(log: Path) -> None:
    log.write_text(log.read_text().replace('"devices":[0,1,2,3]', '"devices":[0,1,2]', 1))

    account = account_of(log)

    assert account.difference == ("events.jsonl:4: grant: devices was [0, 1, 2], now [0, 1, 2, 3]")
    assert (account.inputs, account.unknown) == (2, 5)
    assert "not the same as recorded: events.jsonl:4" in account.sentence


@pytest.mark.parametrize("kind", ["shrink", "grant"])
def test_an_answer_too_few_or_too_many_is_a_difference(log: Path, kind: str) -> None:
    lines = log.read_text().splitlines(keepends=True)
    at = next(n for n, line in enumerate(lines) if f'"kind":"{kind}"' in line)
    log.write_text("".join(lines[:at] + lines[at + 1 :]))
    assert f"nothing more was recorded, now {kind}(" in account_of(log).sentence

    log.write_text("".join([*lines[: at + 1], lines[at], *lines[at + 1 :]]))
    assert f"{kind}(" in account_of(log).sentence
    assert account_of(log).sentence.endswith("was recorded, now nothing")


def test_a_pool_that_was_killed_while_it_wrote_has_answered_the_same(log: Path) -> None:
    lines = log.read_text().splitlines(keepends=True)
    at = next(n for n, line in enumerate(lines) if '"kind":"grant"' in line)
    log.write_text("".join(lines[:at] + lines[1:2] + lines[2:]))

    assert account_of(log).difference is None


@pytest.mark.parametrize(
    ("before", "after", "why"),
    [
        ('"now_s":1.25', '"then_s":1.25', "it is not said when the core was told (older version)"),
        ('"now_s":1.25', '"now_s":-1', "now_s: '-1' is no moment"),
        ('"now_s":10.0', '"now_s":0.5', "time goes back, from 1.250000 s to 0.500000 s"),
        ('"count":4', '"count":1000000000000', "devices; at most 100000 are replayed"),
        ('"kind":"fixed"', '"kind":"soft"', "'soft' is none of elastic, fixed"),
        ('"num_slots":64', '"num_slots":9000000000', "num_slots is above"),
        ('"kind":"asked"', "}{", "this line is no record"),
    ],
)
def test_what_cannot_be_is_a_gap_and_never_an_error(
    before: str, after: str, why: str, log: Path
) -> None:
    text = log.read_text()
    assert before in text
    log.write_text(text.replace(before, after, 1))

    breaks = [step for step in replayed(entries(log)) if isinstance(step, Break)]

    assert any(why in one.why for one in breaks)
    assert account_of(log).difference is None
    assert account_of(log).unknown + account_of(log).inputs > 0


def test_an_older_log_cannot_be_replayed_and_says_why(log: Path) -> None:
    lines = [line for line in log.read_text().splitlines() if "pool_began" not in line]
    log.write_text("\n".join(lines) + "\n")

    assert account_of(log).sentence == (
        "nothing of this log can be replayed: it does not say with what a core began"
    )


def test_whatever_is_asked_in_vain_again_and_again_is_not_missed(tmp_path: Path) -> None:
    """A claim that is refused in the same words is logged once; a wait that ends then is not."""
    from tests.simulate.recorded_pool import SCENE, claim

    from pliant.core.allocation import Asked

    strange = Asked(claim=claim("odd", 9, 9, kind="fixed"))
    scene = [*SCENE[:4], (13.0, strange), (14.0, strange), (95.0, strange), *SCENE[5:]]

    log = a_pool(tmp_path / "events.jsonl", scene)

    assert account_of(log).difference is None
    assert account_of(log).inputs == 8


def test_no_log_of_a_job_has_the_kinds_of_a_pool() -> None:
    assert not OF_POOLS & (EVENT_KINDS.keys() | SAID_KINDS)
