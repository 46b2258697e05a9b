"""Every metric and every alert of pliant, once: what is served, shown, documented and watched.

Owns names, kinds, labels and meanings, by the conventions of Prometheus, and which of them share a
panel of the dashboards.  Of this table ``http.exposition`` makes what is served, and
``python -m tools.make_pages`` the reference page, the dashboards and the alert rules.  Knows
nothing of where the numbers come from.

No label is a replica, a worker or a user: there is no bound to them.  Every metric of a job has the
label ``run``, its name.  ``old``: what it was called before, served for one release beside it.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Literal

Kind = Literal["gauge", "counter", "histogram"]

KINDS: dict[str, Kind] = {"gauge": "gauge", "counter": "counter", "histogram": "histogram"}


@dataclass(frozen=True, slots=True)
class Row:
    """One metric; a counter's name ends with ``_total``."""

    name: str
    kind: Kind
    help: str
    labels: tuple[str, ...] = ()
    panel: str = ""
    """Title of the panel that shows it; empty: none does."""

    old: str = ""
    """Of a histogram the sum alone."""

    @property
    def unit(self) -> str:
        """Return Grafana's word for its unit."""
        plain = self.name.removesuffix("_total")
        if plain.endswith("_seconds") and not plain.endswith("device_seconds"):
            return "dateTimeAsIso" if "timestamp" in plain else "s"
        return "percentunit" if plain.endswith("_ratio") else "short"


OLD = {
    "samples_per_second": "pliant_samples_per_s",
    "median_step_seconds": "pliant_step_s",
    "pause_seconds": "pliant_pause_s_total",
    "checkpoint_timestamp_seconds": "pliant_checkpoint_unixtime_s",
    "checkpoint_last_save_seconds": "pliant_checkpoint_save_s",
}


def _rows(text: str) -> tuple[Row, ...]:
    """Read rows: name without ``pliant_``, with labels; kind; panel or ``-``; meaning."""
    return tuple(_row(*line.split(" | ")) for line in text.splitlines())


def _row(called: str, kind: str, panel: str, said: str) -> Row:
    name, _, labels = called.removesuffix("}").partition("{")
    names, old = tuple(filter(None, labels.split(","))), OLD.get(name, "")
    return Row(f"pliant_{name}", KINDS[kind], said, names, panel.removeprefix("-"), old)


JOB = _rows(
    """\
generation | gauge | Resizes | Newest generation that was entered.
min_replicas | gauge | Size | Fewest replicas with which it trains.
max_replicas | gauge | Size | Most replicas that it may have.
target_replicas | gauge | Size | Replicas wanted.
actual_replicas | gauge | Size | Members of the newest generation.
replicas{state} | gauge | Replicas | Living replicas by state.
devices{state} | gauge | Devices | Devices held, training or idle.
device_seconds_total{state} | counter | Devices in use | Devices held times seconds.
num_slots | gauge | - | Slots of a step (K).
planned_steps | gauge | Steps | Steps that the script has asked for.
committed_steps_total | counter | Steps per second | Committed steps.
samples_total | counter | Samples per second | Committed samples.
samples_per_second | gauge | Samples per second | The same over the last 50 steps.
step_seconds | histogram | Step time | Seconds of a committed step.
step_part_seconds_total{part} | counter | Step time by part | Seconds of steps, mean of replicas.
median_step_seconds | gauge | Step time | Median seconds between the last commits.
last_step_timestamp_seconds | gauge | - | Newest step; before it, when replicas began.
loss | gauge | Loss | Loss of the last committed step.
nonfinite_steps_total | counter | - | Committed ones with a nan or inf.
skipped_steps_total | counter | - | Of these, those that changed nothing.
lost_steps_total | counter | Steps lost | Committed steps that had to be done again.
resizes_total{kind} | counter | Resizes | Resizes by kind.
scale_events_total{cause} | counter | Scale events | What may lead to a resize, by cause.
pause_seconds | histogram | Pauses | Of resizes: longest gap between commits, less a usual step.
wall_seconds_total | counter | - | Time from the first record of the log to the newest.
start_seconds | gauge | - | Time from the start to the first committed step.
downtime_seconds_total | counter | Downtime | Time in which no step progressed because of a resize.
productive_ratio | gauge | Goodput | Share of the time that was neither start nor downtime.
goodput_samples_per_second | gauge | Samples per second | The same by all time since the start.
queue_seconds_total | counter | Queue time | Time in which it waited for its pool.
cost_total | counter | Cost | Devices held times hours times spec.pricePerDeviceHour.
human_interventions_total{kind} | counter | People | Requests of people, and resumes, by kind.
checkpoint_committed_steps | gauge | - | Committed steps in the newest.
checkpoint_timestamp_seconds | gauge | - | When the newest became durable.
checkpoint_save_seconds | histogram | Save time | From a snapshot until it is durable.
checkpoint_last_save_seconds | gauge | Save time | The same of the newest.
checkpoint_failures_total | counter | Failed saves | Saves that failed.
checkpoint_failing | gauge | - | 1 since a save failed, until one does not.
restores_total | counter | - | Times it went on from a checkpoint.
restore_seconds | histogram | Restore time | From the order to start replicas until they train.
recent_losses | gauge | - | Losses that count against the restart budget now.
restart_budget | gauge | - | Losses after which it gives up.
slow_replicas | gauge | Health | Replicas far slower than the others.
unhealthy_devices | gauge | Health | Devices that get no worker.
silent_nodes | gauge | Health | Nodes whose agent says nothing.
stale_events_total | counter | - | Events of another generation, dropped.
refused_events_total{sender} | counter | - | Input that could not be read, dropped.
"""
)
"""Of a job, from its coordinator; what is not known yet is left out."""

POOL = _rows(
    """\
pool_devices{kind,state} | gauge | Devices of the pool | Devices.
pool_usable_devices | gauge | Devices of the pool | May be in use now.
pool_failing | gauge | - | 1 while its state cannot be written.
pool_claims{state} | gauge | Claims | Claims by state.
pool_longest_wait_seconds | gauge | Longest wait | Of the claims that wait, in seconds.
pool_team_share{team} | gauge | Teams | Devices that its claims are to have.
pool_team_quota{team} | gauge | Teams | Devices of its own.
pool_grants_total | counter | Decisions | Claims that got devices.
pool_shrinks_total | counter | Decisions | Claims that had to give some.
pool_suspensions_total | counter | Decisions | Claims that lost all.
pool_refusals_total | counter | - | Reports that were refused.
pool_ended_devices_total | counter | - | Devices whose processes it has killed.
pool_kept_devices_total | counter | - | Devices that it could not get back.
"""
)
"""Of a pool; counted is what it has done since it was started."""

OPERATOR = _rows(
    """\
operator_jobs{phase} | gauge | Jobs | Jobs by phase.
operator_leader | gauge | - | 1 while it decides.
operator_queue_depth | gauge | Queue | Jobs to be looked at.
operator_reconcile_seconds | histogram | Reconciliation | Looking at a job, with its requests.
operator_plan_seconds | histogram | - | Of that, reading and deciding.
operator_api_request_seconds | histogram | API server | Requests to the API server, but for watches.
operator_reconciles_total{result} | counter | - | Jobs that were looked at.
operator_actions_total{action} | counter | Actions | Actions that were carried out.
operator_watch_failures_total{resource,reason} | counter | - | Lists and watches that failed.
operator_api_requests_total{method,resource,code} | counter | - | Requests to the API server.
"""
)
"""Of the operator of a cluster."""

TABLES = {"job": JOB, "pool": POOL, "operator": OPERATOR}


@dataclass(frozen=True, slots=True)
class Alert:
    """One rule of Prometheus."""

    name: str
    expr: str
    after: str
    """How long it has to be so."""

    severity: Literal["page", "ticket"]
    summary: str
    """What is wrong, with Prometheus' templates, and where to look."""


ALERTS = (
    Alert(
        "PliantNoStep",
        "time() - pliant_last_step_timestamp_seconds > 600 + 20 * (pliant_median_step_seconds"
        " or 0 * pliant_last_step_timestamp_seconds)",
        "0m",
        "page",
        "Run {{ $labels.run }} has committed no step for {{ $value | humanizeDuration }}: see"
        " pliant status, which says whom the others wait for.",
    ),
    Alert(
        "PliantThrashing",
        "sum by (run, instance) (increase(pliant_resizes_total[30m])) > 12 or "
        "increase(pliant_pause_seconds_sum[30m]) > 360",
        "0m",
        "ticket",
        "Run {{ $labels.run }} resizes so often that it costs: see pliant explain; "
        "scalingTimeoutInSeconds and backoff make it calmer.",
    ),
    Alert(
        "PliantBelowMinimum",
        'sum by (run, instance) (pliant_replicas{state="training"}) < '
        "sum by (run, instance) (pliant_min_replicas)",
        "5m",
        "page",
        "Run {{ $labels.run }} has fewer replicas than its minimum, and waits: see pliant explain.",
    ),
    Alert(
        "PliantCheckpointTooOld",
        "time() - pliant_checkpoint_timestamp_seconds > 3600 or pliant_checkpoint_failing > 0",
        "10m",
        "page",
        "The newest checkpoint of run {{ $labels.run }} is old, or saves fail: see pliant status.",
    ),
    Alert(
        "PliantSlowReplica",
        "pliant_slow_replicas > 0",
        "5m",
        "ticket",
        "{{ $value }} replicas of run {{ $labels.run }} are far slower than the others: "
        "pliant status names them; pliant drain takes one out.",
    ),
    Alert(
        "PliantDeviceUnhealthy",
        "pliant_unhealthy_devices > 0",
        "1m",
        "ticket",
        "{{ $value }} devices of run {{ $labels.run }} get no worker: pliant status says why.",
    ),
    Alert(
        "PliantRestartBudgetNearlySpent",
        "pliant_recent_losses > 0 and pliant_recent_losses >= pliant_restart_budget - 1",
        "0m",
        "page",
        "Run {{ $labels.run }} has had {{ $value }} losses that count against its restart budget, "
        "and gives up soon: see pliant explain and pliant logs.",
    ),
    Alert(
        "PliantPoolFailing",
        "pliant_pool_failing > 0",
        "1m",
        "page",
        "A pool at {{ $labels.instance }} cannot write its state: see pliant pool status.",
    ),
)
"""What a person on call wants to hear of; each expression returns a series as soon as the numbers
that it compares are there, but for the comparison."""
