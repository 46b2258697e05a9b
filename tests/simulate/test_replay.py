"""A replay decides as was recorded, or says where it is not known, or what is different."""

from __future__ import annotations

import json
from contextlib import suppress
from pathlib import Path

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from tests.simulate.recorded import SCENARIOS, a_run, lines_of_log, record

from pliant.core.errors import ConfigError
from pliant.simulate.replay import Break, Step, Turn, replayed
from pliant.simulate.replay_log import entries
from pliant.simulate.replay_telling import Account, json_of, lines_of


def steps_of(path: Path) -> list[Step]:
    return list(replayed(entries(path)))


def account_of(steps: list[Step]) -> Account:
    account = Account()
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


def test_a_log_of_an_older_version_says_why_it_cannot_be_replayed(tmp_path: Path) -> None:
    log = a_run(tmp_path / "events.jsonl")
    records = [json.loads(line) for line in lines_of_log(log)]
    old = [one for one in records if not one["kind"].startswith("core_")]
    for one in old:
        one.pop("now_s", None)
    log.write_text("".join(json.dumps(one) + "\n" for one in old))

    account = account_of(steps_of(log))

    assert account.inputs == 0
    assert account.sentence == (
        "nothing of this log can be replayed: events.jsonl:1: it is not said when the core was "
        "told (older version)"
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
