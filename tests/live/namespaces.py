"""Hosts for tests: each is a set of namespaces with a name, an interface and processes of its own.

    host "a"  eth0 10.77.0.1, fd77::1  --veth--+
    host "b"  eth0 10.77.0.2, fd77::2  --veth--+-- a bridge, in a namespace of its own
    host "c"  ...                              +

A host sees no process, shared memory or socket of another, and has a directory of its own under a
path that is the same on all (``home``); the rest of the file system is shared.  A cut lets packets
from one host to another go nowhere, without an error, in one direction: as behind a switch that has
lost its way.  A link may also be slow, so that packets wait, or lose those that come too fast.  All
is gone with ``close``.  Needs root, ``ip``, ``tc``, ``nsenter``, ``unshare``, ``mount``.
"""

from __future__ import annotations

import os
import shutil
import signal
import subprocess
import sys
import time
from collections.abc import Callable, Iterator, Mapping
from contextlib import contextmanager
from pathlib import Path

import psutil
from tests.live.stage import DEADLINE_S, FORKED_PLIANT, ForkedStage, Program, zygote

NOBODY = "02:00:00:00:00:99"
"""No interface has this hardware address."""

READ_AT_ONCE = ("ATEN_", "MKL_", "OMP_", "ONEDNN_", "PYTHONHASHSEED")
"""How the names of variables begin that an interpreter or torch looks at once, as it starts."""

LASTS_S = 1200
"""Longest that a host lives, whatever becomes of its test, unless the test says otherwise."""


def obstacle() -> str:
    """Return why there can be none here; nothing if there can."""
    if os.geteuid() != 0:
        return "needs root, to make network namespaces"
    tools = ("ip", "tc", "nsenter", "unshare", "mount", "hostname")
    missing = [tool for tool in tools if shutil.which(tool) is None]
    if missing:
        return f"needs the command {missing[0]}"
    tries = "ip link add br0 type bridge && ip link add v0 type veth peer name v1"
    done = subprocess.run(
        ["unshare", "--net", "--mount", "--pid", "--uts", "--ipc", "--fork", "sh", "-c", tries],
        capture_output=True,
        check=False,
    )
    return "" if done.returncode == 0 else "needs the right to make bridges and namespaces"


class NetworkHost:
    """One host; see the module's text."""

    def __init__(
        self,
        number: int,
        name: str,
        own: Path,
        home: Path,
        stage: Callable[[], ForkedStage],
        lasts_s: int = LASTS_S,
    ) -> None:
        self.number, self.name, self.lasts_s = number, name, lasts_s
        self.stage = stage
        self.address = f"10.77.0.{number}"
        self.ipv6 = f"fd77::{number}"
        self.own = own
        """Its directory, as the test sees it; the host sees it as ``home``."""
        self.home = home
        script = (
            f"mount -t tmpfs none /dev/shm && mount --bind {own} {home} && hostname {name}"
            f" && ip link set lo up && echo && exec sleep {lasts_s}"
        )
        words = ["unshare", "--net", "--uts", "--ipc", "--mount", "--pid", "--fork"]
        self._process = subprocess.Popen(
            [*words, "--kill-child", "--mount-proc", "sh", "-c", script], stdout=subprocess.PIPE
        )
        assert self._process.stdout is not None
        assert self._process.stdout.readline(), "the host has no namespaces"
        (init,) = psutil.Process(self._process.pid).children()
        self.init = init.pid
        self.programs: list[HostProgram] = []

    def start(
        self,
        *words: object,
        environment: Mapping[str, str],
        cwd: Path | None = None,
        out: Path | None = None,
    ) -> HostProgram:
        """Start a command on this host; what it says is added to a file of the host's directory."""
        out = out or self.own / "said.txt"
        with out.open("ab") as said:
            process = subprocess.Popen(
                [*self.entering(), f"--wdns={cwd or self.home}", "--", *map(str, words)],
                stdin=subprocess.DEVNULL,
                stdout=said,
                stderr=said,
                env=dict(environment),
            )
        return self._started(process, out)

    def python(
        self,
        *words: object,
        environment: Mapping[str, str],
        cwd: Path | None = None,
        out: Path | None = None,
    ) -> HostProgram:
        """Start ``python *words`` there, forked from where torch is loaded already."""
        out = out or self.own / "said.txt"
        program = self.stage().start(
            *words, out=out, environment=environment, cwd=cwd or self.home, host=self.init
        )
        return self._started(program, out)

    def pliant(self, *words: object, environment: Mapping[str, str], **more: Path) -> HostProgram:
        """Start ``pliant`` on this host, forked as well where the environment lets it."""
        if any(name.startswith(READ_AT_ONCE) for name in environment):
            words = (sys.executable, "-m", "pliant", *words)
            return self.start(*words, environment=environment, **more)
        return self.python(FORKED_PLIANT, *words, environment=environment, **more)

    def _started(self, process: Program, out: Path) -> HostProgram:
        self.programs.append(HostProgram(self, process, out))
        return self.programs[-1]

    def said(self) -> str:
        """Return all that programs of this host have said."""
        return "".join(path.read_text() for path in sorted({one.out for one in self.programs}))

    def ip(self, words: str) -> None:
        """Run ``ip`` there."""
        self.inside("ip", *words.split())

    def inside(self, *words: str) -> None:
        """Run a command there and wait for it."""
        subprocess.run([*self.entering(), *words], check=True, capture_output=True)

    def entering(self) -> list[str]:
        """Return the words before a command that is to run there."""
        return ["nsenter", f"--target={self.init}", "--net", "--uts", "--ipc", "--mount", "--pid"]

    @property
    def is_on(self) -> bool:
        return self._process.poll() is None

    def die(self) -> None:
        """Lose all that runs here, and the interface, at once; a second time changes nothing."""
        if self.is_on:
            self._process.kill()
            self._process.communicate()


class HostProgram:
    """A command on a host."""

    def __init__(self, host: NetworkHost, process: Program, out: Path) -> None:
        self.host, self.out = host, out
        self._process = process
        """What waits for the command: ``nsenter``, or what does the same."""

    def process(self) -> psutil.Process:
        """Return the process of the command itself."""
        until_s = time.monotonic() + DEADLINE_S
        while time.monotonic() < until_s and self.poll() is None:
            if children := psutil.Process(self._process.pid).children():
                return children[0]
            time.sleep(0.01)
        raise AssertionError(f"nothing runs there: {self.host.said()}")

    def send_signal(self, number: int) -> None:
        """Send the command a signal; ``nsenter`` stops with it, and does not go on by itself."""
        self.process().send_signal(number)
        if number in (signal.SIGCONT, signal.SIGKILL):
            self._process.send_signal(signal.SIGCONT)

    def kill(self) -> None:
        self.send_signal(signal.SIGKILL)

    def poll(self) -> int | None:
        return self._process.poll()

    def wait(self, timeout_s: float = DEADLINE_S) -> int:
        """Return its exit code."""
        try:
            return self._process.wait(timeout_s)
        except subprocess.TimeoutExpired:
            raise AssertionError(f"it does not end: {self.host.said()}") from None

    def end(self) -> None:
        """Leave nothing of what waits for it."""
        self._process.kill()
        self._process.wait(DEADLINE_S)


class Network:
    """Hosts on one bridge."""

    def __init__(self, directory: Path, *names: str, lasts_s: int = LASTS_S) -> None:
        home = directory / "home"
        home.mkdir()
        self._switch = subprocess.Popen(
            ["unshare", "--net", "sh", "-c", f"echo; exec sleep {lasts_s}"], stdout=subprocess.PIPE
        )
        assert self._switch.stdout is not None
        self._switch.stdout.readline()
        self._at_switch("link add br0 type bridge")
        self._at_switch("link set br0 up")
        self._stage: ForkedStage | None = None
        self.hosts: list[NetworkHost] = []
        for number, name in enumerate(names, start=1):
            (directory / name).mkdir()
            host = NetworkHost(number, name, directory / name, home, self._lend, lasts_s)
            self.hosts.append(host)
            self._connect(host)

    def _connect(self, host: NetworkHost) -> None:
        self._at_switch(f"link add to-{host.name} type veth peer name eth0 netns {host.init}")
        self._at_switch(f"link set to-{host.name} master br0 up")
        host.ip(f"address add {host.address}/24 dev eth0")
        host.ip(f"-6 address add {host.ipv6}/64 dev eth0 nodad")
        host.ip("link set eth0 up")

    def switch_on(self, *names: str) -> None:
        """Start hosts again that have died, or all of them; what was on their disks is still there.

        Each is a new object; no link to or from it is cut or slow.
        """
        for at, host in enumerate(self.hosts):
            if host.is_on or (names and host.name not in names):
                continue
            for program in host.programs:
                program.end()
            self._at_switch(f"link delete to-{host.name}", check=False)  # or the kernel has
            again = NetworkHost(
                host.number, host.name, host.own, host.home, self._lend, host.lasts_s
            )
            self.hosts[at] = again
            self._connect(again)

    def cut(self, sender: NetworkHost, receiver: NetworkHost) -> None:
        """From now on nothing that the one sends arrives at the other."""
        for address in (receiver.address, receiver.ipv6):
            sender.ip(f"neighbour replace {address} lladdr {NOBODY} dev eth0 nud permanent")

    def heal(self, sender: NetworkHost, receiver: NetworkHost) -> None:
        """Let what the one sends arrive at the other again."""
        for address in (receiver.address, receiver.ipv6):
            sender.ip(f"neighbour del {address} dev eth0")

    def slow_down(
        self, host: NetworkHost, rate: str, queue_bytes: int, *, burst: str = "4kb"
    ) -> None:
        """From now on so much goes to and from a host; what is more waits, and then is lost.

        The kernel here has neither netem nor a random drop: a long queue delays packets, a short
        one loses those that come close together.
        """
        for device, at in ((f"to-{host.name}", self._switch.pid), ("eth0", host.init)):
            words = f"tc qdisc replace dev {device} root tbf rate {rate} burst {burst} limit"
            self._in_network(at, *words.split(), str(queue_bytes))

    def full_speed(self, host: NetworkHost) -> None:
        """Let everything go to and from a host as fast as it comes."""
        for device, at in ((f"to-{host.name}", self._switch.pid), ("eth0", host.init)):
            self._in_network(at, *f"tc qdisc del dev {device} root".split(), check=False)

    def close(self) -> None:
        """Give everything back."""
        for host in self.hosts:
            host.die()
            for program in host.programs:
                program.end()
        if self._stage is not None:
            self._stage.end()
        self._switch.kill()
        self._switch.communicate()

    def _lend(self) -> ForkedStage:
        """Return where all hosts have their programs forked."""
        if self._stage is None:
            self._stage = ForkedStage(zygote().request())
        return self._stage

    def _at_switch(self, words: str, *, check: bool = True) -> None:
        self._in_network(self._switch.pid, "ip", *words.split(), check=check)

    def _in_network(self, pid: int, *words: str, check: bool = True) -> None:
        """Run a command of this machine in the network of a process."""
        command = ["nsenter", f"--net=/proc/{pid}/ns/net", *words]
        subprocess.run(command, check=check, capture_output=not check)


@contextmanager
def network(directory: Path, *names: str, lasts_s: int = LASTS_S) -> Iterator[Network]:
    """Lend hosts of these names."""
    lent = Network(directory, *names, lasts_s=lasts_s)
    try:
        yield lent
    finally:
        lent.close()
