"""Limits in a job file are those of the core."""

from __future__ import annotations

import pytest

from pliant.core.errors import ConfigError
from pliant.core.job.state import JobSettings
from pliant.core.text import MOST_S
from pliant.spec.job import ElasticJob, Limits, core_limits, document_of_limits
from pliant.spec.load import check, parse

JOB = """\
apiVersion: pliant.dev/v1alpha1
kind: ElasticJob
metadata: {name: gpt}
spec:
  command: [train.py]
  limits: {hangInSeconds: 90, exitInSeconds: 5}
"""


def test_a_job_file_sets_some_and_the_others_keep_the_default_of_the_core() -> None:
    settings = JobSettings(**core_limits(parse(ElasticJob, JOB, source="job.yaml").spec.limits))

    assert (settings.timeouts.hang_s, settings.exit_s) == (90.0, 5.0)
    assert document_of_limits(settings) == {"hangInSeconds": 90.0, "exitInSeconds": 5.0}
    again = check(Limits, document_of_limits(settings), source="the limits")
    assert JobSettings(**core_limits(again)) == settings
    assert JobSettings(**core_limits(Limits())) == JobSettings()


@pytest.mark.parametrize(
    "spec", ["limits: {startInSeconds: .inf}", "sessionTimeoutInSeconds: .inf"]
)
def test_no_time_is_so_long_that_the_job_cannot_be_resumed_or_told_to_agents(spec: str) -> None:
    text = JOB.rpartition("  limits")[0] + f"  {spec}\n"

    with pytest.raises(ConfigError, match=r"InSeconds must be at most 1e\+09, not inf"):
        parse(ElasticJob, text, source="job.yaml")
    longest = text.replace(".inf", f"{MOST_S}")
    assert parse(ElasticJob, longest, source="job.yaml").spec.command == ["train.py"]


@pytest.mark.parametrize(
    ("fields", "sentence"),
    [
        ({"hangSeconds": 3}, "--limit: unknown field hangSeconds; did you mean hangInSeconds?"),
        ({"hangInSeconds": 0}, "--limit: hangInSeconds must be more than 0, not 0"),
        (
            {"hangInSeconds": float("inf")},
            "--limit: hangInSeconds must be at most 1e+09, not inf",
        ),
        ({"hangInSeconds": "1h"}, "--limit: hangInSeconds must be a number, not '1h'"),
    ],
)
def test_an_impossible_limit_is_refused_in_a_sentence(
    fields: dict[str, object], sentence: str
) -> None:
    with pytest.raises(ConfigError) as caught:
        check(Limits, fields, source="--limit")

    assert str(caught.value) == sentence
