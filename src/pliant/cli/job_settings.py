"""What the settings of a job mean: name, sizes, workers, limits, files, and its place in a pool.

Owns the bounds of each, and the contradictions between them.  Knows nothing of where they come
from.
"""

from __future__ import annotations

import re
from collections.abc import Sequence
from pathlib import Path
from typing import Any

from pliant.cli.settings import BOUNDS, Settings
from pliant.cli.terminal import complain, say_aside
from pliant.core.errors import EXIT_OK, ConfigError
from pliant.core.policy.decide import Policy
from pliant.core.tenancy import PoolPlace
from pliant.core.values import FromCheckpoint, Mode, TlsFiles
from pliant.machine.named_modules import name_of
from pliant.machine.tls import ServedTls, TlsContexts, exposed_key
from pliant.run.job_config import is_config_map
from pliant.spec.load import check
from pliant.spec.model import NAME, NAME_RULE
from pliant.spec.policy import ElasticPolicy, core_policy
from pliant.wire.messages import WORK_OPTIONS


def hosts_of(settings: Settings) -> int:
    """Return over how many hosts the workers of a replica are divided.

    Raises:
        ConfigError: they cannot be, or not evenly, or the job is in a pool.
    """
    given, workers = settings["hosts_per_replica"], settings["workers_per_replica"]
    if workers.value % given.value:
        raise ConfigError(
            f"{given.given} does not divide {workers.given}: each host of a replica has as many of "
            "its workers as the others"
        )
    if given.value > 1 and settings["pool"].value is not None:
        raise ConfigError(f"a pool is of one host; leave out either --pool or {given.given}")
    return int(given.value)


def work_options_of(settings: Settings) -> dict[str, Any]:
    """Return the options that agents and sessions read (``wire.messages.WorkOptions``), by name.

    Raises:
        ConfigError: one of them contradicts another.
    """
    said, resume = settings["from_checkpoint"], settings["resume"]
    is_asked = resume.value and resume.source != "default"  # else a coordinator follows another
    if said.value is FromCheckpoint.NEVER and is_asked:
        raise ConfigError(f"{said.given} begins anew, and --resume goes on; leave out one of them")
    hosts_of(settings)
    if settings["mode"].value is Mode.RESTART:
        _refuse_of_sessions(settings)
    return {name: settings[name].value for name in WORK_OPTIONS}


OF_SESSIONS = (
    "hosts_per_replica",
    "init",
    "session_timeout",
    "strict",
    "verify_every",
    "balance",
    "exchange",
    "from_checkpoint",
)
"""Settings that a session reads."""


def _refuse_of_sessions(settings: Settings) -> None:
    for name in OF_SESSIONS:
        if (found := settings[name]).value != found.setting.default:
            raise ConfigError(
                f"{found.given} is for scripts with a pliant.Session, and mode restart starts "
                "scripts as they are; leave out one of them"
            )


def tls_of(settings: Settings, *, is_apart: bool = False) -> TlsFiles | None:
    """Return the files with which the hosts of a job prove themselves to each other; None: no TLS.

    A coordinator that ``is_apart`` may do without a CA: then it encrypts what it is told, and
    replicas speak in the clear.

    Raises:
        ConfigError: some of them are not given.
    """
    given = {name: settings[f"tls_{name}"] for name in ("ca", "certificate", "key")}
    missing = [item.setting.flag for item in given.values() if item.value is None]
    if len(missing) == len(given):
        return None
    if missing and not (is_apart and missing == [settings["tls_ca"].setting.flag]):
        flags = " and ".join(missing)
        raise ConfigError(f"{flags} must be given, too: replicas need all three files for TLS")
    return tls_files(**{name: item.value for name, item in given.items()})


def tls_files(
    ca: Path | str | None, certificate: Path | str | None, key: Path | str | None
) -> TlsFiles | None:
    """Return the files that were given, from where the command is typed; None: none was.

    Raises:
        ConfigError: either a certificate or its key is missing.
    """
    given = {"ca": ca, "certificate": certificate, "key": key}
    if (certificate is None) != (key is None):
        have, lack = ("certificate", "key") if key is None else ("key", "certificate")
        raise ConfigError(f"--tls-{lack} must be given, too: it goes with --tls-{have}")
    paths = {name: str(Path(path).absolute()) for name, path in given.items() if path is not None}
    return TlsFiles(**paths) if paths else None


def check_tls(files: TlsFiles | None, host: str, *, is_apart: bool) -> None:
    """Look at the files of this host, as far as it uses them itself; say what others may see.

    Raises:
        ConfigError: they cannot be used.
    """
    if files is None or (is_apart and not host):
        return
    if host:
        ServedTls(files, host)
    else:
        TlsContexts.of(files)
    if not files.is_whole:
        say_aside("replicas tell each other everything in the clear; --tls-ca encrypts that, too")
    if (warning := exposed_key(files)) is not None:
        complain(warning, EXIT_OK)


def policy_of(settings: Settings) -> Policy:
    """Return the core's policy; contradicting bounds are named by the flags that people typed.

    Raises:
        ConfigError: the sizes contradict each other.
    """
    low, high = settings["min_replicas"], settings["max_replicas"]
    start = settings["start_replicas"]
    if high.value is not None and low.value > high.value:
        raise ConfigError(f"{low.given} is greater than {high.given}")
    if start.value is not None and start.value < low.value:
        raise ConfigError(f"{start.given} is less than {low.given}")
    if None not in (start.value, high.value) and start.value > high.value:
        raise ConfigError(f"{start.given} is greater than {high.given}")
    fields = dict(settings["policy"].value)
    for name, flag in BOUNDS.items():
        if name in fields:
            raise ConfigError(f"{name} is set with {flag}, not with --policy")
    if low.source != "default":
        fields["minReplicas"] = low.value
    if high.value is not None:
        fields["maxReplicas"] = high.value
    policy = check(ElasticPolicy, fields, source=settings["policy"].source)
    return core_policy(policy, start.value)


def register_of(settings: Settings) -> str | None:
    """Return where the register lies; None: in the directory of the run."""
    given = settings["register"]
    if given.value is None or "://" in given.value or is_config_map(given.value):
        return None if given.value is None else str(given.value)
    return str(Path(given.value).absolute())


def job_name(settings: Settings, command: Sequence[str]) -> str:
    """Return the job's name; without one, the script's in the letters a name may have."""
    name = settings["name"]
    if name.value is None:
        made = re.sub(r"[^a-z0-9]+", "-", name_of(command).lower()).strip("-")
        return made[:63].strip("-") or "job"
    if not NAME.fullmatch(name.value):
        raise ConfigError(f"{name.source} {name.value!r} {NAME_RULE}")
    return str(name.value)


def pool_of(settings: Settings) -> PoolPlace | None:
    """Return the pool that the job runs in, and how it stands there; None: in none.

    Raises:
        ConfigError: no pool can have this name, or how it stands in one is said without one.
    """
    name = settings["pool"]
    if name.value is None:
        for other in (settings["priority"], settings["team"]):
            if other.value is not None:
                raise ConfigError(f"{other.given} says how a job stands in a pool; add --pool")
        return None
    if not NAME.fullmatch(name.value):
        raise ConfigError(f"{name.given}: a pool's name {NAME_RULE}")
    standing = {key: settings[key].value for key in ("team", "priority")}
    return PoolPlace(
        name=name.value,
        device_kind=settings["kind"].value or "",
        **{key: value for key, value in standing.items() if value is not None},
    )
