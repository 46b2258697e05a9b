"""A published workload becomes one that the simulator reads."""

from __future__ import annotations

import csv
import io

import pytest
from benchmarks.pollux import WORK_S, converted, curve

from pliant.simulate.training_run import speed
from pliant.spec.workload import WorkloadJob, parse_workload


def row(name: str, application: str, replicas: int, batch: int) -> dict[str, str]:
    return {
        "name": name,
        "time": "10",
        "application": application,
        "num_replicas": str(replicas),
        "batch_size": str(batch),
    }


def read(*rows: dict[str, str], is_one_class: bool = False) -> list[WorkloadJob]:
    text = io.StringIO()
    csv.writer(text, lineterminator="\n").writerows(converted(rows, is_one_class=is_one_class))
    return parse_workload(text.getvalue(), source="w.csv")


def test_every_configuration_takes_as_long_as_was_published_at_its_size() -> None:
    jobs = read(*(row(f"j{n}", *one) for n, one in enumerate(WORK_S)))

    assert [job.work_s for job in jobs] == list(map(float, WORK_S.values()))
    assert all(speed(job, job.devices) == 1.0 for job in jobs)


def test_another_size_of_the_same_batch_takes_as_long_as_was_published_there() -> None:
    (job,) = read(row("a", "bert", 8, 384))

    assert (job.min_devices, job.max_devices) == (1, 16)
    assert job.work_s / speed(job, 16) == pytest.approx(WORK_S["bert", 16, 384], rel=1e-4)
    assert job.work_s / speed(job, 1) == pytest.approx(0.8 * 6 * WORK_S["bert", 6, 384], rel=1e-4)


def test_no_size_is_slower_than_a_smaller_one() -> None:
    for application, _, batch in WORK_S:
        speeds = list(curve(application, batch).values())
        assert speeds == sorted(speeds)


def test_long_jobs_come_behind_the_others_unless_all_are_of_one_class() -> None:
    jobs = row("long", "imagenet", 32, 6400), row("short", "ncf", 1, 32768)

    assert [job.priority for job in read(*jobs)] == ["low", "normal"]
    assert [job.priority for job in read(*jobs, is_one_class=True)] == ["normal", "normal"]


def test_what_was_not_published_is_refused() -> None:
    with pytest.raises(ValueError, match="a: nothing is published of"):
        read(row("a", "bert", 7, 384))
