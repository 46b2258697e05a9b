"""Which job of a Kubernetes cluster a command is about: ``--job kube:NAMESPACE/NAME``.

Owns how such a job is named, read and changed by its resource, and the sentences for what a cluster
refuses.  Knows nothing of what is asked of it, nor how the operator carries it out.

    scale, suspend, resume           a field of the resource, which the operator follows
    status, top, logs, explain ...   the coordinator's own answer (``kube.job_access``)
"""

from __future__ import annotations

import os
from collections.abc import Iterator
from contextlib import closing, contextmanager
from dataclasses import dataclass
from typing import Any

from pliant.core.errors import ConfigError
from pliant.kube import client
from pliant.kube.client import ELASTIC_JOBS, ApiError, Call, SyncApi
from pliant.kube.connection import Cluster, cluster_of
from pliant.machine.registry import Handle

CLUSTER_JOB = "kube:"
"""Before the names of a job in a cluster."""


@dataclass(frozen=True, slots=True)
class ClusterJob:
    """A job of a cluster, by its names."""

    cluster: Cluster
    name: str

    @classmethod
    def of(cls, place: str, context: str | None) -> ClusterJob:
        """Return the job that ``kube:NAMESPACE/NAME`` or ``kube:NAME`` means.

        Raises:
            ConfigError: it names none, or no cluster is configured.
        """
        namespace, _, name = place.removeprefix(CLUSTER_JOB).rpartition("/")
        if not name or "/" in namespace:
            raise ConfigError(f"--job {place} must be kube:NAMESPACE/NAME")
        return cls(cluster_of(os.environ, context=context, namespace=namespace or None), name)

    def handle(self) -> Handle:
        """Return how its coordinator is asked.

        Raises:
            ConfigError: it cannot be reached now.
        """
        from pliant.kube.job_access import job_handle  # what forwards ports takes time to import

        with closing(SyncApi(self.cluster)) as api:
            return job_handle(api, self.cluster.namespace, self.name)

    def change(self, **fields: Any) -> dict[str, str]:
        """Change fields of its specification; return what to say of it."""
        body = {"spec": fields}
        call = client.patch(ELASTIC_JOBS, self.name, self.cluster.namespace, body)
        with closing(SyncApi(self.cluster)) as api:
            asked(api, call, self.name)
        said = ", ".join(f"spec.{name} is {shown(value)} now" for name, value in fields.items())
        return {"reason": f"{said}; the operator follows it"}


def shown(value: object) -> str:
    """Return a value of a resource as its YAML has it."""
    return str(value).lower() if isinstance(value, bool) else str(value)


@contextmanager
def api_of(context: str | None, namespace: str | None) -> Iterator[SyncApi]:
    """Yield the way to a cluster, as kubectl finds it."""
    with closing(SyncApi(cluster_of(os.environ, context=context, namespace=namespace))) as api:
        yield api


def asked(api: SyncApi, call: Call, name: str) -> dict[str, Any]:
    """Return what the cluster answers about one job."""
    try:
        found: dict[str, Any] = api.ask(call)
    except ApiError as error:
        raise refusal(error, api.cluster, name) from error
    return found


def refusal(error: ApiError, cluster: Cluster, name: str | None) -> ConfigError:
    """Return the sentence for what failed about one job, or about all."""
    if error.is_gone and (name is None or f'"{name}"' not in error.message):
        return ConfigError(
            f"the cluster of context {cluster.context} knows no ElasticJob; install the operator "
            "with: pliant operator install"
        )
    if error.is_gone:
        return ConfigError(f"there is no job {name} in namespace {cluster.namespace}")
    if error.is_conflict:
        return ConfigError(
            f"{cluster.namespace}/{name} was changed by somebody else as well, for instance with "
            f"kubectl: {error.message}"
        )
    return client.refusal_of(error, cluster)
