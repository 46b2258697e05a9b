"""The job spec: the YAML file that people write, the body that REST takes, the schema of the CRD.

Owns the names and the bounds of what can be asked for, and the sentence for each way to ask for
the impossible.  Knows nothing of processes, ports or where a job runs; sizes become the core's
own ``ElasticPolicy``.

    apiVersion: pliant.dev/v1alpha1
    kind: ElasticJob
    metadata: {name: gpt}
    spec:
      elasticPolicy: {minReplicas: 1, maxReplicas: 4}
      startReplicas: 2
      workersPerReplica: 1
      command: [examples/train_gpt.py, --steps, "500"]
"""

from __future__ import annotations

import re
from typing import Annotated, Any, Literal, Self

from pydantic import (
    AfterValidator,
    BaseModel,
    ConfigDict,
    Field,
    model_validator,
)
from pydantic.alias_generators import to_camel
from pydantic_core import PydanticCustomError

API_VERSION = "pliant.dev/v1alpha1"
KIND = "ElasticJob"

NAME = re.compile(r"[a-z0-9]([-a-z0-9]{0,61}[a-z0-9])?")


class _Model(BaseModel):
    """Camel case outside, snake case inside; strict, so that ``"4"`` is not a number."""

    model_config = ConfigDict(
        alias_generator=to_camel,
        populate_by_name=False,
        extra="forbid",
        frozen=True,
        strict=True,
    )


def impossible(sentence: str) -> PydanticCustomError:
    """Refuse a spec with a whole sentence, shown as it is."""
    return PydanticCustomError("impossible", "{sentence}", {"sentence": sentence})


def _job_name(name: str) -> str:
    if not NAME.fullmatch(name):
        raise impossible(
            f"metadata.name {name!r} must be lower-case letters, digits and dashes,"
            " at most 63 of them"
        )
    return name


class ElasticPolicy(_Model):
    """Between which sizes the job may be resized."""

    min_replicas: Annotated[int, Field(ge=1)] = 1
    """Replicas below which the job does not train."""

    max_replicas: Annotated[int, Field(ge=1)] | None = None
    """Replicas above which it does not grow; the default is the number of accelerators."""

    @model_validator(mode="after")
    def _ordered(self) -> Self:
        if self.max_replicas is not None and self.min_replicas > self.max_replicas:
            raise impossible(
                f"minReplicas {self.min_replicas} is greater than maxReplicas {self.max_replicas}"
            )
        return self


class Metadata(_Model):
    """Who the job is; labels and annotations are kept for Kubernetes and mean nothing here."""

    name: Annotated[str, AfterValidator(_job_name)]
    namespace: str | None = None
    labels: dict[str, str] = Field(default_factory=dict)
    annotations: dict[str, str] = Field(default_factory=dict)


class JobSpec(_Model):
    """What runs, and at which size it starts."""

    command: Annotated[list[str], Field(min_length=1)]
    """The script and its arguments, passed on untouched."""

    elastic_policy: ElasticPolicy = Field(default_factory=ElasticPolicy)

    start_replicas: Annotated[int, Field(ge=1)] | None = None
    """Replicas wanted at the start; the default is the maximum."""

    workers_per_replica: Annotated[int, Field(ge=1)] = 1
    """Processes of one replica; more than one is a later capability."""

    max_restarts: Annotated[int, Field(ge=0)] | None = None
    """Replicas that may be replaced after a fault before the job gives up."""

    @model_validator(mode="after")
    def _possible(self) -> Self:
        policy = self.elastic_policy
        if self.workers_per_replica != 1:
            raise impossible(
                f"workersPerReplica {self.workers_per_replica} is not possible yet:"
                " a replica has one worker"
            )
        if self.start_replicas is not None:
            check_start(self.start_replicas, policy.min_replicas, policy.max_replicas)
        return self


class ElasticJob(_Model):
    """One job, whole: YAML file = REST body = custom resource."""

    api_version: Literal["pliant.dev/v1alpha1"]
    kind: Literal["ElasticJob"]
    metadata: Metadata
    spec: JobSpec


def check_start(start: int, low: int, high: int | None) -> None:
    """Refuse a start size outside the bounds, with one sentence."""
    if start < low:
        raise impossible(f"startReplicas {start} is less than minReplicas {low}")
    if high is not None and start > high:
        raise impossible(f"startReplicas {start} is greater than maxReplicas {high}")


def json_schema() -> dict[str, Any]:
    """Return the JSON schema of a job file, for editors, REST and the CRD."""
    return ElasticJob.model_json_schema(by_alias=True)
