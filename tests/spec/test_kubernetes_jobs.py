"""What kubectl prints becomes jobs; what cannot be read is named."""

from __future__ import annotations

import json
from typing import Any

import pytest

from pliant.core.errors import ConfigError
from pliant.spec.kubernetes_jobs import is_kubernetes, parse_kubernetes_jobs


def item(name: str = "gpt", gpus: object = "4", **status: Any) -> dict[str, Any]:
    limits = {"cpu": "8", "nvidia.com/gpu": gpus}
    status = {
        "startTime": "2026-10-01T08:10:00Z",
        "completionTime": "2026-10-01T09:10:00Z",
        **status,
    }
    return {
        "kind": "Job",
        "metadata": {
            "name": name,
            "namespace": "ml",
            "creationTimestamp": "2026-10-01T08:00:00Z",
        },
        "spec": {
            "parallelism": 2,
            "template": {"spec": {"containers": [{"resources": {"limits": limits}}]}},
        },
        "status": status,
    }


def export(*items: object) -> str:
    return json.dumps({"kind": "List", "items": items}, indent=1)


def test_a_job_has_the_devices_of_all_its_pods() -> None:
    text = export(item())

    (job,) = parse_kubernetes_jobs(text, source="k.json").jobs

    assert is_kubernetes(text)
    assert (job.name, job.devices) == ("ml/gpt", 8)
    assert (job.arrival_s, job.began_s, job.work_s) == (0.0, 600.0, 3600.0)


def test_no_job_has_the_name_of_a_service() -> None:
    one = item("chat")
    one["metadata"]["namespace"] = ""

    (job,) = parse_kubernetes_jobs(export(one), source="k.json").jobs

    assert job.name == "chat"


def test_a_job_has_no_more_pods_at_a_time_than_it_is_to_complete() -> None:
    one, two = item("one"), item("two", gpus="1")
    one["spec"] |= {"parallelism": 8, "completions": 3}
    two["spec"] |= {"parallelism": 2, "completions": 50}

    jobs = parse_kubernetes_jobs(export(one, two), source="k.json").jobs

    assert [job.devices for job in jobs] == [12, 2]


def test_a_job_that_failed_trained_until_then_and_one_alone_is_read_too() -> None:
    failed = {"type": "Failed", "status": "True", "lastTransitionTime": "2026-10-01T08:40:00Z"}
    text = json.dumps(item(completionTime=None, conditions=[failed]))

    (job,) = parse_kubernetes_jobs(text, source="k.json").jobs

    assert job.work_s == 1800.0


def test_what_is_no_training_is_left_out_and_counted() -> None:
    text = export(item(), item("web", gpus="0"), item("queued", startTime=None))

    found = parse_kubernetes_jobs(text, source="k.json")

    assert [job.name for job in found.jobs] == ["ml/gpt"]
    assert found.notes == (
        "left out: 1 jobs without an accelerator",
        "left out: 1 jobs that never began",
    )


@pytest.mark.parametrize(
    ("text", "sentence"),
    [
        (
            '{"items":\n [}',
            "k.json line 2 is no JSON: Expecting value; expected `kubectl get jobs -A -o json`",
        ),
        (
            '{"items": 3}',
            "k.json: items is no list; expected `kubectl get jobs -A -o json`",
        ),
        (
            export({"kind": "Pod"}),
            "k.json: items[0] is a Pod; expected Jobs, as from `kubectl get jobs -A -o json`",
        ),
        (export(3), "k.json: items[0] is a int; expected Jobs, as from `kubectl get jobs -A"),
        (
            export(item() | {"spec": [1]}),
            "k.json: items[0]: spec is no mapping; expected `kubectl get jobs -A -o json`",
        ),
        (
            export(item(conditions=[1])),
            "k.json: items[0] (ml/gpt): conditions is no list of mappings; expected",
        ),
        (
            export(item(gpus="half")),
            "k.json: items[0] (ml/gpt): limits of nvidia.com/gpu 'half' cannot be read; expected a",
        ),
        (
            export(item(gpus="90000")),
            "k.json: items[0] (ml/gpt): 180000 accelerators; at most 100000 can be simulated",
        ),
        (
            export(item(startTime="soon")),
            "k.json: items[0] (ml/gpt): startTime 'soon' is no time; expected 2026-10-01T08:00:00Z",
        ),
        (
            export(item(completionTime="2026-10-01T08:00:00Z")),
            "k.json: items[0] (ml/gpt): it ended before it began, or began before it was made",
        ),
        (
            export(item() | {"metadata": {"name": "x"}}),
            "k.json: items[0] (default/x): metadata.creationTimestamp is missing; expected a time",
        ),
        ("{}", "k.json has no job that trained on accelerators (left out: 1 jobs without an"),
    ],
)
def test_what_cannot_be_read_is_named(text: str, sentence: str) -> None:
    with pytest.raises(ConfigError) as told:
        parse_kubernetes_jobs(text, source="k.json")

    assert str(told.value).startswith(sentence)
