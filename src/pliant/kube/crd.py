"""The kind ElasticJob as the API server must know it, made from the models of the job file.

Owns how a model becomes a structural schema, and the rules by which the API server itself refuses
what the models refuse.  Knows nothing of jobs.

A rule costs what it may cost at most, by the bounds of what it looks at: every array, map and text
has one, and messages are plain text.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import fields
from typing import Any

from pydantic import TypeAdapter
from pydantic.alias_generators import to_camel

from pliant.core.operator.state import JobStatus
from pliant.kube.job import CLUSTER_NAME, GROUP, KIND, PLURAL, VERSION
from pliant.spec.cluster_job import QUANTITY
from pliant.spec.job import JobSpec

Schema = dict[str, Any]

MOST_LETTERS = 1024
MOST_ITEMS = 64
"""Of a text, and of an array or a map, where nothing else is said."""

BOUNDS: dict[str, Schema] = {
    "command": {"maxItems": 1024},
    "command[]": {"maxLength": 8192},
    "elasticPolicy.replicaDiscreteValues": {"maxItems": 256, "x-kubernetes-list-type": "set"},
    "podTemplate.spec.containers": {"maxItems": 16},
    "placement": {"pattern": "^(free|spread|pack)(:.+)?$", "maxLength": 256},
    "storage.sizeLimit": {"pattern": f"^{QUANTITY.pattern}$"},
}
"""Of fields of the spec, by their path."""

OPEN = ("podTemplate", "recipe")
"""Below these fields, what is not named is kept."""

REQUIRED = {"": ["elasticPolicy", "podTemplate"], "elasticPolicy": ["maxReplicas"]}
"""What a cluster needs and a host does not."""

KEPT = (
    *("minimum", "maximum", "minLength", "maxLength", "minItems", "enum", "pattern", "required"),
)
"""Of a model's schema, what one of Kubernetes has, too."""

CHANGEABLE = frozenset({"suspend", "replicas"})


def _or(field: str, default: str, at: str = "self") -> str:
    return f"(has({at}.{field}) ? {at}.{field} : {default})"


_POLICY = "self.elasticPolicy"
_SIZES = "replicaDiscreteValues"
_LEAST = _or("minReplicas", f"(has({_POLICY}.{_SIZES}) ? {_POLICY}.{_SIZES}[0] : 1)", _POLICY)


def _allowed(field: str) -> str:
    size, step, sizes = f"self.{field}", f"{_POLICY}.replicaIncrementStep", f"{_POLICY}.{_SIZES}"
    return (
        f"!has({size}) || ({size} >= {_LEAST} && {size} <= {_POLICY}.maxReplicas"
        f" && (!has({step}) || ({size} - {_LEAST}) % {step} == 0)"
        f" && (!has({sizes}) || {size} in {sizes}))"
    )


def _no_command(at: str) -> str:
    return " && ".join(
        f"(!has({at}.{one}) || size({at}.{one}) == 0)" for one in ("command", "args")
    )


_MODE = _or("mode", "'inPlace'")
_ALLOWED = "is none of the sizes that elasticPolicy allows"
_TRAINER = "neither command nor args: the agent runs in it, and spec.command is what that runs"
_IS_NAMED = "self.containers.exists(one, one.name == 'trainer')"

RULES: dict[str, dict[str, str]] = {
    "elasticPolicy": {
        "minReplicas is greater than maxReplicas": (
            "!has(self.minReplicas) || self.minReplicas <= self.maxReplicas"
        ),
        "replicaIncrementStep and replicaDiscreteValues exclude each other; give one of them": (
            f"!has(self.replicaIncrementStep) || !has(self.{_SIZES})"
        ),
        "replicaDiscreteValues must ascend": f"!has(self.{_SIZES}) || self.{_SIZES}.isSorted()",
        "one of replicaDiscreteValues is greater than maxReplicas": (
            f"!has(self.{_SIZES}) || self.{_SIZES}.all(size, size <= self.maxReplicas)"
        ),
        "minReplicas is not the smallest of replicaDiscreteValues": (
            f"!has(self.{_SIZES}) || !has(self.minReplicas) || self.minReplicas == self.{_SIZES}[0]"
        ),
        "gracefulShutdownTimeoutInSeconds must be more than 0": (
            f"{_or('gracefulShutdownTimeoutInSeconds', '1.0')} > 0.0"
        ),
        "replaceSlowAfterInSeconds needs spares, of which one takes the place of a slow replica": (
            f"!has(self.replaceSlowAfterInSeconds) || {_or('spares', '0')} > 0"
        ),
    },
    "elasticPolicy.backoff": {
        "initialInSeconds is greater than maxInSeconds": (
            f"{_or('initialInSeconds', '30.0')} <= {_or('maxInSeconds', '600.0')}"
        ),
        "maxInSeconds is greater than resetAfterInSeconds, after which nothing waits any more": (
            f"{_or('maxInSeconds', '600.0')} <= {_or('resetAfterInSeconds', '1800.0')}"
        ),
    },
    "": {
        f"startReplicas {_ALLOWED}": _allowed("startReplicas"),
        f"replicas {_ALLOWED}": _allowed("replicas"),
        "hostsPerReplica does not divide workersPerReplica": (
            f"{_or('workersPerReplica', '1')} % {_or('hostsPerReplica', '1')} == 0"
        ),
        "mode restart needs no hostsPerReplica: scripts find the processes of all hosts": (
            f"{_MODE} != 'restart' || {_or('hostsPerReplica', '1')} == 1"
        ),
        "give command or recipe, one of the two": ("has(self.command) != has(self.recipe)"),
        "a pool is of one host; in a cluster, name a queue: spec.queue": "!has(self.pool)",
    },
    "tls": {
        "paths are for hosts; in a cluster, give tls.secretName, and nothing else": (
            "has(self.secretName) && !has(self.ca) && !has(self.certificate) && !has(self.key)"
        ),
    },
    "queue": {
        "queue.increments needs queue.name, which minReplicas wait in": (
            "!has(self.increments) || has(self.name)"
        ),
    },
    "storage": {
        "sizeLimit is of files that are kept in the pod; leave out either it or claim": (
            "!has(self.claim) || !has(self.sizeLimit)"
        ),
    },
    "podTemplate.spec": {
        f"the container trainer must have {_TRAINER}": (
            f"self.containers.all(one, one.name != 'trainer' || ({_no_command('one')}))"
        ),
        f"the first container must have {_TRAINER}": (
            f"{_IS_NAMED} || ({_no_command('self.containers[0]')})"
        ),
    },
}
"""What the models refuse beyond the bounds of single fields: rules by their message, and by the
path in the spec of what ``self`` is."""

COLUMNS = (
    ("Phase", "string", ".status.phase", 0),
    ("Replicas", "integer", ".status.replicas", 0),
    ("Wanted", "integer", ".status.wantedReplicas", 0),
    ("Allowed", "integer", ".status.allowedReplicas", 0),
    ("Age", "date", ".metadata.creationTimestamp", 0),
    ("Pending", "string", ".status.pending", 1),
    ("Queue", "string", ".spec.queue.name", 1),
    ("Min", "integer", ".spec.elasticPolicy.minReplicas", 1),
    ("Max", "integer", ".spec.elasticPolicy.maxReplicas", 1),
    ("Step", "integer", ".status.memory.outcome.ending.step", 1),
    ("Digest", "string", ".status.memory.outcome.ending.digest", 1),
    ("Audit", "string", ".status.memory.outcome.ending.audit", 1),
    ("Reason", "string", ".status.reason", 1),
)
"""Of ``kubectl get``; those of 1 with ``-o wide``."""


def crd() -> Schema:
    """Return the CustomResourceDefinition."""
    version = {
        "name": VERSION,
        "served": True,
        "storage": True,
        "schema": {"openAPIV3Schema": _root()},
        "subresources": {
            "status": {},
            "scale": {
                "specReplicasPath": ".spec.replicas",
                "statusReplicasPath": ".status.replicas",
                "labelSelectorPath": ".status.selector",
            },
        },
        "additionalPrinterColumns": [
            {"name": name, "type": kind, "jsonPath": path, "priority": priority}
            for name, kind, path, priority in COLUMNS
        ],
    }
    return {
        "apiVersion": "apiextensions.k8s.io/v1",
        "kind": "CustomResourceDefinition",
        "metadata": {"name": f"{PLURAL}.{GROUP}"},
        "spec": {
            "group": GROUP,
            "scope": "Namespaced",
            "names": {
                "kind": KIND,
                "listKind": f"{KIND}List",
                "plural": PLURAL,
                "singular": KIND.lower(),
                "shortNames": ["ej"],
            },
            "versions": [version],
        },
    }


def _root() -> Schema:
    name_rule = {
        "rule": f"self.metadata.name.matches('^{CLUSTER_NAME.pattern}$')",
        "message": "metadata.name begins with a letter and has at most 51 lower-case letters,"
        " digits and dashes",
    }
    return {
        "type": "object",
        "description": "One training job that grows and shrinks while it trains.",
        "required": ["spec"],
        "properties": {
            "apiVersion": {"type": "string"},
            "kind": {"type": "string"},
            "metadata": {"type": "object"},
            "spec": spec_schema(),
            "status": status_schema(),
        },
        "x-kubernetes-validations": [name_rule],
    }


def spec_schema() -> Schema:
    """Return the schema of the spec, with its rules."""
    source = JobSpec.model_json_schema(by_alias=True)
    schema = _structural(source, source.get("$defs", {}), "")
    for path, names in REQUIRED.items():
        _at(schema, path)["required"] = names
    for at, rules in RULES.items():
        more = _unchanging(schema) if not at else {}
        _at(schema, at)["x-kubernetes-validations"] = [
            {"rule": rule, "message": message} for message, rule in {**rules, **more}.items()
        ]
    return schema


def _unchanging(schema: Schema) -> dict[str, str]:
    rules = {}
    for name in sorted(schema["properties"].keys() - CHANGEABLE):
        same = f"self.{name} == oldSelf.{name}"
        if name not in schema["required"]:
            same = f"has(self.{name}) == has(oldSelf.{name}) && (!has(self.{name}) || {same})"
        rules[f"{name} cannot be changed; make another job"] = same
    return rules


def _at(schema: Schema, path: str) -> Schema:
    for name in filter(None, path.split(".")):
        schema = schema["properties"][name]
    return schema


def _structural(given: Mapping[str, Any], defs: Mapping[str, Any], path: str) -> Schema:
    """Return a schema of JSON as Kubernetes takes one: no references, no null, all bounded."""
    source = _resolved(given, defs)
    if "anyOf" in source:
        return {"x-kubernetes-int-or-string": True}
    schema: Schema = {"type": source["type"]}
    if text := given.get("description") or source.get("description"):
        schema["description"] = " ".join(text.split())
    schema |= {name: source[name] for name in KEPT if name in source}
    if "exclusiveMinimum" in source:
        schema |= {"minimum": source["exclusiveMinimum"], "exclusiveMinimum": True}
    match source:
        case {"type": "string"} if "enum" not in schema:
            schema.setdefault("maxLength", MOST_LETTERS)
        case {"items": items}:
            schema |= {"maxItems": MOST_ITEMS, "items": _structural(items, defs, f"{path}[]")}
        case {"properties": properties}:
            inner = f"{path}." if path else ""
            schema["properties"] = {
                name: _structural(value, defs, f"{inner}{name}")
                for name, value in properties.items()
            }
            if path.startswith(OPEN):
                schema["x-kubernetes-preserve-unknown-fields"] = True
        case {"additionalProperties": values}:
            one = _structural(values, defs, f"{path}{{}}")
            schema |= {"maxProperties": MOST_ITEMS, "additionalProperties": one}
        case _:
            pass
    return schema | BOUNDS.get(path, {})


def _resolved(source: Mapping[str, Any], defs: Mapping[str, Any]) -> Mapping[str, Any]:
    """Follow a reference, and drop null: what is not given is left out."""
    while True:
        if "$ref" in source:
            source = defs[source["$ref"].rpartition("/")[2]]
        elif "anyOf" in source and {"type": "null"} in source["anyOf"]:
            source = next(one for one in source["anyOf"] if one != {"type": "null"})
        else:
            return source


CONDITION: Schema = {
    "type": "object",
    "required": ["type", "status", "reason", "message", "lastTransitionTime"],
    "properties": {
        "type": {"type": "string", "maxLength": 316},
        "status": {"type": "string", "enum": ["True", "False", "Unknown"]},
        "reason": {"type": "string", "maxLength": MOST_LETTERS},
        "message": {"type": "string", "maxLength": 32768},
        "lastTransitionTime": {"type": "string", "format": "date-time"},
        "observedGeneration": {"type": "integer"},
    },
}


def status_schema() -> Schema:
    """Return the schema of the status: what people read, and the operator's memory as it is."""
    source = TypeAdapter(JobStatus).json_schema()
    defs, found = source.get("$defs", {}), {}
    for field in fields(JobStatus):
        if field.name not in ("conditions", "memory"):
            schema = _structural(source["properties"][field.name], defs, "status")
            if schema["type"] == "string":
                schema["maxLength"] = 32768
            found[to_camel(field.name)] = schema
    return {
        "type": "object",
        "description": "What the operator says of the job; nobody else writes it.",
        "properties": {
            **found,
            "conditions": {
                "type": "array",
                "maxItems": MOST_ITEMS,
                "items": CONDITION,
                "x-kubernetes-list-type": "map",
                "x-kubernetes-list-map-keys": ["type"],
            },
            "selector": {
                "type": "string",
                "description": "Labels of its replicas' pods, for a HorizontalPodAutoscaler.",
                "maxLength": MOST_LETTERS,
            },
            "memory": {
                "type": "object",
                "description": "What an operator that is started anew must know.",
                "x-kubernetes-preserve-unknown-fields": True,
            },
        },
    }
