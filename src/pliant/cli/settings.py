"""The settings of a job, where each can be given, and which place counts.

Owns the table, the one place to add a setting: its option, variable, field, default and help;
that a command takes its options from it (``with_settings``); and the order of the places
(``resolve``): argument > environment > file > default.  Knows nothing of what settings do.
"""

from __future__ import annotations

import inspect
import json
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field, replace
from enum import StrEnum
from functools import wraps
from pathlib import Path
from typing import Annotated, Any

import typer
from pydantic.alias_generators import to_snake

from pliant.agent.node_facts import GRACE_S
from pliant.cli.arguments import (
    changes_of,
    labels_of,
    placement_of,
    price_of,
    seconds,
    shown_replica,
    some_seconds,
    trackers_of,
    web_address,
)
from pliant.cli.help import with_parameters
from pliant.core.errors import ConfigError
from pliant.core.job.state import JobSettings
from pliant.core.placement import PlacementRule
from pliant.core.step.balance import Balance
from pliant.core.values import Exchange, FromCheckpoint, Mode
from pliant.spec.job import ElasticJob, Limits
from pliant.spec.log_rules import log_rules_of
from pliant.spec.policy import ElasticPolicy, merged
from pliant.wire.bounds import MOST_DEVICES

RUN, COORDINATOR = "run", "coordinator"


@dataclass(frozen=True, slots=True, kw_only=True)
class Setting:
    """One setting and the places it can be given in."""

    name: str
    help: str
    metavar: str | None = None
    kind: type = str
    """``bool`` is a switch, ``dict`` holds fields of the elastic policy."""

    file_field: str = ""
    """Of a job file, if that can give it."""

    default: Any = None
    between: tuple[int, int | None] | None = None
    """The least and the most that a number may be; None: there is no most."""

    read: Callable[[str, str], Any] | None = None
    """Reads the text that was given, behind the place that gave it."""

    words: type[StrEnum] | None = None
    """What it must be one of."""

    commands: tuple[str, ...] = (RUN, COORDINATOR)
    """Which have the option; a variable, or a job file, gives it to all of them."""

    help_in: Mapping[str, str] = field(default_factory=dict)
    """Other help, by command."""

    @property
    def flag(self) -> str:
        """Return the option that gives it; that of ``min_replicas`` is ``--min``."""
        return f"--{self.name.removesuffix('_replicas').replace('_', '-')}"

    @property
    def variable(self) -> str:
        """Return the environment variable that gives it."""
        return f"PLIANT_{self.flag.removeprefix('--').replace('-', '_').upper()}"


SETTINGS = (
    Setting(
        name="min_replicas",
        kind=int,
        file_field="spec.elasticPolicy.minReplicas",
        default=1,
        between=(1, None),
        help="Fewest replicas.  [default: 1]",
    ),
    Setting(
        name="max_replicas",
        kind=int,
        file_field="spec.elasticPolicy.maxReplicas",
        between=(1, None),
        help="Most replicas.  [default: accelerators, or cores; or micro-batches of a step if they"
        " are fewer]",
        help_in={COORDINATOR: "Most replicas.  [default: devices of all agents]"},
    ),
    Setting(
        name="start_replicas",
        kind=int,
        file_field="spec.startReplicas",
        between=(1, None),
        help="Replicas to start with.  [default: max]",
    ),
    Setting(
        name="workers_per_replica",
        kind=int,
        file_field="spec.workersPerReplica",
        default=1,
        between=(1, MOST_DEVICES),
        help="Processes of one replica, each with a device.  [default: 1]",
    ),
    Setting(
        name="hosts_per_replica",
        kind=int,
        file_field="spec.hostsPerReplica",
        default=1,
        between=(1, None),
        help="Hosts over which the workers of a replica are divided evenly.  [default: 1]",
    ),
    Setting(
        name="name",
        metavar="NAME",
        file_field="metadata.name",
        help="[default: the script's name]",
    ),
    Setting(
        name="out",
        metavar="DIR",
        kind=Path,
        help="Where its files go.  [default: runs/NAME]",
        help_in={COORDINATOR: "Where its files go; agents need not see it.  [default: runs/NAME]"},
    ),
    Setting(
        name="init",
        metavar="PLACE",
        help="Start from saved weights, or from a checkpoint.",
    ),
    Setting(
        name="max_restarts",
        kind=int,
        file_field="spec.maxRestarts",
        default=JobSettings().restart_budget,
        between=(0, None),
        help="Replicas replaced after faults before giving up."
        f"  [default: {JobSettings().restart_budget}]",
    ),
    Setting(
        name="policy",
        metavar="KEY=VALUE",
        kind=dict,
        file_field="spec.elasticPolicy",
        help="A field of elasticPolicy, as pliant policy set takes it; may be repeated.",
    ),
    Setting(
        name="limit",
        metavar="KEY=SECONDS",
        kind=dict,
        file_field="spec.limits",
        help="How long to wait for what, e.g. hangInSeconds=600; may be repeated.",
    ),
    Setting(
        name="log_rules",
        metavar="JSON",
        file_field="spec.logMonitoringConfiguration",
        read=log_rules_of,
        default=(),
        help="What the lines of a replica must say, or may not, as in a job file.  [default: none]",
    ),
    Setting(
        name="session_timeout",
        metavar="TIME",
        file_field="spec.sessionTimeoutInSeconds",
        read=some_seconds,
        help="How long the script may take until its Session.  [default: 9min]",
    ),
    Setting(
        name="strict",
        kind=bool,
        file_field="spec.strict",
        default=False,
        help="Refuse state that differs on a replica that joins, instead of warning of it.",
    ),
    Setting(
        name="verify_every",
        kind=int,
        file_field="spec.verifyEvery",
        default=0,
        between=(0, None),
        help="Compare the state of all replicas every N steps; replace one that differs."
        "  [default: never]",
    ),
    Setting(
        name="balance",
        metavar="even|speed",
        file_field="spec.balance",
        default=Balance.EVEN,
        words=Balance,
        help="Whether slow replicas compute fewer micro-batches of a step.  [default: even]",
    ),
    Setting(
        name="exchange",
        metavar="auto|host|nccl",
        file_field="spec.exchange",
        default=Exchange.AUTO,
        words=Exchange,
        help="How gradients on GPUs travel between replicas: through host memory, or by NCCL."
        "  [default: NCCL where nccl4py is installed, and no TLS is asked for]",
    ),
    Setting(
        name="mode",
        metavar="inPlace|restart",
        file_field="spec.mode",
        default=Mode.IN_PLACE,
        words=Mode,
        help="How the size changes: in the processes that train, by pliant.Session, or by starting"
        " them again, for scripts of torchrun as they are.  [default: inPlace]",
    ),
    Setting(
        name="placement",
        metavar="HOW[:LABEL]",
        file_field="spec.placement",
        default=PlacementRule(),
        read=placement_of,
        help="Where replicas go: free (where most devices are), spread (over hosts), pack (on few);"
        " spread:rack goes by that label of hosts.  [default: free]",
    ),
    Setting(
        name="log_to",
        metavar="KIND:PLACE",
        file_field="spec.logTo",
        read=trackers_of,
        help="Pass on what the script logs: tensorboard:DIR, mlflow:URI or wandb:DIR (offline);"
        " several with commas.",
    ),
    Setting(
        name="notify",
        metavar="URL",
        file_field="spec.notify",
        read=web_address,
        help="POST one JSON object there when the job ends, fails, is suspended, falls below its"
        " minimum or cannot save.",
    ),
    Setting(
        name="price",
        metavar="NUMBER",
        file_field="spec.pricePerDeviceHour",
        read=price_of,
        help="Of a device for an hour, in any currency: metrics tell what the job has cost.",
    ),
    Setting(
        name="port",
        kind=int,
        default=0,
        help="Port of the REST interface.  [default: any]",
        help_in={COORDINATOR: "Where its agents find it."},
    ),
    Setting(
        name="listen",
        metavar="HOST:PORT",
        commands=(COORDINATOR,),
        help="Where its agents on other hosts find it: an address or interface of this host.",
    ),
    Setting(
        name="join",
        metavar="HOST:PORT",
        commands=(RUN,),
        help="Run on several hosts, with this command on each: the one that has this address"
        " coordinates.",
    ),
    Setting(
        name="nnodes",
        metavar="MIN[:MAX]",
        commands=(RUN,),
        help="With --join: how many hosts, in place of --min and --max.",
    ),
    Setting(
        name="devices_per_node",
        kind=int,
        between=(1, MOST_DEVICES),
        commands=(RUN,),
        help="With --join: devices of each host, one for each worker."
        "  [default: accelerators, or cores]",
    ),
    Setting(
        name="interface",
        metavar="ADDRESS|NAME",
        commands=(RUN,),
        help="With --join: where the other hosts reach this one's replicas."
        "  [default: the interface that leads to the coordinator]",
    ),
    Setting(
        name="node",
        metavar="NAME",
        commands=(RUN,),
        help="With --join: what this host is called.  [default: the host's name]",
    ),
    Setting(
        name="grace",
        metavar="TIME",
        default=GRACE_S,
        read=seconds,
        commands=(RUN,),
        help="With --join: how long replicas may take to leave, once this is told to end, unless it"
        " coordinates.  [default: 25s]",
    ),
    Setting(
        name="label",
        metavar="KEY=VALUE",
        read=labels_of,
        commands=(RUN,),
        help="With --join: where this host is, e.g. rack=a, or several with commas.",
    ),
    Setting(
        name="token_file",
        metavar="FILE",
        kind=Path,
        help="With --join: what the hosts prove themselves with; the coordinating one makes it.",
        help_in={COORDINATOR: "What agents prove themselves with.  [default: DIR/token of --out]"},
    ),
    Setting(
        name="register",
        metavar="PLACE",
        help="Where another host finds what a coordinator must not forget: a directory that the"
        " hosts share, s3://BUCKET/DIR, or configmap:NAME of the namespace of its pod."
        "  [default: in --out, for this host alone]",
    ),
    Setting(
        name="show",
        metavar="all|none|REPLICA",
        read=shown_replica,
        commands=(RUN,),
        help="Whose output to show.  [default: that of the replica that leads]",
    ),
    Setting(
        name="pool",
        metavar="[NAME]",
        file_field="spec.pool.name",
        commands=(RUN,),
        help="Run on devices of this pool, with as many as it offers.  [name: default]",
    ),
    Setting(
        name="team",
        metavar="NAME",
        file_field="spec.pool.team",
        commands=(RUN,),
        help="Whose quota of the pool the job uses.",
    ),
    Setting(
        name="priority",
        metavar="CLASS",
        file_field="spec.pool.priority",
        commands=(RUN,),
        help="How important it is in the pool, e.g. high.  [default: normal]",
    ),
    Setting(
        name="kind",
        metavar="KIND",
        file_field="spec.pool.kind",
        commands=(RUN,),
        help="Of which kind its devices are; cpu trains on the cores of a host with accelerators."
        "  [default: the pool's first; without a pool accelerators, or cores]",
    ),
    Setting(
        name="tls_ca",
        metavar="FILE",
        file_field="spec.tls.ca",
        help="Hosts talk over TLS; this CA signs their certificates.",
    ),
    Setting(
        name="tls_certificate",
        metavar="FILE",
        file_field="spec.tls.certificate",
        help="This host's; it names the host, if others reach a coordinator here.",
    ),
    Setting(
        name="tls_key",
        metavar="FILE",
        file_field="spec.tls.key",
        help="Of that certificate.",
    ),
    Setting(
        name="tls_any_node",
        kind=bool,
        default=False,
        help="Agents' certificates need not name their nodes: all may have the same one.",
    ),
    Setting(
        name="resume",
        kind=bool,
        default=False,
        commands=(RUN,),
        help="Go on with the run in --out from its newest checkpoint.",
    ),
    Setting(
        name="from_checkpoint",
        metavar="WHEN",
        default=FromCheckpoint.AUTO,
        words=FromCheckpoint,
        help="Go on from what lies where the script keeps its checkpoints: auto (what this job"
        " wrote with these arguments), anyway, never.",
    ),
)
"""Every setting of a job, in the order of the help."""

BOUNDS = {
    item.file_field.removeprefix("spec.elasticPolicy."): item.flag
    for item in SETTINGS
    if item.file_field.startswith("spec.elasticPolicy.")
}
"""Fields of the policy that have options of their own, and those."""


SWITCH = {"1": True, "true": True, "yes": True, "0": False, "false": False, "no": False}


@dataclass(frozen=True, slots=True, kw_only=True)
class Resolved:
    """A value and where it came from."""

    setting: Setting
    value: Any
    source: str
    """The option, the variable, ``job file`` or ``default``."""

    @property
    def given(self) -> str:
        """Return it as it was given: ``--max 2``, ``PLIANT_MAX=2``, ``--max 2 (job file)``."""
        if self.source == self.setting.variable:
            return f"{self.source}={self.value}"
        where = "" if self.source == self.setting.flag else f" ({self.source})"
        return f"{self.setting.flag} {self.value}{where}"


Settings = Mapping[str, Resolved]


def with_values(settings: Settings, **values: Any) -> dict[str, Resolved]:
    """Return the settings with some values in place of what was given."""
    changed = {name: replace(settings[name], value=value) for name, value in values.items()}
    return {**settings, **changed}


# Click could resolve argument > environment > default_map > default, and say which it was, but:
# its sentence for a variable that is no number names the option ("Invalid value for '--min' (env
# var: 'PLIANT_MIN')") where ours names the variable alone; it takes the fields of the policy all
# from one place; and a variable or a job file gives the coordinator settings for which it has no
# option.  What it does would be less than what would have to be done around it.
def resolve(
    arguments: Mapping[str, Any], environ: Mapping[str, str], job: ElasticJob | None
) -> dict[str, Resolved]:
    """Take each setting, and each field of the policy, from the first place that gives it.

    Raises:
        ConfigError: an environment variable cannot be read, or a value is out of its bounds.
    """
    return {item.name: _checked(_resolve(item, arguments, environ, job)) for item in SETTINGS}


def _checked(found: Resolved) -> Resolved:
    item, value = found.setting, found.value
    if value is None or found.source == "default":
        return found
    if item.read is not None:
        return replace(found, value=item.read(found.source, str(value)))
    if item.words is not None:
        if value not in list(item.words):
            raise ConfigError(f"{found.given} must be one of {', '.join(item.words)}")
        return replace(found, value=item.words(value))
    if item.between is not None:
        least, most = item.between
        if not least <= value <= (value if most is None else most):
            bounds = f"at least {least}" if most is None else f"between {least} and {most}"
            raise ConfigError(f"{found.given} must be {bounds}")
    return found


def _resolve(
    item: Setting, arguments: Mapping[str, Any], environ: Mapping[str, str], job: ElasticJob | None
) -> Resolved:
    places: Mapping[str, Callable[[], Any]] = {
        item.flag: lambda: arguments.get(item.name),
        item.variable: lambda: _in_environment(item, environ),
        "job file": lambda: None if job is None else _in_file(item, job),
    }
    if item.kind is dict:
        return _merged(item, places)
    for source, look in places.items():  # a variable that does not count is not read
        if (value := look()) is not None:
            return Resolved(setting=item, value=value, source=source)
    return Resolved(setting=item, value=item.default, source="default")


def _merged(item: Setting, places: Mapping[str, Callable[[], Any]]) -> Resolved:
    fields: dict[str, Any] = {}
    origin = "default"
    for source, look in reversed(list(places.items())):
        if found := look():
            fields, origin = merged(fields, found), source
    return Resolved(setting=item, value=fields, source=origin)


def _in_environment(item: Setting, environ: Mapping[str, str]) -> Any:
    text = environ.get(item.variable)
    if not text:
        return None
    try:
        if item.kind is bool:
            return SWITCH[text.lower()]
        return changes_of(text.split()) if item.kind is dict else item.kind(text)
    except ConfigError as error:
        raise ConfigError(f"{item.variable}: {error}") from None
    except (KeyError, ValueError):
        what = "1 or 0" if item.kind is bool else "a whole number"
        raise ConfigError(f"{item.variable}={text} must be {what}") from None


def _in_file(item: Setting, job: ElasticJob) -> Any:
    if not item.file_field:
        return None
    value: Any = job
    for part in item.file_field.split("."):
        value = getattr(value, to_snake(part), None)
    if isinstance(value, list):
        return json.dumps([one.model_dump(by_alias=True) for one in value]) if value else None
    if isinstance(value, ElasticPolicy | Limits):
        document = value.model_dump(by_alias=True, exclude_unset=True)
        return {name: inner for name, inner in document.items() if name not in BOUNDS}
    return value


def with_settings(
    command: str, settings: Sequence[Setting] = SETTINGS
) -> Callable[[Callable[..., int]], Callable[..., int]]:
    """Give a command the options of its settings, before its own, in place of its first parameter.

    The command gets what was given, by setting; the parser sees one function with all options.
    """
    own = [item for item in settings if command in item.commands]

    def decorate(function: Callable[..., int]) -> Callable[..., int]:
        @wraps(function)
        def run(**values: Any) -> int:
            return function(
                {item.name: _given(item, values.pop(item.name)) for item in own}, **values
            )

        _, *rest = inspect.signature(function, eval_str=True).parameters.values()
        both = [*(_parameter(item, command) for item in own), *rest]
        return with_parameters(run, both)

    return decorate


def _parameter(item: Setting, command: str) -> inspect.Parameter:
    kind: Any = {dict: list[str] | None, bool: bool}.get(item.kind, item.kind | None)
    option = typer.Option(
        item.flag,
        metavar="N" if item.kind is int else item.metavar,
        help=item.help_in.get(command, item.help),
    )
    return inspect.Parameter(
        item.name,
        inspect.Parameter.KEYWORD_ONLY,
        default=False if item.kind is bool else None,
        annotation=Annotated[kind, option],
    )


def _given(item: Setting, value: Any) -> Any:
    """Return what was typed; None: the option was not."""
    if item.kind is dict:
        return changes_of(value or ())
    return None if value is False else value
