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


JOB = (
    Row("pliant_generation", "gauge", "Newest generation that was entered.", panel="Resizes"),
    Row("pliant_min_replicas", "gauge", "Fewest replicas with which it trains.", panel="Size"),
    Row("pliant_max_replicas", "gauge", "Most replicas that it may have.", panel="Size"),
    Row("pliant_target_replicas", "gauge", "Replicas wanted.", panel="Size"),
    Row("pliant_actual_replicas", "gauge", "Members of the newest generation.", panel="Size"),
    Row("pliant_replicas", "gauge", "Living replicas by state.", ("state",), panel="Replicas"),
    Row("pliant_devices", "gauge", "Devices held, training or idle.", ("state",), panel="Devices"),
    Row(
        "pliant_device_seconds_total",
        "counter",
        "Devices held times seconds, training or idle.",
        ("state",),
        panel="Devices in use",
    ),
    Row("pliant_num_slots", "gauge", "Slots of a step (K)."),
    Row("pliant_planned_steps", "gauge", "Steps that the script has asked for.", panel="Steps"),
    Row("pliant_committed_steps_total", "counter", "Committed steps.", panel="Steps per second"),
    Row("pliant_samples_total", "counter", "Committed samples.", panel="Samples per second"),
    Row(
        "pliant_samples_per_second",
        "gauge",
        "Committed samples per second over the last 50 steps.",
        panel="Samples per second",
        old="pliant_samples_per_s",
    ),
    Row("pliant_step_seconds", "histogram", "Seconds of a committed step.", panel="Step time"),
    Row(
        "pliant_median_step_seconds",
        "gauge",
        "Median seconds between the last commits.",
        panel="Step time",
        old="pliant_step_s",
    ),
    Row(
        "pliant_last_step_timestamp_seconds",
        "gauge",
        "When the newest step was committed, in seconds of the epoch.",
    ),
    Row("pliant_loss", "gauge", "Loss of the last committed step.", panel="Loss"),
    Row("pliant_nonfinite_steps_total", "counter", "Committed ones with a nan or inf."),
    Row("pliant_skipped_steps_total", "counter", "Of these, those that changed nothing."),
    Row(
        "pliant_lost_steps_total",
        "counter",
        "Committed steps that had to be done again.",
        panel="Steps lost",
    ),
    Row("pliant_resizes_total", "counter", "Resizes by kind.", ("kind",), panel="Resizes"),
    Row(
        "pliant_scale_events_total",
        "counter",
        "What may lead to a resize, by cause.",
        ("cause",),
        panel="Scale events",
    ),
    Row(
        "pliant_pause_seconds",
        "histogram",
        "Pauses of resizes: the longest gap between commits, less a usual step.",
        panel="Pauses",
        old="pliant_pause_s_total",
    ),
    Row(
        "pliant_wall_seconds_total",
        "counter",
        "Time from the first record of the log to the newest.",
    ),
    Row("pliant_start_seconds", "gauge", "Time from the start to the first committed step."),
    Row(
        "pliant_downtime_seconds_total",
        "counter",
        "Time in which no step progressed because of a resize.",
        panel="Downtime",
    ),
    Row(
        "pliant_productive_ratio",
        "gauge",
        "Share of the time that was neither start nor downtime.",
        panel="Goodput",
    ),
    Row(
        "pliant_goodput_samples_per_second",
        "gauge",
        "Committed samples by all time since the start.",
        panel="Samples per second",
    ),
    Row(
        "pliant_queue_seconds_total",
        "counter",
        "Time in which it waited for its pool.",
        panel="Queue time",
    ),
    Row(
        "pliant_cost_total",
        "counter",
        "Devices held times hours times spec.pricePerDeviceHour.",
        panel="Cost",
    ),
    Row(
        "pliant_human_interventions_total",
        "counter",
        "Requests of people, and lives after the first, by kind.",
        ("kind",),
        panel="Human interventions",
    ),
    Row("pliant_checkpoint_committed_steps", "gauge", "Committed steps in the newest."),
    Row(
        "pliant_checkpoint_timestamp_seconds",
        "gauge",
        "When the newest checkpoint became durable, in seconds of the epoch.",
        old="pliant_checkpoint_unixtime_s",
    ),
    Row(
        "pliant_checkpoint_save_seconds",
        "histogram",
        "Seconds from the snapshot of a checkpoint until it is durable.",
        panel="Save time",
    ),
    Row(
        "pliant_checkpoint_last_save_seconds",
        "gauge",
        "The same of the newest.",
        panel="Save time",
        old="pliant_checkpoint_save_s",
    ),
    Row("pliant_checkpoint_failures_total", "counter", "Saves that failed.", panel="Failed saves"),
    Row("pliant_checkpoint_failing", "gauge", "1 since a save failed, until one does not."),
    Row("pliant_restores_total", "counter", "Times it went on from a checkpoint."),
    Row(
        "pliant_restore_seconds",
        "histogram",
        "From the order to start the replicas until the state is restored and they train.",
        panel="Restore time",
    ),
    Row("pliant_recent_losses", "gauge", "Losses that count against the restart budget now."),
    Row("pliant_restart_budget", "gauge", "Losses after which it gives up."),
    Row("pliant_slow_replicas", "gauge", "Replicas far slower than the others.", panel="Health"),
    Row("pliant_unhealthy_devices", "gauge", "Devices that get no worker.", panel="Health"),
    Row("pliant_silent_nodes", "gauge", "Nodes whose agent says nothing.", panel="Health"),
    Row("pliant_stale_events_total", "counter", "Events of another generation, dropped."),
    Row(
        "pliant_refused_events_total",
        "counter",
        "Input that could not be read, dropped.",
        ("sender",),
    ),
)
"""Of a job, from its coordinator; what is not known yet is left out."""

POOL = (
    Row("pliant_pool_devices", "gauge", "Devices.", ("kind", "state"), panel="Devices of the pool"),
    Row("pliant_pool_usable_devices", "gauge", "May be in use now.", panel="Devices of the pool"),
    Row("pliant_pool_failing", "gauge", "1 while its state cannot be written."),
    Row("pliant_pool_claims", "gauge", "Claims by state.", ("state",), panel="Claims"),
    Row(
        "pliant_pool_longest_wait_seconds",
        "gauge",
        "How long the claim has waited that has waited longest.",
        panel="Longest wait",
    ),
    Row(
        "pliant_pool_team_share",
        "gauge",
        "Devices that its claims are to have.",
        ("team",),
        panel="Teams",
    ),
    Row("pliant_pool_team_quota", "gauge", "Devices of its own.", ("team",), panel="Teams"),
    Row("pliant_pool_grants_total", "counter", "Claims that got devices.", panel="Decisions"),
    Row("pliant_pool_shrinks_total", "counter", "Claims that had to give some.", panel="Decisions"),
    Row("pliant_pool_suspensions_total", "counter", "Claims that lost all.", panel="Decisions"),
    Row("pliant_pool_refusals_total", "counter", "Reports that were refused."),
    Row("pliant_pool_ended_devices_total", "counter", "Devices whose processes it has killed."),
    Row("pliant_pool_kept_devices_total", "counter", "Devices that it could not get back."),
)
"""Of a pool; counted is what it has done since it was started."""

OPERATOR = (
    Row("pliant_operator_jobs", "gauge", "Jobs by phase.", ("phase",), panel="Jobs"),
    Row("pliant_operator_leader", "gauge", "1 while it decides."),
    Row("pliant_operator_queue_depth", "gauge", "Jobs to be looked at.", panel="Queue"),
    Row(
        "pliant_operator_reconcile_seconds",
        "histogram",
        "Looking at a job, with its requests.",
        panel="Reconciliation",
    ),
    Row("pliant_operator_plan_seconds", "histogram", "Of that, reading and deciding."),
    Row(
        "pliant_operator_api_request_seconds",
        "histogram",
        "Requests to the API server, but for watches.",
        panel="API server",
    ),
    Row("pliant_operator_reconciles_total", "counter", "Jobs that were looked at.", ("result",)),
    Row(
        "pliant_operator_actions_total",
        "counter",
        "Actions that were carried out.",
        ("action",),
        panel="Actions",
    ),
    Row(
        "pliant_operator_watch_failures_total",
        "counter",
        "Lists and watches that failed.",
        ("resource", "reason"),
    ),
    Row(
        "pliant_operator_api_requests_total",
        "counter",
        "Requests to the API server.",
        ("method", "resource", "code"),
    ),
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
        "time() - pliant_last_step_timestamp_seconds > 600 + 20 * pliant_median_step_seconds",
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
