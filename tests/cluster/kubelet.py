"""The kubelet of the test cluster: all of its nodes, in the tests' own process.

    kubelet.join("node-a", {"cpu": "8"})     # a Node, with a lease
    kubelet.kill("node-a")                   # its processes die, its lease stops: nobody is told
    kubelet.revive("node-a")                 # it is back, and says what became of its pods

Owns the pods of its nodes (``pods.py``), and the names that they find in ``/etc/hosts``, where a
real cluster has DNS: of each headless Service, from moment to moment, the pods that it selects.
Volumes show a Secret or ConfigMap anew at once when it changes.
"""

from __future__ import annotations

import itertools
import sys
import threading
from collections.abc import Callable, Iterator
from pathlib import Path

from tests.cluster.api import AWAY, Api, ApiError, Object
from tests.cluster.ground import ADDRESS, Ground
from tests.cluster.pods import Pod, moment

LEASE_S = 2.0
"""How far apart a node renews its lease; the controller manager waits for 10 s."""

PLIANT = "from pliant.__main__ import main\nmain()\n"
"""What an installed ``pliant`` is; the one of an older installation may begin elsewhere."""

ROOM = {"cpu": "8", "memory": "16Gi", "pods": "110"}


class Kubelet:
    """All nodes of a cluster."""

    def __init__(self, ground: Ground, directory: Path, new_api: Callable[[], Api]) -> None:
        self.ground, self.directory, self.api = ground, directory, new_api()
        directory.mkdir()
        self.program = directory / "pliant"
        self.program.write_text(f"#!{sys.executable}\n{PLIANT}")
        self.program.chmod(0o755)
        self.pods: dict[str, Pod] = {}
        """By uid, those that the API server has."""
        self.past: list[Pod] = []
        """Those that it has no more."""
        self.problems: list[str] = []
        """What is wrong with the kubelet itself."""
        self.is_closing = False
        self._nodes: dict[str, bool] = {}
        self._services: dict[str, Object] = {}
        self._numbers = itertools.count(1)
        self._lock = threading.RLock()
        self._closing = threading.Event()
        self._watching = [new_api() for _ in range(4)]
        follow = zip(
            self._watching,
            (
                ("Pod", self._take_pod),
                ("Service", self._take_service),
                ("ConfigMap", self._take_data),
                ("Secret", self._take_data),
            ),
            strict=True,
        )
        self._threads = [threading.Thread(target=self._beat, daemon=True)]
        for api, (kind, take) in follow:
            words = (api, kind, take)
            self._threads.append(threading.Thread(target=self._follow, args=words, daemon=True))
        for thread in self._threads:
            thread.start()

    def close(self) -> None:
        """End all pods, and whatever asks the API server."""
        self.is_closing = True
        self._closing.set()
        pods = list(self.pods.values())
        for pod in pods:
            pod.renew(pod.body)
        for pod in pods:
            pod.join()

    def join_threads(self) -> None:
        """Return once nothing here asks the API server, which must have ended."""
        for thread in self._threads:
            thread.join(10)
        for api in (self.api, *self._watching):
            api.close()

    # --- nodes ----------------------------------------------------------------------------

    def join(
        self, name: str, room: dict[str, str] | None = None, labels: dict[str, str] | None = None
    ) -> None:
        """Add a node, which is ready at once."""
        meta = {"name": name, "labels": {"kubernetes.io/hostname": name, **(labels or {})}}
        body = {"apiVersion": "v1", "kind": "Node", "metadata": meta}
        self.api.apply(body, manager="kubelet")
        self._nodes[name] = True
        self._renew(name)
        self._tell_ready(name, {**ROOM, **(room or {})})

    def kill(self, name: str) -> None:
        """Lose a node, as when its power fails; nobody is told."""
        self._nodes[name] = False
        for pod in self._pods_on(name):
            pod.lose_power()

    def revive(self, name: str) -> None:
        """Start a node again: containers that died are told of, and started as their pods say."""
        self._nodes[name] = True
        self._renew(name)
        self._tell_ready(name)
        for pod in self._pods_on(name):
            pod.have_power()

    def leave(self, name: str) -> None:
        """Take a node away, with its Node object, as a provider does with an instance."""
        self.kill(name)
        self.api.delete("Node", name)
        del self._nodes[name]

    def is_alive(self, name: str) -> bool:
        return self._nodes.get(name, False)

    def _pods_on(self, name: str) -> list[Pod]:
        return [pod for pod in list(self.pods.values()) if pod.node == name]

    def _tell_ready(self, name: str, room: dict[str, str] | None = None) -> None:
        ready = {
            "type": "Ready",
            "status": "True",
            "reason": "KubeletReady",
            "lastHeartbeatTime": moment(),
            "lastTransitionTime": moment(),
        }
        status: Object = {
            "conditions": [ready],
            "addresses": [{"type": "InternalIP", "address": ADDRESS}],
        }
        if room is not None:
            status |= {"capacity": room, "allocatable": room}
        self.api.patch("Node", name, {"status": status}, "strategic", part="status")

    def _renew(self, name: str) -> None:
        body = {
            "apiVersion": "coordination.k8s.io/v1",
            "kind": "Lease",
            "metadata": {"name": name, "namespace": "kube-node-lease"},
            "spec": {
                "holderIdentity": name,
                "leaseDurationSeconds": 40,
                "renewTime": moment(),
            },
        }
        self.api.apply(body, manager="kubelet")

    def _beat(self) -> None:
        while not self._closing.wait(LEASE_S):
            for name in [name for name, is_alive in list(self._nodes.items()) if is_alive]:
                try:
                    self._renew(name)
                    if not is_ready(self.api.get("Node", name)):  # the controllers had lost sight
                        self._tell_ready(name)
                except (ApiError, *AWAY, RuntimeError):  # the next one may come through
                    break

    # --- what changes ---------------------------------------------------------------------

    def _follow(self, api: Api, kind: str, take: Callable[[str, Object], None]) -> None:
        """Follow all objects of a kind until the kubelet closes."""
        while not self.is_closing:
            try:
                for event in api.watch(kind):
                    if self.is_closing:
                        return
                    take(event["type"], event["object"])
            except (ApiError, *AWAY, RuntimeError):  # it is away, or the client is closed
                self._closing.wait(0.3)
            except Exception as error:  # the tests fail by it when the cluster ends
                self.problems.append(f"{kind}: {error!r}")
                self._closing.wait(0.3)

    def _take_pod(self, change: str, body: Object) -> None:
        if change == "LISTED":
            there = {one["metadata"]["uid"] for one in body["items"]}
            for uid in [uid for uid in self.pods if uid not in there]:
                self._forget(self.pods[uid])
            return
        uid = body["metadata"]["uid"]
        pod = self.pods.get(uid)
        if change == "DELETED":
            if pod is not None:
                self._forget(pod)
        elif pod is not None:
            pod.renew(body)
        elif body["spec"].get("nodeName") in self._nodes and not _is_over(body):
            self.pods[uid] = pod = Pod(self, body, next(self._numbers))
            pod.start()

    def _forget(self, pod: Pod) -> None:
        del self.pods[pod.uid]
        self.past.append(pod)
        pod.forget()

    def _take_service(self, change: str, body: Object) -> None:
        if change == "LISTED":
            there = {one["metadata"]["uid"] for one in body["items"]}
            self._services = {u: one for u, one in self._services.items() if u in there}
        elif change == "DELETED":
            self._services.pop(body["metadata"]["uid"], None)
        else:
            self._services[body["metadata"]["uid"]] = body
        self.rewrite_hosts()

    def _take_data(self, change: str, body: Object) -> None:
        if change != "MODIFIED":
            return
        meta = body["metadata"]
        for pod in list(self.pods.values()):
            if pod.namespace == meta["namespace"] and pod.is_on_network:
                pod.volumes.refresh(body["kind"], meta["name"])

    # --- names in place of DNS ------------------------------------------------------------

    def rewrite_hosts(self) -> None:
        """Write names and addresses of the moment into every pod."""
        with self._lock:
            pods = list(self.pods.values())
            lines = "".join(self._lines(pods))
            for pod in pods:
                pod.write_hosts(lines)

    def _lines(self, pods: list[Pod]) -> Iterator[str]:
        for service in list(self._services.values()):
            spec, meta = service["spec"], service["metadata"]
            where = f"{meta['name']}.{meta['namespace']}.svc"
            wanted = spec.get("selector", {}).items()
            for pod in pods:
                labels = pod.body["metadata"].get("labels", {})
                if pod.namespace != meta["namespace"] or not (wanted and wanted <= labels.items()):
                    continue
                is_listed = pod.is_ready or spec.get("publishNotReadyAddresses")
                if is_listed and pod.is_on_network and not pod.is_ending:
                    yield f"{pod.ip} {where} {where}.cluster.local\n"
                    if pod.body["spec"].get("subdomain") == meta["name"]:
                        name = f"{pod.hostname}.{where}"
                        yield f"{pod.ip} {name} {name}.cluster.local\n"


def is_ready(body: Object) -> bool:
    """Return whether a node is ready, as the API server has it."""
    conditions = body.get("status", {}).get("conditions", [])
    return any(one["type"] == "Ready" and one["status"] == "True" for one in conditions)


def _is_over(body: Object) -> bool:
    return body["status"].get("phase") in ("Succeeded", "Failed")
