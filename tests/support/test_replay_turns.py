"""A replay decides as was recorded, or says where it is not known, or what is different."""

from __future__ import annotations

import json
from contextlib import suppress
from pathlib import Path

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from tests.support.recorded import SCENARIOS, a_run, lines_of_log, record
from tests.support.recorded_pool import SCENE, a_pool, claim
from tools.replay_log import EVENT_KINDS, OF_POOLS, SAID_KINDS, entries, is_pool_log
from tools.replay_telling import Account, json_of, lines_of
from tools.replay_turns import Break, Step, Turn, replayed

from pliant.core.allocation import Asked
from pliant.core.errors import ConfigError


def steps_of(path: Path) -> list[Step]:
    return list(replayed(entries(path)))


def account_of(steps: list[Step], *, is_pool: bool = False) -> Account:
    account = Account(is_pool)
    for step in steps:
        account.add(step)
        lines_of(step, 0.0)
        json.dumps(json_of(step))
    return account


def differences(steps: list[Step]) -> list[str]:
    return [step.difference for step in steps if isinstance(step, Turn) and step.difference]


@pytest.mark.parametrize("path", SCENARIOS, ids=lambda path: path.stem)
def test_every_scenario_is_decided_again_as_it_was_recorded(path: Path, tmp_path: Path) -> None:
    log = tmp_path / "events.jsonl"
    record(path.read_text(), log)

    steps = steps_of(log)

    assert [step for step in steps if isinstance(step, Break)] == []
    assert differences(steps) == []
    account = account_of(steps)
    assert account.inputs > 0
    assert "the core decides the same as was recorded" in account.sentence


def test_another_decision_than_recorded_is_named_with_its_line(tmp_path: Path) -> None:
    log = a_run(tmp_path / "events.jsonl")
    records = [json.loads(line) for line in lines_of_log(log)]
    at = next(i for i, one in enumerate(records) if one["kind"] == "prepare")
    told = max(i for i in range(at) if "now_s" in records[i])
    records[at]["order"]["generation"] = 7
    log.write_text("".join(json.dumps(one) + "\n" for one in records))

    account = account_of(steps_of(log))

    assert account.difference is not None
    assert account.difference.startswith(f"events.jsonl:{told + 1}: prepare: order was")
    assert "not the same as recorded" in account.sentence


def test_a_command_that_was_not_recorded_is_a_difference(tmp_path: Path) -> None:
    log = a_run(tmp_path / "events.jsonl")
    lines = [line for line in lines_of_log(log) if b'"kind":"start_replica"' not in line]
    log.write_bytes(b"".join(lines))

    account = account_of(steps_of(log))

    assert account.difference is not None
    assert "nothing more was recorded, now start_replica(replica=r1" in account.difference


def test_what_was_not_carried_out_when_the_log_ends_is_no_difference(tmp_path: Path) -> None:
    log = a_run(tmp_path / "events.jsonl")
    lines = lines_of_log(log)
    at = next(i for i, line in enumerate(lines) if b'"kind":"start_replica"' in line)
    log.write_bytes(b"".join(lines[:at]))

    assert account_of(steps_of(log)).difference is None


def test_certainty_ends_at_a_damaged_line_and_begins_again_with_what_the_core_knew(
    tmp_path: Path,
) -> None:
    log = a_run(tmp_path / "events.jsonl")
    lines = lines_of_log(log)
    lines[4] = b'{"v":1,"kind":"spa\n'
    log.write_bytes(b"".join(lines))

    steps = steps_of(log)

    assert [(s.place.where, s.is_certain) for s in steps if isinstance(s, Break)] == [
        ("events.jsonl:5", False),
        (f"events.jsonl:{len(lines)}", True),
    ]
    after = [s for s in steps if isinstance(s, Turn) and s.place.where == "events.jsonl:9"]
    assert all(turn.ready is None for turn in after)
    account = account_of(steps)
    unknown, all_of_them = account.unknown, account.unknown + account.inputs
    assert 0 < unknown < all_of_them
    assert account.sentence.endswith(
        f" but for 1 gap; {unknown} of {all_of_them} inputs could not be compared"
    )


def test_a_file_that_is_no_log_is_refused(tmp_path: Path) -> None:
    file = tmp_path / "notes.txt"
    file.write_text("hello\n")

    with pytest.raises(ConfigError, match=r"notes.txt is no log of a job"):
        steps_of(file)


@pytest.fixture(scope="module")
def long_run(tmp_path_factory: pytest.TempPathFactory) -> list[bytes]:
    path = tmp_path_factory.mktemp("long") / "events.jsonl"
    return lines_of_log(a_run(path, "restart_while_a_change_is_prepared"))


@settings(deadline=None, max_examples=60)
@given(data=st.data())
def test_a_log_cut_anywhere_is_replayed_as_far_as_it_is_known(
    data: st.DataObject, long_run: list[bytes], tmp_path_factory: pytest.TempPathFactory
) -> None:
    whole = b"".join(long_run)
    first = data.draw(st.integers(0, len(whole)))
    last = data.draw(st.integers(first, len(whole)))
    log = tmp_path_factory.mktemp("cut") / "events.jsonl"
    log.write_bytes(whole[:first] + whole[last:])

    with suppress(ConfigError):  # nothing that could be read is left
        account = account_of(steps_of(log))
        # That whole lines are gone is not seen in the text, but in what follows from them.
        assert account.difference is None or last > first
        assert account.sentence


JUNK: list[object] = [
    None, True, -1, 10**30, 1 << 53, 1e300, float("inf"), float("nan"), "", "x\x1b[31m\r\n",
    "\ud800", [], {}, [None], "../../etc/passwd", "r" * 70_000, [[1, 2], [3]],
]  # fmt: skip


@settings(deadline=None, max_examples=150)
@given(data=st.data())
def test_whatever_stands_in_a_log_is_told_in_sentences(
    data: st.DataObject, long_run: list[bytes], tmp_path_factory: pytest.TempPathFactory
) -> None:
    records = [json.loads(line) for line in long_run]
    for _ in range(data.draw(st.integers(1, 3))):
        place: object = data.draw(st.sampled_from(records))
        while isinstance(place, dict | list) and place:
            keys = list(place) if isinstance(place, dict) else list(range(len(place)))
            key = data.draw(st.sampled_from(keys))
            inner = place[key]
            if not isinstance(inner, dict | list) or not inner or data.draw(st.booleans()):
                place[key] = data.draw(st.sampled_from(JUNK))
                break
            place = inner
    log = tmp_path_factory.mktemp("junk") / "events.jsonl"
    log.write_text("".join(json.dumps(one) + "\n" for one in records))

    steps = steps_of(log)

    shown = "\n".join(line for step in steps for line in lines_of(step, 0.0))
    assert shown.replace("\n", "").isprintable()
    assert account_of(steps).sentence.isprintable()


# --- pools


def account_of_pool(log: Path) -> Account:
    return account_of(steps_of(log), is_pool=True)


@pytest.fixture
def pool_log(tmp_path: Path) -> Path:
    return a_pool(tmp_path / "events.jsonl")


def test_every_answer_of_a_pool_is_given_again(pool_log: Path) -> None:
    begins, *turns = steps_of(pool_log)

    account = account_of_pool(pool_log)

    assert isinstance(begins, Turn)
    assert begins.beginning is not None
    assert begins.beginning.teams[0].quota == 2
    assert [turn.now_s for turn in turns if isinstance(turn, Turn)][:3] == [0.0, 1.25, 10.0]
    assert (account.inputs, account.unknown, account.difference) == (7, 0, None)
    assert account.sentence.endswith("the core decides the same as was recorded")
    assert is_pool_log(pool_log)


@pytest.mark.parametrize(
    ("before", "after", "why"),
    [
        ('"now_s":1.25', '"then_s":1.25', "now_s: 'None' is no moment"),
        ('"now_s":1.25', '"now_s":-1', "now_s: '-1' is no moment"),
        ('"now_s":10.0', '"now_s":0.5', "time goes back, from 1.250000 s to 0.500000 s"),
        ('"count":4', '"count":1000000000000', "devices; at most 100000 are replayed"),
        ('"kind":"fixed"', '"kind":"soft"', "'soft' is none of elastic, fixed"),
        ('"num_slots":64', '"num_slots":9000000000', "num_slots is above"),
        ('"kind":"asked"', "}{", "this line is no record"),
    ],
)
def test_what_cannot_be_in_the_log_of_a_pool_is_a_gap_and_never_an_error(
    before: str, after: str, why: str, pool_log: Path
) -> None:
    text = pool_log.read_text()
    assert before in text
    pool_log.write_text(text.replace(before, after, 1))

    breaks = [step for step in steps_of(pool_log) if isinstance(step, Break)]

    assert any(why in one.why for one in breaks)
    assert account_of_pool(pool_log).difference is None
    assert account_of_pool(pool_log).unknown + account_of_pool(pool_log).inputs > 0


def test_an_older_log_of_a_pool_cannot_be_replayed_and_says_why(pool_log: Path) -> None:
    lines = [line for line in pool_log.read_text().splitlines() if "pool_began" not in line]
    pool_log.write_text("\n".join(lines) + "\n")

    assert account_of_pool(pool_log).sentence == (
        "nothing of this log can be replayed: it does not say with what a core began"
    )


def test_whatever_is_asked_in_vain_again_and_again_is_not_missed(tmp_path: Path) -> None:
    """A claim that is refused in the same words is logged once; a wait that ends then is not."""
    strange = Asked(claim=claim("odd", 9, 9, kind="fixed"))
    scene = [*SCENE[:4], (13.0, strange), (14.0, strange), (95.0, strange), *SCENE[5:]]

    account = account_of_pool(a_pool(tmp_path / "events.jsonl", scene))

    assert (account.difference, account.inputs) == (None, 8)


def test_no_log_of_a_job_has_the_kinds_of_a_pool() -> None:
    assert not OF_POOLS & (EVENT_KINDS.keys() | SAID_KINDS)
