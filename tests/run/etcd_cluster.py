"""Real etcd on loopback: one member or several, which can be killed, stopped and started again."""

from __future__ import annotations

import shutil
import signal
import socket
import subprocess
import time
from collections.abc import Iterator, Sequence
from contextlib import contextmanager, suppress
from pathlib import Path

from pliant.run.etcd import EtcdKeys, EtcdPlace

READY_S = 30.0
"""Longest that members take to find each other on a busy machine."""


def obstacle() -> str:
    """Return why there can be none here; nothing if there can."""
    return "" if shutil.which("etcd") else "needs the command etcd (Debian: etcd-server)"


class EtcdMember:
    """One member; its data stay while it is away."""

    def __init__(self, name: str, directory: Path, more: Sequence[str] = ()) -> None:
        self.name, self._directory, self._more = name, directory, tuple(more)
        self.port, self._peer_port = _free_port(), _free_port()
        self.peer = f"{name}=http://127.0.0.1:{self._peer_port}"
        self._process: subprocess.Popen[bytes] | None = None

    @property
    def scheme(self) -> str:
        return "https" if self._more else "http"

    def start(self, members: str) -> None:
        here, peers = (
            f"{self.scheme}://127.0.0.1:{self.port}",
            f"http://127.0.0.1:{self._peer_port}",
        )
        words = {
            "name": self.name,
            "data-dir": self._directory / self.name,
            "listen-client-urls": here,
            "advertise-client-urls": here,
            "listen-peer-urls": peers,
            "initial-advertise-peer-urls": peers,
            "initial-cluster": members,
            "logger": "zap",
        }
        with (self._directory / f"{self.name}.log").open("ab") as log:
            self._process = subprocess.Popen(
                ["etcd", *(f"--{name}={value}" for name, value in words.items()), *self._more],
                stdout=log,
                stderr=log,
            )

    def kill(self) -> None:
        """End it at once, as a loss of power does."""
        if self._process is not None:
            self._process.kill()
            self._process.wait(READY_S)

    def freeze(self) -> None:
        """Let it stand still: its kernel takes connections, and nobody answers."""
        assert self._process is not None
        self._process.send_signal(signal.SIGSTOP)

    def thaw(self) -> None:
        assert self._process is not None
        self._process.send_signal(signal.SIGCONT)


class EtcdCluster:
    """Members that know each other."""

    def __init__(self, directory: Path, num_members: int, more: Sequence[str] = ()) -> None:
        names = [f"m{number}" for number in range(num_members)]
        self.members = [EtcdMember(name, directory, more) for name in names]
        self._known = ",".join(member.peer for member in self.members)
        for member in self.members:
            self.start(member)

    def start(self, member: EtcdMember) -> None:
        member.start(self._known)

    def url(self, name: str, *members: EtcdMember) -> str:
        """Return the place of that name, as ``--register`` has it."""
        hosts = ",".join(f"127.0.0.1:{member.port}" for member in members or self.members)
        return f"etcd://{hosts}/{name}"

    def wait_until_ready(self, url: str) -> None:
        keys, until_s = EtcdKeys(EtcdPlace.named(url)), time.monotonic() + READY_S
        while time.monotonic() < until_s:
            with suppress(OSError):
                keys.write("ready", b"")
                return
            time.sleep(0.05)
        raise AssertionError("etcd does not begin")

    def close(self) -> None:
        for member in self.members:
            member.kill()


@contextmanager
def cluster(directory: Path, num_members: int, more: Sequence[str] = ()) -> Iterator[EtcdCluster]:
    """Lend members that are ready, unless they speak TLS."""
    directory.mkdir(exist_ok=True)
    lent = EtcdCluster(directory, num_members, more)
    try:
        if not more:
            for member in lent.members:
                lent.wait_until_ready(lent.url("ready", member))
        yield lent
    finally:
        lent.close()


def _free_port() -> int:
    with socket.create_server(("127.0.0.1", 0)) as found:
        port: int = found.getsockname()[1]
        return port
