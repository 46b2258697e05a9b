"""A job file either loads or is refused with one sentence that says what to change."""

from __future__ import annotations

import pytest
from hypothesis import given
from hypothesis import strategies as st

from pliant.core.errors import ConfigError
from pliant.spec.job import ElasticJob
from pliant.spec.load import check, parse

GOOD = """\
apiVersion: pliant.dev/v1alpha1
kind: ElasticJob
metadata: {name: gpt}
spec:
  elasticPolicy: {minReplicas: 1, maxReplicas: 4}
  startReplicas: 2
  workersPerReplica: 1
  command: [examples/train_gpt.py, --steps, "500"]
"""


def load(text: str) -> ElasticJob:
    return parse(ElasticJob, text, source="job.yaml")


def refusal(text: str) -> str:
    with pytest.raises(ConfigError) as caught:
        load(text)
    return str(caught.value)


def said(text: str) -> str:
    try:
        return repr(load(text))
    except ConfigError as error:
        return str(error)


def test_the_documented_job_loads() -> None:
    job = load(GOOD)

    assert job.metadata.name == "gpt"
    assert job.spec.elastic_policy.min_replicas == 1
    assert job.spec.elastic_policy.max_replicas == 4
    assert job.spec.start_replicas == 2
    assert job.spec.command == ["examples/train_gpt.py", "--steps", "500"]


def test_the_files_of_tls_are_all_given_or_none() -> None:
    tls = "  tls: {ca: /tls/ca.pem, certificate: /tls/node.pem, key: /tls/node.key}\n"

    found = load(GOOD + tls).spec.tls

    assert load(GOOD).spec.tls is None
    assert found is not None
    assert (found.ca, found.certificate, found.key) == (
        "/tls/ca.pem",
        "/tls/node.pem",
        "/tls/node.key",
    )


def test_sizes_have_defaults() -> None:
    job = load(
        "apiVersion: pliant.dev/v1alpha1\nkind: ElasticJob\nmetadata: {name: a}\n"
        "spec: {command: [train.py]}\n"
    )

    assert job.spec.elastic_policy.min_replicas == 1
    assert job.spec.elastic_policy.max_replicas is None
    assert job.spec.start_replicas is None


@pytest.mark.parametrize(
    ("old", "new", "sentence"),
    [
        (
            "minReplicas",
            "minReplica",
            "job.yaml line 5: unknown field spec.elasticPolicy.minReplica;"
            " did you mean minReplicas?",
        ),
        (
            "startReplicas",
            "start_replicas",
            "job.yaml line 6: unknown field spec.start_replicas; did you mean startReplicas?",
        ),
        ("kind: Elas", "knd: Elas", "job.yaml line 2: unknown field knd; did you mean kind?"),
        (
            "startReplicas: 2",
            "zzz: 2",
            "job.yaml line 6: unknown field spec.zzz; valid are command, recipe, elasticPolicy,"
            " startReplicas, workersPerReplica, hostsPerReplica, maxRestarts, limits,"
            " logMonitoringConfiguration, sessionTimeoutInSeconds, strict, verifyEvery, exchange,"
            " balance, placement, pool, tls,"
            " mode, logTo, notify, pricePerDeviceHour, suspend, replicas, podTemplate, queue,"
            " storage",
        ),
        (
            "minReplicas: 1",
            "minReplicas: 5",
            "job.yaml line 5: minReplicas 5 is greater than maxReplicas 4",
        ),
        (
            "startReplicas: 2",
            "startReplicas: 9",
            "job.yaml line 4: startReplicas 9 is greater than maxReplicas 4",
        ),
        (
            "workersPerReplica: 1",
            "workersPerReplica: 8\n  hostsPerReplica: 3",
            "job.yaml line 4: hostsPerReplica 3 does not divide workersPerReplica 8: each host of "
            "a replica has as many of its workers as the others",
        ),
        (
            "workersPerReplica: 1",
            "workersPerReplica: 8\n  pool: {name: lab}\n  hostsPerReplica: 2",
            "job.yaml line 4: a pool is of one host; leave out either pool or hostsPerReplica 2",
        ),
        (
            "workersPerReplica: 1",
            "workersPerReplica: 0",
            "job.yaml line 7: spec.workersPerReplica must be at least 1, not 0",
        ),
        (
            "maxReplicas: 4",
            "maxReplicas: four",
            "job.yaml line 5: spec.elasticPolicy.maxReplicas must be a whole number, not 'four'",
        ),
        (
            "maxReplicas: 4",
            "maxReplicas: 0",
            "job.yaml line 5: spec.elasticPolicy.maxReplicas must be at least 1, not 0",
        ),
        (
            '"500"',
            "500",
            'job.yaml line 8: spec.command[2] must be text; put it in quotes: "500"',
        ),
        (
            '[examples/train_gpt.py, --steps, "500"]',
            "train.py",
            "job.yaml line 8: spec.command must be a list, not 'train.py'",
        ),
        (
            '[examples/train_gpt.py, --steps, "500"]',
            "[]",
            "job.yaml line 8: spec.command must not be empty",
        ),
        (
            "v1alpha1",
            "v2",
            "job.yaml line 1: apiVersion must be pliant.dev/v1alpha1, not 'pliant.dev/v2'",
        ),
        ("{name: gpt}", "{}", "job.yaml line 3: metadata.name is missing"),
        (
            "  startReplicas: 2",
            "  tls: {ca: /tls/ca.pem, certificate: /tls/node.pem}",
            "job.yaml line 6: tls.key is missing: replicas need all three files for TLS",
        ),
        (
            "  startReplicas: 2",
            "  tls: {cert: /tls/node.pem}",
            "job.yaml line 6: unknown field spec.tls.cert; did you mean certificate?",
        ),
        (
            "{name: gpt}",
            "{name: My Job}",
            "job.yaml line 3: metadata.name 'My Job' must be lower-case letters, digits and"
            " dashes, at most 63 of them",
        ),
        (
            "  startReplicas: 2",
            "  startReplicas: 2\n  startReplicas: 3",
            "job.yaml line 7: the field startReplicas is given twice",
        ),
    ],
)
def test_each_mistake_gets_one_sentence(old: str, new: str, sentence: str) -> None:
    assert old in GOOD

    assert refusal(GOOD.replace(old, new)) == sentence


def test_what_is_no_yaml_is_refused_with_its_line() -> None:
    assert refusal("a: [1, 2\nb: 3\n").startswith("job.yaml line 2 is not valid YAML: ")


@pytest.mark.parametrize("text", ["a: &x [*x]", "a: 2001-99-99", "a: !!python/object:os {}"])
def test_what_yaml_cannot_hold_is_refused(text: str) -> None:
    assert "is not valid YAML" in refusal(text)


@pytest.mark.parametrize("text", ["", "- 1\n", "hello"])
def test_what_is_no_mapping_is_refused(text: str) -> None:
    assert refusal(text) == "job.yaml must be a mapping that starts with apiVersion and kind"


@given(st.text(max_size=200))
def test_any_text_loads_or_is_refused_in_one_line(text: str) -> None:
    assert "\n" not in said(text)


@given(st.dictionaries(st.text(), st.integers(), min_size=1, max_size=3))
def test_any_field_name_is_refused_in_one_line(values: dict[str, int]) -> None:
    with pytest.raises(ConfigError) as caught:
        check(ElasticJob, values, source="the body")

    assert "\n" not in str(caught.value)


def test_a_body_is_checked_like_a_file_but_has_no_lines() -> None:
    with pytest.raises(ConfigError, match="the body: apiVersion is missing"):
        check(ElasticJob, {}, source="the body")


def test_the_schema_names_the_fields_as_yaml_does() -> None:
    schema = ElasticJob.model_json_schema(by_alias=True)

    assert set(schema["properties"]) == {"apiVersion", "kind", "metadata", "spec"}
    assert "minReplicas" in schema["$defs"]["ElasticPolicy"]["properties"]
