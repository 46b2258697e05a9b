"""The job spec: the YAML file that people write, the body that REST takes, the schema of the CRD.

Owns the names and the bounds of what can be asked for, and the sentence for each way to ask for
the impossible; and of the limits (how long a job waits for what) the translation to the core's and
back: that all of the core's are here a test proves, and defaults are the core's.  Knows nothing of
processes, ports or where a job runs; the elastic policy has a module of its own.
``docs/howto/run-a-job.md`` shows one.
"""

from __future__ import annotations

from dataclasses import asdict, fields
from typing import Annotated, Any, Literal, Self

from pydantic import Field, model_validator

from pliant.core.errors import ConfigError
from pliant.core.job.state import JobSettings
from pliant.core.membership.state import Timeouts
from pliant.core.placement import PlacementRule
from pliant.core.tenancy import DEFAULT_POOL
from pliant.spec.cluster_job import ObjectName, PodTemplate, QueueEntry, StorageEntry
from pliant.spec.log_rules import LogRuleEntries
from pliant.spec.model import Model, SomeSeconds, check_name, core_fields, document, impossible
from pliant.spec.policy import ElasticPolicy, core_policy
from pliant.spec.recipe import Recipe

_SETTINGS = JobSettings()
_TIMEOUTS = _SETTINGS.timeouts


WEB_ADDRESS = r"^https?://[^\s/]\S*$"


class Limits(Model):
    """How long a job waits before it acts; a limit that concerns steps grows with long ones."""

    start_in_seconds: SomeSeconds = _SETTINGS.start_s
    """From the start of a replica until its script reaches steps(), and how long a job waits for
    its first node, or for the return of its last."""

    start_wait_in_seconds: SomeSeconds = _SETTINGS.start_wait_s
    """From the first replica that is ready until the job begins without the others."""

    heartbeat_in_seconds: SomeSeconds = _TIMEOUTS.heartbeat_s
    """Without a sign of life a replica is lost; below 2 s a busy machine looks like a dead one."""

    hang_in_seconds: SomeSeconds = _TIMEOUTS.hang_s
    """Without a step, a replica that the others wait for is ended; at least 20 usual steps."""

    step_in_seconds: SomeSeconds = _TIMEOUTS.step_s
    """Until all have come to the step boundary of a change or of a stop; at least 4 usual steps."""

    prepare_in_seconds: SomeSeconds = _TIMEOUTS.prepare_s
    """Until the members of a change are connected, while they train."""

    reform_in_seconds: SomeSeconds = _TIMEOUTS.reform_s
    """Until the survivors of a loss have met; at least 4 usual steps."""

    switch_in_seconds: SomeSeconds = _TIMEOUTS.switch_s
    """From there until all are in the new generation and joiners have their state."""

    grace_in_seconds: SomeSeconds = _TIMEOUTS.grace_s
    """After a broken connection, for the report of the death that explains it."""

    retry_in_seconds: SomeSeconds = _TIMEOUTS.retry_s
    """After a change that failed with nobody to blame; grows with each in a row."""

    register_in_seconds: SomeSeconds = _TIMEOUTS.register_s
    """A new coordinator waits so long for the replicas that run already."""

    node_in_seconds: SomeSeconds = _SETTINGS.node_s
    """Without a connection to its agent, a node is lost; replicas report through it."""

    silent_in_seconds: SomeSeconds = _SETTINGS.silent_s
    """Without a word of its agent, which is connected, nothing new is started on a node until it
    speaks again; what trains there is left alone."""

    slow_in_seconds: SomeSeconds = _SETTINGS.slow_s
    """How long a replica takes at least twice as long as the others until that is reported."""

    exit_in_seconds: SomeSeconds = _SETTINGS.exit_s
    """For the exit of a replica that was let go: its finally blocks."""

    finish_in_seconds: SomeSeconds = _SETTINGS.finish_s
    """For what the script does after its last step."""

    restart_forget_in_seconds: SomeSeconds = _SETTINGS.restart_forget_s
    """A loss longer ago does not count against --max-restarts, if a step was committed since."""


def core_limits(limits: Limits) -> dict[str, Any]:
    """Return the fields of the core's ``JobSettings`` that are limits."""
    values = core_fields(limits)
    inner = {field.name: values.pop(field.name) for field in fields(Timeouts)}
    return {"timeouts": Timeouts(**inner), **values}


def document_of_limits(settings: JobSettings) -> dict[str, Any]:
    """Return the limits that have not their default, as a job file has them."""
    return document(Limits, {**asdict(settings), **asdict(settings.timeouts)}.__getitem__)


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
    """What replicas prove themselves with to each other."""

    ca: str | None = None
    """The certificate that signs those of all nodes, in PEM form; the same path on every node."""

    certificate: str | None = None
    """Of the node that it lies on, in PEM form."""

    key: str | None = None
    """Of the certificate, in PEM form, without a password."""

    secret_name: ObjectName | None = None
    """In a cluster, instead of the three: a Secret with ca.crt, tls.crt and tls.key, as
    cert-manager writes it."""

    @model_validator(mode="after")
    def _possible(self) -> Self:
        files = {"ca": self.ca, "certificate": self.certificate, "key": self.key}
        missing = [name for name, path in files.items() if path is None]
        if self.secret_name is not None and len(missing) < len(files):
            raise impossible(
                f"tls.secretName {self.secret_name} is for a cluster, and paths are for hosts; "
                "give one or the other"
            )
        if self.secret_name is None and missing:
            raise impossible(f"tls.{missing[0]} is missing: replicas need all three files for TLS")
        return self


class Metadata(Model):
    """Who the job is; labels and annotations are kept for Kubernetes and mean nothing here."""

    name: Annotated[str, check_name("metadata.name")]
    namespace: str | None = None
    labels: dict[str, str] = Field(default_factory=dict)
    annotations: dict[str, str] = Field(default_factory=dict)


class JobSpec(Model):
    """What runs, and at which size it starts."""

    command: Annotated[list[str], Field(min_length=1)] | None = None
    """The script, or ``-m`` and a module, and its arguments, passed on untouched."""

    recipe: Recipe | None = None
    """Instead of a command: a model, data and how to train; ``pliant recipe`` says more."""

    elastic_policy: ElasticPolicy = Field(default_factory=ElasticPolicy)

    start_replicas: Annotated[int, Field(ge=1)] | None = None
    """Replicas wanted at the start; the default is the maximum."""

    workers_per_replica: Annotated[int, Field(ge=1)] = 1
    """Processes of one replica, each with a device.  With a recipe also ``auto``."""

    hosts_per_replica: Annotated[int, Field(ge=1)] = 1
    """Hosts over which the workers of a replica are divided evenly; more than one where a replica
    does not fit on one."""

    max_restarts: Annotated[int, Field(ge=0)] | None = None
    """Replicas that may be replaced after a fault before the job gives up."""

    limits: Limits = Field(default_factory=Limits)
    """How long the job waits for what; ``pliant config`` lists them."""

    log_monitoring_configuration: LogRuleEntries = Field(default_factory=list)
    """What the lines of a replica must say, or may not; HyperPod's names."""

    session_timeout_in_seconds: SomeSeconds | None = None
    """From the start of the script until it makes its session; the default is nine tenths of
    ``limits.startInSeconds``."""

    strict: bool = False
    """End a replica whose state differs from the others', or depends on who computes what, where
    otherwise that is only warned of."""

    verify_every: Annotated[int, Field(ge=0)] = 0
    """Steps between two comparisons of the whole state of all replicas, in which one that differs
    from most is replaced; 0: none."""

    exchange: Literal["auto", "host", "nccl"] = "auto"
    """How gradients on accelerators travel between replicas."""

    balance: Literal["even", "speed"] = "even"
    """By what the micro-batches of a step are divided over the replicas."""

    placement: str = "free"
    """Where replicas go: ``free``, ``spread`` or ``pack``, the last two with ``:rack`` if they go
    by that label of the nodes and not by hosts."""

    pool: PlaceEntry | None = None
    """The pool whose devices it runs on; without one every device is its own."""

    tls: TlsEntry | None = None
    """Replicas talk to each other over TLS; without it they do not."""

    mode: Literal["inPlace", "restart"] = "inPlace"
    """How the size changes: in the processes that train, or by starting them again from their own
    checkpoint, for scripts of torchrun."""

    log_to: str | None = None
    """Trackers that get what the script logs: ``tensorboard:DIR``, ``mlflow:URI`` or ``wandb:DIR``,
    several with commas."""

    notify: Annotated[str, Field(pattern=WEB_ADDRESS)] | None = None
    """A URL that gets one JSON object when the job ends, fails, is suspended, falls below its
    minimum or cannot save."""

    price_per_device_hour: Annotated[float, Field(ge=0, allow_inf_nan=False)] | None = None
    """Of a device for an hour, in any currency: metrics tell what the job has cost."""

    suspend: bool = False
    """In a cluster: the job leaves at a checkpoint and waits until this is false again."""

    replicas: Annotated[int, Field(ge=1)] | None = None
    """In a cluster: how many are wished for, as `kubectl scale` says it; the default is what the
    policy makes of the capacity."""

    pod_template: PodTemplate | None = None
    """In a cluster: the pod of a node of the job, a PodTemplateSpec."""

    queue: QueueEntry | None = None
    """In a cluster: where it asks for its pods."""

    storage: StorageEntry | None = None
    """In a cluster: where the coordinator's files are kept."""

    @property
    def program(self) -> list[str]:
        """What runs: the command, or that of the recipe."""
        return self.recipe.command() if self.recipe is not None else list(self.command or ())

    @model_validator(mode="after")
    def _possible(self) -> Self:
        if (self.command is None) == (self.recipe is None):
            raise impossible("give command or recipe, one of the two")
        try:
            policy = core_policy(self.elastic_policy, self.start_replicas)
            PlacementRule.of(self.placement)
        except ConfigError as error:
            raise impossible(str(error)) from None
        if self.replicas is not None and policy.fitted(self.replicas) is None:
            raise impossible(
                f"replicas {self.replicas} is none of the sizes that elasticPolicy allows"
            )
        hosts, workers = self.hosts_per_replica, self.workers_per_replica
        if workers % hosts:
            raise impossible(
                f"hostsPerReplica {hosts} does not divide workersPerReplica {workers}: each host "
                "of a replica has as many of its workers as the others"
            )
        if self.mode == "restart" and hosts > 1:
            raise impossible(
                f"mode restart and hostsPerReplica {hosts} contradict each other: scripts that are "
                "started again find the processes of all hosts themselves; leave out the second"
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
