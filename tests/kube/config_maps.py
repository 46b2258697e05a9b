"""The part of an API server that a coordinator needs: one ConfigMap, read, replaced and watched.

In memory, on loopback.  It refuses what a Role of ``get, update, watch`` refuses, and what an API
server does not refuse but nobody must send: a replacement that names no version.
"""

from __future__ import annotations

import json
import threading
from collections.abc import Iterator
from contextlib import contextmanager, suppress
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from pathlib import Path
from typing import Any
from urllib.parse import parse_qs, urlsplit

NAME, NAMESPACE = "job-register", "team-a"
PATH = f"/api/v1/namespaces/{NAMESPACE}/configmaps"


class FakeConfigMaps:
    """Serves one object; ``asked`` counts requests by verb."""

    def __init__(self) -> None:
        self.body: dict[str, Any] | None = {
            "apiVersion": "v1",
            "kind": "ConfigMap",
            "metadata": {
                "name": NAME,
                "namespace": NAMESPACE,
                "uid": "0123abcd-0000",
                "resourceVersion": "1",
                "labels": {"pliant.dev/job": "job"},
            },
        }
        self.asked: list[str] = []
        self.is_away = False
        self.changed = threading.Condition()
        self._server: ThreadingHTTPServer | None = None
        self._port = 0

    def start(self) -> None:
        """Answer from now on."""
        handler = type("Handler", (_Handler,), {"served": self})
        self._server = ThreadingHTTPServer(("127.0.0.1", self._port), handler)
        self._server.daemon_threads = True
        self._port = self._server.server_address[1]
        threading.Thread(target=self._server.serve_forever, args=(0.05,), daemon=True).start()

    def stop(self) -> None:
        """Answer nothing, and break what is watched."""
        with self.changed:
            self.is_away = True
            self.changed.notify_all()
        if self._server is not None:
            self._server.shutdown()
            self._server.server_close()

    def come_back(self) -> None:
        """Answer at the same place again."""
        self.is_away = False
        self.start()

    def put(self, body: dict[str, Any]) -> dict[str, Any] | None:
        """Replace the object if that names its version."""
        with self.changed:
            known = self.body
            if known is None or body["metadata"]["resourceVersion"] != _version(known):
                return None
            version = str(int(_version(known)) + 1)
            self.body = {**body, "metadata": {**body["metadata"], "resourceVersion": version}}
            self.changed.notify_all()
            return self.body

    def label(self, **labels: str) -> None:
        """Change what is no register."""
        assert self.body is not None
        assert self.put({**self.body, "metadata": {**self.body["metadata"], "labels": labels}})

    def remove(self) -> None:
        with self.changed:
            self.body = None
            self.changed.notify_all()

    def kubeconfig(self, directory: Path) -> dict[str, str]:
        """Write what names this server; return the environment of who is to use it."""
        named = [{"name": "here", "cluster": {"server": f"http://127.0.0.1:{self._port}"}}]
        context = {"cluster": "here", "user": "me", "namespace": NAMESPACE}
        path = directory / "kubeconfig"
        config = {
            "apiVersion": "v1",
            "kind": "Config",
            "clusters": named,
            "users": [{"name": "me", "user": {"token": "t"}}],
            "contexts": [{"name": "here", "context": context}],
            "current-context": "here",
        }
        path.write_text(json.dumps(config))
        path.chmod(0o600)
        return {"KUBECONFIG": str(path)}

    @property
    def data(self) -> dict[str, str]:
        return {} if self.body is None else self.body.get("data") or {}


@contextmanager
def config_maps() -> Iterator[FakeConfigMaps]:
    """Serve one meanwhile."""
    served = FakeConfigMaps()
    served.start()
    try:
        yield served
    finally:
        served.stop()


def _version(body: dict[str, Any]) -> str:
    return str(body["metadata"]["resourceVersion"])


class _Handler(BaseHTTPRequestHandler):
    protocol_version = "HTTP/1.1"
    served: FakeConfigMaps

    def log_message(self, *_: object) -> None: ...

    def _say(self, code: int, body: object) -> None:
        data = json.dumps(body).encode()
        self.send_response(code)
        self.send_header("Content-Type", "application/json")
        self.send_header("Content-Length", str(len(data)))
        self.end_headers()
        self.wfile.write(data)

    def _refuse(self, code: int, reason: str) -> None:
        self._say(code, {"kind": "Status", "code": code, "reason": reason, "message": reason})

    def do_GET(self) -> None:
        parts, query = urlsplit(self.path), parse_qs(urlsplit(self.path).query)
        if parts.path == PATH and query.get("fieldSelector") == [f"metadata.name={NAME}"]:
            self.served.asked.append("watch")
            self._watch(query["resourceVersion"][0])
        elif parts.path == f"{PATH}/{NAME}":
            self.served.asked.append("get")
            with self.served.changed:
                body = self.served.body
            self._refuse(404, "NotFound") if body is None else self._say(200, body)
        else:
            self._refuse(403, "Forbidden")

    def do_PUT(self) -> None:
        body = json.loads(self.rfile.read(int(self.headers["Content-Length"])))
        self.served.asked.append("update")
        if self.path != f"{PATH}/{NAME}" or "resourceVersion" not in body["metadata"]:
            self._refuse(403, "Forbidden")
        elif self.served.body is None:
            self._refuse(404, "NotFound")
        elif (found := self.served.put(body)) is None:
            self._refuse(409, "Conflict")
        else:
            self._say(200, found)

    def _watch(self, version: str) -> None:
        self.send_response(200)
        self.send_header("Content-Type", "application/json")
        self.send_header("Connection", "close")
        self.end_headers()
        self.close_connection = True
        while (body := self._newer(version)) is not None:
            version = _version(body)
            self._event("MODIFIED", body)
        if not self.served.is_away:
            self._event("DELETED", {"metadata": {"resourceVersion": "999"}})

    def _newer(self, version: str) -> dict[str, Any] | None:
        """Wait for another version; None: the object, or the server, is gone."""
        served = self.served
        with served.changed:
            while not served.is_away and served.body and _version(served.body) == version:
                served.changed.wait(0.5)
            return None if served.is_away else served.body

    def _event(self, kind: str, body: object) -> None:
        with suppress(OSError):
            self.wfile.write(json.dumps({"type": kind, "object": body}).encode() + b"\n")
            self.wfile.flush()
