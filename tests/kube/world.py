"""The rest of a cluster, for the operator's tests: nodes that run pods, a queue that admits.

Owns a small stand-in of kubelet, scheduler and Kueue beside ``FakeApi``, and what coordinators
say.  A quota counts pods; what is more important preempts the increment that was admitted last.
"""

from __future__ import annotations

import json
import threading
from collections.abc import Iterator
from contextlib import contextmanager
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from typing import Any

from tests.kube.fake_api import FakeApi, now

from pliant.kube.client import (
    CLUSTER_QUEUES,
    LOCAL_QUEUES,
    NODES,
    PODS,
    WORKLOAD_CLASSES,
    WORKLOADS,
    Object,
)

NAMESPACE = "team-a"


class World:
    """What happens by itself; ``look`` lets one round of it happen."""

    def __init__(self, fake: FakeApi, *, quota: int = 10) -> None:
        self.fake = fake
        self.quota = quota
        self.useful = 100
        self.slots = 100
        self.round_s = 0.005
        self.leaves: list[tuple[str, dict[str, Any]]] = []
        """Nodes that coordinators were told of."""
        fake.put(node("n1"))
        fake.put(cluster_queue())
        fake.put(local_queue("research"))
        for name, value in (("high", 100), ("low", 10)):
            fake.put({**kind(WORKLOAD_CLASSES), "metadata": {"name": name}, "value": value})

    def look(self) -> None:
        with self.fake.changed:
            for pod in self._all(PODS.plural):
                self._run(pod)
            self._admit()

    def _all(self, plural: str) -> list[Object]:
        return [one for (kind, _, _), one in self.fake.objects.items() if kind == plural]

    def _run(self, pod: Object) -> None:
        if "deletionTimestamp" in pod["metadata"]:
            self.fake.remove(pod)
        elif "nodeName" not in pod["spec"]:
            self.fake.put(pod | {"spec": {**pod["spec"], "nodeName": "n1"}})
            ready = {"type": "Ready", "status": "True"}
            self.fake.update(pod, phase="Running", podIP="127.0.0.1", conditions=[ready])

    def _admit(self) -> None:
        workloads = [one for one in self._all(WORKLOADS.plural) if not is_so(one, "Finished")]
        workloads.sort(key=lambda one: -one["spec"].get("priority", 0))
        for one in workloads:
            if is_so(one, "QuotaReserved"):
                continue
            held = [other for other in workloads if is_so(other, "QuotaReserved")]
            free = self.quota - sum(map(count_of, held))
            if free >= count_of(one):
                admission = {"clusterQueue": "all", "podSetAssignments": [{"name": "main"}]}
                self.fake.update(
                    one,
                    admission=admission,
                    conditions=with_conditions(
                        one,
                        QuotaReserved="True",
                        Admitted="True",
                        Evicted="False",
                        Preempted="False",
                    ),
                )
                return
            leaving = [other for other in held if is_so(other, "Evicted")]
            if free + sum(map(count_of, leaving)) >= count_of(one):
                continue
            lower = [o for o in held if priority(o) < priority(one) and o not in leaving]
            if lower:
                last = max(lower, key=lambda other: int(other["metadata"]["uid"].split("-")[-1]))
                said = f"Preempted to accommodate a workload (UID: {one['metadata']['uid']})"
                conditions = with_conditions(last, said, Evicted="True", Preempted="True")
                self.fake.update(last, conditions=conditions)
                return

    @contextmanager
    def going_on(self) -> Iterator[int]:
        """Let it happen meanwhile; yields the port at which coordinators answer."""
        ended = threading.Event()

        def rounds() -> None:
            while not ended.wait(self.round_s):
                self.look()

        handler = type("Handler", (_Coordinator,), {"world": self})
        server = ThreadingHTTPServer(("127.0.0.1", 0), handler)
        threads = [
            threading.Thread(target=rounds),
            threading.Thread(target=server.serve_forever, kwargs={"poll_interval": 0.02}),
        ]
        for thread in threads:
            thread.start()
        try:
            yield server.server_port
        finally:
            ended.set()
            server.shutdown()
            for thread in threads:
                thread.join()
            server.server_close()


class _Coordinator(BaseHTTPRequestHandler):
    world: World

    def log_message(self, format: str, *args: Any) -> None:
        pass

    def do_GET(self) -> None:
        self._answer({"useful": self.world.useful, "slots": self.world.slots, "canSuspend": True})

    def do_POST(self) -> None:
        body = json.loads(self.rfile.read(int(self.headers["Content-Length"])))
        self.world.leaves.append((self.path.split("/")[3], body))
        self._answer({})

    def _answer(self, body: Any) -> None:
        data = json.dumps(body).encode()
        self.send_response(200)
        self.send_header("Content-Length", str(len(data)))
        self.end_headers()
        self.wfile.write(data)


def kind(resource: Any) -> Object:
    return {"apiVersion": resource.api, "kind": resource.kind}


def node(name: str) -> Object:
    ready = {"type": "Ready", "status": "True"}
    status = {"conditions": [ready]}
    return {**kind(NODES), "metadata": {"name": name}, "spec": {}, "status": status}


def cluster_queue(**preemption: str) -> Object:
    ways = preemption or {"withinClusterQueue": "LowerPriority"}
    return {**kind(CLUSTER_QUEUES), "metadata": {"name": "all"}, "spec": {"preemption": ways}}


def local_queue(name: str) -> Object:
    meta = {"name": name, "namespace": NAMESPACE}
    return {**kind(LOCAL_QUEUES), "metadata": meta, "spec": {"clusterQueue": "all"}}


def urgent(num_pods: int) -> Object:
    meta = {
        "name": "urgent",
        "namespace": "team-b",
        "uid": "00000000-0000-0000-0000-000000000009",
    }
    spec = {"priority": 50, "podSets": [{"name": "main", "count": num_pods}]}
    return {**kind(WORKLOADS), "metadata": meta, "spec": spec, "status": {}}


def is_so(body: Object, name: str) -> bool:
    conditions = body.get("status", {}).get("conditions", ())
    return any(one["type"] == name and one["status"] == "True" for one in conditions)


def count_of(workload: Object) -> int:
    return int(sum(one["count"] for one in workload["spec"]["podSets"]))


def priority(workload: Object) -> int:
    return int(workload["spec"].get("priority", 0))


def with_conditions(body: Object, message: str = "", /, **said: str) -> list[Object]:
    conditions = {one["type"]: one for one in body.get("status", {}).get("conditions", ())}
    for name, status in said.items():
        conditions[name] = {
            "type": name,
            "status": status,
            "reason": "Preempted" if name in ("Evicted", "Preempted") else "Tests",
            "message": message,
            "lastTransitionTime": now(),
        }
    return list(conditions.values())
