"""The control plane on a ground: etcd, API server, controller manager, scheduler, Kueue.

Owns their processes, certificates, tokens and kubeconfigs:

    plane.token("operator")        one of ``USERS``
    plane.kubeconfig("operator")   for who runs on the ground, or in a pod
    plane.stop("apiserver"), plane.start("apiserver")

All of them listen on the ground's address, so ports are fixed.  Knows nothing of nodes and pods.
"""

from __future__ import annotations

import base64
import os
import secrets
import signal
import socket
import subprocess
import time
from collections.abc import Callable, Mapping
from pathlib import Path
from typing import Any

import yaml
from tests.cluster.api import AWAY, Api, ApiError, Object, client_inside
from tests.cluster.building import built
from tests.cluster.ground import ADDRESS, Ground, child_of

URL = f"https://{ADDRESS}:6443"
ETCD, ETCD_PEER = f"http://{ADDRESS}:2379", f"http://{ADDRESS}:2380"
WEBHOOK_PORT = 9443

KUEUE = "system:serviceaccount:kueue-system:kueue-controller-manager"
"""Kueue's user has the roles that Kueue ships, so what pliant's installation must add is seen."""

USERS = {
    "admin": "system:masters",
    "kubelet": "system:masters",
    "operator": "",  # what it may do is pliant's installation's matter
    "user": "",
    "system:kube-controller-manager": "",
    "system:kube-scheduler": "",
    KUEUE: "system:serviceaccounts,system:serviceaccounts:kueue-system",
}
"""Who has a token, and the user's groups."""

ORDER = ("etcd", "apiserver", "controller-manager", "scheduler", "kueue")

READY_WITHIN_S = 240
"""On a machine with other work; a quiet one needs 15."""

KUEUE_SETTINGS: dict[str, Any] = {
    "apiVersion": "config.kueue.x-k8s.io/v1beta2",
    "kind": "Configuration",
    "namespace": "kueue-system",
    "health": {"healthProbeBindAddress": f"{ADDRESS}:8081"},
    "metrics": {"bindAddress": f"{ADDRESS}:8443"},
    "leaderElection": {"leaderElect": False},
    "internalCertManagement": {"enable": False},
    "integrations": {
        "frameworks": ["batch/job", "pod"],
        "externalFrameworks": ["ElasticJob.v1alpha1.pliant.dev"],
    },
}


class Plane:
    """The servers; they end with the ground."""

    def __init__(self, ground: Ground, directory: Path) -> None:
        self.ground, self.directory = ground, directory
        for name in ("logs", "etcd", "kubeconfigs"):
            (directory / name).mkdir(parents=True)
        self._tokens = {user: secrets.token_urlsafe(24) for user in USERS}
        self._running: dict[str, subprocess.Popen[bytes]] = {}
        self._words: dict[str, list[str]] = {}
        self._write_secrets()
        try:
            self._start_kubernetes()
            self._start_controllers()
        except BaseException:
            self.ground.close()  # which kills them all
            for process in self._running.values():
                process.wait()
            if hasattr(self, "admin"):
                self.admin.close()
            raise

    # --- users ----------------------------------------------------------------------------

    def token(self, user: str) -> str:
        return self._tokens[user]

    def api(self, user: str) -> Api:
        return Api(self.ground, URL, self.certificate, self._tokens[user])

    def kubeconfig(self, user: str, namespace: str = "default") -> Path:
        """Return a file that makes ``kubectl`` and others this user."""
        path = self.directory / "kubeconfigs" / f"{user.replace(':', '-')}.{namespace}"
        certificate = base64.b64encode(self.certificate.encode()).decode()
        cluster = {"server": URL, "certificate-authority-data": certificate}
        context = {"cluster": "tests", "user": user, "namespace": namespace}
        body = {
            "apiVersion": "v1",
            "kind": "Config",
            "current-context": "tests",
            "clusters": [{"name": "tests", "cluster": cluster}],
            "contexts": [{"name": "tests", "context": context}],
            "users": [{"name": user, "user": {"token": self._tokens[user]}}],
        }
        path.write_text(yaml.safe_dump(body))
        path.chmod(0o600)
        return path

    # --- processes ------------------------------------------------------------------------

    def start(self, name: str, *more: str) -> None:
        """Start one of ``ORDER``, perhaps again, with more options; it may not answer yet."""
        assert name not in self._running, f"{name} runs"
        said = self.directory / "logs" / f"{name}.log"
        self._running[name] = self.ground.start(*self._words[name], *more, out=said)

    def stop(self, name: str) -> None:
        """Kill one of them, as a machine does that loses its power."""
        process = self._running.pop(name)
        if (child := child_of(process.pid)) is not None:  # nsenter's
            os.kill(child, signal.SIGKILL)
        process.wait(10)

    def revive(self) -> None:
        """Start those again that have ended by themselves, as a kubelet does with static pods.

        A scheduler ends where it finds its cache corrupt, which an API server that was away may
        bring about.
        """
        for name, process in list(self._running.items()):
            if process.poll() is not None:
                del self._running[name]
                self.start(name)

    def close(self) -> None:
        """End them all; the ground would, too."""
        for name in reversed(ORDER):
            if name in self._running:
                self.stop(name)
        self.admin.close()

    def wait_for_api(self) -> None:
        """Return once the API server answers."""
        self._wait(lambda: self.admin.ask("GET", "/readyz") == "ok", "apiserver")

    def forget_versions(self) -> None:
        """Have etcd forget all but the newest versions: watches from older ones begin anew."""
        with client_inside(self.ground, base_url=ETCD) as etcd:
            found = etcd.post("/v3/kv/range", json={"key": "AA=="}).raise_for_status()
            revision = found.json()["header"]["revision"]
            forgotten = {"revision": revision, "physical": True}
            etcd.post("/v3/kv/compaction", json=forgotten).raise_for_status()

    def _write_secrets(self) -> None:
        users = enumerate(USERS.items())
        lines = [f'{self._tokens[user]},{user},{n},"{groups}"\n' for n, (user, groups) in users]
        tokens = self.directory / "tokens.csv"
        tokens.touch(0o600)
        tokens.write_text("".join(lines))
        _openssl("genrsa", "-out", str(self.directory / "sa.key"), "2048")

    def _start_kubernetes(self) -> None:
        here, issuer = self.directory, "https://kubernetes.default.svc"
        self._make_certificate("apiserver")
        plane, key = str(built() / "plane"), here / "sa.key"
        self._words["etcd"] = [
            "etcd",
            f"--data-dir={here / 'etcd'}",
            f"--listen-client-urls={ETCD}",
            f"--advertise-client-urls={ETCD}",
            f"--listen-peer-urls={ETCD_PEER}",
            f"--initial-advertise-peer-urls={ETCD_PEER}",
            f"--initial-cluster=default={ETCD_PEER}",
        ]
        self._words["apiserver"] = [
            plane,
            "apiserver",
            f"--etcd-servers={ETCD}",
            f"--bind-address={ADDRESS}",
            "--secure-port=6443",
            f"--tls-cert-file={here / 'apiserver/tls.crt'}",
            f"--tls-private-key-file={here / 'apiserver/tls.key'}",
            "--service-cluster-ip-range=10.0.0.0/24",
            "--authorization-mode=Node,RBAC",
            f"--token-auth-file={here / 'tokens.csv'}",
            f"--service-account-issuer={issuer}",
            f"--api-audiences={issuer}",
            f"--service-account-key-file={key}",
            f"--service-account-signing-key-file={key}",
        ]
        for name in ("etcd", "apiserver"):
            self.start(name)
        self.certificate = (here / "apiserver/tls.crt").read_text()
        self.admin = self.api("admin")
        self.wait_for_api()

    def _start_controllers(self) -> None:
        here, plane = self.directory, str(built() / "plane")
        self._words["controller-manager"] = [
            plane,
            "controller-manager",
            *_as_user(self.kubeconfig("system:kube-controller-manager")),
            f"--service-account-private-key-file={here / 'sa.key'}",
            f"--root-ca-file={here / 'apiserver/tls.crt'}",
            "--use-service-account-credentials=true",
            "--leader-elect=false",
            "--secure-port=0",
            "--controllers=*,-node-ipam-controller",
            "--node-monitor-period=1s",
            "--node-monitor-grace-period=10s",  # its own: 50 s
        ]
        self._words["scheduler"] = [
            plane,
            "scheduler",
            *_as_user(self.kubeconfig("system:kube-scheduler")),
            "--leader-elect=false",
            "--secure-port=0",
        ]
        for name in ("controller-manager", "scheduler"):
            self.start(name)
        self._start_kueue()
        self._wait(
            lambda: self.admin.find("ServiceAccount", "default/default") is not None,
            "controller-manager",
        )

    # --- Kueue ----------------------------------------------------------------------------

    def _start_kueue(self) -> None:
        """Install Kueue's kinds and roles, start it, and let the API server ask it."""
        config = built() / "kueue-config"
        kinds = [yaml.safe_load(path.read_text()) for path in (config / "crd/bases").glob("*.yaml")]
        for body in kinds:
            self.admin.apply(body)
        names = [body["metadata"]["name"] for body in kinds]
        self._wait(lambda: all(map(self._is_served, names)), "apiserver")  # or Kueue ends
        system = {"name": "kueue-system"}
        self.admin.apply({"apiVersion": "v1", "kind": "Namespace", "metadata": system})
        self._grant_kueue(config / "rbac")
        self._make_certificate("webhook")
        self._show_settings()
        self.write_kueue_settings({})
        self._words["kueue"] = [
            *("sh", "-c", f'mkdir -p {KUEUE_CERTS} && cp "$0"/tls.* {KUEUE_CERTS} && exec "$@"'),
            *(str(self.directory / "webhook"), str(built() / "kueue")),
            f"--kubeconfig={self.kubeconfig(KUEUE)}",
            f"--config={self.directory / 'kueue.yaml'}",
            "--feature-gates=VisibilityOnDemand=false",  # it wants one more certificate
            "--zap-log-level=2",
        ]
        self.start("kueue")
        self._wait(self._answers_webhooks, "kueue")
        for body in yaml.safe_load_all((config / "webhook/manifests.yaml").read_text()):
            self.admin.apply(self._pointed_here(body))

    def write_kueue_settings(self, changed: Mapping[str, Any]) -> None:
        """Write what Kueue reads when it starts next; what changed is on top of ours."""
        certs = str(self.directory / "webhook")
        webhook = {"host": ADDRESS, "port": WEBHOOK_PORT, "certDir": certs}
        settings = {**KUEUE_SETTINGS, "webhook": webhook, **changed}
        (self.directory / "kueue.yaml").write_text(yaml.safe_dump(settings))

    def _show_settings(self) -> None:
        """Have them where Kueue's manifests do: `pliant operator install` looks at them there."""
        meta = {"name": "kueue-manager-config", "namespace": "kueue-system"}
        data = {"controller_manager_config.yaml": yaml.safe_dump(KUEUE_SETTINGS)}
        body = {"apiVersion": "v1", "kind": "ConfigMap", "metadata": meta, "data": data}
        self.admin.apply(body)

    def restart_kueue(self, **changed: Any) -> None:
        """Start Kueue again with other settings; none: with those it begins with."""
        self.stop("kueue")
        self.write_kueue_settings(changed)
        self.start("kueue")
        self._wait(self._answers_webhooks, "kueue")

    def _grant_kueue(self, roles: Path) -> None:
        """Give Kueue the roles of its manager, as its own manifests do."""
        for name in ("role", "leader_election_role", "manager_secrets_role", "metrics_auth_role"):
            for body in yaml.safe_load_all((roles / f"{name}.yaml").read_text()):
                body["metadata"]["name"] = f"kueue-{body['metadata']['name']}"
                if body["kind"] == "Role":
                    body["metadata"]["namespace"] = "kueue-system"
                self.admin.apply(body)
                self.admin.apply(_binding(body, KUEUE))

    def _make_certificate(self, name: str) -> None:
        certs = self.directory / name
        certs.mkdir()
        _openssl(
            *("req", "-x509", "-newkey", "rsa:2048", "-nodes", "-days", "2"),
            *("-keyout", str(certs / "tls.key"), "-out", str(certs / "tls.crt")),
            *("-subj", f"/CN={ADDRESS}", "-addext", f"subjectAltName=IP:{ADDRESS}"),
        )

    def _pointed_here(self, body: Object) -> Object:
        """Return webhooks of kinds that are here, with Kueue's address instead of its Service."""
        body["webhooks"] = [one for one in body["webhooks"] if _is_kept(one)]
        body["metadata"]["name"] = f"kueue-{body['metadata']['name']}"
        trusted = base64.b64encode((self.directory / "webhook/tls.crt").read_bytes()).decode()
        elsewhere = {
            "key": "kubernetes.io/metadata.name",
            "operator": "NotIn",
            "values": ["kube-system", "kueue-system"],
        }
        for one in body["webhooks"]:
            path = one["clientConfig"]["service"]["path"]
            url = f"https://{ADDRESS}:{WEBHOOK_PORT}{path}"
            one["clientConfig"] = {"url": url, "caBundle": trusted}
            one["namespaceSelector"] = {"matchExpressions": [elsewhere]}
        return body

    def _is_served(self, name: str) -> bool:
        status = self.admin.get("CustomResourceDefinition", name).get("status", {})
        return any(
            one["type"] == "Established" and one["status"] == "True"
            for one in status.get("conditions") or []
        )

    def _answers_webhooks(self) -> bool:
        with self.ground.entered(), socket.socket() as tried:
            return tried.connect_ex((ADDRESS, WEBHOOK_PORT)) == 0

    # --------------------------------------------------------------------------------------

    def _wait(self, is_so: Callable[[], bool], name: str) -> None:
        """Wait until something is so; of a server that keeps silent the last words are told."""
        until_s, last = time.monotonic() + READY_WITHIN_S, ""
        while time.monotonic() < until_s and self._running[name].poll() is None:
            try:
                if is_so():
                    return
            except (ApiError, *AWAY) as error:
                last = repr(error)
            time.sleep(0.1)
        said = (self.directory / "logs" / f"{name}.log").read_text()[-3000:]
        raise AssertionError(f"{name} does not answer: {last}\n{said}")


KUEUE_CERTS = "/etc/kueue/metrics/certs"
"""The only place where Kueue looks for the certificate of its metrics, unless it makes it."""


def _is_kept(webhook: Object) -> bool:
    """Whether it is of Kueue's own kinds, or of pods and Jobs; the other kinds are not here."""
    rule = webhook["rules"][0]
    group, resource = rule["apiGroups"][0], rule["resources"][0]
    return group == "kueue.x-k8s.io" or (group, resource) in {("", "pods"), ("batch", "jobs")}


def _binding(role: Object, user: str) -> Object:
    kept = role["metadata"].keys() & {"name", "namespace"}
    meta = {key: role["metadata"][key] for key in kept}
    group = "rbac.authorization.k8s.io"
    return {
        "apiVersion": f"{group}/v1",
        "kind": f"{role['kind']}Binding",
        "metadata": meta,
        "roleRef": {"apiGroup": group, "kind": role["kind"], "name": meta["name"]},
        "subjects": [{"apiGroup": group, "kind": "User", "name": user}],
    }


def _as_user(kubeconfig: Path) -> list[str]:
    names = ("kubeconfig", "authentication-kubeconfig", "authorization-kubeconfig")
    return [f"--{name}={kubeconfig}" for name in names]


def _openssl(*words: str) -> None:
    subprocess.run(["openssl", *words], check=True, capture_output=True)
