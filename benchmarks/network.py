"""A network of known speed for a benchmark: each process in a namespace of its own.

Owns the namespaces, a pair of virtual Ethernet ends for each process, the bridge between them and
their rate (``tc tbf``, both ways).  The namespaces have no names: they are gone with the processes,
however these end.  Needs root, ``ip`` and ``tc``.  Must not know what is measured.

    parent (bridge)                              process of rank r
    enter() before it starts them                join(): a namespace of its own
    connect(r, pid): veth pair to the bridge     configure(r): address, rate
"""

from __future__ import annotations

import ctypes
import os
import shutil
import subprocess
from dataclasses import dataclass
from pathlib import Path

_CLONE_NEWNET = 0x40000000
_LATENCY = "50ms"

RATES = {"1gbit": 1e9, "10gbit": 1e10}
"""Bits per second, by the name that ``tc`` has for it."""


def chosen(rate: str | None) -> Network | None:
    """Return the network of a command line, None for loopback.

    Raises:
        SystemExit: none can be made here.
    """
    if rate and (why := obstacle()):
        raise SystemExit(f"skipped: {why}")
    return Network(rate) if rate else None


def obstacle() -> str:
    """Return why no network can be made here, as a sentence; nothing if one can."""
    if os.geteuid() != 0:
        return "--network needs root, to make network namespaces"
    missing = [tool for tool in ("ip", "tc") if shutil.which(tool) is None]
    return f"--network needs the command {missing[0]}" if missing else ""


@dataclass(frozen=True, slots=True)
class Network:
    """Processes on one switch; each end sends and receives at ``rate``."""

    rate: str

    @property
    def bits_per_s(self) -> float:
        """The rate as a number."""
        return RATES[self.rate]

    def address(self, rank: int) -> str:
        """Return the address of one process."""
        return f"10.9.{rank // 250}.{rank % 250 + 1}"

    def enter(self) -> None:
        """Move the calling process, which has no other threads that matter, to the bridge."""
        _leave()
        _run("ip link add switch type bridge")
        _run("ip link set switch up")

    def join(self) -> None:
        """Move the calling process to a namespace of its own."""
        _leave()

    def connect(self, rank: int, pid: int) -> None:
        """Plug a process in that has joined; called by the one at the bridge."""
        _run(f"ip link add port{rank} type veth peer name eth0 netns {pid}")
        _run(f"ip link set port{rank} master switch up")
        self._limit(f"port{rank}")

    def configure(self, rank: int) -> None:
        """Take the address; called by the process that was plugged in."""
        _run("ip link set lo up")
        _run(f"ip address add {self.address(rank)}/16 dev eth0")
        _run("ip link set eth0 up")
        self._limit("eth0")

    def _limit(self, device: str) -> None:
        burst = int(self.bits_per_s / 8 / 1000)  # a millisecond of it
        _run(
            f"tc qdisc add dev {device} root tbf rate {self.rate} burst {burst} latency {_LATENCY}"
        )


def wire_bytes() -> int:
    """Return how many bytes this process's end has carried, in the direction that has more."""
    for line in Path("/proc/thread-self/net/dev").read_text().splitlines():
        name, _, counts = line.partition(":")
        if name.strip() == "eth0":
            fields = counts.split()
            return max(int(fields[0]), int(fields[8]))
    return 0


def _leave() -> None:
    if ctypes.CDLL(None, use_errno=True).unshare(_CLONE_NEWNET):
        code = ctypes.get_errno()
        raise OSError(code, os.strerror(code))


def _run(command: str) -> None:
    subprocess.run(command.split(), check=True)
