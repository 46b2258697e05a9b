"""A workload is read line by line, or refused with file, line and what was expected."""

from __future__ import annotations

import pytest
from tests.simulate.worlds import job

from pliant.core.errors import ConfigError
from pliant.simulate.training_run import speed
from pliant.spec.workload import made_elastic, parse_workload

UNREAD = " cannot be read; expected "
DEVICES = "a whole number of devices from 1 to 100000"
HEAD = "name,arrival_s,work_s,devices,min,max,slots,curve\n"


def refusal(text: str) -> str:
    with pytest.raises(ConfigError) as caught:
        parse_workload(text, source="jobs.csv")
    return str(caught.value)


def test_a_line_is_a_job_and_jobs_come_by_arrival() -> None:
    text = f"# of a Tuesday\n{HEAD}gpt,10,3600,8,2,16,64,\n\ntune,0,60,,,,,\n"

    tune, gpt = parse_workload(text, source="jobs.csv")

    assert (tune.name, tune.devices, tune.is_elastic, tune.line) == ("tune", 1, False, 5)
    assert (gpt.arrival_s, gpt.min_devices, gpt.max_devices, gpt.num_slots) == (10.0, 2, 16, 64)


def test_columns_may_be_left_out_and_a_job_without_a_name_has_its_line() -> None:
    (one,) = parse_workload("arrival_s,work_s\n1.5,60\n", source="jobs.csv")

    assert (one.name, one.min_devices, one.max_devices) == ("job2", 1, 1)


def test_replicas_may_have_several_workers_and_slots_are_those_of_replicas() -> None:
    text = "arrival_s,work_s,max,workers,slots\n0,60,8,2,4\n"

    (one,) = parse_workload(text, source="jobs.csv")

    assert (one.devices, one.min_devices, one.max_devices, one.workers) == (2, 2, 8, 2)
    assert "no multiple of the 2 workers" in refusal(text.replace("8,2", "7,2"))
    assert "above the 4 micro-batches" in refusal(text.replace("8,2", "10,2"))


def test_a_curve_is_sizes_with_speeds() -> None:
    (one,) = parse_workload(HEAD + "gpt,0,60,2,1,8,,1:1 2:1.9 8:6.5\n", source="jobs.csv")

    assert one.curve == ((1, 1.0), (2, 1.9), (8, 6.5))


@pytest.mark.parametrize(
    ("line", "sentence"),
    [
        ("gpt,0,60,2", "has 4 cells; expected 8 cells, for name,arrival_s,work_s,devices,min,max,"
         "slots,curve"),
        ("gpt,soon,60,2,,,,", ": arrival_s 'soon'" + UNREAD + "a number of seconds of 0 or more"),
        ("gpt,nan,60,2,,,,", ": arrival_s 'nan'" + UNREAD + "a number of seconds of 0 or more"),
        ("gpt,-1,60,2,,,,", ": arrival_s '-1'" + UNREAD + "a number of seconds of 0 or more"),
        ("gpt,0,0,2,,,,", ": work_s '0'" + UNREAD + "a number of seconds above 0"),
        ("gpt,0,,2,,,,", ": work_s is empty; expected a number of seconds above 0"),
        ("gpt,0,60,0,,,,", ": devices '0'" + UNREAD + DEVICES),
        ("gpt,0,60,2.5,,,,", ": devices '2.5'" + UNREAD + DEVICES),
        ("gpt,0,60,2,3,8,,", ": devices 2 is not between min 3 and max 8"),
        ("gpt,0,60,2,1,8,4,", ": max 8 is above the 4 micro-batches of a step; each replica needs "
         "one"),
        ("gpt,0,60,2,1,8,,2:1 1:2", ": curve '2:1 1:2'" + UNREAD + "sizes that ascend with their"
         " speeds, such as 1:1 2:1.9 8:6.5"),
    ],
)  # fmt: skip
def test_a_line_that_cannot_be_read_is_named(line: str, sentence: str) -> None:
    joint = "" if sentence.startswith(":") else " "

    assert refusal(f"{HEAD}{line}\n") == f"jobs.csv line 2{joint}{sentence}"


def test_columns_that_are_unknown_missing_or_double_are_named() -> None:
    assert "did you mean devices?" in refusal("arrival_s,work_s,device\n")
    assert refusal("arrival_s\n").startswith("jobs.csv line 1: the column work_s is missing")
    assert "given twice" in refusal("arrival_s,work_s,work_s\n")
    assert refusal("# nothing\n").startswith("jobs.csv is an empty workload; expected name,")
    assert refusal("arrival_s,work_s\n").startswith("jobs.csv has no job behind line 1")


def test_a_name_stands_once() -> None:
    text = "name,arrival_s,work_s\na,0,1\nb,0,1\na,2,1\n"

    assert refusal(text) == "jobs.csv line 4: job a stands in line 2 already"


def test_jobs_of_a_size_get_half_to_twice_as_many_and_are_not_ideal_there() -> None:
    small, large, own = made_elastic(
        [job("a", 60.0, 2), job("b", 60.0, 8), job("c", 60.0, 8, max_devices=9)], least=4
    )

    assert (small.is_elastic, own.max_devices) == (False, 9)
    assert (large.min_devices, large.max_devices) == (4, 16)
    assert [speed(large, size) for size in (4, 8, 16)] == pytest.approx([1 / 1.8, 1.0, 1.8])


def test_half_of_the_replicas_are_whole_ones() -> None:
    (one,) = made_elastic([job("a", 60.0, 12, workers=4)], least=8)

    assert (one.min_devices, one.max_devices) == (4, 24)


def test_a_job_of_one_device_cannot_have_half() -> None:
    (one,) = made_elastic([job("a", 60.0)], least=1)

    assert (one.min_devices, one.max_devices) == (1, 2)
