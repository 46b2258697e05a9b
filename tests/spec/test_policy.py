"""The policy of a job file is the core's, with other names."""

from __future__ import annotations

import re
from dataclasses import fields
from pathlib import Path
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from pliant.core.errors import ConfigError
from pliant.core.policy import decide as core
from pliant.spec.job import ElasticJob
from pliant.spec.load import check, parse
from pliant.spec.policy import (
    Backoff,
    ElasticPolicy,
    changes_in_words,
    core_policy,
    document_of,
    merged,
    start_that_fits,
)

PAGE = Path(__file__).parents[2] / "docs" / "explanation" / "policy.md"

JOB = """\
apiVersion: pliant.dev/v1alpha1
kind: ElasticJob
metadata: {name: gpt}
spec:
  command: [train.py]
  elasticPolicy:
    %s
"""

values = st.fixed_dictionaries(
    {},
    optional={
        "minReplicas": st.integers(0, 4),
        "maxReplicas": st.none() | st.integers(0, 9),
        "replicaIncrementStep": st.none() | st.integers(0, 3),
        "replicaDiscreteValues": st.none() | st.lists(st.integers(0, 9), max_size=3),
        "scalingTimeoutInSeconds": st.floats() | st.integers(-1, 99),
        "backoff": st.none()
        | st.fixed_dictionaries(
            {}, optional={"factor": st.floats(0, 3), "maxInSeconds": st.just(90)}
        ),
        "minMarginalEfficiency": st.floats(-1, 2),
        "spares": st.integers(-1, 3),
        "amortization": st.booleans() | st.just("yes"),
    },
)


def parse_policy(fields: dict[str, Any]) -> ElasticPolicy:
    return check(ElasticPolicy, fields, source="the policy")


def refusal(fields: dict[str, Any]) -> str:
    with pytest.raises(ConfigError) as caught:
        parse_policy(fields)
    return str(caught.value)


def test_every_field_of_the_core_can_be_written_but_the_start_size() -> None:
    outside = set(document_of(core.Policy()))

    assert len(outside) == len(fields(core.Policy)) - 1
    assert len(Backoff.model_fields) == len(fields(core.PolicyBackoff))


def test_without_any_field_it_is_the_cores_default() -> None:
    assert core_policy(ElasticPolicy()) == core.Policy()
    assert document_of(core.Policy(), is_whole=False) == {}


@given(values)
def test_what_is_accepted_comes_back_as_it_was_and_the_rest_is_refused_in_one_line(
    given: dict[str, Any],
) -> None:
    try:
        policy, said = core_policy(parse_policy(given)), ""
    except ConfigError as error:
        policy, said = core.Policy(), str(error)
    assert "\n" not in said
    assert not said or said.startswith("the policy: ")
    for is_whole in (True, False):
        document = document_of(policy, is_whole=is_whole)
        assert core_policy(parse_policy(document)) == policy


@pytest.mark.parametrize(
    ("fields", "sentence"),
    [
        (
            "{replicaIncrementStep: 2, replicaDiscreteValues: [2, 4]}",
            "replicaIncrementStep 2 and replicaDiscreteValues 2, 4 exclude each other; "
            "give one of them",
        ),
        (
            "{maxReplicas: 6, replicaDiscreteValues: [2, 8]}",
            "replicaDiscreteValues 8 is greater than maxReplicas 6",
        ),
        (
            "{backoff: {initialInSeconds: 900}}",
            "backoff.initialInSeconds 900 is greater than backoff.maxInSeconds 600",
        ),
        (
            "{scalingTimeoutInSeconds: 60s}",
            "spec.elasticPolicy.scalingTimeoutInSeconds must be a number, not '60s'",
        ),
        (
            "{minMarginalEfficiency: 50}",
            "spec.elasticPolicy.minMarginalEfficiency must be at most 1, not 50",
        ),
        (
            "{amortization: 1}",
            "spec.elasticPolicy.amortization must be true or false, not 1",
        ),
        (
            "{scaleUpSnooze: 1}",
            "unknown field spec.elasticPolicy.scaleUpSnooze; "
            "did you mean scaleUpSnoozeTimeInSeconds?",
        ),
    ],
)
def test_what_contradicts_itself_is_refused_with_its_line(fields: str, sentence: str) -> None:
    with pytest.raises(ConfigError) as caught:
        parse(ElasticJob, JOB % fields, source="job.yaml")

    assert re.sub(r"line \d", "line N", str(caught.value)) == f"job.yaml line N: {sentence}"


def test_the_minimum_is_the_smallest_of_the_sizes_unless_it_is_given() -> None:
    assert core_policy(parse_policy({"replicaDiscreteValues": [2, 4]})).min_replicas == 2
    assert refusal({"replicaDiscreteValues": [2, 4], "minReplicas": 1}) == (
        "the policy: minReplicas 1 is not the smallest of replicaDiscreteValues 2, 4"
    )


def test_a_change_leaves_the_other_fields_as_they_are() -> None:
    before = {"maxReplicas": 4, "backoff": {"factor": 3.0, "maxInSeconds": 60.0}, "spares": 1}

    after = merged(before, {"maxReplicas": 6, "backoff": {"factor": 2}, "spares": None})

    assert after == {"maxReplicas": 6, "backoff": {"factor": 2, "maxInSeconds": 60.0}}
    assert before["maxReplicas"] == 4


def test_new_sizes_bring_their_own_minimum() -> None:
    now = document_of(core.Policy(min_replicas=2, replica_discrete_values=(2, 4)))

    after = core_policy(parse_policy(merged(now, {"replicaDiscreteValues": [4, 8]})))

    assert after.min_replicas == 4


def test_a_start_size_that_does_not_fit_any_more_is_forgotten() -> None:
    assert start_that_fits(parse_policy({"maxReplicas": 3}), 2).start_replicas == 2
    assert start_that_fits(parse_policy({"maxReplicas": 3}), 4).start_replicas is None


def test_changes_are_told_as_they_are_typed() -> None:
    changes = {"maxReplicas": 6, "backoff": {"factor": 2}, "replicaDiscreteValues": None}

    assert changes_in_words(changes) == "maxReplicas=6 backoff.factor=2 replicaDiscreteValues=none"


def test_the_schema_describes_every_field_and_its_default() -> None:
    schema = ElasticJob.model_json_schema(by_alias=True)["$defs"]
    for name in ("ElasticPolicy", "Backoff"):
        for field in schema[name]["properties"].values():
            assert field["description"]
            assert "default" in field
    assert schema["ElasticPolicy"]["properties"]["scalingTimeoutInSeconds"]["minimum"] == 0
    assert schema["ElasticPolicy"]["additionalProperties"] is False


def test_the_page_has_a_row_for_every_field_with_its_default() -> None:
    rows = dict(re.findall(r"^\| `([\w.]+)` \| ([^|]*) \|", PAGE.read_text(), re.MULTILINE))
    documented = document_of(core.Policy(backoff=core.PolicyBackoff()))
    expected = {f"backoff.{name}": value for name, value in documented.pop("backoff").items()}

    for name, value in (documented | expected).items():
        shown = "none" if value is None else str(value).lower().removesuffix(".0")
        assert rows[name].startswith(shown), name
