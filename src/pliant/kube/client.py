"""Asks an API server: what may be asked as values, and who sends them.

Owns the paths and parameters of requests (``Call``), and turns every way they can fail into one
error (``ApiError``).  Knows nothing of which cluster it is (``kube.connection``), of retries, and
of what the objects mean: they are the JSON that was sent.

    read, listing, create, apply, replace, patch, delete, watching, proxied  -->  Call
    Call --> Api.ask (the operator)  |  SyncApi.ask (commands; a coordinator's register)
"""

from __future__ import annotations

import json
import socket
import time
from collections.abc import AsyncGenerator, Callable, Iterator, Mapping
from contextlib import closing
from dataclasses import dataclass, field
from dataclasses import replace as changed
from typing import Any
from urllib.parse import quote

import httpx

from pliant.core.errors import ConfigError, PliantError
from pliant.kube.connection import Cluster

Object = dict[str, Any]

JSON, MERGE, JSON_PATCH, APPLY = (
    "application/json",
    "application/merge-patch+json",
    "application/json-patch+json",
    "application/apply-patch+yaml",  # takes JSON, too
)

METADATA, METADATA_LIST = (
    f"application/json;as={kind};v=v1;g=meta.k8s.io"
    for kind in ("PartialObjectMetadata", "PartialObjectMetadataList")
)
"""What is asked for where the rest of an object is not read, or not to be known."""

MANAGER = "pliant-operator"
"""Who owns the fields that the operator applies."""

TIMEOUT_S = 15.0
"""Longest wait for an answer, in seconds; the API server gives up by itself after 60."""

WATCH_S = 300
"""After which the API server ends a watch, in seconds: it is asked to."""

PAGE = 500
"""Objects in one answer of a list."""

UNREACHABLE = "Unreachable"
"""Reason of an ``ApiError`` that is no answer: nobody knows whether the request was carried out."""

KEEPALIVE = [
    (socket.SOL_SOCKET, socket.SO_KEEPALIVE, 1),
    (socket.IPPROTO_TCP, socket.TCP_KEEPIDLE, 15),
    (socket.IPPROTO_TCP, socket.TCP_KEEPINTVL, 5),
    (socket.IPPROTO_TCP, socket.TCP_KEEPCNT, 3),
]
"""A watch may be silent for long: half a minute after its server vanished, the kernel ends it."""


class ApiError(PliantError):
    """What an API server refused, or that it did not answer."""

    def __init__(
        self, message: str, *, code: int, reason: str, retry_after_s: float | None = None
    ) -> None:
        """``code``: the HTTP status, 0 without an answer; ``reason``: Kubernetes' word for it."""
        super().__init__(message)
        self.code = code
        self.reason = reason
        self.message = message
        self.retry_after_s = retry_after_s

    @property
    def is_gone(self) -> bool:
        """Whether there is no such object."""
        return self.code == httpx.codes.NOT_FOUND

    @property
    def is_conflict(self) -> bool:
        """Whether somebody else changed it first, or has made it."""
        return self.code == httpx.codes.CONFLICT

    @property
    def is_expired(self) -> bool:
        """Whether a watch or a list begins too long ago: list again."""
        return self.code == httpx.codes.GONE

    @property
    def is_transient(self) -> bool:
        """Whether the same request may be answered later."""
        return self.code in (0, 408, 429) or self.code >= httpx.codes.INTERNAL_SERVER_ERROR


@dataclass(frozen=True, slots=True)
class Resource:
    """One kind of object, and where it is found."""

    api: str
    kind: str
    plural: str
    is_namespaced: bool = True

    def path(self, namespace: str | None = None, name: str | None = None, part: str = "") -> str:
        """Return the path of one object, or of all; ``part``: status, scale, proxy..."""
        path = f"/api/{self.api}" if "/" not in self.api else f"/apis/{self.api}"
        if self.is_namespaced and namespace is not None:
            path += f"/namespaces/{quote(namespace, safe='')}"
        path += f"/{self.plural}"
        if name is not None:
            path += f"/{quote(name, safe='')}"
        return f"{path}/{part}" if part else path


ELASTIC_JOBS = Resource("pliant.dev/v1alpha1", "ElasticJob", "elasticjobs")
PODS = Resource("v1", "Pod", "pods")
NODES = Resource("v1", "Node", "nodes", is_namespaced=False)
NAMESPACES = Resource("v1", "Namespace", "namespaces", is_namespaced=False)
SERVICES = Resource("v1", "Service", "services")
SECRETS = Resource("v1", "Secret", "secrets")
CONFIG_MAPS = Resource("v1", "ConfigMap", "configmaps")
SERVICE_ACCOUNTS = Resource("v1", "ServiceAccount", "serviceaccounts")
RESOURCE_QUOTAS = Resource("v1", "ResourceQuota", "resourcequotas")
LIMIT_RANGES = Resource("v1", "LimitRange", "limitranges")
ROLES = Resource("rbac.authorization.k8s.io/v1", "Role", "roles")
ROLE_BINDINGS = Resource("rbac.authorization.k8s.io/v1", "RoleBinding", "rolebindings")
NETWORK_POLICIES = Resource("networking.k8s.io/v1", "NetworkPolicy", "networkpolicies")
LEASES = Resource("coordination.k8s.io/v1", "Lease", "leases")
EVENTS = Resource("events.k8s.io/v1", "Event", "events")
WORKLOADS = Resource("kueue.x-k8s.io/v1beta2", "Workload", "workloads")
LOCAL_QUEUES = Resource("kueue.x-k8s.io/v1beta2", "LocalQueue", "localqueues")
CLUSTER_QUEUES = Resource("kueue.x-k8s.io/v1beta2", "ClusterQueue", "clusterqueues", False)
FLAVORS = Resource("kueue.x-k8s.io/v1beta2", "ResourceFlavor", "resourceflavors", False)
WORKLOAD_CLASSES = Resource(
    "kueue.x-k8s.io/v1beta2", "WorkloadPriorityClass", "workloadpriorityclasses", False
)
CUSTOM_RESOURCES = Resource(
    "apiextensions.k8s.io/v1", "CustomResourceDefinition", "customresourcedefinitions", False
)
DEPLOYMENTS = Resource("apps/v1", "Deployment", "deployments")
CLUSTER_ROLES = Resource("rbac.authorization.k8s.io/v1", "ClusterRole", "clusterroles", False)
CLUSTER_ROLE_BINDINGS = Resource(
    "rbac.authorization.k8s.io/v1", "ClusterRoleBinding", "clusterrolebindings", False
)
POD_MONITORS = Resource("monitoring.coreos.com/v1", "PodMonitor", "podmonitors")

PARTS = (
    *(SERVICES, SECRETS, CONFIG_MAPS, SERVICE_ACCOUNTS, ROLES, ROLE_BINDINGS),
    NETWORK_POLICIES,
)
"""Kinds of what a job has once, beside pods and Workloads."""

RESOURCES = {
    (one.api, one.kind): one for one in tuple(vars().values()) if isinstance(one, Resource)
}


def resource_of(body: Mapping[str, Any]) -> Resource:
    """Return the kind of an object that is to be sent."""
    return RESOURCES[body["apiVersion"], body["kind"]]


# --- what may be asked


@dataclass(frozen=True, slots=True, kw_only=True)
class Call:
    """One request."""

    method: str
    path: str
    params: Mapping[str, str] = field(default_factory=dict)
    body: Any = None
    content_type: str = JSON
    plural: str = ""
    """What it is about, for the numbers."""
    headers: Mapping[str, str] = field(default_factory=dict)


def read(resource: Resource, name: str, namespace: str | None = None, part: str = "") -> Call:
    """Return one object, or a part of it."""
    path = resource.path(namespace, name, part)
    return Call(method="GET", path=path, plural=resource.plural)


def listing(
    resource: Resource,
    namespace: str | None = None,
    *,
    labels: str = "",
    fields: str = "",
    limit: int = PAGE,
    only_metadata: bool = False,
) -> Call:
    """Return the first page of the objects; ``namespace`` None: of all."""
    params = {"labelSelector": labels, "fieldSelector": fields, "limit": str(limit)}
    return Call(
        method="GET",
        path=resource.path(namespace),
        params={key: value for key, value in params.items() if value},
        plural=resource.plural,
        headers={"Accept": METADATA_LIST} if only_metadata else {},
    )


def watching(
    resource: Resource,
    namespace: str | None = None,
    *,
    version: str,
    labels: str = "",
    fields: str = "",
    timeout_s: int = WATCH_S,
    only_metadata: bool = False,
) -> Call:
    """Watch what changes after a ``resourceVersion``; for ``events``."""
    call = listing(resource, namespace, labels=labels, fields=fields)
    params = {key: value for key, value in call.params.items() if key != "limit"}
    params |= {"watch": "1", "allowWatchBookmarks": "true", "resourceVersion": version}
    headers = {"Accept": METADATA} if only_metadata else {}
    return changed(call, params=params | {"timeoutSeconds": str(timeout_s)}, headers=headers)


def create(body: Object, *, dry_run: bool = False) -> Call:
    """Make an object; refused with ``is_conflict`` where there is one of its name."""
    resource, meta = resource_of(body), body["metadata"]
    return Call(
        method="POST",
        path=resource.path(meta.get("namespace")),
        params={"dryRun": "All"} if dry_run else {},
        body=body,
        plural=resource.plural,
    )


def apply(
    body: Object,
    *,
    manager: str = MANAGER,
    part: str = "",
    force: bool = True,
    dry_run: bool = False,
) -> Call:
    """Have the fields of ``body`` be so, and no other of this manager's (server-side apply)."""
    resource, meta = resource_of(body), body["metadata"]
    params = {"fieldManager": manager, "force": str(force).lower()}
    return Call(
        method="PATCH",
        path=resource.path(meta.get("namespace"), meta["name"], part),
        params=params | ({"dryRun": "All"} if dry_run else {}),
        body=body,
        content_type=APPLY,
        plural=resource.plural,
    )


def patch(
    resource: Resource,
    name: str,
    namespace: str | None,
    body: object,
    *,
    content_type: str = MERGE,
    part: str = "",
) -> Call:
    """Change some fields; None in a merge removes one."""
    return Call(
        method="PATCH",
        path=resource.path(namespace, name, part),
        body=body,
        content_type=content_type,
        plural=resource.plural,
    )


def replace(body: Object, *, part: str = "") -> Call:
    """Replace an object that is as it was read: its ``resourceVersion`` must still be there."""
    resource, meta = resource_of(body), body["metadata"]
    if not meta.get("resourceVersion"):
        raise ValueError(f"{meta.get('name')}: a replacement without resourceVersion wins always")
    path = resource.path(meta.get("namespace"), meta["name"], part)
    return Call(method="PUT", path=path, body=body, plural=resource.plural)


def delete(
    resource: Resource,
    name: str,
    namespace: str | None = None,
    *,
    uid: str | None = None,
    grace_s: int | None = None,
    propagation: str = "Background",
) -> Call:
    """Delete an object; with a uid only that very one, not another of its name."""
    options: Object = {"propagationPolicy": propagation}
    if uid is not None:
        options["preconditions"] = {"uid": uid}
    if grace_s is not None:
        options["gracePeriodSeconds"] = grace_s
    path = resource.path(namespace, name)
    return Call(method="DELETE", path=path, body=options, plural=resource.plural)


def proxied(
    namespace: str,
    pod: str,
    port: int,
    path: str,
    *,
    method: str = "GET",
    body: object = None,
    headers: Mapping[str, str] | None = None,
    params: Mapping[str, str] | None = None,
) -> Call:
    """Ask a pod through the API server, which takes the ``Authorization`` header for itself."""
    there = PODS.path(namespace, f"{pod}:{port}", "proxy").replace("%3A", ":")
    return Call(
        method=method,
        path=f"{there}/{path.lstrip('/')}",
        params=params or {},
        body=body,
        plural="pods/proxy",
        headers=headers or {},
    )


# --- who sends it

Heard = Callable[[Call, int, float], None]
"""Told of each answer: the call, its HTTP status (0: none), seconds."""


def _nobody(call: Call, code: int, took_s: float) -> None:
    """Tell nobody."""


class Api:
    """Asks from an event loop."""

    def __init__(self, cluster: Cluster, *, heard: Heard = _nobody) -> None:
        self.cluster = cluster
        self._heard = heard
        self._http = httpx.AsyncClient(
            **_options(cluster),
            transport=httpx.AsyncHTTPTransport(
                verify=cluster.trust, limits=_LIMITS, socket_options=KEEPALIVE
            ),
        )

    async def close(self) -> None:
        """Close every connection."""
        await self._http.aclose()

    async def ask(self, call: Call, *, timeout_s: float = TIMEOUT_S) -> Any:
        """Return what it answers: an object, or text of what is none.

        Raises:
            ApiError: it refuses, or does not answer in time.
        """
        began, code = time.monotonic(), 0
        try:
            request = _request(self._http, self.cluster, call, read_s=timeout_s)
            response = await self._http.send(request)
            code = response.status_code
        except httpx.HTTPError as error:
            raise _unanswered(call, error) from error
        finally:
            self._heard(call, code, time.monotonic() - began)
        return _answer(call, response)

    async def list(self, call: Call) -> tuple[list[Object], str]:
        """Return all objects of a ``listing``, page by page, and the version they are of."""
        found: list[Object] = []
        while True:
            page = await self.ask(call)
            found += page.get("items") or ()
            token = page["metadata"].get("continue")
            if not token:
                return found, page["metadata"]["resourceVersion"]
            call = changed(call, params={**call.params, "continue": token})

    async def events(self, call: Call) -> AsyncGenerator[Object]:
        """Yield ``{type, object}`` of a ``watching`` until the API server ends it.

        Raises:
            ApiError: it refuses, the connection broke, or the watch cannot go on (``is_expired``).
        """
        began = time.monotonic()
        request = _request(self._http, self.cluster, call, read_s=None)
        try:
            response = await self._http.send(request, stream=True)
        except httpx.HTTPError as error:
            self._heard(call, 0, time.monotonic() - began)
            raise _unanswered(call, error) from error
        try:
            self._heard(call, response.status_code, time.monotonic() - began)
            if response.is_error:
                await response.aread()
                _answer(call, response)
            async for line in response.aiter_lines():
                yield _event(line)
        except httpx.HTTPError as error:
            raise _unanswered(call, error) from error
        finally:
            await response.aclose()


class SyncApi:
    """Asks, and blocks until it is answered."""

    def __init__(self, cluster: Cluster) -> None:
        self.cluster = cluster
        self._http = httpx.Client(
            **_options(cluster),
            transport=httpx.HTTPTransport(verify=cluster.trust, socket_options=KEEPALIVE),
        )

    def close(self) -> None:
        """Close every connection."""
        self._http.close()

    def ask(self, call: Call, *, timeout_s: float = TIMEOUT_S) -> Any:
        """Return what it answers: an object, or text of what is none.

        Raises:
            ApiError: it refuses, or does not answer in time.
        """
        try:
            response = self._http.send(_request(self._http, self.cluster, call, read_s=timeout_s))
        except httpx.HTTPError as error:
            raise _unanswered(call, error) from error
        return _answer(call, response)

    def list(self, call: Call) -> tuple[list[Object], str]:
        """Return all objects of a ``listing``, page by page, and the version they are of."""
        found: list[Object] = []
        while True:
            page = self.ask(call)
            found += page.get("items") or ()
            token = page["metadata"].get("continue")
            if not token:
                return found, page["metadata"]["resourceVersion"]
            call = changed(call, params={**call.params, "continue": token})

    def events(self, call: Call) -> Iterator[Object]:
        """Yield ``{type, object}`` of a ``watching`` until the API server ends it; as ``Api``."""
        request = _request(self._http, self.cluster, call, read_s=None)
        try:
            with closing(self._http.send(request, stream=True)) as response:
                if response.is_error:
                    response.read()
                    _answer(call, response)
                yield from map(_event, response.iter_lines())
        except httpx.HTTPError as error:
            raise _unanswered(call, error) from error


def refusal_of(error: ApiError, cluster: Cluster) -> ConfigError:
    """Return the sentence for a person who has asked for something that failed."""
    if error.reason == UNREACHABLE:
        return ConfigError(
            f"the cluster of context {cluster.context} does not answer at {cluster.url}: "
            f"{error.message}; see whether kubectl reaches it"
        )
    return ConfigError(f"the cluster of context {cluster.context} refuses: {error.message}")


_LIMITS = httpx.Limits(max_connections=None, max_keepalive_connections=20)


def _options(cluster: Cluster) -> dict[str, Any]:
    return {
        "base_url": cluster.url,
        "headers": {"User-Agent": MANAGER, "Accept": JSON},
        "timeout": TIMEOUT_S,
        "trust_env": cluster.is_proxied,
        "verify": cluster.trust,
    }


def _request(
    http: httpx.Client | httpx.AsyncClient,
    cluster: Cluster,
    call: Call,
    *,
    read_s: float | None = TIMEOUT_S,
) -> httpx.Request:
    headers = {**call.headers}
    if (shown := cluster.authorization()) is not None:
        headers["Authorization"] = shown
    if call.body is not None:
        headers["Content-Type"] = call.content_type
    extensions = {"sni_hostname": cluster.server_name} if cluster.server_name else None
    return http.build_request(
        call.method,
        call.path,
        params=call.params or None,
        content=None if call.body is None else json.dumps(call.body),
        headers=headers,
        timeout=httpx.Timeout(TIMEOUT_S, read=read_s),
        extensions=extensions,
    )


def _answer(call: Call, response: httpx.Response) -> Any:
    is_json = response.headers.get("Content-Type", "").startswith(JSON)
    try:
        values = response.json() if is_json else None
    except ValueError:
        values = None
    if response.is_success:
        return response.text if values is None else values
    status = values if isinstance(values, dict) else {}
    raise _refused(
        status,
        code=response.status_code,
        asked=f"{call.method} {call.path}",
        retry_after=response.headers.get("Retry-After", ""),
    )


def _refused(
    status: Mapping[str, Any], *, code: int, asked: str, retry_after: str = ""
) -> ApiError:
    """Return the error of a ``Status``; what is none is named by its code."""
    details = status.get("details")
    after = details.get("retryAfterSeconds") if isinstance(details, dict) else None
    after = int(retry_after) if retry_after.isdecimal() else after
    return ApiError(
        str(status.get("message") or f"{asked} is answered with HTTP status {code}"),
        code=code,
        reason=str(status.get("reason") or ""),
        retry_after_s=None if after is None else float(after),
    )


def _event(line: str) -> Object:
    try:
        event: Object = json.loads(line)
    except ValueError as error:
        raise ApiError("a watch was cut off", code=0, reason=UNREACHABLE) from error
    if event["type"] == "ERROR":
        status = event["object"]
        raise _refused(status, code=int(status.get("code") or 0), asked="a watch")
    return event


def _unanswered(call: Call, error: httpx.HTTPError) -> ApiError:
    said = str(error) or type(error).__name__
    return ApiError(said, code=0, reason=UNREACHABLE)
