"""What a history is found to differ in from the script alone, and what is left out of that."""

from __future__ import annotations

from typing import Any

from pliant.core.checked import (
    FileSeen,
    Trace,
    causes,
    differences,
    of_training,
    without_noise,
)


def line(kind: str, step: int, who: str = "alone", **values: Any) -> dict[str, Any]:
    more: dict[str, Any] = {
        name: values.pop(name) for name in ("text", "variables") if name in values
    }
    named = {name.replace("_", " "): value for name, value in values.items()}
    known: dict[str, Any] = {"kind": kind, "step": step, "replica": who, "place": 0}
    return {**known, "values": named, **more}


def trained(who: str, *, weight: str = "a", loss: str = "1.0", **variables: str) -> list[Any]:
    return [
        line("samples", 0, who, slot_1="s", variables=variables),
        line("loss", 0, who, slot_1=loss),
        line("gradient", 0, who, g="g" + loss),
        line("state", 0, who, weight=weight),
    ]


def sentences(alone: Trace, other: Trace) -> list[str]:
    return [one.sentence for one in differences(alone, other)]


def test_a_cause_stands_before_what_follows_from_it_and_names_the_variables() -> None:
    alone = Trace(lines=trained("alone", X="1", y="2"))
    other = Trace(lines=trained("r2", weight="b", loss="2.0", X="3", y="2"), notes=("a note",))

    found = differences(alone, other)

    assert [one.kind for one in found] == ["loss", "gradient", "state"]
    assert found[0].sentence == "at step 0 slot 1 has the loss 2.0 on r2, alone 1.0"
    assert found[2].sentence == "weight after step 0 is b on r2, alone a"
    said = causes(alone, found, other.notes)
    assert said[0] == "a note"
    assert "than alone: X. A replica" in said[1]


def test_a_note_is_told_once_as_a_cause_and_not_where_it_is_the_difference() -> None:
    alone = Trace(lines=trained("r1"), notes=("hello",))
    other = Trace(lines=trained("r1"), fault="it ended: no room")
    ends = "it can go on after step 9: pliant resume"
    notes = ("hello", "no room", ends, "'done' is 13 here", "'done' is 7 here")

    assert causes(alone, differences(alone, other), notes) == ["'done' is 7 here"]


def test_a_file_that_differs_alone_has_a_likely_cause() -> None:
    alone = Trace(lines=trained("r1"), files={"log.csv": FileSeen("1")})
    other = Trace(lines=trained("r1"), files={"log.csv": FileSeen("2")})

    assert "session.open_log" in causes(alone, differences(alone, other), ())[0]


def test_what_a_replica_did_not_take_part_in_is_no_difference() -> None:
    alone = Trace(lines=[*trained("alone"), line("state", 1, weight="c")])

    assert differences(alone, Trace(lines=trained("r2"))) == []


def test_what_only_the_leader_says_is_missed() -> None:
    alone = Trace(lines=[*trained("alone"), line("printed", 0, text="a\nb\n")])
    logged = line("logged", 0, "r1", seen="8")

    said = sentences(alone, Trace(lines=[*trained("r1"), logged]))

    assert said == [
        "session.log of step 0 says seen=8, alone nothing",
        "after step 0 the leader prints '', alone 'a'",
        "after step 0 the leader prints '', alone 'b'",
    ]


def test_times_that_differ_alone_too_are_left_out_and_other_lines_are_not() -> None:
    def run(time: str, total: str) -> Trace:
        text = f"took {time} s\ntotal {total}\n"
        return Trace(lines=[*trained("r1"), line("printed", 0, text=text)])

    noise = differences(run("0.1", "4"), run("0.2", "4"))
    found = without_noise(differences(run("0.1", "4"), run("0.1", "9")), noise)
    timed = without_noise(differences(run("0.1", "4"), run("0.7", "4")), noise)

    assert not of_training(noise)
    assert [one.sentence for one in found] == [
        "after step 0 the leader prints 'total 9', alone 'total 4'"
    ]
    assert timed == []


def test_a_file_named_by_time_is_left_out_if_it_is_named_so_alone_too() -> None:
    def run(*names: str) -> Trace:
        return Trace(lines=trained("r1"), files={name: FileSeen("1") for name in names})

    noise = differences(run("events.17.0"), run("events.18.0"))
    found = differences(run("events.17.0"), run("events.19.0", "other"))

    assert [one.name for one in without_noise(found, noise)] == ["other"]


def test_files_that_are_missing_more_or_other_are_named_with_their_line() -> None:
    lines = trained("alone")
    alone = Trace(
        lines=lines,
        files={"a": FileSeen("1"), "b": FileSeen("2", ("x", "y")), "c": FileSeen("3", ("x",))},
    )
    files = {"b": FileSeen("4", ("x", "z")), "c": FileSeen("5", ("x", "x")), "d": FileSeen("6")}

    assert sentences(alone, Trace(lines=lines, files=files)) == [
        "a is not there",
        "b has other content: line 2 is 'z', alone 'y'",
        "c has other content: it has 2 lines, alone 1",
        "d is there, alone it is not",
    ]


def test_another_total_and_a_refusal_come_first() -> None:
    alone = Trace(lines=[line("call", -1, steps="240"), *trained("alone")])
    other = Trace(lines=[line("call", -1, "r2", steps="200"), *trained("r2")])
    refused = Trace(lines=other.lines, fault="config.yaml changed")

    assert sentences(alone, other) == ["r2 calls session.steps(200), alone it is 240"]
    assert sentences(alone, refused)[0] == "config.yaml changed"
