"""What a job file says of a cluster: the pods of the job, its queue, its files, its certificates.

Owns the names and bounds of the fields that ``pliant run`` takes no notice of, and what a job in a
cluster must say beside them.  Knows nothing of how a cluster carries it out; the pod template is
Kubernetes' own, and most of it is looked at only there.
"""

from __future__ import annotations

import re
from typing import Annotated, Any, Self

from pydantic import ConfigDict, Field, model_validator

from pliant.spec.model import Model, impossible

TRAINER = "trainer"
"""The container of a pod template that the agent runs in; the first one if none has this name."""

ObjectName = Annotated[str, Field(min_length=1, max_length=253)]

QUANTITY = re.compile(r"[0-9]+(\.[0-9]+)?(m|k|M|G|T|P|E|Ki|Mi|Gi|Ti|Pi|Ei)?")


class OpenModel(Model):
    """Of Kubernetes: what is not named here is kept as it is."""

    model_config = ConfigDict(extra="allow", strict=False)


class Resources(OpenModel):
    """What a container asks for."""

    limits: dict[str, int | str] | None = None
    requests: dict[str, int | str] | None = None


class Container(OpenModel):
    """A container; the cluster looks at the rest."""

    name: Annotated[str, Field(min_length=1, max_length=63)]
    image: str | None = None
    command: list[str] | None = None
    args: list[str] | None = None
    resources: Resources | None = None


class PodSpec(OpenModel):
    """The pod; the cluster looks at the rest."""

    containers: Annotated[list[Container], Field(min_length=1)]
    node_selector: dict[str, str] | None = None
    priority_class_name: ObjectName | None = None
    termination_grace_period_seconds: Annotated[int, Field(ge=2)] | None = None
    """From the word that a pod goes until it is ended.  The default is 5 s more than the policy's
    gracefulShutdownTimeoutInSeconds."""

    @property
    def trainer(self) -> Container:
        """The container that the agent runs in."""
        named = (one for one in self.containers if one.name == TRAINER)
        return next(named, self.containers[0])

    @model_validator(mode="after")
    def _possible(self) -> Self:
        if self.trainer.command or self.trainer.args:
            raise impossible(
                f"the container {self.trainer.name} must have neither command nor args: the agent "
                "runs in it, and spec.command is what that runs"
            )
        return self


class PodMeta(OpenModel):
    """Labels and annotations of the pods."""

    labels: dict[str, str] | None = None
    annotations: dict[str, str] | None = None


class PodTemplate(OpenModel):
    """A ``PodTemplateSpec`` of core/v1, taken as it is."""

    metadata: PodMeta | None = None
    spec: PodSpec


class QueueEntry(Model):
    """Where the job asks for its pods, and how important they are."""

    name: ObjectName | None = None
    """The LocalQueue of Kueue that is asked; without one the job is none of Kueue's."""

    increments: ObjectName | None = None
    """The LocalQueue that is asked for what comes above minReplicas, for instance one that only
    borrows; the default is the same."""

    priority_class: ObjectName | None = None
    """Of minReplicas: a WorkloadPriorityClass, or a PriorityClass without the name of a queue."""

    increment_priority_class: ObjectName | None = None
    """Of what comes above minReplicas; lower, so that it is given back first."""

    @model_validator(mode="after")
    def _possible(self) -> Self:
        if self.increments is not None and self.name is None:
            raise impossible(
                f"queue.increments {self.increments} needs queue.name, which minReplicas wait in"
            )
        return self


class StorageEntry(Model):
    """Where the coordinator's files are kept: log, outcome, report.  The default is its pod."""

    claim: ObjectName | None = None
    """A PersistentVolumeClaim; each job has a directory of its own there."""

    size_limit: Annotated[str, Field(min_length=1, max_length=32)] | None = None
    """Of the files if they are kept in the pod, such as 2Gi."""

    @model_validator(mode="after")
    def _possible(self) -> Self:
        if self.claim is not None and self.size_limit is not None:
            raise impossible(
                f"storage.sizeLimit {self.size_limit} is of files that are kept in the pod; leave "
                f"out either it or storage.claim {self.claim}"
            )
        if self.size_limit is not None and not QUANTITY.fullmatch(self.size_limit):
            raise impossible(f"storage.sizeLimit {self.size_limit!r} is no quantity such as 2Gi")
        return self


def fields_for_a_cluster(spec: Any) -> list[str]:
    """Name the fields of a ``JobSpec`` that were given and of which only a cluster takes notice."""
    given = [
        ("suspend", spec.suspend),
        ("replicas", spec.replicas is not None),
        ("podTemplate", spec.pod_template is not None),
        ("queue", spec.queue is not None),
        ("storage", spec.storage is not None),
        ("tls.secretName", spec.tls is not None and spec.tls.secret_name is not None),
    ]
    return [name for name, is_given in given if is_given]
