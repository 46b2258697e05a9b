"""A job of a cluster: its manifest as the API server has it, as a value.

Owns what a manifest must say in a cluster beside what every job file must, the names of a job's
objects, and how many pods are of a replica.  Knows nothing of bodies, nor of who asks.
"""

from __future__ import annotations

import re
from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any

from pliant.core.errors import ConfigError
from pliant.spec.job import ElasticJob, JobSpec
from pliant.spec.load import check

GROUP = "pliant.dev"
VERSION = "v1alpha1"
KIND = "ElasticJob"
PLURAL = "elasticjobs"

JOB_LABEL = f"{GROUP}/job"
PART_LABEL = f"{GROUP}/part"
INCREMENT_LABEL = f"{GROUP}/increment"

QUEUE_LABEL = "kueue.x-k8s.io/queue-name"
"""Of a job: Kueue leaves the pods of one that has it alone, even where a default queue would
capture them."""

BASE = "base"
"""The increment of minReplicas; the others are x1, x2 ..."""

PORT = 7000
"""Of every coordinator."""

MOST_NAME = 51
"""Letters of a job's name: that of its Service is 12 longer, and has 63 at most."""

CLUSTER_NAME = re.compile(rf"[a-z]([-a-z0-9]{{0,{MOST_NAME - 2}}}[a-z0-9])?")
"""A Service begins with a letter."""


@dataclass(frozen=True, slots=True, kw_only=True)
class KubeJob:
    """One ElasticJob of a cluster."""

    name: str
    namespace: str
    uid: str
    manifest: ElasticJob

    @property
    def spec(self) -> JobSpec:
        """What is to run, and how."""
        return self.manifest.spec

    @property
    def pods_per_replica(self) -> int:
        """Each is a node of the job."""
        return self.spec.hosts_per_replica

    @property
    def devices_per_pod(self) -> int:
        """Workers that an agent can run."""
        return self.spec.workers_per_replica // self.spec.hosts_per_replica

    def called(self, part: str) -> str:
        """Return the name of its object of this kind: coordinator, token, register, job, base."""
        return f"{self.name}-{part}"


def read_job(given: Mapping[str, Any]) -> KubeJob:
    """Read a job as the API server has it.

    Raises:
        ConfigError: it cannot run in a cluster.  The rules of the CRD let no such manifest in; one
            that was there before may be.
    """
    meta = given["metadata"]
    name = str(meta["name"])
    manifest = check(
        ElasticJob,
        {
            "apiVersion": given["apiVersion"],
            "kind": given["kind"],
            "metadata": {"name": name},
            "spec": given.get("spec"),
        },
        source=f"ElasticJob {meta['namespace']}/{name}",
    )
    require_of_a_cluster(manifest)
    return KubeJob(
        name=name, namespace=str(meta["namespace"]), uid=str(meta["uid"]), manifest=manifest
    )


def require_of_a_cluster(job: ElasticJob) -> None:
    """Refuse what only a host could run.

    Raises:
        ConfigError: one sentence.
    """
    name, spec = job.metadata.name, job.spec
    require_name(name)
    if spec.pod_template is None:
        raise ConfigError(f"job {name} needs spec.podTemplate in a cluster: the pod of its nodes")
    if spec.elastic_policy.max_replicas is None:
        raise ConfigError(
            f"job {name} needs spec.elasticPolicy.maxReplicas in a cluster, where no machine has a "
            "number of cores"
        )
    if spec.pool is not None:
        raise ConfigError(
            f"job {name} names a pool, which is of one host; in a cluster, name a queue: spec.queue"
        )
    if spec.tls is not None and spec.tls.secret_name is None:
        raise ConfigError(
            f"job {name} names files for TLS, which lie on hosts; in a cluster, name a Secret: "
            "spec.tls.secretName"
        )


def require_name(name: str) -> None:
    """Refuse a name that the objects of a job could not have.

    Raises:
        ConfigError: one sentence.
    """
    if not CLUSTER_NAME.fullmatch(name):
        raise ConfigError(
            f"the name of a job in a cluster begins with a letter and has at most {MOST_NAME} "
            f"lower-case letters, digits and dashes; {name} has not"
        )
