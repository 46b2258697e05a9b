"""``pliant-torchrun``: a command line of torchrun, or of hyperpodrun, unchanged.

Owns the table of their flags: what each becomes here, which are of no consequence, and which are
refused, each in one sentence.  Knows nothing of how a job runs.  ``PET_*`` variables give what
flags do, as there; what processes print where is left to them (``restart.output``).

    --nnodes, --nproc-per-node  -->  replicas, each of so many processes
    --rdzv-endpoint             -->  --join: the same command on every host
"""

from __future__ import annotations

import argparse
import os
import re
import sys
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Never

from pliant.cli.job_file import WhatToRun, read_command
from pliant.cli.main import exit_code_of
from pliant.cli.settings import resolve
from pliant.cli.terminal import open_closed_streams, say_aside
from pliant.core.device_names import CPU
from pliant.core.errors import ConfigError
from pliant.core.values import Mode
from pliant.machine.accelerators import visible
from pliant.machine.named_modules import FLAG as MODULE
from pliant.machine.named_modules import require_engine
from pliant.run.host_devices import HostDevices
from pliant.wire.bounds import NAME

NO_PYTHON = "--no-python"
DEFAULT_PORT = 29500
SIGNALS = frozenset({"SIGTERM", "SIGINT", "SIGHUP", "SIGQUIT"})


@dataclass(frozen=True, slots=True, kw_only=True)
class Flag:
    """One flag, and what becomes of it here."""

    names: tuple[str, ...]
    default: str | None = None
    """None: it is a switch."""

    idle: str = ""
    """Why it has no consequence."""

    refused: str = ""
    """Why it is refused, and what to do, if it is given."""

    in_environment: bool = False
    """Processes are told of it as ``PET_*``."""

    @property
    def key(self) -> str:
        """Return its name in the environment, without ``PET_``."""
        return max(self.names, key=len).lstrip("-").replace("-", "_")


def _flag(*names: str, default: str | None = "", **more: Any) -> Flag:
    return Flag(names=names, default=default, **more)


FLAGS = (
    _flag("--nnodes", default="1:1"),
    _flag("--nproc-per-node", default="1"),
    _flag("--rdzv-backend", default="static"),
    _flag("--rdzv-endpoint"),
    _flag("--rdzv-id", default="none"),
    _flag("--rdzv-conf", idle="pliant's limits and elasticPolicy say how long who is waited for"),
    _flag("--standalone", default=None),
    _flag("--max-restarts", default="0"),
    _flag("--monitor-interval", default="0.1", idle="the end of a process is seen at once"),
    _flag("--start-method", default="spawn", idle="a script is a program of its own"),
    _flag(
        "--event-log-handler",
        default="null",
        refused="events are in events.jsonl of the run; leave it out",
    ),
    _flag("--role", default="default", in_environment=True),
    _flag("-m", "--module", default=None),
    _flag(NO_PYTHON, default=None),
    _flag(
        "--run-path",
        default=None,
        refused="processes are started by python itself; leave it out, and give the script",
    ),
    _flag("--log-dir", in_environment=True),
    _flag("-r", "--redirects", default="0", in_environment=True),
    _flag("-t", "--tee", default="0", in_environment=True),
    _flag("--log-line-prefix-template", in_environment=True),
    _flag("--local-ranks-filter", in_environment=True),
    _flag("--duplicate-stdout-filters", refused="filter what pliant logs prints, with grep"),
    _flag("--duplicate-stderr-filters", refused="filter what pliant logs prints, with grep"),
    _flag("--node-rank", default="0", idle="ranks follow from who is there"),
    _flag("--master-addr", default="127.0.0.1"),
    _flag("--master-port"),
    _flag("--local-addr"),
    _flag(
        "--logs-specs", refused="logs go where --log-dir, --redirects and --tee say; leave it out"
    ),
    _flag("--numa-binding", refused="bind the processes with numactl: --no-python numactl ..."),
    _flag("--signals-to-handle", default="SIGTERM,SIGINT,SIGHUP,SIGQUIT"),
    _flag("--shutdown-timeout"),
    _flag(
        "--virtual-local-rank",
        default=None,
        refused="start each process on a node of its own: --nnodes N --nproc-per-node 1, in which "
        "each sees its device as number 0",
    ),
    _flag(
        "--print-completion", refused="_PLIANT_COMPLETE=source_bash pliant prints that of pliant"
    ),
    # what hyperpodrun adds
    _flag("--pre-train-script", in_environment=True),
    _flag("--pre-train-args", in_environment=True),
    _flag("--post-train-script", in_environment=True),
    _flag("--post-train-args", in_environment=True),
    _flag("--shutdown-signal", default="SIGKILL", idle="SIGTERM comes first, then SIGKILL"),
    _flag("--server-host", idle="pliant's coordinator asks its agents"),
    _flag("--server-port", idle="pliant's coordinator asks its agents"),
    _flag("--server-log-level", idle="pliant's coordinator asks its agents"),
    _flag("--server-shutdown-timeout", idle="pliant's coordinator asks its agents"),
)
"""All of torchrun 2.15, and those that are documented of hyperpodrun."""


class _Parser(argparse.ArgumentParser):
    def error(self, message: str) -> Never:
        raise ConfigError(message)


def parser(environ: Mapping[str, str]) -> argparse.ArgumentParser:
    """Return what reads the command line; variables give defaults.

    Raises:
        ConfigError: a variable of a switch is no number.
    """
    found = _Parser(prog="pliant-torchrun", description=(__doc__ or "").partition("\n\n")[0])
    for flag in FLAGS:
        variable = f"PET_{flag.key.upper()}"
        said = environ.get(variable)
        names = [*flag.names, *(n.replace("-", "_").replace("__", "--", 1) for n in flag.names)]
        options = [name for name in dict.fromkeys(names) if name.startswith("-")]
        why = flag.idle and f"No consequence: {flag.idle}."
        text = (why or (flag.refused and f"Refused: {flag.refused}.") or "").replace("%", "%%")
        if flag.default is not None:
            found.add_argument(*options, dest=flag.key, default=said or flag.default, help=text)
            continue
        if said and not said.isdecimal():
            raise ConfigError(f"{variable}={said} must be 1 or 0")
        is_set = bool(int(said or "0"))
        found.add_argument(*options, dest=flag.key, action="store_true", default=is_set, help=text)
    found.add_argument("training_script")
    found.add_argument("training_script_args", nargs=argparse.REMAINDER)
    return found


@dataclass(frozen=True, slots=True, kw_only=True)
class Planned:
    """What a command line means here."""

    given: dict[str, Any]
    """By the names of pliant's settings."""

    words: list[str]
    """What runs."""

    variables: dict[str, str]
    idle: list[str]
    """Flags without a consequence, each with the reason."""


def plan(
    arguments: Sequence[str], environ: Mapping[str, str], *, accelerators: int, cores: int
) -> Planned:
    """Return what a command line means here, on a host with so many.

    Raises:
        ConfigError: one sentence: a flag is refused, or flags contradict each other.
    """
    said = vars(parser(environ).parse_args(list(arguments)))
    for flag in FLAGS:
        if flag.refused and said[flag.key] not in (flag.default, False):
            raise ConfigError(f"--{flag.key.replace('_', '-')} is refused: {flag.refused}")
    if not SIGNALS.issuperset(said["signals_to_handle"].split(",")):
        raise ConfigError(
            f"--signals-to-handle {said['signals_to_handle']} is refused: pliant stops a job at "
            "SIGTERM, SIGINT and SIGHUP; send one of these"
        )
    least, most = _nodes(said["nnodes"])
    workers = _processes(said["nproc_per_node"], accelerators, cores)
    given: dict[str, Any] = {
        "mode": Mode.RESTART.value,
        "workers_per_replica": workers,
        "max_restarts": _number("--max-restarts", said["max_restarts"]),
    }
    if NAME.fullmatch(said["rdzv_id"]) and said["rdzv_id"] != "none":
        given["name"] = said["rdzv_id"]
    elif said["no_python"]:
        given["name"] = re.sub(r"[^A-Za-z0-9]+", "-", Path(said["training_script"]).stem).strip("-")
    if said["shutdown_timeout"]:
        seconds = _number("--shutdown-timeout", said["shutdown_timeout"])
        given["policy"] = {"gracefulShutdownTimeoutInSeconds": seconds}
    given |= _where(said, least, most, workers)
    idle = [flag for flag in FLAGS if flag.idle and said[flag.key] != flag.default]
    told = [flag for flag in FLAGS if flag.in_environment and said[flag.key] != flag.default]
    return Planned(
        given=given,
        words=_words(said),
        variables={f"PET_{flag.key.upper()}": said[flag.key] for flag in told},
        idle=[f"--{flag.key.replace('_', '-')} ({flag.idle})" for flag in idle],
    )


def _where(said: Mapping[str, Any], least: int, most: int, workers: int) -> dict[str, Any]:
    """Return the hosts: this one, or all that the same command is typed on."""
    endpoint = said["rdzv_endpoint"]
    if not endpoint and said["rdzv_backend"] == "static" and said["master_addr"] != "127.0.0.1":
        endpoint = f"{said['master_addr']}:{said['master_port'] or DEFAULT_PORT}"
    if said["standalone"] or most == 1 or not endpoint:
        return {"min_replicas": least, "max_replicas": most}
    if said["rdzv_backend"].startswith("etcd"):
        raise ConfigError(
            f"--rdzv-backend {said['rdzv_backend']} is refused: hosts meet at one of them, not at "
            "etcd; give --rdzv-backend c10d and the address of a host as --rdzv-endpoint"
        )
    if ":" not in endpoint:
        endpoint = f"{endpoint}:{DEFAULT_PORT}"
    given = {"join": endpoint, "nnodes": f"{least}:{most}", "devices_per_node": workers}
    return given | ({"interface": said["local_addr"]} if said["local_addr"] else {})


def _words(said: Mapping[str, Any]) -> list[str]:
    script = [said["training_script"], *said["training_script_args"]]
    if said["no_python"] and said["module"]:
        raise ConfigError("--no-python and --module contradict each other; leave out one of them")
    return [NO_PYTHON, *script] if said["no_python"] else [MODULE] * said["module"] + script


def _nodes(said: str) -> tuple[int, int]:
    found = re.fullmatch(r"(\d+)(?::(\d+))?", said)
    least, most = (int(found[1]), int(found[2] or found[1])) if found else (0, 0)
    if not 0 < least <= most:
        raise ConfigError(f"--nnodes {said} must be MIN:MAX, or a number, from 1 on")
    return least, most


def _processes(said: str, accelerators: int, cores: int) -> int:
    counts = {"auto": accelerators or cores, "cpu": cores, "gpu": accelerators, "xpu": accelerators}
    count = counts[said] if said in counts else _number("--nproc-per-node", said)
    if count:
        return count
    if said in counts:
        raise ConfigError(
            f"--nproc-per-node {said}: this host shows no accelerator; give a number, auto or cpu"
        )
    raise ConfigError(f"--nproc-per-node {said} must be at least 1")


def _number(option: str, said: str) -> int:
    if not said.isdecimal():
        raise ConfigError(f"{option} {said} must be a whole number")
    return int(said)


def run(arguments: Sequence[str]) -> int:
    """Run a job as a command line of torchrun says; return its exit code."""
    from pliant.cli import several_hosts, start

    require_engine("pliant-torchrun")
    cores = HostDevices.of(os.environ, CPU).count()
    accelerators = len(visible(os.environ))
    planned = plan(arguments, os.environ, accelerators=accelerators, cores=cores)
    if planned.idle:
        say_aside(f"without consequence here: {'; '.join(planned.idle)}")
    environ = {**os.environ, **planned.variables}
    script, *rest = planned.words
    what = WhatToRun(words=planned.words)
    if script != NO_PYTHON:
        what = read_command(script, rest)
    settings = resolve(planned.given, environ, None)
    if settings["join"].value is not None:
        return several_hosts.run_on_several(what, settings, environ, as_json=False)
    return start.attached(start.planned(what.words, settings, environ), as_json=False)


def main() -> None:
    """Run the command line and exit with its code."""
    open_closed_streams()
    sys.exit(exit_code_of(lambda: run(sys.argv[1:])))
