"""Reaches the coordinator of a job in a cluster: by port-forward, else through the API server.

Owns the way from a namespace and a name to a ``Handle``, which commands use as that of any job.
Knows nothing of what is asked.

    command --> Unix socket of this process --> API server --> kubelet --> loopback of the pod
    command --> API server's proxy --> address of the pod      where the former is not allowed

A port-forward works where a NetworkPolicy lets only the job's pods meet, and the API server does
not see the job's token.  The proxy takes the Authorization header for itself, so the token has a
header of its own.
"""

from __future__ import annotations

import atexit
import shutil
import socket
import tempfile
import threading
import time
from base64 import b64decode
from contextlib import closing, suppress
from pathlib import Path
from typing import Any

from websockets.exceptions import WebSocketException
from websockets.sync.client import ClientConnection, connect
from websockets.typing import Subprotocol

from pliant.core.errors import ConfigError
from pliant.core.operator.state import Part, coordinator_name
from pliant.http.client import Caller
from pliant.kube import client
from pliant.kube.client import ApiError, SyncApi
from pliant.kube.connection import Cluster
from pliant.machine.registry import Handle

PORT = 7000
"""Of every coordinator in a cluster."""

TOKEN_HEADER = "X-Pliant-Token"  # noqa: S105 - its name

FORWARD_S = 5.0
"""Longest wait for a port-forward to answer, in seconds; then the proxy is asked."""

_PROTOCOL = Subprotocol("v4.channel.k8s.io")
_DATA, _ERROR = 0, 1
"""Channels of the one port: what is said of it, and why it cannot be reached."""

CHUNK = 64 << 10

PREFIX = "pliant-forward-"

LEFT_S = 60.0
"""So old is a directory that a process which was killed has left, in seconds; one that has just
been made may not be listened at yet."""


def job_handle(api: SyncApi, namespace: str, name: str) -> Handle:
    """Return how the job is asked.

    Raises:
        ConfigError: it has no coordinator now, or this user may not reach it.
    """
    pod = coordinator_name(name)
    try:
        found = api.ask(client.read(client.PODS, pod, namespace))
        secret = api.ask(client.read(client.SECRETS, f"{name}-{Part.TOKEN}", namespace))
    except ApiError as error:
        if error.is_gone:
            raise ConfigError(
                f"the job {namespace}/{name} has no coordinator now; pliant describe {name} "
                f"--namespace {namespace} says why"
            ) from None
        raise client.refusal_of(error, api.cluster) from error
    phase = found.get("status", {}).get("phase")
    if phase in ("Succeeded", "Failed"):
        raise ConfigError(
            f"the coordinator of {namespace}/{name} has ended; pliant describe {name} "
            f"--namespace {namespace} says why"
        )
    if phase != "Running":
        raise ConfigError(f"the coordinator of {namespace}/{name} is not running yet; try again")
    token = b64decode(secret["data"]["token"]).decode().strip()
    place = f"kube:{namespace}/{name}"
    return _forwarded(api.cluster, namespace, pod, place, token) or Handle(
        name=place,
        url=api.cluster.url + client.proxied(namespace, pod, PORT, "").path,
        headers=lambda: {TOKEN_HEADER: token, **_authorization(api.cluster)},
        trust=api.cluster.trust,
    )


def _authorization(cluster: Cluster) -> dict[str, str]:
    shown = cluster.authorization()
    return {} if shown is None else {"Authorization": shown}


def _forwarded(cluster: Cluster, namespace: str, pod: str, place: str, token: str) -> Handle | None:
    """Return the way by port-forward; None: it is not allowed, or not possible here."""
    try:
        forward = PortForward(cluster, client.PODS.path(namespace, pod, "portforward"))
    except OSError:
        return None
    handle = Handle(name=place, url="http://coordinator", socket=forward.path, secret=token)
    with suppress(ConfigError), closing(Caller(handle)) as caller:
        caller.ask("GET", "/healthz", timeout_s=FORWARD_S)
        return handle
    forward.close()
    return None


class PortForward:
    """A Unix socket of this user whose connections end at a port of a pod, while this lives."""

    def __init__(self, cluster: Cluster, path: str) -> None:
        self._cluster = cluster
        self._url = f"{cluster.url.replace('http', 'ws', 1)}{path}?ports={PORT}"
        _remove_left()
        self._directory = Path(tempfile.mkdtemp(prefix=PREFIX))
        self.path = self._directory / "socket"
        self._listener = socket.socket(socket.AF_UNIX)
        atexit.register(self.close)
        self._listener.bind(str(self.path))
        self._listener.listen()
        threading.Thread(target=self._serve, daemon=True).start()

    def close(self) -> None:
        """Take no more connections, and leave no file."""
        atexit.unregister(self.close)
        with suppress(OSError):  # closed before
            self._listener.shutdown(socket.SHUT_RDWR)  # else who waits in accept() waits on
        self._listener.close()
        shutil.rmtree(self._directory, ignore_errors=True)

    def _serve(self) -> None:
        with suppress(OSError):  # closed
            while True:
                near, _ = self._listener.accept()
                threading.Thread(target=self._carry, args=(near,), daemon=True).start()

    def _carry(self, near: socket.socket) -> None:
        trust: Any = self._cluster.trust
        with (
            near,
            suppress(OSError, WebSocketException),
            connect(
                self._url,
                ssl=trust if self._url.startswith("wss:") and trust is not True else None,
                additional_headers=_authorization(self._cluster),
                subprotocols=[_PROTOCOL],
                compression=None,
                max_size=None,
            ) as far,
        ):
            threading.Thread(target=_upwards, args=(near, far), daemon=True).start()
            _downwards(far, near)


def _remove_left() -> None:
    """Remove what others have left who were killed: nobody listens there any more."""
    for directory in Path(tempfile.gettempdir()).glob(f"{PREFIX}*"):
        with suppress(OSError), socket.socket(socket.AF_UNIX) as asked:
            if time.time() - directory.stat().st_mtime < LEFT_S:
                continue
            try:
                asked.connect(str(directory / "socket"))
            except ConnectionRefusedError:
                shutil.rmtree(directory, ignore_errors=True)


def _upwards(near: socket.socket, far: ClientConnection) -> None:
    with suppress(OSError, WebSocketException):
        while data := near.recv(CHUNK):
            far.send(bytes((_DATA,)) + data)
        far.close()


def _downwards(far: ClientConnection, near: socket.socket) -> None:
    """Pass on what the port says; each channel begins with the port's number, in two bytes."""
    begun: set[int] = set()
    for message in far:
        if not isinstance(message, bytes) or not message:
            continue
        channel, data = message[0], message[1:]
        if channel not in begun:
            begun.add(channel)
            data = data[2:]
        if channel == _ERROR and data:
            return
        if channel == _DATA:
            near.sendall(data)
