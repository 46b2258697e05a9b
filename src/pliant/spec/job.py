"""The job spec: the YAML file that people write, the body that REST takes, the schema of the CRD.

Owns the names and the bounds of what can be asked for, and the sentence for each way to ask for
the impossible.  Knows nothing of processes, ports or where a job runs; the elastic policy has a
module of its own.

    apiVersion: pliant.dev/v1alpha1
    kind: ElasticJob
    metadata: {name: gpt}
    spec:
      elasticPolicy: {minReplicas: 1, maxReplicas: 4}
      startReplicas: 2
      workersPerReplica: 1
      hostsPerReplica: 1
      pool: {name: default, team: vision, priority: high}
      command: [examples/train_gpt.py, --steps, "500"]
"""

from __future__ import annotations

from typing import Annotated, Any, Literal, Self

from pydantic import Field, model_validator

from pliant.core.errors import ConfigError
from pliant.core.pool_defaults import DEFAULT_POOL
from pliant.core.sites import PlacementRule
from pliant.spec.limits import Limits
from pliant.spec.model import Model, SomeSeconds, check_name, impossible
from pliant.spec.policy import ElasticPolicy, core_policy


class PlaceEntry(Model):
    """Which pool of the machine the job runs in, and how it stands there."""

    name: Annotated[str, check_name("spec.pool.name")] = DEFAULT_POOL
    team: str | None = None
    """Whose quota it uses; the default team has none."""

    priority: str | None = None
    """Name of a priority class of the pool; the default is normal."""

    kind: str | None = None
    """Of which kind its devices are, where the pool has several; the default is the first."""


class TlsEntry(Model):
    """What replicas prove themselves with to each other; the same paths on every node."""

    ca: str
    """The certificate that signs those of all nodes, in PEM form."""

    certificate: str
    """Of the node that it lies on, in PEM form."""

    key: str
    """Of the certificate, in PEM form, without a password."""


class Metadata(Model):
    """Who the job is; labels and annotations are kept for Kubernetes and mean nothing here."""

    name: Annotated[str, check_name("metadata.name")]
    namespace: str | None = None
    labels: dict[str, str] = Field(default_factory=dict)
    annotations: dict[str, str] = Field(default_factory=dict)


class JobSpec(Model):
    """What runs, and at which size it starts."""

    command: Annotated[list[str], Field(min_length=1)]
    """The script, or ``-m`` and a module, and its arguments, passed on untouched."""

    elastic_policy: ElasticPolicy = Field(default_factory=ElasticPolicy)

    start_replicas: Annotated[int, Field(ge=1)] | None = None
    """Replicas wanted at the start; the default is the maximum."""

    workers_per_replica: Annotated[int, Field(ge=1)] = 1
    """Processes of one replica, each with a device."""

    hosts_per_replica: Annotated[int, Field(ge=1)] = 1
    """Hosts over which the workers of a replica are divided evenly; more than one where a replica
    does not fit on one."""

    max_restarts: Annotated[int, Field(ge=0)] | None = None
    """Replicas that may be replaced after a fault before the job gives up."""

    limits: Limits = Field(default_factory=Limits)
    """How long the job waits for what; ``pliant config`` lists them."""

    session_timeout_in_seconds: SomeSeconds | None = None
    """From the start of the script until it makes its session; the default is nine tenths of
    ``limits.startInSeconds``."""

    verify_every: Annotated[int, Field(ge=0)] = 0
    """Steps between two comparisons of the whole state of all replicas, in which one that differs
    from most is replaced; 0: none."""

    balance: Literal["even", "speed"] = "even"
    """By what the micro-batches of a step are divided over the replicas."""

    placement: str = "free"
    """Where replicas go: ``free``, ``spread`` or ``pack``, the last two with ``:rack`` if they go
    by that label of the nodes and not by hosts."""

    pool: PlaceEntry | None = None
    """The pool whose devices it runs on; without one every device is its own."""

    tls: TlsEntry | None = None
    """Replicas talk to each other over TLS; without it they do not."""

    @model_validator(mode="after")
    def _possible(self) -> Self:
        try:
            core_policy(self.elastic_policy, self.start_replicas)
            PlacementRule.of(self.placement)
        except ConfigError as error:
            raise impossible(str(error)) from None
        hosts, workers = self.hosts_per_replica, self.workers_per_replica
        if workers % hosts:
            raise impossible(
                f"hostsPerReplica {hosts} does not divide workersPerReplica {workers}: each host "
                "of a replica has as many of its workers as the others"
            )
        if self.pool is not None and hosts > 1:
            raise impossible(
                f"a pool is of one host; leave out either pool or hostsPerReplica {hosts}"
            )
        return self


class ElasticJob(Model):
    """One job, whole: YAML file = REST body = custom resource."""

    api_version: Literal["pliant.dev/v1alpha1"]
    kind: Literal["ElasticJob"]
    metadata: Metadata
    spec: JobSpec


def json_schema() -> dict[str, Any]:
    """Return the JSON schema of a job file, for editors, REST and the CRD."""
    return ElasticJob.model_json_schema(by_alias=True)
