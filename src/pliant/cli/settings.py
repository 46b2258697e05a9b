"""The settings of a job, and where each can be given.

Owns the table, the one place to add one: its option, variable, field, default and help.  Commands
take their options from it (``options.with_settings``), and values from the first place that gives
one (``resolved``).  Knows nothing of what settings do.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from pliant.core.job.state import JobSettings
from pliant.core.sites import PlacementRule
from pliant.core.step.balance import Balance
from pliant.core.values import FromCheckpoint

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
        help="Fewest replicas.  [default: 1]",
    ),
    Setting(
        name="max_replicas",
        kind=int,
        file_field="spec.elasticPolicy.maxReplicas",
        help="Most replicas.  [default: cores, or micro-batches of a step if they are fewer]",
        help_in={COORDINATOR: "Most replicas.  [default: devices of all agents]"},
    ),
    Setting(
        name="start_replicas",
        kind=int,
        file_field="spec.startReplicas",
        help="Replicas to start with.  [default: max]",
    ),
    Setting(
        name="workers_per_replica",
        kind=int,
        file_field="spec.workersPerReplica",
        default=1,
        help="Processes of one replica, each with a device.  [default: 1]",
    ),
    Setting(
        name="hosts_per_replica",
        kind=int,
        file_field="spec.hostsPerReplica",
        default=1,
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
        name="session_timeout",
        metavar="TIME",
        file_field="spec.sessionTimeoutInSeconds",
        help="How long the script may take until its Session.  [default: 9min]",
    ),
    Setting(
        name="verify_every",
        kind=int,
        file_field="spec.verifyEvery",
        default=0,
        help="Compare the state of all replicas every N steps; replace one that differs."
        "  [default: never]",
    ),
    Setting(
        name="balance",
        metavar="even|speed",
        file_field="spec.balance",
        default=Balance.EVEN.value,
        help="Whether slow replicas compute fewer micro-batches of a step.  [default: even]",
    ),
    Setting(
        name="placement",
        metavar="HOW[:LABEL]",
        file_field="spec.placement",
        default=str(PlacementRule()),
        help="Where replicas go: free (where most devices are), spread (over hosts), pack (on few);"
        " spread:rack goes by that label of hosts.  [default: free]",
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
        commands=(RUN,),
        help="With --join: devices of each host, one for each worker.  [default: cores]",
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
        commands=(RUN,),
        help="With --join: how long replicas may take to leave, once this is told to end, unless it"
        " coordinates.  [default: 25s]",
    ),
    Setting(
        name="label",
        metavar="KEY=VALUE",
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
        " hosts share, or s3://BUCKET/DIR."
        "  [default: in --out, for this host alone]",
    ),
    Setting(
        name="show",
        metavar="all|none|REPLICA",
        commands=(RUN,),
        help="Whose output to show.  [default: the oldest replica's]",
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
        help="Of which kind its devices of the pool are.  [default: the first]",
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
        default=FromCheckpoint.AUTO.value,
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
