"""Hosts of namespaces: switched off and on, cut off, slow, and with programs that are stopped."""

from __future__ import annotations

import json
import os
import signal
import sys
import time
from collections.abc import Iterator
from pathlib import Path

import psutil
import pytest
from tests.live import namespaces
from tests.live.namespaces import Network, NetworkHost
from tests.live.stage import DEADLINE_S

pytestmark = [
    pytest.mark.processes,
    pytest.mark.skipif(bool(namespaces.obstacle()), reason=namespaces.obstacle()),
]

ENVIRONMENT = {"PATH": os.environ["PATH"]}


@pytest.fixture
def net(tmp_path: Path) -> Iterator[Network]:
    with namespaces.network(tmp_path, "a", "b") as lent:
        yield lent


def hears(host: NetworkHost, other: NetworkHost, num_bytes: int = 1) -> bool:
    """Whether a host gets what another sends, within a second."""
    address = (other.address, 7000)
    serve = (
        "import socket; s = socket.create_server(('', 7000)); print('on', flush=True);"
        f"c, _ = s.accept(); c.sendall(bytes({num_bytes})); c.close()"
    )
    out = other.own / f"served-{time.monotonic_ns()}.txt"
    server = other.start("python3", "-c", serve, environment=ENVIRONMENT, out=out)
    until_s = time.monotonic() + DEADLINE_S
    while "on" not in out.read_text() and time.monotonic() < until_s:
        time.sleep(0.01)
    ask = (
        f"import socket; c = socket.create_connection({address}, 1.0); n = 0\n"
        "while (data := c.recv(1 << 16)): n += len(data)\n"
        f"assert n == {num_bytes}"
    )
    said = host.own / "asked.txt"
    code = host.start("python3", "-c", ask, environment=ENVIRONMENT, out=said).wait()
    if code:
        server.kill()
    server.wait()
    return code == 0


def test_a_host_is_switched_off_and_on_while_another_stays_on(net: Network) -> None:
    _, b = net.hosts
    (b.own / "kept").touch()
    b.die()
    assert [host.is_on for host in net.hosts] == [True, False]

    net.switch_on("a")
    assert [host.is_on for host in net.hosts] == [True, False]
    net.switch_on("b")

    assert [host.is_on for host in net.hosts] == [True, True]
    assert (net.hosts[1].own / "kept").exists()
    assert hears(net.hosts[1], net.hosts[0])


def test_what_is_cut_in_one_direction_is_cut_until_it_is_healed(net: Network) -> None:
    a, b = net.hosts
    net.cut(a, b)
    assert not hears(a, b)
    net.heal(a, b)

    assert hears(a, b)


def test_a_slow_link_carries_everything(net: Network) -> None:
    a, b = net.hosts
    net.slow_down(a, "20mbit", 6_000)

    assert hears(a, b, 300_000)

    net.full_speed(a)
    net.full_speed(a)
    assert hears(a, b, 300_000)


@pytest.mark.parametrize("then", [signal.SIGCONT, signal.SIGKILL])
def test_a_program_that_was_stopped_ends(net: Network, then: signal.Signals) -> None:
    """What waits for it stops with it, and would not see it end."""
    a, _ = net.hosts
    program = a.start("sleep", "0.3", environment=ENVIRONMENT)
    waiter = program.process().parent()
    assert waiter is not None
    program.send_signal(signal.SIGSTOP)
    until_s = time.monotonic() + DEADLINE_S
    while waiter.status() != psutil.STATUS_STOPPED and time.monotonic() < until_s:
        time.sleep(0.01)

    program.send_signal(then)

    assert program.wait() == (0 if then is signal.SIGCONT else -signal.SIGKILL)


def test_what_is_forked_on_a_host_is_where_a_command_is(net: Network) -> None:
    _, b = net.hosts
    look = (
        "import json, os, socket, sys\n"
        "names = ('net', 'uts', 'ipc', 'pid', 'mnt')\n"
        "found = {name: os.readlink(f'/proc/self/ns/{name}') for name in names}\n"
        "found |= {'host': socket.gethostname(), 'cwd': os.getcwd(), 'parent': os.getppid()}\n"
        "found |= {'own': os.environ['OWN'], 'customised': sys.modules['sitecustomize'].__file__}\n"
        "print(json.dumps(found), flush=True)\n"
        "sys.exit(int(sys.argv[1]))\n"
    )
    (b.own / "look.py").write_text(look)
    (b.own / "sitecustomize.py").touch()
    environment = {**ENVIRONMENT, "OWN": "1", "PYTHONPATH": str(b.home)}
    fresh, forked = b.own / "fresh.txt", b.own / "forked.txt"

    first = b.start(sys.executable, "look.py", 3, environment=environment, out=fresh)
    second = b.python("look.py", 3, environment=environment, out=forked)

    assert [first.wait(), second.wait()] == [3, 3], b.said()
    assert json.loads(forked.read_text()) == json.loads(fresh.read_text())
    assert json.loads(forked.read_text())["host"] == "b"


@pytest.mark.parametrize("number", [signal.SIGKILL, signal.SIGTERM])
def test_what_is_forked_on_a_host_ends_with_it_and_says_how(
    net: Network, number: signal.Signals
) -> None:
    a, b = net.hosts
    script = "import time; print('on', flush=True); time.sleep(600)"
    programs = []
    for host in (a, b):
        (host.own / "stay.py").write_text(script)
        programs.append(host.python("stay.py", environment=ENVIRONMENT))
        until_s = time.monotonic() + DEADLINE_S
        while "on" not in host.said() and time.monotonic() < until_s:
            time.sleep(0.01)

    programs[0].send_signal(number)
    b.die()

    assert [program.wait() for program in programs] == [-number, -signal.SIGKILL]
