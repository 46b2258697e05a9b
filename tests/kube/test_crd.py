"""The API server refuses what the models refuse, and the file that is applied is made from them."""

from __future__ import annotations

import ast
import re
from collections.abc import Iterator
from pathlib import Path
from typing import Any, NamedTuple

import pytest
import yaml
from tests.kube.jobs import job

from pliant.core.errors import ConfigError
from pliant.kube.crd import COLUMNS, RULES, crd

ROOT = Path(__file__).parents[2]

Schema = dict[str, Any]


class Refused(NamedTuple):
    """What the models refuse, and the API server as well."""

    sentence: str
    """The models'."""

    spec: Schema
    """What is changed in a job, beside its name."""

    rule: str
    """What the API server says: the message of a rule, or the field that the schema bounds."""


def sized(**policy: Any) -> Schema:
    return {"elasticPolicy": {"minReplicas": 2, "maxReplicas": 8, **policy}}


def backoff(**fields: float) -> Schema:
    return sized(backoff=fields)


def containers(*given: Schema) -> Schema:
    return {"podTemplate": {"spec": {"containers": list(given)}}}


ALLOWED = "is none of the sizes that elasticPolicy allows"
TRAINER = "neither command nor args: the agent runs in it, and spec.command is what that runs"
HOSTS = {"workersPerReplica": 3, "hostsPerReplica": 2}
BOTH = {"workersPerReplica": 4, "hostsPerReplica": 2, "mode": "restart"}

REFUSED = (
    Refused(
        "minReplicas 9 is greater than maxReplicas 8",
        sized(minReplicas=9),
        "minReplicas is greater than maxReplicas",
    ),
    Refused(
        "replicaIncrementStep 2 and replicaDiscreteValues 2, 4 exclude each other; give one of"
        " them",
        sized(replicaIncrementStep=2, replicaDiscreteValues=[2, 4]),
        "replicaIncrementStep and replicaDiscreteValues exclude each other; give one of them",
    ),
    Refused(
        "replicaDiscreteValues 2, 6, 4 must ascend",
        sized(replicaDiscreteValues=[2, 6, 4]),
        "replicaDiscreteValues must ascend",
    ),
    Refused(
        "replicaDiscreteValues 9 is greater than maxReplicas 8",
        sized(replicaDiscreteValues=[2, 9]),
        "one of replicaDiscreteValues is greater than maxReplicas",
    ),
    Refused(
        "replicaDiscreteValues 1 is less than minReplicas 2",
        sized(replicaDiscreteValues=[1, 4]),
        "minReplicas is not the smallest of replicaDiscreteValues",
    ),
    Refused(
        "minReplicas 2 is not the smallest of replicaDiscreteValues 4, 6",
        sized(replicaDiscreteValues=[4, 6]),
        "minReplicas is not the smallest of replicaDiscreteValues",
    ),
    Refused(
        "gracefulShutdownTimeoutInSeconds must be more than 0",
        sized(gracefulShutdownTimeoutInSeconds=0),
        "gracefulShutdownTimeoutInSeconds must be more than 0",
    ),
    Refused(
        "replaceSlowAfterInSeconds needs spares, of which one takes the place of a slow replica;"
        " give spares=1 as well",
        sized(replaceSlowAfterInSeconds=60),
        "replaceSlowAfterInSeconds needs spares, of which one takes the place of a slow replica",
    ),
    Refused(
        "backoff.initialInSeconds 700 is greater than backoff.maxInSeconds 600",
        backoff(initialInSeconds=700),
        "initialInSeconds is greater than maxInSeconds",
    ),
    Refused(
        "backoff.maxInSeconds 2000 is greater than backoff.resetAfterInSeconds 1800, after which"
        " nothing waits any more",
        backoff(maxInSeconds=2000),
        "maxInSeconds is greater than resetAfterInSeconds, after which nothing waits any more",
    ),
    Refused(
        "startReplicas 1 is less than minReplicas 2",
        {"startReplicas": 1},
        f"startReplicas {ALLOWED}",
    ),
    Refused(
        "startReplicas 11 is greater than maxReplicas 10",
        {"startReplicas": 11},
        f"startReplicas {ALLOWED}",
    ),
    Refused(
        "startReplicas 3 is none of the sizes from minReplicas 2 in steps of 2",
        {**sized(replicaIncrementStep=2), "startReplicas": 3},
        f"startReplicas {ALLOWED}",
    ),
    Refused(
        "replicas 3 is none of the sizes that elasticPolicy allows",
        {**sized(replicaDiscreteValues=[2, 4]), "replicas": 3},
        f"replicas {ALLOWED}",
    ),
    Refused(
        "mode restart and hostsPerReplica 2 contradict each other: scripts that are started again"
        " find the processes of all hosts themselves; leave out the second",
        BOTH,
        "mode restart needs no hostsPerReplica: scripts find the processes of all hosts",
    ),
    Refused(
        "'odd' must be one of free, spread, pack, the last two with the label to go by if that is"
        " not the host, such as spread:rack",
        {"placement": "odd"},
        "spec.placement",
    ),
    Refused(
        "hostsPerReplica 2 does not divide workersPerReplica 3: each host of a replica has as many"
        " of its workers as the others",
        HOSTS,
        "hostsPerReplica does not divide workersPerReplica",
    ),
    Refused(
        "give command or recipe, one of the two",
        {"recipe": {"data": {"train": "text.jsonl"}, "training": {"steps": 1}}},
        "give command or recipe, one of the two",
    ),
    Refused(
        "a pool is of one host; leave out either pool or hostsPerReplica 2",
        {"pool": {}, "workersPerReplica": 2, "hostsPerReplica": 2},
        "a pool is of one host; in a cluster, name a queue: spec.queue",
    ),
    Refused(
        "job gpt names a pool, which is of one host; in a cluster, name a queue: spec.queue",
        {"pool": {"name": "lab"}},
        "a pool is of one host; in a cluster, name a queue: spec.queue",
    ),
    Refused(
        "tls.secretName s is for a cluster, and paths are for hosts; give one or the other",
        {"tls": {"secretName": "s", "ca": "ca.pem"}},
        "paths are for hosts; in a cluster, give tls.secretName, and nothing else",
    ),
    Refused(
        "tls.key is missing: replicas need all three files for TLS",
        {"tls": {"ca": "ca.pem", "certificate": "node.pem"}},
        "paths are for hosts; in a cluster, give tls.secretName, and nothing else",
    ),
    Refused(
        "job gpt names files for TLS, which lie on hosts; in a cluster, name a Secret:"
        " spec.tls.secretName",
        {"tls": {"ca": "ca.pem", "certificate": "node.pem", "key": "node.key"}},
        "paths are for hosts; in a cluster, give tls.secretName, and nothing else",
    ),
    Refused(
        "queue.increments spare needs queue.name, which minReplicas wait in",
        {"queue": {"increments": "spare"}},
        "queue.increments needs queue.name, which minReplicas wait in",
    ),
    Refused(
        "storage.sizeLimit 2Gi is of files that are kept in the pod; leave out either it or"
        " storage.claim runs",
        {"storage": {"claim": "runs", "sizeLimit": "2Gi"}},
        "sizeLimit is of files that are kept in the pod; leave out either it or claim",
    ),
    Refused(
        "storage.sizeLimit 'much' is no quantity such as 2Gi",
        {"storage": {"sizeLimit": "much"}},
        "spec.storage.sizeLimit",
    ),
    Refused(
        f"the container one must have {TRAINER}",
        containers({"name": "one", "args": ["x"]}, {"name": "two"}),
        f"the first container must have {TRAINER}",
    ),
    Refused(
        f"the container trainer must have {TRAINER}",
        containers({"name": "one"}, {"name": "trainer", "command": ["x"]}),
        f"the container trainer must have {TRAINER}",
    ),
    Refused(
        "the name of a job in a cluster begins with a letter and has at most 51 lower-case letters,"
        " digits and dashes; 4gpt has not",
        {"name": "4gpt"},
        "metadata.name begins with a letter and has at most 51 lower-case letters, digits and"
        " dashes",
    ),
    Refused(
        "job gpt needs spec.podTemplate in a cluster: the pod of its nodes",
        {"podTemplate": None},
        "spec.podTemplate",
    ),
    Refused(
        "job gpt needs spec.elasticPolicy.maxReplicas in a cluster, where no machine has a number"
        " of cores",
        {"elasticPolicy": {"minReplicas": 2}},
        "spec.elasticPolicy.maxReplicas",
    ),
)
"""The table: one line for each way to ask for the impossible."""


@pytest.mark.parametrize("row", REFUSED, ids=lambda row: row.sentence[:50])
def test_what_the_models_refuse_has_its_rule(row: Refused) -> None:
    with pytest.raises(ConfigError) as caught:
        job(**row.spec)

    assert str(caught.value).removeprefix("ElasticJob team-a/gpt: ") == row.sentence
    if row.rule.startswith("spec."):
        assert is_bounded(row.rule)
    else:
        assert row.rule in messages(crd())


def messages(schema: Any) -> list[str]:
    if isinstance(schema, list):
        return [text for one in schema for text in messages(one)]
    if not isinstance(schema, dict):
        return []
    own = [one["message"] for one in schema.get("x-kubernetes-validations", [])]
    return own + [text for one in schema.values() for text in messages(one)]


def is_bounded(path: str) -> bool:
    """Whether a field must be there, or has a pattern."""
    inside, _, name = path.rpartition(".")
    schema = schema_at(inside)
    return name in schema.get("required", ()) or "pattern" in schema["properties"][name]


def schema_at(path: str) -> Schema:
    schema: Schema = crd()["spec"]["versions"][0]["schema"]["openAPIV3Schema"]
    for name in path.split("."):
        schema = schema["properties"][name]
    return schema


def test_every_refusal_of_the_models_is_in_the_table() -> None:
    found = [
        pattern
        for name in ("spec/job", "spec/cluster_job", "kube/job", "core/placement")
        for pattern in refusals(name)
    ] + [one for one in refusals("core/policy/fields") if "micro" not in one]

    said = [row.sentence for row in REFUSED]
    assert len(found) > 15
    assert [one for one in found if not any(re.fullmatch(one, text) for text in said)] == []
    assert {message for rules in RULES.values() for message in rules} <= {
        row.rule for row in REFUSED
    }


def refusals(module: str) -> Iterator[str]:
    """Yield what a module refuses with, as patterns."""
    for node in ast.walk(ast.parse((ROOT / f"src/pliant/{module}.py").read_text())):
        match node:
            case ast.Call(func=ast.Name(id="ConfigError" | "impossible"), args=[ast.Call()]):
                pass  # the sentence of another one
            case ast.Call(func=ast.Name(id="ConfigError" | "impossible"), args=[sentence]):
                parts = sentence.values if isinstance(sentence, ast.JoinedStr) else [sentence]
                yield "".join(
                    re.escape(str(part.value)) if isinstance(part, ast.Constant) else ".+"
                    for part in parts
                )
            case _:
                pass


def test_whatever_a_rule_may_look_at_has_a_bound() -> None:
    unbounded = []

    def look(schema: Any, path: str) -> None:
        match schema:
            case {"type": "array", "items": items}:
                look(items, f"{path}[]")
                unbounded.extend([path] * ("maxItems" not in schema))
            case {"properties": properties}:
                for name, inner in properties.items():
                    look(inner, f"{path}.{name}")
            case {"additionalProperties": inner}:
                look(inner, f"{path}{{}}")
                unbounded.extend([path] * ("maxProperties" not in schema))
            case {"type": "string"} if not schema.keys() & {"maxLength", "enum", "format"}:
                unbounded.append(path)
            case _:
                pass

    look(schema_at("spec"), "spec")
    look(schema_at("status"), "status")

    assert unbounded == []


def test_nothing_but_the_wish_and_the_suspension_can_be_changed() -> None:
    rules = {one["message"]: one["rule"] for one in schema_at("spec")["x-kubernetes-validations"]}
    changed = {text.split()[0] for text in rules if "cannot be changed" in text}

    assert schema_at("spec")["properties"].keys() - changed == {"suspend", "replicas"}
    assert rules["elasticPolicy cannot be changed; make another job"] == (
        "self.elasticPolicy == oldSelf.elasticPolicy"
    )


def test_columns_are_of_fields_that_there_are() -> None:
    for _, _, path, _ in COLUMNS:
        if path.startswith((".status.memory.", ".metadata.")):
            continue
        assert schema_at(path.strip(".")), path


def test_the_file_that_is_applied_is_made_from_the_models() -> None:
    applied = yaml.safe_load((ROOT / "deploy/kustomize/crd.yaml").read_text())

    assert applied == crd(), "run python -m tools.make_pages"
