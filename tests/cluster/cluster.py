"""A whole Kubernetes cluster for tests: what a test says to it.

    cluster.apply(body or YAML)                 cluster.wait(lambda: ..., "what is so then")
    cluster.wait_for("Pod", "team-a/gpt", phase("Running"))
    cluster.kill_node("node-b")                 cluster.drain("node-b")
    cluster.kubectl("get", "pods", "-A")        cluster.log("team-a/gpt")

Owns ground, control plane and kubelet, and ends them together.  ``cluster.admin`` and
``cluster.api("operator")`` are users of the API server (``api.py``); objects of a test live in
namespaces of its own (``cluster.namespace``), and cluster-wide ones bear names of its own.
"""

from __future__ import annotations

import contextlib
import itertools
import os
import subprocess
import sys
import threading
import time
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import httpx
from tests.cluster.api import AWAY, Api, ApiError, Object, client_inside
from tests.cluster.building import built
from tests.cluster.ground import Ground
from tests.cluster.kubelet import Kubelet
from tests.cluster.plane import Plane
from tests.cluster.pods import Pod

DEADLINE_S = 60.0
"""For what takes a moment on a quiet machine."""


class Cluster:
    """One cluster; a test session has one."""

    def __init__(self, directory: Path) -> None:
        self.directory = directory
        self.ground = Ground(directory)
        try:
            self.plane = Plane(self.ground, directory / "plane")
            self.kubelet = Kubelet(
                self.ground, directory / "pods", lambda: self.plane.api("kubelet")
            )
        except BaseException:
            self.ground.close()
            raise
        self.admin = self.plane.admin
        self._apis: dict[str, Api] = {}
        self._http: httpx.Client | None = None
        self._numbers = itertools.count(1)

    def close(self) -> None:
        """End everything, whatever state it is in."""
        self.kubelet.close()
        self.plane.close()
        self.kubelet.join_threads()
        for api in self._apis.values():
            api.close()
        if self._http is not None:
            self._http.close()
        self.ground.close()

    # --- objects --------------------------------------------------------------------------

    def api(self, user: str) -> Api:
        """Return the API server as one of ``plane.USERS`` sees it."""
        if user not in self._apis:
            self._apis[user] = self.plane.api(user)
        return self._apis[user]

    def apply(self, body: Object | str) -> Object:
        return self.admin.apply(body)

    def get(self, kind: str, name: str) -> Object:
        return self.admin.get(kind, name)

    def find(self, kind: str, name: str) -> Object | None:
        return self.admin.find(kind, name)

    def objects(self, kind: str, namespace: str = "", labels: str = "") -> list[Object]:
        return self.admin.objects(kind, namespace, labelSelector=labels)

    def patch(self, kind: str, name: str, body: Object) -> Object:
        return self.admin.patch(kind, name, body)

    def delete(self, kind: str, name: str, grace_s: int | None = None) -> None:
        options = {} if grace_s is None else {"gracePeriodSeconds": grace_s}
        self.admin.delete(kind, name, **options)

    def kubectl(self, *words: str, user: str = "admin", check: bool = True) -> str:
        """Run kubectl, and return what it prints to either stream."""
        return self._run(str(built() / "kubectl"), *words, user=user, check=check)

    def pliant(self, *words: str, user: str = "admin", check: bool = True) -> str:
        """Run pliant where it reaches the cluster, as a user of it."""
        return self._run(sys.executable, "-m", "pliant", *words, user=user, check=check)

    def _run(self, *words: str, user: str, check: bool) -> str:
        done = subprocess.run(
            [*self.ground.entering(), "--", *words],
            env={**os.environ, "KUBECONFIG": str(self.plane.kubeconfig(user))},
            stdin=subprocess.DEVNULL,
            stdout=subprocess.PIPE,
            stderr=subprocess.STDOUT,
            text=True,
            check=False,
        )
        assert done.returncode == 0 or not check, done.stdout
        return done.stdout

    @contextlib.contextmanager
    def namespace(self, name: str = "team", **labels: str) -> Iterator[str]:
        """Lend a namespace of its own, empty afterwards; restricted as a careful team's is."""
        own = f"{name}-{next(self._numbers)}"
        labels = {"pod-security.kubernetes.io/enforce": "restricted", **labels}
        meta = {"name": own, "labels": labels}
        self.apply({"apiVersion": "v1", "kind": "Namespace", "metadata": meta})
        account = f"{own}/default"
        self.wait(lambda: self.find("ServiceAccount", account), "the namespace has an account")
        try:
            yield own
        finally:
            self.empty(own)

    def empty(self, namespace: str) -> None:
        """Delete a namespace and all that is in it; pods have no time to say good-bye."""
        with contextlib.suppress(ApiError):
            self.delete("Namespace", namespace)
        for pod in self.objects("Pod", namespace):
            with contextlib.suppress(ApiError):
                self.delete("Pod", f"{namespace}/{pod['metadata']['name']}", grace_s=0)

    def claim(self, namespace: str, name: str) -> None:
        """Make a PersistentVolumeClaim, bound: its pods share a directory."""
        spec: Object = {
            "accessModes": ["ReadWriteMany"],
            "storageClassName": "",
            "volumeName": f"{namespace}-{name}",
            "resources": {"requests": {"storage": "1Gi"}},
        }
        volume = {
            "capacity": {"storage": "1Gi"},
            "accessModes": ["ReadWriteMany"],
            "storageClassName": "",
            "hostPath": {"path": "/nowhere"},  # the scheduler wants one; the kubelet looks away
            "claimRef": {"namespace": namespace, "name": name},
        }
        meta = {"namespace": namespace, "name": name}
        self.apply(_object("v1", "PersistentVolume", {"name": f"{namespace}-{name}"}, volume))
        self.apply(_object("v1", "PersistentVolumeClaim", meta, spec))

    def queue(self, name: str, namespaces: list[str], cpus: int, **spec: Any) -> None:
        """Make a ClusterQueue of so many processors, and a LocalQueue of its name in namespaces."""
        group = "kueue.x-k8s.io/v1beta2"
        quota = {"name": "cpu", "nominalQuota": cpus}
        body: Object = {
            "namespaceSelector": {},
            "queueingStrategy": "BestEffortFIFO",
            "preemption": {"withinClusterQueue": "LowerPriority", "reclaimWithinCohort": "Any"},
            "resourceGroups": [
                {"coveredResources": ["cpu"], "flavors": [{"name": "any", "resources": [quota]}]}
            ],
            **spec,
        }
        self.apply(_object(group, "ResourceFlavor", {"name": "any"}, {}))
        self.apply(_object(group, "ClusterQueue", {"name": name}, body))
        for namespace in namespaces:
            meta = {"name": name, "namespace": namespace}
            self.apply(_object(group, "LocalQueue", meta, {"clusterQueue": name}))

    # --- waiting --------------------------------------------------------------------------

    def wait(self, is_so: Callable[[], object], what: str, within_s: float = DEADLINE_S) -> None:
        """Return once something is so; the API server may be away meanwhile.

        Raises:
            AssertionError: it is not so in time.
        """
        until_s = time.monotonic() + within_s
        while time.monotonic() < until_s:
            with contextlib.suppress(ApiError, *AWAY):
                if is_so():
                    return
            self.plane.revive()
            time.sleep(0.02)
        raise AssertionError(f"not within {within_s:g} s: {what}\n{self.story()}")

    def wait_for(
        self,
        kind: str,
        name: str,
        is_so: Callable[[Object], object],
        within_s: float = DEADLINE_S,
    ) -> Object:
        """Return an object once it is there and something is so of it."""
        last: Object = {}

        def is_there() -> bool:
            nonlocal last
            last = self.get(kind, name)
            return bool(is_so(last))

        try:
            self.wait(is_there, f"{kind} {name}", within_s)
        except AssertionError as error:
            raise AssertionError(f"{error}\nit is: {last.get('status')}") from None
        return last

    def wait_gone(self, kind: str, name: str, within_s: float = DEADLINE_S) -> None:
        """Return once there is no such object."""
        self.wait(lambda: self.find(kind, name) is None, f"{kind} {name} is gone", within_s)

    def see(self, kind: str, namespace: str = "") -> Seen:
        """Begin to note when objects change; ``close`` it."""
        return Seen(self.plane.api("admin"), kind, namespace)

    # --- pods and nodes -------------------------------------------------------------------

    def pod(self, name: str) -> Pod:
        """Return the newest pod of a name that a node has or had: its times, log, processes."""
        everyone = [*self.kubelet.past, *self.kubelet.pods.values()]
        found = [pod for pod in everyone if pod.name == name]
        assert found, f"no node has had a pod {name}"
        return max(found, key=lambda pod: pod.number)

    def log(self, name: str) -> str:
        """Return what all pods of a name have printed, the oldest first."""
        everyone = [*self.kubelet.past, *self.kubelet.pods.values()]
        logs = [
            container.log
            for pod in sorted(everyone, key=lambda pod: pod.number)
            if pod.name == name
            for container in pod.containers
        ]
        return "".join(log.read_text(errors="replace") for log in logs if log.is_file())

    def add_node(self, name: str, cpus: int = 8, labels: dict[str, str] | None = None) -> None:
        self.kubelet.join(name, {"cpu": str(cpus)}, labels)

    def kill_node(self, name: str) -> None:
        """Let a node lose its power: nobody is told."""
        self.kubelet.kill(name)

    def revive_node(self, name: str) -> None:
        self.kubelet.revive(name)

    def run_out_of_memory(self, pod: str) -> None:
        """Let the kernel have killed a pod's containers for their memory."""
        for container in self.pod(pod).containers:
            container.send(9, "OOMKilled")

    def cordon(self, node: str, *, on: bool = True) -> None:
        self.patch("Node", node, {"spec": {"unschedulable": on}})

    def taint(self, node: str, key: str, effect: str, value: str = "") -> None:
        """Add a taint; ``untaint`` takes all away that tests have added."""
        taints = self.get("Node", node)["spec"].get("taints", [])
        taint = {"key": key, "effect": effect, **({"value": value} if value else {})}
        self.patch("Node", node, {"spec": {"taints": [*taints, taint]}})

    def untaint(self, node: str) -> None:
        self.patch("Node", node, {"spec": {"taints": None}})

    def drain(self, node: str) -> None:
        """Cordon a node and ask for the eviction of its pods, as ``kubectl drain`` does."""
        self.cordon(node)
        for pod in self.admin.objects("Pod", fieldSelector=f"spec.nodeName={node}"):
            meta = {name: pod["metadata"][name] for name in ("name", "namespace")}
            body = {"apiVersion": "policy/v1", "kind": "Eviction", "metadata": meta}
            path = self.admin.path("Pod", f"{meta['namespace']}/{meta['name']}")
            self.admin.ask("POST", f"{path}/eviction", body)

    # --- servers --------------------------------------------------------------------------

    @contextlib.contextmanager
    def no_api(self) -> Iterator[None]:
        """Have no API server for a while; nothing that it knows is lost."""
        self.plane.stop("apiserver")
        try:
            yield
        finally:
            self.plane.start("apiserver")
            self.plane.wait_for_api()

    @contextlib.contextmanager
    def busy_api(self) -> Iterator[None]:
        """Have one for a while that takes a request at a time, and is asked by eight others.

        Those of ``system:masters`` it takes all the same.  Old versions are forgotten before and
        after.
        """
        one_at_a_time = [f"--max-{kind}requests-inflight=1" for kind in ("", "mutating-")]
        self.plane.stop("apiserver")
        self.plane.forget_versions()
        self.plane.start("apiserver", "--enable-priority-and-fairness=false", *one_at_a_time)
        self.plane.wait_for_api()
        ended = threading.Event()

        def ask() -> None:
            api = self.plane.api("operator")
            while not ended.is_set():
                with contextlib.suppress(ApiError, *AWAY):
                    api.ask("GET", "/api/v1/pods")
            api.close()

        others = [threading.Thread(target=ask) for _ in range(8)]
        for other in others:
            other.start()
        try:
            yield
        finally:
            ended.set()
            for other in others:
                other.join()
            self.plane.stop("apiserver")
            self.plane.forget_versions()
            self.plane.start("apiserver")
            self.plane.wait_for_api()

    @property
    def http(self) -> httpx.Client:
        """HTTP in the cluster's network: to pods by their addresses."""
        if self._http is None:
            self._http = client_inside(self.ground)
        return self._http

    def story(self) -> str:
        """Return what a person wants to see first when a test fails."""
        lines = ["--- pods"]
        with contextlib.suppress(ApiError, *AWAY):
            for body in self.objects("Pod"):
                meta, status = body["metadata"], body.get("status", {})
                ending = " ending" if "deletionTimestamp" in meta else ""
                where = body["spec"].get("nodeName", "nowhere")
                lines.append(
                    f"{meta['namespace']}/{meta['name']} on {where}: {status.get('phase')}{ending}"
                )
            lines.append("--- events")
            for body in self.objects("Event")[-20:]:
                about = body["involvedObject"]
                lines.append(f"{about['kind']} {about.get('name')}: {body.get('message')}")
        for pod in [*self.kubelet.past, *self.kubelet.pods.values()][-12:]:
            lines.append(f"--- {pod}\n{self.log(pod.name)[-1500:]}")
        return "\n".join(lines)


@dataclass(frozen=True, slots=True)
class Change:
    """An object as it was seen at a moment (monotonic seconds)."""

    at_s: float
    kind: str
    """ADDED, MODIFIED, DELETED"""
    body: Object


class Seen:
    """What a watch has shown, with when."""

    def __init__(self, api: Api, kind: str, namespace: str) -> None:
        self.changes: list[Change] = []
        self._api, self._kind, self._namespace = api, kind, namespace
        self._is_closing = False
        self._news = threading.Condition()
        threading.Thread(target=self._follow, daemon=True).start()

    def close(self) -> None:
        self._is_closing = True

    def until(self, name: str, is_so: Callable[[Change], object], after_s: float = 0.0) -> Change:
        """Return the first change of an object, seen after a moment, of which something is so."""
        until_s, looked = time.monotonic() + DEADLINE_S, 0
        with self._news:
            while time.monotonic() < until_s:
                for change in self.changes[looked:]:
                    is_it = change.body["metadata"]["name"] == name
                    if is_it and change.at_s >= after_s and is_so(change):
                        return change
                looked = len(self.changes)
                self._news.wait(0.1)
        raise AssertionError(f"{self._kind} {name} was not seen so within {DEADLINE_S:g} s")

    def _follow(self) -> None:
        while not self._is_closing:
            with contextlib.suppress(ApiError, *AWAY, RuntimeError):
                for event in self._api.watch(self._kind, self._namespace):
                    if self._is_closing:
                        break
                    if event["type"] != "LISTED":
                        with self._news:
                            change = Change(time.monotonic(), event["type"], event["object"])
                            self.changes.append(change)
                            self._news.notify_all()
            time.sleep(0.05)
        self._api.close()


def phase(*names: str) -> Callable[[Object], bool]:
    """Return whether a pod is in one of these phases."""
    return lambda body: body.get("status", {}).get("phase") in names


def condition(kind: str, status: str = "True") -> Callable[[Object], bool]:
    """Return whether an object has a condition."""
    return lambda body: any(
        one["type"] == kind and one["status"] == status
        for one in body.get("status", {}).get("conditions", [])
    )


def is_deleted(body: Object) -> bool:
    return "deletionTimestamp" in body["metadata"]


def _object(version: str, kind: str, meta: Object, spec: Object) -> Object:
    return {"apiVersion": version, "kind": kind, "metadata": meta, "spec": spec}
