"""Numbers for Prometheus, computed from the board when they are asked for.

Owns which number of the board is which metric of the table (``observe.metric_table``).  Keeps none
itself, so the page cannot disagree with ``pliant status``.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable, Iterator, Mapping

from prometheus_client.core import Metric

from pliant.http.exposition import Value, families
from pliant.observe.durations import durations_of
from pliant.observe.living_replicas import ReplicaActivity
from pliant.observe.log import number
from pliant.observe.metric_table import JOB
from pliant.observe.status import Board
from pliant.observe.timeline import ResizeKind

HOUR_S = 3600.0


class BoardCollector:
    """Turns one job's board into metrics."""

    def __init__(
        self,
        board: Callable[[], Board],
        refused: Mapping[str, int],
        losses: Callable[[], tuple[int, int]],
    ) -> None:
        """``losses``: those that count against the restart budget now, and the budget."""
        self._board_now = board
        self._refused = refused
        self._losses = losses

    def collect(self) -> Iterator[Metric]:
        """Yield every metric with its value now."""
        board = self._board_now()
        values = {**_sizes(board), **_progress(board), **_costs(board), **_doubts(board)}
        lost, budget = self._losses()
        values |= {"pliant_recent_losses": lost, "pliant_restart_budget": budget}
        values["pliant_refused_events_total"] = {(who,): n for who, n in self._refused.items()}
        yield from families(JOB, values, {"run": board.job})


def _sizes(board: Board) -> dict[str, Value]:
    states = Counter(replica.state for replica in board.replicas.values())
    totals, timeline = board.totals, board.timeline
    kinds = Counter(resize.kind.value for resize in board.resizes())
    return {
        "pliant_generation": timeline.generation,
        "pliant_min_replicas": board.min_replicas,
        "pliant_max_replicas": board.max_replicas,
        "pliant_target_replicas": board.target_replicas,
        "pliant_actual_replicas": len(timeline.members.get(timeline.generation, ())),
        "pliant_replicas": {(state.value,): states[state] for state in ReplicaActivity},
        "pliant_devices": {("training",): totals.training, ("idle",): totals.idle},
        "pliant_device_seconds_total": {
            ("training",): totals.training_s,
            ("idle",): totals.idle_s,
        },
        "pliant_resizes_total": {(kind,): count for kind, count in kinds.items()},
        "pliant_scale_events_total": {(cause,): n for cause, n in totals.causes.items()},
        "pliant_human_interventions_total": {
            **{(kind,): count for kind, count in totals.requests.items()},
            ("resume",): max(totals.num_starts - 1, 0),
        },
    }


def _progress(board: Board) -> dict[str, Value]:
    totals, bad = board.totals, board.nonfinite or {"steps": 0, "skipped": 0}
    return {
        "pliant_num_slots": board.num_slots,
        "pliant_planned_steps": board.total_steps,
        "pliant_committed_steps_total": board.committed,
        "pliant_samples_total": totals.account.steps.samples(),
        "pliant_samples_per_second": board.samples_per_s(),
        "pliant_step_seconds": totals.steps,
        "pliant_step_part_seconds_total": {(part,): s for part, s in totals.parts_s.items()},
        "pliant_median_step_seconds": board.median_step_s(),
        "pliant_last_step_timestamp_seconds": totals.committed_at,
        "pliant_loss": board.loss,
        "pliant_nonfinite_steps_total": bad["steps"],
        "pliant_skipped_steps_total": bad["skipped"],
        "pliant_lost_steps_total": board.timeline.steps_lost,
        "pliant_stale_events_total": board.stale,
    }


def _costs(board: Board) -> dict[str, Value]:
    totals, spent = board.totals, board.totals.account.goodput(board.timeline)
    pauses_s = [one.pause_s for one in board.resizes() if one.pause_s is not None]
    restored = [one for one in board.resizes() if one.kind is ResizeKind.RESTORE]
    price, hours = number(board.about.get("price")), (totals.training_s + totals.idle_s) / HOUR_S
    return {
        "pliant_pause_seconds": durations_of(pauses_s),
        "pliant_wall_seconds_total": spent.wall_s,
        "pliant_start_seconds": spent.start_s,
        "pliant_downtime_seconds_total": spent.downtime_s,
        "pliant_productive_ratio": spent.productive,
        "pliant_goodput_samples_per_second": spent.goodput,
        "pliant_queue_seconds_total": totals.queued_s,
        "pliant_cost_total": None if price is None else price * hours,
        "pliant_restore_seconds": durations_of(
            one.ready_s for one in restored if one.ready_s is not None
        ),
        "pliant_restores_total": board.restores,
    }


def _doubts(board: Board) -> dict[str, Value]:
    newest = board.checkpoint or {}
    return {
        "pliant_checkpoint_committed_steps": newest.get("committed"),
        "pliant_checkpoint_timestamp_seconds": newest.get("at"),
        "pliant_checkpoint_save_seconds": board.totals.saves,
        "pliant_checkpoint_last_save_seconds": newest.get("seconds"),
        "pliant_checkpoint_failures_total": board.checkpoint_failures,
        "pliant_checkpoint_failing": board.checkpoint_failure is not None,
        "pliant_slow_replicas": len(board.slow),
        "pliant_unhealthy_devices": len(board.ailing),
        "pliant_silent_nodes": len(board.silent),
    }
