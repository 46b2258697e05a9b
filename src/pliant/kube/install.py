"""What a cluster needs before it runs jobs: the kind, the operator, and who may do what.

Owns these objects, and what Kueue must be told.  One source: the command applies them, and the Helm
chart and the kustomize base of ``deploy`` are written from them.  Knows nothing of jobs.

Least privilege: the operator makes what a job consists of and reads what decides about it; it
touches no node and no queue.  Users write jobs, and never Workloads, so quota is Kueue's alone.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

from pliant.kube.bodies import CONTAINER_SECURITY, POD_SECURITY, Body
from pliant.kube.crd import crd
from pliant.kube.job import GROUP, KIND, PART_LABEL, PLURAL, VERSION
from pliant.kube.pods import KUEUE

NAME = "pliant-operator"
NAMESPACE = "pliant-system"
IMAGE = f"{NAME}:latest"
METRICS_PORT = 8080

KUEUE_NAMESPACE = "kueue-system"
KUEUE_ACCOUNT = "kueue-controller-manager"
KUEUE_CONFIG = "kueue-manager-config"
FRAMEWORK = f"{KIND}.{VERSION}.{GROUP}"
"""What Kueue must have among ``integrations.externalFrameworks``: it leaves pods of a job alone
then, where its own integration of pods would hold them."""

DEAD_NODE_S = 30
"""How long an operator's pod on a node that is not heard is waited for; Kubernetes waits 300 s."""

LABELS = {"app.kubernetes.io/name": NAME, "app.kubernetes.io/part-of": "pliant"}

READ = ["get", "list", "watch"]
RBAC = "rbac.authorization.k8s.io"


@dataclass(frozen=True, slots=True, kw_only=True)
class Installation:
    """One operator for a cluster."""

    namespace: str = NAMESPACE
    image: str = IMAGE
    """Of the operator, and of the coordinators that it starts."""

    replicas: int = 2
    """Of the operator: one leads, the others wait."""


def objects(wanted: Installation) -> list[Body]:
    """Return everything, in the order in which it is applied."""
    namespace = _named("v1", "Namespace", wanted.namespace)
    namespace["metadata"]["labels"] |= {"pod-security.kubernetes.io/enforce": "restricted"}
    return [
        crd(),
        namespace,
        _named("v1", "ServiceAccount", NAME, wanted.namespace),
        cluster_role(),
        _binding(f"{RBAC}/v1", "ClusterRole", NAME, NAME, wanted.namespace),
        _leader_role(wanted),
        _binding(f"{RBAC}/v1", "Role", NAME, NAME, wanted.namespace, wanted.namespace),
        *user_roles(),
        *kueue_role(),
        deployment(wanted),
    ]


def _named(api: str, kind: str, name: str, namespace: str | None = None) -> Body:
    meta: Body = {"name": name, "labels": dict(LABELS)}
    if namespace is not None:
        meta["namespace"] = namespace
    return {"apiVersion": api, "kind": kind, "metadata": meta}


def _rule(group: str, resources: list[str], verbs: list[str]) -> Body:
    return {"apiGroups": [group], "resources": resources, "verbs": verbs}


def cluster_role() -> Body:
    """Return what the operator may do, in every namespace."""
    own = [*READ, "create", "patch", "delete"]
    return _named(f"{RBAC}/v1", "ClusterRole", NAME) | {
        "rules": [
            _rule(GROUP, [PLURAL], READ),
            _rule(GROUP, [f"{PLURAL}/status"], ["get", "patch", "update"]),
            _rule(GROUP, [f"{PLURAL}/finalizers"], ["update"]),  # owners block deletion
            _rule("", ["pods", "services", "serviceaccounts", "secrets"], own),
            # To give a coordinator the right to its register, it must have that right.
            _rule("", ["configmaps"], [*own, "update"]),
            _rule(RBAC, ["roles", "rolebindings"], own),
            _rule("networking.k8s.io", ["networkpolicies"], own),
            _rule("", ["nodes", "resourcequotas", "limitranges"], READ),
            _rule("events.k8s.io", ["events"], ["create", "patch"]),
            _rule(KUEUE, ["workloads"], own),
            _rule(KUEUE, ["workloads/status"], ["get", "patch", "update"]),
            _rule(
                KUEUE,
                ["localqueues", "clusterqueues", "resourceflavors", "workloadpriorityclasses"],
                READ,
            ),
        ]
    }


def _leader_role(wanted: Installation) -> Body:
    verbs = ["get", "create", "update", "patch"]
    return _named(f"{RBAC}/v1", "Role", NAME, wanted.namespace) | {
        "rules": [_rule("coordination.k8s.io", ["leases"], verbs)]
    }


def _binding(
    api: str, kind: str, role: str, account: str, of: str, namespace: str | None = None
) -> Body:
    return _named(api, f"{kind}Binding", role, namespace) | {
        "roleRef": {"apiGroup": RBAC, "kind": kind, "name": role},
        "subjects": [{"kind": "ServiceAccount", "name": account, "namespace": of}],
    }


def user_roles() -> list[Body]:
    """Return what ``view`` and ``edit`` are given in addition, by aggregation."""
    write = ["create", "update", "patch", "delete", "deletecollection"]
    rules = {
        "view": [_rule(GROUP, [PLURAL], READ)],
        "edit": [
            _rule(GROUP, [PLURAL], write),
            _rule(GROUP, [f"{PLURAL}/scale"], ["get", "update", "patch"]),
        ],
    }
    found = []
    for name, allowed in rules.items():
        body = _named(f"{RBAC}/v1", "ClusterRole", f"pliant-{name}")
        body["metadata"]["labels"] |= {f"{RBAC}/aggregate-to-{name}": "true"}
        found.append(body | {"rules": allowed})
    return found


def kueue_role() -> list[Body]:
    """Return what Kueue needs: it looks at the owner of a pod before it holds that."""
    name = "pliant-kueue"
    role = _named(f"{RBAC}/v1", "ClusterRole", name) | {"rules": [_rule(GROUP, [PLURAL], READ)]}
    return [role, _binding(f"{RBAC}/v1", "ClusterRole", name, KUEUE_ACCOUNT, KUEUE_NAMESPACE)]


def deployment(wanted: Installation) -> Body:
    """Return the operator itself."""
    labels = {**LABELS, PART_LABEL: "operator"}
    fields = {"POD_NAME": "metadata.name", "POD_NAMESPACE": "metadata.namespace"}
    port = str(METRICS_PORT)
    command = ["pliant", "operator", "run", "--image", wanted.image]
    command += ["--namespace", "$(POD_NAMESPACE)", "--identity", "$(POD_NAME)"]
    container: Body = {
        "name": "operator",
        "image": wanted.image,
        "command": [*command, "--listen", f"0.0.0.0:{port}"],
        "env": [
            {"name": name, "valueFrom": {"fieldRef": {"fieldPath": path}}}
            for name, path in fields.items()
        ],
        "ports": [{"name": "metrics", "containerPort": METRICS_PORT}],
        "livenessProbe": {"httpGet": {"path": "/healthz", "port": "metrics"}},
        "readinessProbe": {"httpGet": {"path": "/readyz", "port": "metrics"}},
        "resources": {
            "requests": {"cpu": "100m", "memory": "150Mi"},
            "limits": {"memory": "300Mi"},
        },
        "securityContext": {**CONTAINER_SECURITY, "readOnlyRootFilesystem": True},
        "volumeMounts": [{"name": "tmp", "mountPath": "/tmp"}],  # noqa: S108 - of the pod alone
    }
    scraped = {
        "prometheus.io/scrape": "true",
        "prometheus.io/port": port,
        "prometheus.io/path": "/metrics",
    }
    spec: dict[str, Any] = {
        "replicas": wanted.replicas,
        "selector": {"matchLabels": dict(LABELS)},
        "template": {
            "metadata": {"labels": labels, "annotations": scraped},
            "spec": {
                "serviceAccountName": NAME,
                "enableServiceLinks": False,
                "securityContext": POD_SECURITY,
                "topologySpreadConstraints": [
                    {
                        "topologyKey": "kubernetes.io/hostname",
                        "maxSkew": 1,
                        "whenUnsatisfiable": "ScheduleAnyway",
                        "labelSelector": {"matchLabels": dict(LABELS)},
                    }
                ],
                "tolerations": [
                    {
                        "key": f"node.kubernetes.io/{state}",
                        "operator": "Exists",
                        "effect": "NoExecute",
                        "tolerationSeconds": DEAD_NODE_S,
                    }
                    for state in ("not-ready", "unreachable")
                ],
                "containers": [container],
                "volumes": [{"name": "tmp", "emptyDir": {}}],
            },
        },
    }
    return _named("apps/v1", "Deployment", NAME, wanted.namespace) | {"spec": spec}


def pod_monitor(wanted: Installation) -> Body:
    """Return what a Prometheus operator needs, where there is one; the annotations do without."""
    return _named("monitoring.coreos.com/v1", "PodMonitor", NAME, wanted.namespace) | {
        "spec": {
            "selector": {"matchLabels": dict(LABELS)},
            "podMetricsEndpoints": [{"port": "metrics"}],
        }
    }


def advice_on_kueue(config: Body | None) -> str:
    """Say what Kueue must still be told; empty: nothing.

    Args:
        config: its ConfigMap; None: there is none where Kueue's own manifests put it.
    """
    if config is None:
        return (
            f"there is no ConfigMap {KUEUE_NAMESPACE}/{KUEUE_CONFIG}: without Kueue, jobs use the"
            " priorities of pods; with Kueue elsewhere, add this to its configuration under"
            f" integrations: externalFrameworks: [{FRAMEWORK}]"
        )
    if any(FRAMEWORK in text for text in (config.get("data") or {}).values()):
        return ""
    return (
        f"Kueue would hold pods of a job for itself: add externalFrameworks: [{FRAMEWORK}] under"
        f" integrations in the ConfigMap {KUEUE_NAMESPACE}/{KUEUE_CONFIG}, and restart"
        f" deployment/{KUEUE_ACCOUNT}"
    )
