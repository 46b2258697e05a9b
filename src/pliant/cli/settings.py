"""Where a setting of ``pliant run`` comes from: argument > environment > file > default.

Owns that list, once, for every setting.  Knows nothing of what the settings do.
"""

from __future__ import annotations

import re
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from pliant.cli.policy_commands import changes_of
from pliant.core.durations import seconds_of
from pliant.core.errors import ConfigError
from pliant.core.job.state import JobSettings
from pliant.core.policy.decide import Policy
from pliant.core.tenancy import PoolPlace
from pliant.machine import run_files
from pliant.spec.job import ElasticJob
from pliant.spec.load import load, parse_policy
from pliant.spec.model import NAME, NAME_RULE
from pliant.spec.policy import core_policy, merged

FLAGS = {"minReplicas": "--min", "maxReplicas": "--max"}
"""Fields of the policy that have flags of their own."""

DEFAULT_RESTARTS = JobSettings().restart_budget
"""Replicas replaced after a fault before a job gives up."""


def _whole(text: str) -> int:
    return int(text)


def _switch(text: str) -> bool:
    if text.lower() not in ("1", "true", "yes", "0", "false", "no"):
        raise ValueError(text)
    return text.lower() in ("1", "true", "yes")


@dataclass(frozen=True, slots=True, kw_only=True)
class Setting:
    """One setting and the places it can be given in."""

    name: str
    flag: str
    variable: str
    from_file: Callable[[ElasticJob], Any] = lambda job: None
    parse: Callable[[str], Any] = str
    default: Any = None


SETTINGS = (
    Setting(
        name="name",
        flag="--name",
        variable="PLIANT_NAME",
        from_file=lambda job: job.metadata.name,
    ),
    Setting(
        name="min_replicas",
        flag="--min",
        variable="PLIANT_MIN",
        from_file=lambda job: job.spec.elastic_policy.min_replicas,
        parse=_whole,
        default=1,
    ),
    Setting(
        name="max_replicas",
        flag="--max",
        variable="PLIANT_MAX",
        from_file=lambda job: job.spec.elastic_policy.max_replicas,
        parse=_whole,
    ),
    Setting(
        name="start_replicas",
        flag="--start",
        variable="PLIANT_START",
        from_file=lambda job: job.spec.start_replicas,
        parse=_whole,
    ),
    Setting(
        name="policy",
        flag="--policy",
        variable="PLIANT_POLICY",
        from_file=lambda job: _fields_of(job),
        parse=lambda text: changes_of(text.split()),
    ),
    Setting(
        name="max_restarts",
        flag="--max-restarts",
        variable="PLIANT_MAX_RESTARTS",
        from_file=lambda job: job.spec.max_restarts,
        parse=_whole,
        default=DEFAULT_RESTARTS,
    ),
    Setting(
        name="pool",
        flag="--pool",
        variable="PLIANT_POOL",
        from_file=lambda job: job.spec.pool and job.spec.pool.name,
    ),
    Setting(
        name="team",
        flag="--team",
        variable="PLIANT_TEAM",
        from_file=lambda job: job.spec.pool and job.spec.pool.team,
    ),
    Setting(
        name="priority",
        flag="--priority",
        variable="PLIANT_PRIORITY",
        from_file=lambda job: job.spec.pool and job.spec.pool.priority,
    ),
    Setting(name="out", flag="--out", variable="PLIANT_OUT", parse=Path),
    Setting(name="port", flag="--port", variable="PLIANT_PORT", parse=_whole, default=0),
    Setting(name="show", flag="--show", variable="PLIANT_SHOW"),
    Setting(name="init", flag="--init", variable="PLIANT_INIT"),
    Setting(name="resume", flag="--resume", variable="PLIANT_RESUME", parse=_switch, default=False),
)
"""Every setting of ``pliant run``, in the order of its help."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Resolved:
    """A value and where it came from."""

    value: Any
    source: str


def resolve(
    arguments: Mapping[str, Any], environ: Mapping[str, str], job: ElasticJob | None
) -> dict[str, Resolved]:
    """Take each setting from the first place that gives it.

    Raises:
        ConfigError: an environment variable cannot be read.
    """
    resolved = {item.name: _resolve(item, arguments, environ, job) for item in SETTINGS}
    resolved["policy"] = _every_field(arguments, environ, job)
    return resolved


def _every_field(
    arguments: Mapping[str, Any], environ: Mapping[str, str], job: ElasticJob | None
) -> Resolved:
    """Take each field of the policy from the first place that gives it."""
    fields: dict[str, Any] = {}
    source = "default"
    item = next(item for item in SETTINGS if item.name == "policy")
    nothing: dict[str, Any] = {}
    for found in (
        _resolve(item, nothing, nothing, job),
        _resolve(item, nothing, environ, None),
        _resolve(item, arguments, nothing, None),
    ):
        if found.value:
            fields, source = merged(fields, found.value), found.source
    return Resolved(value=fields, source=source)


def _resolve(
    item: Setting, arguments: Mapping[str, Any], environ: Mapping[str, str], job: ElasticJob | None
) -> Resolved:
    if arguments.get(item.name) is not None:
        return Resolved(value=arguments[item.name], source=item.flag)
    if environ.get(item.variable):
        try:
            return Resolved(value=item.parse(environ[item.variable]), source=item.variable)
        except ConfigError as error:
            raise ConfigError(f"{item.variable}: {error}") from None
        except ValueError:
            what = "1 or 0" if item.parse is _switch else "a whole number"
            raise ConfigError(f"{item.variable}={environ[item.variable]} must be {what}") from None
    if job is not None and item.from_file(job) is not None:
        return Resolved(value=item.from_file(job), source="job file")
    return Resolved(value=item.default, source="default")


def _fields_of(job: ElasticJob) -> dict[str, Any]:
    """Return the fields of the policy that a job file gives, but for those that have flags."""
    given = job.spec.elastic_policy.model_dump(by_alias=True, exclude_unset=True)
    return {name: value for name, value in given.items() if name not in FLAGS}


def policy_of(settings: Mapping[str, Resolved]) -> Policy:
    """Return the core's policy; contradicting bounds are named by the flags that people typed.

    Raises:
        ConfigError: the sizes are not positive, or contradict each other.
    """
    low, high = settings["min_replicas"], settings["max_replicas"]
    start = settings["start_replicas"]
    least, most, first = _typed("--min", low), _typed("--max", high), _typed("--start", start)
    for typed, given in ((least, low), (most, high), (first, start)):
        if given.value is not None and given.value < 1:
            raise ConfigError(f"{typed} must be at least 1")
    if high.value is not None and low.value > high.value:
        raise ConfigError(f"{least} is greater than {most}")
    if start.value is not None and start.value < low.value:
        raise ConfigError(f"{first} is less than {least}")
    if None not in (start.value, high.value) and start.value > high.value:
        raise ConfigError(f"{first} is greater than {most}")
    fields = dict(settings["policy"].value)
    for name, flag in FLAGS.items():
        if name in fields:
            raise ConfigError(f"{name} is set with {flag}, not with --policy")
    if low.source != "default":
        fields["minReplicas"] = low.value
    if high.value is not None:
        fields["maxReplicas"] = high.value
    return core_policy(parse_policy(fields, source=settings["policy"].source), start.value)


def pool_of(settings: Mapping[str, Resolved]) -> PoolPlace | None:
    """Return the pool that the job runs in, and how it stands there; None: in none.

    Raises:
        ConfigError: no pool can have this name, or how it stands in one is said without one.
    """
    name = settings["pool"]
    if name.value is None:
        for other in ("priority", "team"):
            given = settings[other]
            if given.value is not None:
                said = _typed(f"--{other}", given)
                raise ConfigError(f"{said} says how a job stands in a pool; add --pool")
        return None
    if not NAME.fullmatch(name.value):
        raise ConfigError(f"{_typed('--pool', name)}: a pool's name {NAME_RULE}")
    chosen = {key: settings[key].value for key in ("team", "priority")}
    return PoolPlace(
        name=name.value, **{key: value for key, value in chosen.items() if value is not None}
    )


def _typed(flag: str, given: Resolved) -> str:
    """Say a size as it was given: ``--max 2``, ``PLIANT_MAX=2``, ``--max 2 (job file)``."""
    if given.source.startswith("PLIANT_"):
        return f"{given.source}={given.value}"
    return f"{flag} {given.value}" + ("" if given.source == flag else f" ({given.source})")


def shown_replica(settings: Mapping[str, Resolved]) -> str | None:
    """Return whose output to show: ``all``, ``none``, a replica's name, or None by default.

    Raises:
        ConfigError: no replica can have this name.
    """
    show = settings["show"].value
    if show is not None and not re.fullmatch(r"all|none|r[1-9]\d*", show):
        raise ConfigError(f"--show {show!r} is neither all nor none nor a replica such as r1")
    return None if show is None else str(show)


def read_command(target: str, arguments: list[str]) -> tuple[list[str], ElasticJob | None]:
    """Return what to run: a script with its arguments, or what a job file names.

    Raises:
        ConfigError: the file is missing, is no job, or arguments follow a job file.
    """
    path = Path(target)
    if path.is_dir():
        raise ConfigError(f"{target} is a directory; name a script or a job file")
    if path.suffix not in (".yaml", ".yml"):
        command, job = [target, *arguments], None
    else:
        if arguments:
            raise ConfigError(
                f"{target} names its command itself; put {' '.join(arguments)} into spec.command"
            )
        try:
            text = path.read_text()
        except OSError as error:
            raise ConfigError(f"{target} cannot be read: {error.strerror}") from None
        except UnicodeDecodeError:
            raise ConfigError(f"{target} cannot be read: it is no UTF-8 text") from None
        job = load(text, source=target)
        command = list(job.spec.command)
    if not Path(command[0]).is_file():
        raise ConfigError(f"the script {command[0]} does not exist")
    return command, job


def job_name(settings: Mapping[str, Resolved], script: str) -> str:
    """Return the job's name; without one, the script's in the letters a name may have.

    Raises:
        ConfigError: the given name has other letters.
    """
    given = settings["name"]
    if given.value is None:
        made = re.sub(r"[^a-z0-9]+", "-", Path(script).stem.lower()).strip("-")
        return made[:63].strip("-") or "job"
    if not NAME.fullmatch(given.value):
        raise ConfigError(f"{given.source} {given.value!r} {NAME_RULE}")
    return str(given.value)


def output_directory(settings: Mapping[str, Resolved], name: str) -> Path:
    """Return where the run's files go; the default is a directory that holds no run yet.

    With ``--resume`` it is one that does: the one that was asked for, or the newest of that name.

    Raises:
        ConfigError: the directory that was asked for holds a run, or cannot be written; or there
            is none to resume.
    """
    given = settings["out"].value
    if settings["resume"].value:
        return _writable(_resumable(given, name))
    if given is not None:
        if run_files.holds_run(given):
            raise ConfigError(f"{given} already holds a run; choose another --out or remove it")
        return _writable(given)
    out, number = Path("runs") / name, 1
    while run_files.holds_run(out):
        number += 1
        out = Path("runs") / f"{name}-{number}"
    return _writable(out)


def _resumable(given: Path | None, name: str) -> Path:
    if given is not None:
        if not run_files.holds_run(given):
            raise ConfigError(f"{given} holds no run to resume; leave out --resume to start one")
        return given
    pattern = re.compile(rf"{re.escape(name)}(?:-(\d+))?")
    runs = [
        (int(found[1] or 1), log.parent)
        for log in Path("runs").glob(f"*/{run_files.EVENTS}")
        if (found := pattern.fullmatch(log.parent.name))
    ]
    if not runs:
        raise ConfigError(
            f"runs/{name} holds no run to resume; leave out --resume to start one, or say where "
            "it is with --out"
        )
    return max(runs)[1]


def _writable(out: Path) -> Path:
    try:
        out.mkdir(parents=True, exist_ok=True)
        probe = out / ".writable"
        probe.touch()
        probe.unlink()
    except OSError as error:
        raise ConfigError(f"{out} cannot be written: {error.strerror}") from None
    return out.resolve()


def seconds(text: str) -> float:
    """Read a duration: ``30``, ``30s``, ``1.5m``, ``1h``.

    Raises:
        ConfigError: it is something else.
    """
    found = seconds_of(text if text.strip()[-1:].isalpha() else f"{text}s")
    if found is None:
        raise ConfigError(f"{text!r} is no duration; write it like 30s, 5m or 1h")
    return found
