"""The objects of a job in a cluster, as they are sent: its coordinator, and what that may do.

Owns names, labels, owners, and what the coordinator's pod is allowed.  Pure: a job and what was
assigned to it in, bodies out.  Must not know which of them are there; ``pods`` has those that the
job trains in, ``writing`` sends them.

    Service J-coordinator ---> pod J-coordinator ---> ConfigMap J-register   get, update, watch
                                     |  ^             ConfigMap J-job        what is to run
                  Secret J-token ----+  | 7000
                                     |  |
                        pods J-base-0, J-x1-0 ... one for each node of the job
"""

from __future__ import annotations

from typing import Any

import yaml

from pliant.kube.job import INCREMENT_LABEL, JOB_LABEL, PART_LABEL, PORT, KubeJob

Body = dict[str, Any]

COORDINATOR = "coordinator"
AGENT = "agent"

RUN_PLACE = "/var/run/pliant"
JOB_PLACE = "/etc/pliant/job"
TOKEN_PLACE = "/etc/pliant/token"  # noqa: S105 - a directory
TLS_PLACE = "/etc/pliant/tls"

TLS_FILES = {"ca": "ca.crt", "certificate": "tls.crt", "key": "tls.key"}
"""Of a Secret of TLS, as cert-manager writes it, by what they are to us."""

OWNER_ONLY = 0o400

USER = 1000
"""Whom pods run as where nobody says; the images of ``deploy`` have this one."""

POD_SECURITY: Body = {
    "runAsNonRoot": True,
    "runAsUser": USER,
    "runAsGroup": USER,
    "fsGroup": USER,  # a Secret of mode 0400 is root's; with a group, the pod's can read it
    "seccompProfile": {"type": "RuntimeDefault"},
}

CONTAINER_SECURITY: Body = {
    "allowPrivilegeEscalation": False,
    "capabilities": {"drop": ["ALL"]},
}

FROM_FIELDS = {
    "POD_IP": "status.podIP",
    "POD_NAME": "metadata.name",
    "NODE_NAME": "spec.nodeName",
}
"""What a pod is told of itself."""

FOR_A_CLUSTER = ("suspend", "replicas", "podTemplate", "queue", "storage")
"""Fields of the spec that a coordinator does not read."""


def labels_of(job: KubeJob, part: str, increment: str | None = None) -> dict[str, str]:
    """Return what an object of a job is found by."""
    labels = {JOB_LABEL: job.name, PART_LABEL: part}
    return labels if increment is None else {**labels, INCREMENT_LABEL: increment}


def metadata_of(job: KubeJob, name: str, part: str, increment: str | None = None) -> Body:
    """Return the metadata of an object that goes with its job."""
    owner = {
        "apiVersion": job.manifest.api_version,
        "kind": job.manifest.kind,
        "name": job.name,
        "uid": job.uid,
        "controller": True,
        "blockOwnerDeletion": True,
    }
    return {
        "name": name,
        "namespace": job.namespace,
        "labels": labels_of(job, part, increment),
        "ownerReferences": [owner],
    }


def address_of(job: KubeJob) -> str:
    """Return the host by which the coordinator is reached."""
    return f"{job.called(COORDINATOR)}.{job.namespace}.svc"


def fixed_objects(job: KubeJob, *, operator_namespace: str) -> list[Body]:
    """Return everything but the token, the register and the pods; it may be applied again."""
    return [
        service(job),
        job_file(job),
        *account(job),
        network_policy(job, operator_namespace=operator_namespace),
    ]


def service(job: KubeJob) -> Body:
    """Return the Service: the coordinator is found before it is ready, and by its own address."""
    return {
        "apiVersion": "v1",
        "kind": "Service",
        "metadata": metadata_of(job, job.called(COORDINATOR), COORDINATOR),
        "spec": {
            "clusterIP": "None",
            "publishNotReadyAddresses": True,
            "selector": labels_of(job, COORDINATOR),
            "ports": [{"name": COORDINATOR, "port": PORT, "protocol": "TCP"}],
        },
    }


def token(job: KubeJob, value: str) -> Body:
    """Return the Secret that everybody of the job proves himself with; it is made once."""
    return {
        "apiVersion": "v1",
        "kind": "Secret",
        "metadata": metadata_of(job, job.called("token"), "token"),
        "type": "Opaque",
        "immutable": True,
        "stringData": {"token": value},
    }


def register(job: KubeJob) -> Body:
    """Return the register, empty: it is made once, and only the coordinator writes into it."""
    return {
        "apiVersion": "v1",
        "kind": "ConfigMap",
        "metadata": metadata_of(job, job.called("register"), "register"),
    }


def job_file(job: KubeJob) -> Body:
    """Return the job file of the coordinator."""
    manifest = job.manifest.model_dump(by_alias=True, exclude_unset=True, mode="json")
    spec = {name: value for name, value in manifest["spec"].items() if name not in FOR_A_CLUSTER}
    if job.spec.replicas is not None:
        spec["startReplicas"] = job.spec.replicas
    if job.spec.tls is not None:
        spec["tls"] = {what: f"{TLS_PLACE}/{file}" for what, file in TLS_FILES.items()}
    text = yaml.safe_dump({**manifest, "spec": spec}, sort_keys=False)
    return {
        "apiVersion": "v1",
        "kind": "ConfigMap",
        "metadata": metadata_of(job, job.called("job"), "job"),
        "data": {"job.yaml": text},
    }


def account(job: KubeJob) -> list[Body]:
    """Return who the coordinator is to the cluster: it may write its register, and nothing else."""
    name = job.called(COORDINATOR)
    meta = metadata_of(job, name, COORDINATOR)
    register_only = {
        "apiGroups": [""],
        "resources": ["configmaps"],
        "resourceNames": [job.called("register")],
        "verbs": ["get", "update", "watch"],
    }
    role = {"apiGroup": "rbac.authorization.k8s.io", "kind": "Role", "name": name}
    subject = {"kind": "ServiceAccount", "name": name, "namespace": job.namespace}
    rbac = {"apiVersion": "rbac.authorization.k8s.io/v1", "metadata": meta}
    return [
        {
            "apiVersion": "v1",
            "kind": "ServiceAccount",
            "metadata": meta,
            "automountServiceAccountToken": False,
        },
        {**rbac, "kind": "Role", "rules": [register_only]},
        {**rbac, "kind": "RoleBinding", "roleRef": role, "subjects": [subject]},
    ]


def network_policy(job: KubeJob, *, operator_namespace: str) -> Body:
    """Return who may open connections to the job's pods: they themselves, and the operator."""
    operator = {
        "namespaceSelector": {"matchLabels": {"kubernetes.io/metadata.name": operator_namespace}},
        "podSelector": {"matchLabels": {PART_LABEL: "operator"}},
    }
    ours = {JOB_LABEL: job.name}
    return {
        "apiVersion": "networking.k8s.io/v1",
        "kind": "NetworkPolicy",
        "metadata": metadata_of(job, job.name, "network"),
        "spec": {
            "podSelector": {"matchLabels": ours},
            "policyTypes": ["Ingress"],
            "ingress": [
                {"from": [{"podSelector": {"matchLabels": ours}}]},
                {"from": [operator], "ports": [{"port": PORT, "protocol": "TCP"}]},
            ],
        },
    }


def coordinator_pod(job: KubeJob, *, image: str) -> Body:
    """Return the pod that decides how large the job is.

    One that has ended the job exits with 0; any other end starts it again, here or elsewhere.
    """
    mounts, volumes = volumes_of(job)
    storage = job.spec.storage
    run: Body = {"emptyDir": {}}
    run_mount: Body = {"name": "run", "mountPath": RUN_PLACE}
    if storage is not None and storage.claim is not None:
        run = {"persistentVolumeClaim": {"claimName": storage.claim}}
        run_mount["subPath"] = f"{job.name}-{job.uid[:8]}"
    elif storage is not None and storage.size_limit is not None:
        run = {"emptyDir": {"sizeLimit": storage.size_limit}}
    job_map = {"name": job.called("job")}
    container = {
        "name": COORDINATOR,
        "image": image,
        "command": _coordinator_command(job),
        "env": [*environment(("POD_IP",)), {"name": "HOME", "value": RUN_PLACE}],
        "ports": [{"name": COORDINATOR, "containerPort": PORT, "protocol": "TCP"}],
        "readinessProbe": {"tcpSocket": {"port": PORT}, "periodSeconds": 5},
        "resources": {
            "requests": {"cpu": "100m", "memory": "256Mi"},
            "limits": {"memory": "1Gi"},
        },
        "securityContext": {**CONTAINER_SECURITY, "readOnlyRootFilesystem": True},
        "volumeMounts": [
            run_mount,
            {"name": "job", "mountPath": JOB_PLACE, "readOnly": True},
            *mounts,
        ],
    }
    return {
        "apiVersion": "v1",
        "kind": "Pod",
        "metadata": metadata_of(job, job.called(COORDINATOR), COORDINATOR),
        "spec": {
            "restartPolicy": "OnFailure",
            "serviceAccountName": job.called(COORDINATOR),
            "automountServiceAccountToken": True,
            "enableServiceLinks": False,
            "terminationGracePeriodSeconds": 30,
            "securityContext": POD_SECURITY,
            "containers": [container],
            "volumes": [
                {"name": "run", **run},
                {"name": "job", "configMap": job_map},
                *volumes,
            ],
        },
    }


def _coordinator_command(job: KubeJob) -> list[str]:
    # A certificate names the Service; its pod's address is known too late for that.
    host = "$(POD_IP)" if job.spec.tls is None else address_of(job)
    command = ["pliant", COORDINATOR, "--listen", f"{host}:{PORT}"]
    command += ["--name", job.name, "--out", f"{RUN_PLACE}/run"]
    command += ["--token-file", f"{TOKEN_PLACE}/token"]
    command += ["--register", f"configmap:{job.called('register')}"]
    command += [] if job.spec.tls is None else ["--tls-any-node"]
    return [*command, f"{JOB_PLACE}/job.yaml"]  # what stands behind it is the script's


def environment(names: tuple[str, ...]) -> list[Body]:
    """Return variables that say what a pod is."""
    return [
        {"name": name, "valueFrom": {"fieldRef": {"fieldPath": FROM_FIELDS[name]}}}
        for name in names
    ]


def volumes_of(job: KubeJob) -> tuple[list[Body], list[Body]]:
    """Return what every pod of a job has: mounts, and their volumes."""
    secrets = {"token": job.called("token")}
    if job.spec.tls is not None and job.spec.tls.secret_name is not None:
        secrets["tls"] = job.spec.tls.secret_name
    places = {"token": TOKEN_PLACE, "tls": TLS_PLACE}
    mounts: list[Body] = [{"name": "pliant-tmp", "mountPath": "/tmp"}]  # noqa: S108 - of the pod alone
    volumes: list[Body] = [{"name": "pliant-tmp", "emptyDir": {}}]
    for name, secret in secrets.items():
        source = {"secretName": secret, "defaultMode": OWNER_ONLY}
        mounts.append({"name": f"pliant-{name}", "mountPath": places[name], "readOnly": True})
        volumes.append({"name": f"pliant-{name}", "secret": source})
    return mounts, volumes
