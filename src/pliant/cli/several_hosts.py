"""``pliant run --join HOST:PORT``: one command on every host of a job; and a coordinator alone.

Owns who of them coordinates (the one that has the address, and binds it first), what such a host is
made of, how many replicas numbers of hosts stand for, and where the replicas of a host are reached.
Knows nothing of how a coordinator or an agent runs (``run.separate``).

    HOST is an address of this host, and PORT is free --> coordinator, and an agent beside it
    else                                              --> an agent, which looks for the coordinator

Of several places the first is meant; the others are where a coordinator may be started later.
"""

from __future__ import annotations

import contextlib
import re
import socket
import sys
import threading
import time
from collections.abc import Callable, Mapping
from dataclasses import dataclass, replace
from pathlib import Path
from typing import TYPE_CHECKING

from pliant.agent.node_facts import AgentConfig
from pliant.agent.output import nobody_listens
from pliant.cli.job_file import WhatToRun
from pliant.cli.job_settings import hosts_of, job_name, tls_of
from pliant.cli.settings import Resolved, Settings, with_values
from pliant.cli.terminal import complain, patient_output, say_aside
from pliant.core.commands import EndJob
from pliant.core.errors import (
    EXIT_FAILED,
    EXIT_INTERRUPTED,
    EXIT_OK,
    EXIT_USAGE,
    ConfigError,
    PermanentError,
)
from pliant.core.text import counted, line_left
from pliant.core.values import NodeId
from pliant.machine import run_files
from pliant.machine.interfaces import (
    UnknownHostError,
    address_named,
    address_towards,
    addresses_in_words,
    host_addresses,
    is_loopback,
    is_own,
    others_reach,
    place_of,
    resolved,
    split_place,
)
from pliant.observe.history import read_history
from pliant.run import separate
from pliant.run.host_devices import HostDevices
from pliant.run.job_config import is_config_map
from pliant.run.register_location import FILE_MARK, listed, places_now
from pliant.run.run_directory import RUNS, TOKEN_S, missing_token
from pliant.wire.bounds import NAME, name_from

if TYPE_CHECKING:
    from pliant.cli import start

GIVE_UP_S = 300.0
"""How long an agent looks for a coordinator unless told otherwise, in seconds."""

POLL_S = 0.1

BOUNDS = ("min_replicas", "max_replicas")

NEEDS_JOIN = ("nnodes", "devices_per_node", "interface", "token_file", "node", "grace")


@dataclass(frozen=True, slots=True, kw_only=True)
class Joining:
    """What this host is to do for a job of several."""

    place: str
    """Of the coordinator, or the places, as they were given."""

    host: str
    """By which others reach this host if it is to coordinate; empty: it is not."""

    address: str
    """This host's if it is to coordinate, else the coordinator's, as this host finds it."""

    port: int
    """Of the place where this host is to coordinate; 0: it is not to."""

    token_file: Path
    agent: AgentConfig
    """Of this host, for whatever it is to run: ``agent_of`` says that."""

    def agent_of(self, what: WhatToRun, environ: Mapping[str, str]) -> AgentConfig:
        """Return what this host's agent is made of."""
        here = (what.directory or Path.cwd()).absolute()
        return replace(self.agent, environment=dict(environ), here=here, asked=tuple(what.words))


def run_on_several(
    what: WhatToRun,
    settings: Settings,
    environ: Mapping[str, str],
    *,
    as_json: bool,
) -> int:
    """Coordinate the job, or join it; return its exit code."""
    from pliant.cli import start
    from pliant.http.server import PortInUseError, open_socket

    here, fixed = joining(settings, environ), dict(settings)
    hosts = here.agent.asked_hosts
    each = replicas_on(here.agent.devices, here.agent.asked_workers, hosts)
    fixed |= bounds_of(settings, each, hosts)
    if not here.host:
        return take_part(here, what, environ)
    if settings["nnodes"].value is not None:
        low, high = (fixed[name].value for name in BOUNDS)
        many = f"{counted(each, 'replica')} on {'each' if hosts == 1 else f'every {hosts}'}"
        total = low if low == high else f"{low} to {high}"
        say_aside(f"{settings['nnodes'].value} hosts, {many}: {total} in all")
    try:
        sock = open_socket(here.address, here.port)
    except PortInUseError:  # whoever it is coordinates
        return take_part(here, what, environ)
    with contextlib.closing(sock):
        if (out := directory_of(settings, what.words)) is not None:
            fixed = with_values(fixed, out=out, resume=run_files.holds_run(out))
        planned = start.planned(
            what.words, fixed, environ, is_apart=True, address=here.address, host=here.host
        )
        planned = replace(planned, sock=sock, agent=here.agent_of(what, environ))
        planned = start.working_in(planned, what.directory)
        return start.attached(planned, as_json=as_json)


def planned_coordinator(
    command: list[str], settings: Settings, environ: Mapping[str, str]
) -> start.Start:
    """Plan a job whose agents are elsewhere, in the directory that an earlier coordinator has left.

    Raises:
        ConfigError: it cannot run like this, or has no port to which agents can come back.
    """
    from pliant.cli import start

    place, port = settings["listen"].value, settings["port"].value
    if (place is None) == (not port):
        raise ConfigError(
            "a coordinator needs a place of its own, to which its agents come back: either "
            "--listen HOST:PORT, or --port N for agents on this host"
        )
    address, host = None, ""
    if place is not None:
        named, port = split_place(place, "--listen")
        pod = environ.get("POD_IP") if is_config_map(settings["register"].value) else None
        address = pod or address_named(named, "--listen")  # a Service's name may be known later
        host = address if any(one.interface == named for one in host_addresses()) else named
    out = settings["out"].value or RUNS / job_name(settings, command)
    fixed = with_values(settings, out=out, resume=run_files.holds_run(out), port=port)
    return start.planned(command, fixed, environ, is_apart=True, address=address, host=host)


def refuse_without_join(settings: Settings) -> None:
    """Refuse what has a meaning on several hosts only.

    Raises:
        ConfigError: something of it is given.
    """
    for name in NEEDS_JOIN:
        if (given := settings[name]).source in (given.setting.flag, given.setting.variable):
            raise ConfigError(
                f"{given.given} is for a job on several hosts: leave it out, or add --join "
                "HOST:PORT, the same on each of them"
            )
    if (hosts := settings["hosts_per_replica"]).value > 1 and hosts_of(settings):
        raise ConfigError(
            f"{hosts.given} is for a job on several hosts: leave it out, or add --join HOST:PORT, "
            "the same on each of them, and --token-file FILE"
        )


def replicas_on(devices: int, workers: int, hosts: int = 1) -> int:
    """Return how many replicas of so many workers so many hosts have room for, each like this one.

    Raises:
        ConfigError: for none.
    """
    if devices < (share := workers // hosts):
        over = "" if hosts == 1 else f" over {hosts} hosts"
        raise ConfigError(
            f"--workers-per-replica {workers}{over} needs --devices-per-node {share} or more, not "
            f"{devices}"
        )
    return devices // share


def bounds_of(settings: Settings, replicas: int, hosts: int = 1) -> dict[str, Resolved]:
    """Return the settings that numbers of hosts stand for, if there are so many replicas on
    ``hosts`` of them.

    Raises:
        ConfigError: they are no such numbers, or other bounds are given as well.
    """
    nodes = settings["nnodes"]
    if nodes.value is None:
        return {}
    found = re.fullmatch(r"(\d{1,6})(?::(\d{1,6}))?", nodes.value)
    low, high = (int(found[1]), int(found[2] or found[1])) if found else (0, 0)
    if not 1 <= low <= high:
        raise ConfigError(f"{nodes.given} is neither MIN nor MIN:MAX, such as 2:8")
    if low < hosts:
        raise ConfigError(
            f"{nodes.given} begins with fewer hosts than one replica needs; begin with {hosts}, as "
            f"{settings['hosts_per_replica'].given} says, or more"
        )
    for name in BOUNDS:
        if settings[name].source == settings[name].setting.flag:
            raise ConfigError(
                f"{settings[name].given} and {nodes.given} both say how many; leave out one"
            )
    return {
        name: replace(settings[name], value=nodes_wanted // hosts * replicas, source=nodes.source)
        for name, nodes_wanted in zip(BOUNDS, (low, high), strict=True)
    }


def joining(settings: Settings, environ: Mapping[str, str]) -> Joining:
    """Return what the settings say of a job on several hosts.

    Raises:
        ConfigError: they contradict each other, or do not fit this host.
    """
    join, token_file = settings["join"].value, settings["token_file"].value
    if settings["pool"].value is not None:
        raise ConfigError("a pool is of one host; leave out either --pool or --join")
    if (own_port := settings["port"]).value:
        raise ConfigError(
            f"{own_port.given} does not go with --join, which names the port; leave it out"
        )
    if token_file is None:
        raise ConfigError(
            "--join needs --token-file FILE, with which the hosts of the job prove themselves to "
            "each other; the one that coordinates makes it, the others need a copy"
        )
    devices, here = settings["devices_per_node"], HostDevices.of(environ, settings["kind"].value)
    own = _own_place(join)
    host, address, port = own or ("", address_of(join), 0)
    return Joining(
        place=join,
        host=host,
        address=address,
        port=port,
        token_file=token_file.absolute(),
        agent=AgentConfig(
            tls=tls_of(settings),
            node=node_named(settings["node"].value),
            devices=here.require(devices.value or here.count(), devices.given),
            device_name=here.device_name,
            environment={},
            address=reached_at(address, settings["interface"].value),
            labels=settings["label"].value or (),
            asked_workers=settings["workers_per_replica"].value,
            asked_hosts=hosts_of(settings),
            give_up_s=GIVE_UP_S,
            grace_s=settings["grace"].value,
        ),
    )


def _own_place(join: str) -> tuple[str, str, int] | None:
    """Return the first place as it is called, with address and port; None: it is not this host's.

    Raises:
        ConfigError: one of them is no place.
    """
    if join.startswith(FILE_MARK):
        return None
    (host, port), *_ = [split_place(place, "--join") for place in listed(join)]
    with contextlib.suppress(ConfigError):
        if is_own(resolved(host, "--join")):
            return host, address_named(host, "--join"), port
    return None


def node_named(name: str | None) -> NodeId:
    """Return the name of this node: the one that was given, or its host's.

    Raises:
        ConfigError: no node can be called so.
    """
    if name is not None and not NAME.fullmatch(name):
        raise ConfigError(f"--node {name!r} must be letters, digits, '.', '_' and '-', at most 253")
    return NodeId(name or name_from(socket.gethostname()))


def reached_at(coordinator: str, interface: str | None) -> str:
    """Return where the other hosts reach the replicas of this one; say so if it was a choice.

    Raises:
        ConfigError: this host has no such interface, or no way to the coordinator.
    """
    if interface is not None:
        return address_named(interface, "--interface")
    address = address_towards(coordinator)
    known = {one.address: one for one in host_addresses()}
    others = tuple(one for one in others_reach() if one.address != address)
    if others and not is_loopback(address):
        say_aside(
            f"replicas of this host are reached at {known.get(address, address)}, which leads to "
            f"the coordinator; --interface chooses another: {addresses_in_words(others)}"
        )
    return address


def address_here(join: str, interface: str | None, wait_s: float) -> str:
    """Return where the other hosts reach the replicas of this one.

    ``wait_s``: how long a name of the coordinator is waited for that is not known yet; where the
    ``interface`` is given, whoever connects waits for it.

    Raises:
        ConfigError: as of ``reached_at`` and ``address_of``.
    """
    pause, until_s, is_told = threading.Event(), time.monotonic() + wait_s, False
    while interface is None:
        try:
            return reached_at(address_of(join), None)
        except UnknownHostError as error:
            if time.monotonic() >= until_s:
                raise
            if not is_told:
                say_aside(f"{error}; it is waited for, at most {wait_s:g} s")
                is_told = True
            pause.wait(POLL_S)
    return address_named(interface, "--interface")


def address_of(join: str) -> str:
    """Return the address of the first coordinator that ``--join`` names and this host can find.

    Raises:
        ConfigError: there is none, or the file that says it is not there in time.
    """
    if join.startswith(FILE_MARK):
        _is_there_in_time(Path(join.removeprefix(FILE_MARK)))
    *others, last = [place_of(place)[0] for place in places_now(join)]
    for host in others:  # one that is gone need not be known any more
        with contextlib.suppress(ConfigError):
            return resolved(host, "--join")
    return resolved(last, "--join")


def directory_of(settings: Settings, words: list[str]) -> Path | None:
    """Return the run to follow: the job's newest, if its coordinator has died; else None."""
    if settings["out"].value is not None:
        return Path(settings["out"].value)
    name = job_name(settings, words)
    runs = [one for one in run_files.runs_in(RUNS) if re.fullmatch(rf"{name}(-\d+)?", one.name)]
    for out in sorted(runs, key=run_files.written_at, reverse=True):
        board = read_history(run_files.event_log(out)).board
        if board.about.get("job") == name:  # not of a job that is called train-2 itself
            is_mine = board.about.get("command") == words and board.exit_code is None
            return out if is_mine else None
    return None


def take_part(joining: Joining, what: WhatToRun, environ: Mapping[str, str]) -> int:
    """Run this host's replicas for the coordinator, until the job ends; return its exit code."""
    if not _is_there_in_time(joining.token_file):
        raise missing_token(joining.token_file, joining.place)
    return run_agent(
        joining.place, joining.token_file, joining.agent_of(what, environ), is_job=True
    )


def _is_there_in_time(path: Path) -> bool:
    pause = threading.Event()
    if not path.exists():
        say_aside(f"{path} is not there yet; it is waited for, at most {TOKEN_S:g} s")
    for _ in range(int(TOKEN_S / POLL_S)):
        if path.exists():
            return True
        pause.wait(POLL_S)
    return path.exists()


def run_agent(join: str, token_file: Path, config: AgentConfig, *, is_job: bool) -> int:
    """Run an agent until the job ends; return an exit code, ``is_job``: the job's."""
    with patient_output():
        return exit_code_of(
            lambda: separate.run_agent(
                join, token_file, config, say_aside, nobody_listens if is_job else _print_line
            ),
            is_job=is_job,
        )


def _print_line(worker: str, line: str) -> None:
    sys.stdout.write(f"{worker} | {line_left(line)}\n")
    sys.stdout.flush()


def exit_code_of(run: Callable[[], EndJob | None], *, is_job: bool) -> int:
    """Return the exit code of what takes part in a job until it ends; ``is_job``: the job's."""
    try:
        end = run()
    except PermanentError as error:
        is_input = isinstance(error, ConfigError)
        return complain(str(error), EXIT_USAGE if is_input else EXIT_FAILED)
    if end is None:  # an agent has left in order
        return EXIT_INTERRUPTED if is_job else EXIT_OK
    say_aside(f"the job has ended: {end.reason}")
    return end.exit_code if is_job else EXIT_OK
