"""The ground of a cluster: namespaces that hold all of its processes and its network.

    the tests' process --dies--> unshare --dies--> process 1 --dies--> everything below
                                                   |
                    br0 10.88.0.1 (control plane) -+- eth0 10.88.1.1 (a pod) - eth0 10.88.1.2 ...

The kernel ends it all with the process of the tests, however that one ends: no process, interface
or mount outlives it, and no other ground sees it.  ``/etc`` is a layer of its own, so what is
written there is gone as well.  Knows nothing of Kubernetes.  Needs root.
"""

from __future__ import annotations

import contextlib
import ctypes
import os
import shutil
import subprocess
import sys
from collections.abc import Iterator, Mapping
from pathlib import Path

import psutil
from tests.live.namespaces import obstacle as no_namespaces

ADDRESS = "10.88.0.1"
"""Of the bridge: what the control plane listens on."""

ROOT = Path(__file__).parents[2]

_libc = ctypes.CDLL(None, use_errno=True)


def obstacle() -> str:
    """Return why there can be none here; nothing if there can."""
    if reason := no_namespaces():
        return reason
    if shutil.which("setpriv") is None:
        return "needs the command setpriv"
    here = Path("/").stat().st_dev
    apart = [path for path in (ROOT, Path(sys.prefix)) if path.resolve().stat().st_dev != here]
    return f"needs {apart[0]} on the file system of /, which pods see" if apart else ""


class Ground:
    """One of them; the thread that makes it must live as long as it does."""

    def __init__(self, directory: Path) -> None:
        self.directory = directory
        layer = directory / "ground"
        (layer / "layers").mkdir(parents=True)
        script = f"""set -eu
            mount --make-rprivate /
            mount -t tmpfs layers {layer}/layers
            mkdir {layer}/layers/etc {layer}/layers/work
            mount -t overlay overlay -o \
                lowerdir=/etc,upperdir={layer}/layers/etc,workdir={layer}/layers/work /etc
            hostname control-plane
            ip link set lo up
            ip link add br0 type bridge
            ip address add {ADDRESS}/16 dev br0
            ip link set br0 up
            ip route add default dev br0   # the API server looks for one, and for nothing behind it
            echo
            exec sleep infinity"""
        spaces = ["--net", "--uts", "--ipc", "--mount", "--pid", "--fork", "--kill-child"]
        self._process = subprocess.Popen(
            ["setpriv", "--pdeathsig=KILL", "unshare", *spaces, "--mount-proc", "sh", "-c", script],
            stdout=subprocess.PIPE,
            stdin=subprocess.DEVNULL,
        )
        assert self._process.stdout is not None
        assert self._process.stdout.readline(), "the ground has no namespaces"
        (init,) = psutil.Process(self._process.pid).children()
        self.init = init.pid
        """Its process 1, as this process counts."""

    def entering(self) -> list[str]:
        """Return the words before a command that is to run there."""
        return ["nsenter", f"--target={self.init}", "--net", "--uts", "--ipc", "--mount", "--pid"]

    def start(
        self, *words: object, out: Path, environment: Mapping[str, str] | None = None
    ) -> subprocess.Popen[bytes]:
        """Start a command there; what it says is added to ``out``."""
        with out.open("ab") as said:
            return subprocess.Popen(
                [*self.entering(), "--", *map(str, words)],
                stdin=subprocess.DEVNULL,
                stdout=said,
                stderr=said,
                env=None if environment is None else dict(environment),
                start_new_session=True,  # Ctrl-C is for the tests, which end the rest in order
            )

    @contextlib.contextmanager
    def entered(self) -> Iterator[None]:
        """Give this thread the ground's network: sockets opened meanwhile stay in there."""
        with (
            Path(f"/proc/{self.init}/ns/net").open() as there,
            Path("/proc/thread-self/ns/net").open() as here,
        ):
            _enter_network(there.fileno())
            try:
                yield
            finally:
                _enter_network(here.fileno())

    def close(self) -> None:
        """End everything there, at once; a second time changes nothing."""
        if self._process.poll() is None:
            self._process.kill()
            self._process.communicate()


def child_of(pid: int) -> int | None:
    """Return the first child of a process; of ``nsenter``, what it has started."""
    with contextlib.suppress(OSError):
        for word in Path(f"/proc/{pid}/task/{pid}/children").read_text().split():
            return int(word)
    return None


def _enter_network(descriptor: int) -> None:
    if _libc.setns(descriptor, 0):
        number = ctypes.get_errno()
        raise OSError(number, f"this thread cannot enter a network: {os.strerror(number)}")
