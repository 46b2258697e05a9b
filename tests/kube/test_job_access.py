from __future__ import annotations

import http.server
import json
import os
import socket
import threading
from base64 import b64encode
from collections.abc import Iterator
from contextlib import closing, contextmanager, suppress
from http import HTTPStatus

import pytest
from websockets.datastructures import Headers
from websockets.http11 import Request, Response
from websockets.sync.server import ServerConnection, serve
from websockets.typing import Subprotocol

from pliant.core.errors import ConfigError
from pliant.http.client import Caller
from pliant.kube import job_access
from pliant.kube.client import SyncApi
from pliant.kube.connection import Cluster

TOKEN = "of-the-job"
USER = "Bearer of-the-user"


class Coordinator(http.server.BaseHTTPRequestHandler):
    """Answers who knows the job's token what it was asked, on loopback."""

    def do_GET(self) -> None:
        data = json.dumps({"path": self.path, "asked": dict(self.headers)}).encode()
        is_known = self.headers.get("Authorization") == f"Bearer {TOKEN}"
        self.send_response(200 if is_known or self.path == "/healthz" else 401)
        self.send_header("Content-Type", "application/json")
        self.send_header("Content-Length", str(len(data)))
        self.end_headers()
        self.wfile.write(data)

    def log_message(self, *words: object) -> None:
        """Say nothing."""


class ApiServer:
    """A pod, its token, its proxy; and a port-forward if it may be."""

    def __init__(self, port: int) -> None:
        self.port, self.forwards, self.may_forward, self.phase = port, 0, True, "Running"

    def answer(self, connection: ServerConnection, request: Request) -> Response | None:
        pods = "/api/v1/namespaces/team-a/pods/"
        if request.headers["Authorization"] != USER:
            return json_response({"message": "who are you"}, 401)
        if request.path.startswith(f"{pods}gpt-coordinator/portforward"):
            return None if self.may_forward else json_response({"message": "forbidden"}, 403)
        if request.path.startswith(f"{pods}gpt-coordinator:7000/proxy/"):
            asked = {name.lower(): value for name, value in request.headers.raw_items()}
            return json_response({"proxied": request.path, "asked": asked})
        if request.path == f"{pods}gpt-coordinator":
            return json_response({"status": {"phase": self.phase}})
        if request.path == "/api/v1/namespaces/team-a/secrets/gpt-token":
            return json_response({"data": {"token": b64encode(TOKEN.encode()).decode()}})
        return json_response({"reason": "NotFound", "message": "no such pod"}, 404)

    def forward(self, far: ServerConnection) -> None:
        """Carry bytes as a kubelet does, which says the port's number first on each channel."""
        self.forwards += 1
        number = (7000).to_bytes(2, "little")
        with socket.create_connection(("127.0.0.1", self.port)) as near:
            far.send(b"\x00" + number)
            far.send(b"\x01" + number)
            threading.Thread(target=self._up, args=(far, near), daemon=True).start()
            with suppress(OSError):
                while data := near.recv(1000):
                    far.send(b"\x00" + data)

    def _up(self, far: ServerConnection, near: socket.socket) -> None:
        for message in far:
            assert isinstance(message, bytes)
            near.sendall(message[1:])
        near.close()


def json_response(values: object, code: int = 200) -> Response:
    body = json.dumps(values).encode()
    headers = {"Content-Type": "application/json", "Content-Length": str(len(body))}
    headers["Connection"] = "close"
    return Response(code, HTTPStatus(code).phrase, Headers(headers), body)


@contextmanager
def cluster_of(server: ApiServer) -> Iterator[SyncApi]:
    with serve(
        server.forward,
        "127.0.0.1",
        0,
        process_request=server.answer,
        subprotocols=[Subprotocol("v4.channel.k8s.io")],
    ) as serving:
        threading.Thread(target=serving.serve_forever, daemon=True).start()
        url = f"http://127.0.0.1:{serving.socket.getsockname()[1]}"
        api = SyncApi(Cluster(url=url, context="test", authorization=lambda: USER))
        yield api
        api.close()


@pytest.fixture(autouse=True)
def forwards(monkeypatch: pytest.MonkeyPatch) -> Iterator[list[job_access.PortForward]]:
    """Close what a command leaves to its exit."""
    made: list[job_access.PortForward] = []

    class Noted(job_access.PortForward):
        def __init__(self, cluster: Cluster, path: str) -> None:
            super().__init__(cluster, path)
            made.append(self)

    monkeypatch.setattr(job_access, "PortForward", Noted)
    yield made
    for one in made:
        one.close()


@pytest.fixture
def server() -> Iterator[ApiServer]:
    with http.server.ThreadingHTTPServer(("127.0.0.1", 0), Coordinator) as coordinator:
        threading.Thread(target=coordinator.serve_forever, daemon=True).start()
        yield ApiServer(coordinator.server_port)
        coordinator.shutdown()


def test_a_coordinator_is_asked_through_a_port_forward(server: ApiServer) -> None:
    with cluster_of(server) as api:
        handle = job_access.job_handle(api, "team-a", "gpt")
        with closing(Caller(handle)) as caller:
            said = caller.ask("GET", "/v1/status")
    assert said["path"] == "/v1/status"
    assert server.forwards
    assert handle.name == "kube:team-a/gpt"
    assert handle.socket is not None
    assert handle.socket.parent.stat().st_mode & 0o777 == 0o700  # of nobody else


def test_a_forward_leaves_no_file(server: ApiServer) -> None:
    with cluster_of(server) as api:
        forward = job_access.PortForward(api.cluster, "/portforward")
        assert forward.path.exists()
        forward.close()
    assert not forward.path.parent.exists()


def test_what_a_killed_command_left_is_removed(server: ApiServer) -> None:
    with cluster_of(server) as api:
        killed, living = (job_access.PortForward(api.cluster, "/portforward") for _ in range(2))
        killed._listener.shutdown(socket.SHUT_RDWR)  # as its end does
        for one in (killed, living):
            os.utime(one.path.parent, (0, 0))

        job_access.PortForward(api.cluster, "/portforward")

    assert not killed.path.parent.exists()
    assert living.path.exists()


def test_without_leave_to_forward_the_proxy_passes_the_token_on(server: ApiServer) -> None:
    server.may_forward = False
    with cluster_of(server) as api:
        handle = job_access.job_handle(api, "team-a", "gpt")
        with closing(Caller(handle)) as caller:
            said = caller.ask("GET", "/v1/status")
    assert said["proxied"].endswith("/pods/gpt-coordinator:7000/proxy/v1/status")
    assert said["asked"]["x-pliant-token"] == TOKEN
    assert said["asked"]["authorization"] == USER  # the API server's; it is not passed on


def test_a_job_without_a_coordinator_says_so(server: ApiServer) -> None:
    with cluster_of(server) as api:
        with pytest.raises(ConfigError, match="team-a/other has no coordinator now; pliant descr"):
            job_access.job_handle(api, "team-a", "other")
        server.phase = "Pending"
        with pytest.raises(ConfigError, match="is not running yet; try again"):
            job_access.job_handle(api, "team-a", "gpt")
