"""An API server of the tests: real HTTP on loopback, objects in memory, and faults on request.

Owns what the operator relies on: versions, lists in pages, watches with bookmarks and 410, 409 of
what somebody else changed, server-side apply, subresources, finalizers, grace of pods, and that
what an object owned goes with it.  Knows no schema, no user and no defaults.
"""

from __future__ import annotations

import json
import re
import threading
from base64 import b64encode
from collections.abc import Callable, Iterator, Mapping
from contextlib import contextmanager
from copy import deepcopy
from datetime import UTC, datetime
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from typing import Any
from urllib.parse import parse_qsl, unquote, urlsplit

from pliant.kube.client import RESOURCES, Object, Resource, resource_of
from pliant.kube.connection import Cluster

Key = tuple[str, str, str]
"""Plural, namespace, name."""

Fault = Callable[[str, str], "tuple[int, Mapping[str, str]] | None"]
"""Told of each request's method and path; returns a status and headers to answer with instead."""

PLURALS = {one.plural: one for one in RESOURCES.values()}

PATH = re.compile(
    r"/(?:api/[^/]+|apis/[^/]+/[^/]+)(?:/namespaces/([^/]+)(?=/[^/]+))?/([^/]+)(?:/([^/]+))?(?:/(.+))?"
)

WITH_STATUS = {"elasticjobs", "pods", "nodes", "workloads"}


class RefusedError(Exception):
    def __init__(self, code: int, reason: str, message: str) -> None:
        self.code = code
        self.status = {"kind": "Status", "code": code, "reason": reason, "message": message}


class FakeApi:
    """The objects, and what was asked.  Every method may be called from any thread."""

    def __init__(self) -> None:
        self.changed = threading.Condition(threading.RLock())
        self.objects: dict[Key, Object] = {}
        self.history: list[tuple[int, str, str, Object]] = []
        """Version, plural, what happened, and the object as it was then."""
        self.version = 100
        self.oldest = 0
        """Watches from before are refused with 410."""
        self.asked: list[tuple[str, str]] = []
        self.faults: list[Fault] = []
        self.pods: dict[str, Callable[[str, str, Any], Any]] = {}
        """What pods answer through the proxy, by name: path, method and body to the answer."""
        self.watch_limit_s = 3600.0
        self.watches = 0
        """Those that are open."""
        self._drops = 0
        self._applied: dict[tuple[Key, str], Object] = {}
        self._uids = 0

    # --- what tests do to it

    def writes(self) -> list[tuple[str, str]]:
        """Return the requests that may have changed something."""
        return [one for one in list(self.asked) if one[0] != "GET"]

    def get(self, resource: Resource, name: str, namespace: str = "") -> Object | None:
        with self.changed:
            found = self.objects.get((resource.plural, namespace, name))
            return deepcopy(found) if found else None

    def all(self, resource: Resource, namespace: str | None = None) -> list[Object]:
        with self.changed:
            return [
                deepcopy(one)
                for (plural, where, _), one in sorted(self.objects.items())
                if plural == resource.plural and namespace in (None, where)
            ]

    def put(self, body: Object) -> Object:
        """Make an object or replace it, status and all, as the rest of a cluster would."""
        with self.changed:
            key = _key(body)
            old = self.objects.get(key)
            body = deepcopy(body)
            if old is None:
                return self._add(key, body)
            body["metadata"] = {**old["metadata"], **body["metadata"]}
            return self._store(key, body, old)

    def update(self, body: Object, **status: Any) -> Object:
        """Change fields of an object's status."""
        with self.changed:
            now = deepcopy(self.objects[_key(body)])
            now["status"] = {**now.get("status", {}), **status}
            return self._store(_key(body), now, self.objects[_key(body)])

    def remove(self, body: Object) -> None:
        """Take an object away at once, and what it owned."""
        with self.changed:
            self._remove(_key(body))

    def compact(self) -> None:
        """Forget the past: whoever watches from before lists again."""
        with self.changed:
            self.oldest = self.version
            self.history.clear()

    def drop_watches(self) -> None:
        """Close the connection of every watch."""
        with self.changed:
            self._drops += 1
            self.changed.notify_all()

    # --- requests

    def listed(self, plural: str, namespace: str, params: Mapping[str, str]) -> Object:
        with self.changed:
            fits = [
                one
                for (kind, where, _), one in sorted(self.objects.items())
                if kind == plural and namespace in ("", where) and _is_selected(one, params)
            ]
            first, limit = int(params.get("continue") or 0), int(params.get("limit") or 10**9)
            meta = {"resourceVersion": str(self.version)}
            if first + limit < len(fits):
                meta["continue"] = str(first + limit)
            return {"metadata": meta, "items": deepcopy(fits[first : first + limit])}

    def create(self, body: Object) -> Object:
        with self.changed:
            meta = body["metadata"]
            if "generateName" in meta and "name" not in meta:
                meta["name"] = f"{meta['generateName']}{self._uids}"
            if _key(body) in self.objects:
                raise RefusedError(409, "AlreadyExists", f"{meta['name']} already exists")
            if body["kind"] == "ElasticJob":
                body.pop("status", None)
            for name, text in body.pop("stringData", {}).items():
                body.setdefault("data", {})[name] = b64encode(text.encode()).decode()
            return self._add(_key(body), body)

    def replace(self, key: Key, body: Object, part: str) -> Object:
        with self.changed:
            old = self._found(key)
            version = body["metadata"].get("resourceVersion")
            if version and version != old["metadata"]["resourceVersion"]:
                raise RefusedError(409, "Conflict", f"{key[2]} has been modified")
            return self._store(key, _parts(body, old, part), old)

    def patch(self, key: Key, body: Object, part: str, kind: str, manager: str) -> Object:
        with self.changed:
            old = self.objects.get(key)
            if "apply" not in kind:
                return self._store(
                    key, _parts(_merged(self._found(key), body), old or {}, part), old
                )
            if old is None:
                if part:
                    raise RefusedError(404, "NotFound", f"{key[2]} not found")
                self._applied[key, manager] = deepcopy(body)
                return self._add(key, deepcopy(body))
            owned = (key, f"{manager}/{part}")
            before = self._applied.get(owned, self._applied.get((key, manager), {}))
            new = _merged(old, _removals(before, body) if not part else body)
            self._applied[owned] = deepcopy(body)
            return self._store(key, _parts(new, old, part), old)

    def delete(self, key: Key, options: Mapping[str, Any]) -> Object:
        with self.changed:
            old = self._found(key)
            uid = options.get("preconditions", {}).get("uid")
            if uid not in (None, old["metadata"]["uid"]):
                raise RefusedError(409, "Conflict", f"{key[2]} has another uid")
            grace_s = options.get("gracePeriodSeconds")
            if key[0] == "pods":
                grace_s = (
                    old["spec"].get("terminationGracePeriodSeconds", 30)
                    if grace_s is None
                    else grace_s
                )
                is_over = old.get("status", {}).get("phase") in ("Succeeded", "Failed")
                is_held = bool(grace_s) and bool(old["spec"].get("nodeName")) and not is_over
            else:
                is_held = bool(old["metadata"].get("finalizers"))
            if not is_held:
                gone = deepcopy(self._remove(key))
                if key[0] == "pods":  # shown as it was on its way
                    del gone["metadata"]["resourceVersion"]
                    gone["metadata"]["deletionTimestamp"] = now()
                return gone
            if "deletionTimestamp" in old["metadata"]:
                return old
            new = deepcopy(old)
            new["metadata"] |= {"deletionTimestamp": now(), "deletionGracePeriodSeconds": grace_s}
            return self._store(key, new, old)

    def watch(self, plural: str, namespace: str, params: Mapping[str, str]) -> Iterator[Object]:
        version = int(params["resourceVersion"])
        deadline = threading.TIMEOUT_MAX if self.watch_limit_s > 1000 else self.watch_limit_s
        with self.changed:
            if version < self.oldest:
                expired = RefusedError(410, "Expired", "too old resource version")
                yield {"type": "ERROR", "object": expired.status}
                return
            drops = self._drops
            self.watches += 1
        try:
            while True:
                with self.changed:
                    news = [one for one in self._after(version) if one[1] == plural]
                    if not news:
                        if version < self.version:
                            version = self.version
                            mark = {"metadata": {"resourceVersion": str(version)}}
                            news = [(version, plural, "BOOKMARK", mark)]
                        elif not self.changed.wait(min(deadline, 0.5)) and deadline < 1:
                            return
                        if self._drops != drops:
                            raise ConnectionAbortedError
                for number, _, what, body in news:
                    version = number
                    is_here = namespace in ("", body["metadata"].get("namespace", ""))
                    if what == "BOOKMARK" or (is_here and _is_selected(body, params)):
                        yield {"type": what, "object": body}
        finally:
            self.watches -= 1

    def _after(self, version: int) -> list[tuple[int, str, str, Object]]:
        news = []
        for one in reversed(self.history):
            if one[0] <= version:
                break
            news.append(one)
        return news[::-1]

    # --- objects

    def _found(self, key: Key) -> Object:
        if key not in self.objects:
            raise RefusedError(404, "NotFound", f'{key[0]} "{key[2]}" not found')
        return self.objects[key]

    def _add(self, key: Key, body: Object) -> Object:
        self._uids += 1
        body["metadata"] = {
            "uid": f"uid-{self._uids}",
            "creationTimestamp": now(),
            "generation": 1,
            **body["metadata"],
        }
        return self._write(key, body, "ADDED")

    def _store(self, key: Key, body: Object, old: Object | None) -> Object:
        assert old is not None
        if _bare(body) == _bare(old):
            return old
        if body.get("spec") != old.get("spec"):
            body["metadata"]["generation"] = old["metadata"]["generation"] + 1
        meta = body["metadata"]
        if "deletionTimestamp" in meta and not meta.get("finalizers") and key[0] != "pods":
            return self._remove(key)
        return self._write(key, body, "MODIFIED")

    def _write(self, key: Key, body: Object, what: str) -> Object:
        self.version += 1
        body["metadata"] = {**body["metadata"], "resourceVersion": str(self.version)}
        self.objects[key] = body
        self.history.append((self.version, key[0], what, body))
        self.changed.notify_all()
        return body

    def _remove(self, key: Key) -> Object:
        gone = self.objects.pop(key)
        self.version += 1
        gone = {**gone, "metadata": {**gone["metadata"], "resourceVersion": str(self.version)}}
        self.history.append((self.version, key[0], "DELETED", gone))
        for owned in [one for one in self._applied if one[0] == key]:
            del self._applied[owned]
        self.changed.notify_all()
        for other, body in list(self.objects.items()):
            owners = body["metadata"].get("ownerReferences", ())
            if (
                any(owner["uid"] == gone["metadata"]["uid"] for owner in owners)
                and other in self.objects
            ):
                self.delete(other, {})
        return gone


def now() -> str:
    return datetime.now(UTC).strftime("%Y-%m-%dT%H:%M:%SZ")


def _key(body: Object) -> Key:
    meta = body["metadata"]
    return resource_of(body).plural, meta.get("namespace", ""), meta["name"]


def _bare(body: Object) -> Object:
    meta = {k: v for k, v in body["metadata"].items() if k not in ("resourceVersion", "generation")}
    return {**body, "metadata": meta}


def _parts(new: Object, old: Object, part: str) -> Object:
    """Take from ``new`` what a request to this subresource may change."""
    if part == "status":
        return {**old, "status": new.get("status", {})}
    if old and resource_of(old).plural in WITH_STATUS and "status" in old:
        return {**new, "status": old["status"]}
    return new


def _merged(old: Any, new: Any) -> Any:
    """Return a JSON merge."""
    if not isinstance(new, dict):
        return deepcopy(new)
    merged = deepcopy(old) if isinstance(old, dict) else {}
    for name, value in new.items():
        if value is None:
            merged.pop(name, None)
        else:
            merged[name] = _merged(merged.get(name), value)
    return merged


def _removals(before: Any, body: Any) -> Any:
    """Return ``body`` with None for what this manager had applied and does not any more."""
    if not isinstance(before, dict) or not isinstance(body, dict):
        return body
    gone = {name: None for name in before if name not in body}
    return {name: _removals(before.get(name), value) for name, value in body.items()} | gone


def _is_selected(body: Object, params: Mapping[str, str]) -> bool:
    labels = body["metadata"].get("labels", {})
    for term in filter(None, params.get("labelSelector", "").split(",")):
        name, _, value = term.partition("=")
        if name not in labels or (value and labels[name] != value):
            return False
    for term in filter(None, params.get("fieldSelector", "").split(",")):
        name, _, value = term.partition("=")
        found: Any = body
        for step in name.split("."):
            found = found.get(step) if isinstance(found, dict) else None
        if (found or "") != value:
            return False
    return True


class _Handler(BaseHTTPRequestHandler):
    protocol_version = "HTTP/1.1"
    api: FakeApi

    def log_message(self, format: str, *args: Any) -> None:
        pass

    def _serve(self) -> None:
        url = urlsplit(self.path)
        length = int(self.headers.get("Content-Length") or 0)
        body = json.loads(self.rfile.read(length)) if length else None
        params = dict(parse_qsl(url.query))
        self.api.asked.append((self.command, url.path + ("?watch" if "watch" in params else "")))
        for fault in list(self.api.faults):
            if answer := fault(self.command, url.path):
                code, headers = answer
                return self._send(
                    code, RefusedError(code, "Fault", "a fault of the test").status, headers
                )
        try:
            self._answer(url.path, params, body)
        except RefusedError as refused:
            self._send(refused.code, refused.status)

    do_GET = do_POST = do_PUT = do_PATCH = do_DELETE = _serve  # noqa: N815

    def _answer(self, path: str, params: dict[str, str], body: Any) -> None:
        found = PATH.fullmatch(path)
        if found is None:
            raise RefusedError(404, "NotFound", f"no path {path}")
        namespace, plural, name, part = (unquote(one or "") for one in found.groups())
        key, api = (plural, namespace, name), self.api
        if part.startswith("proxy/"):
            answer = api.pods[name.partition(":")[0]](
                part.removeprefix("proxy"), self.command, body
            )
            return self._send(200, answer)
        if plural not in PLURALS:
            raise RefusedError(404, "NotFound", f"no kind {plural}")
        match self.command:
            case "GET" if params.get("watch"):
                return self._stream(api.watch(plural, namespace, params))
            case "GET" if name:
                with api.changed:
                    return self._send(200, api._found(key))
            case "GET":
                return self._send(200, api.listed(plural, namespace, params))
            case "POST":
                return self._send(201, api.create(body))
            case "PUT":
                return self._send(200, api.replace(key, body, part))
            case "PATCH":
                kind, manager = self.headers["Content-Type"], params.get("fieldManager", "")
                return self._send(200, api.patch(key, body, part, kind, manager))
            case _:
                return self._send(200, api.delete(key, body or {}))

    def _send(self, code: int, body: Any, headers: Mapping[str, str] | None = None) -> None:
        data = json.dumps(body).encode()
        self.send_response(code)
        for name, value in {"Content-Type": "application/json", **(headers or {})}.items():
            self.send_header(name, value)
        self.send_header("Content-Length", str(len(data)))
        self.end_headers()
        self.wfile.write(data)

    def _stream(self, events: Iterator[Object]) -> None:
        self.send_response(200)
        self.send_header("Content-Type", "application/json")
        self.send_header("Transfer-Encoding", "chunked")
        self.end_headers()
        self.close_connection = True
        try:
            for event in events:
                data = json.dumps(event).encode() + b"\n"
                self.wfile.write(f"{len(data):x}\r\n".encode() + data + b"\r\n")
                self.wfile.flush()
            self.wfile.write(b"0\r\n\r\n")
        except OSError:
            pass


class _Server(ThreadingHTTPServer):
    daemon_threads = True
    request_queue_size = 128

    def handle_error(self, request: Any, client_address: Any) -> None:
        pass  # who hung up


@contextmanager
def served(api: FakeApi) -> Iterator[Cluster]:
    """Serve it meanwhile."""
    handler = type("Handler", (_Handler,), {"api": api})
    server = _Server(("127.0.0.1", 0), handler)
    thread = threading.Thread(target=server.serve_forever, kwargs={"poll_interval": 0.02})
    thread.start()
    try:
        yield Cluster(url=f"http://127.0.0.1:{server.server_port}", context="fake")
    finally:
        api.drop_watches()
        server.shutdown()
        thread.join()
        server.server_close()
