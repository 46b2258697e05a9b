"""The API server as one user sees it: objects by kind and name, over plain HTTP.

    api.apply({...})                       # server-side apply
    api.get("Pod", "team-a/gpt-base-0")    # or "gpt" of a kind without namespaces
    for event in api.watch("Workload", "team-a"): ...

Owns the connection and the table of kinds, which it asks the server for.  Its sockets are opened in
the network of the cluster's ground, so it works from the tests' own process.
"""

from __future__ import annotations

import json
import ssl
from collections.abc import Iterator, Mapping
from typing import Any

import httpcore
import httpx
import yaml
from tests.cluster.ground import Ground

Object = dict[str, Any]

TYPE_OF_PATCH = {
    "merge": "application/merge-patch+json",
    "strategic": "application/strategic-merge-patch+json",
    "apply": "application/apply-patch+yaml",  # takes JSON, too
}

DISCOVERY = "application/json;g=apidiscovery.k8s.io;v=v2;as=APIGroupDiscoveryList"
AWAY = (httpx.TransportError, httpx.StreamError)
"""What is raised while the server is not there."""


class ApiError(Exception):
    """The server refuses; ``code`` is the HTTP status, ``reason`` its word for it."""

    def __init__(self, answer: httpx.Response) -> None:
        self.code, self.reason, said = answer.status_code, "", answer.text
        if "json" in answer.headers.get("Content-Type", ""):
            body = answer.json()
            self.reason, said = body.get("reason", ""), body.get("message", said)
        super().__init__(f"{answer.request.method} {answer.request.url.path}: {self.code} {said}")


class _Inside(httpcore.SyncBackend):
    """Opens connections in the network of a ground."""

    def __init__(self, ground: Ground) -> None:
        self._ground = ground

    def connect_tcp(self, *words: Any, **more: Any) -> httpcore.NetworkStream:
        with self._ground.entered():
            return super().connect_tcp(*words, **more)


def client_inside(ground: Ground, certificate: str | None = None, **more: Any) -> httpx.Client:
    """Return an HTTP client in a ground's network; ``certificate`` is what it trusts, in PEM."""
    context = ssl.create_default_context(cadata=certificate)
    transport = httpx.HTTPTransport(trust_env=False)
    transport.close()
    transport._pool = httpcore.ConnectionPool(
        ssl_context=context, max_connections=100, network_backend=_Inside(ground)
    )
    return httpx.Client(transport=transport, trust_env=False, **more)


class Api:
    """One user of the API server."""

    def __init__(self, ground: Ground, url: str, certificate: str, token: str) -> None:
        self._client = client_inside(
            ground,
            certificate,
            base_url=url,
            timeout=30,
            headers={"Authorization": f"Bearer {token}"},
        )
        self._kinds: dict[str, tuple[str, str, bool]] = {}

    def close(self) -> None:
        self._client.close()

    def ask(self, method: str, path: str, body: object = None, **more: Any) -> Any:
        """Ask for a path, and return the answer: an object, or text.

        Raises:
            ApiError: the server refuses.
        """
        answer = self._client.request(method, path, json=body, **more)
        if answer.is_error:
            raise ApiError(answer)
        is_json = "json" in answer.headers.get("Content-Type", "")
        return answer.json() if is_json else answer.text

    # --- objects --------------------------------------------------------------------------

    def create(self, body: Object, **params: Any) -> Object:
        found: Object = self.ask(
            "POST", self._path_of(body).rpartition("/")[0], body, params=params
        )
        return found

    def apply(self, body: Object | str, manager: str = "tests", **params: Any) -> Object:
        """Apply an object, or every object of a YAML text; return the last one as it is then."""
        found: Object = {}
        several = yaml.safe_load_all(body) if isinstance(body, str) else [body]
        for one in filter(None, several):
            params |= {"fieldManager": manager, "force": True}
            headers = {"Content-Type": TYPE_OF_PATCH["apply"]}
            found = self.ask("PATCH", self._path_of(one), one, params=params, headers=headers)
        return found

    def get(self, kind: str, name: str) -> Object:
        found: Object = self.ask("GET", self.path(kind, name))
        return found

    def find(self, kind: str, name: str) -> Object | None:
        """Return an object; None if there is none."""
        try:
            return self.get(kind, name)
        except ApiError as error:
            if error.code != 404:
                raise
            return None

    def objects(self, kind: str, namespace: str = "", **params: Any) -> list[Object]:
        """Return the objects of a namespace, or of all; ``labelSelector`` and so on select."""
        path = self.path(kind, f"{namespace}/" if namespace else "")
        found: list[Object] = self.ask("GET", path, params=params)["items"]
        return found

    def patch(
        self, kind: str, name: str, body: Object, how: str = "merge", *, part: str = ""
    ) -> Object:
        """Patch an object, or a part of it: ``status``, ``scale``."""
        path = f"{self.path(kind, name)}{part and '/'}{part}"
        headers = {"Content-Type": TYPE_OF_PATCH[how]}
        found: Object = self.ask("PATCH", path, body, headers=headers)
        return found

    def delete(self, kind: str, name: str, **options: Any) -> None:
        """Delete an object; ``gracePeriodSeconds`` and so on are options."""
        self.ask("DELETE", self.path(kind, name), options or None)

    def watch(self, kind: str, namespace: str = "", **params: Any) -> Iterator[Object]:
        """Yield what there is as ADDED, then what changes; ends when the watch does.

        Between the two comes one event of type LISTED: what was not ADDED before it is gone.

        Raises:
            ApiError, httpx.TransportError: also in the middle; the caller lists again.
        """
        path = self.path(kind, f"{namespace}/" if namespace else "")
        there = self.ask("GET", path, params=params)
        for item in there["items"]:
            yield {"type": "ADDED", "object": {"kind": kind, **item}}
        yield {"type": "LISTED", "object": there}
        params |= {
            "watch": "1",
            "allowWatchBookmarks": "true",
            "resourceVersion": there["metadata"]["resourceVersion"],
        }
        with self._client.stream("GET", path, params=params, timeout=None) as stream:
            if stream.is_error:
                stream.read()
                raise ApiError(stream)
            for line in stream.iter_lines():
                event = json.loads(line)
                if event["type"] == "ERROR":
                    return
                if event["type"] != "BOOKMARK":
                    yield event

    # --- where they are -------------------------------------------------------------------

    def path(self, kind: str, name: str = "") -> str:
        """Return the path of an object: ``NAMESPACE/NAME``, or ``NAME`` of a kind without.

        ``NAMESPACE/`` is all of a kind there; nothing is all of a kind everywhere.
        """
        if kind not in self._kinds:
            self._learn_kinds()
        base, plural, is_namespaced = self._kinds[kind]
        namespace, slash, rest = name.rpartition("/")
        if is_namespaced and slash:
            return f"{base}/namespaces/{namespace}/{plural}/{rest}".rstrip("/")
        assert not (is_namespaced and name), f"{kind} {name}: in which namespace?"
        return f"{base}/{plural}/{name}".rstrip("/")

    def _path_of(self, body: Mapping[str, Any]) -> str:
        meta = body["metadata"]
        namespace = f"{meta['namespace']}/" if "namespace" in meta else ""
        return self.path(body["kind"], f"{namespace}{meta.get('name', '-')}")

    def _learn_kinds(self) -> None:
        """Ask for every kind; of several groups and versions with it, the server's first counts."""
        for root in ("/api", "/apis"):
            groups = self.ask("GET", root, headers={"Accept": DISCOVERY})["items"]
            for group in groups:
                name = group.get("metadata", {}).get("name", "")
                for version in group["versions"]:
                    base = "/".join(filter(None, (root, name, version["version"])))
                    for one in version["resources"]:
                        found = (base, one["resource"], one["scope"] == "Namespaced")
                        self._kinds.setdefault(one["responseKind"]["kind"], found)
