"""Numbers for Prometheus, computed from the board when they are asked for.

Owns the names; their words are those of the glossary.  Knows nothing of how the numbers come
about, and keeps none itself, so the page cannot disagree with ``pliant status``.
"""

from __future__ import annotations

import math
from collections import Counter
from collections.abc import Callable, Iterator, Mapping

from prometheus_client.core import CounterMetricFamily, GaugeMetricFamily, Metric

from pliant.observe.living_replicas import ReplicaActivity
from pliant.observe.status import Board


def _plain(
    board: Board,
) -> tuple[tuple[type[GaugeMetricFamily | CounterMetricFamily], str, str, float | None], ...]:
    """Return what is one number without labels; None: not known yet."""
    gauge, counter = GaugeMetricFamily, CounterMetricFamily
    newest = board.checkpoint or {}
    committed, saved_at, save_s = (newest.get(key) for key in ("committed", "at", "seconds"))
    is_failing = board.checkpoint_failure is not None
    bad = board.nonfinite or {"steps": 0, "skipped": 0}
    return (
        (gauge, "generation", "Newest generation that was entered.", board.timeline.generation),
        (gauge, "target_replicas", "Replicas wanted.", board.target_replicas),
        (gauge, "num_slots", "Slots of a step (K).", board.num_slots),
        (gauge, "loss", "Loss of the last committed step.", board.loss),
        (gauge, "step_s", "Median seconds between the last commits.", board.median_step_s()),
        (gauge, "samples_per_s", "Committed samples per second.", board.samples_per_s()),
        (counter, "committed_steps", "Committed steps.", board.committed),
        (counter, "nonfinite_steps", "Committed ones with a nan or inf.", bad["steps"]),
        (counter, "skipped_steps", "Of these, those that changed nothing.", bad["skipped"]),
        (counter, "stale_events", "Events of another generation, dropped.", board.stale),
        (gauge, "checkpoint_committed_steps", "Committed steps in the newest.", committed),
        (gauge, "checkpoint_unixtime_s", "When it became durable.", saved_at),
        (gauge, "checkpoint_save_s", "Seconds from its snapshot.", save_s),
        (counter, "checkpoint_failures", "Saves that failed.", board.checkpoint_failures),
        (gauge, "checkpoint_failing", "1 since a save failed, until one does not.", is_failing),
        (counter, "restores", "Times it went on from a checkpoint.", board.restores),
    )


def _number(value: float) -> float:
    """Return a number as Prometheus takes it; one beyond all floats is infinite."""
    try:
        return float(value)
    except OverflowError:
        return math.inf


class BoardCollector:
    """Turns one job's board into metrics."""

    def __init__(self, board: Callable[[], Board], refused: Mapping[str, int]) -> None:
        self._board_now = board
        self._refused = refused

    def collect(self) -> Iterator[Metric]:
        """Yield every metric with its value now."""
        for family, name, help_text, value in _plain(self._board_now()):
            if value is not None:
                yield family(f"pliant_{name}", help_text, value=_number(value))
        yield from self._by_state()
        yield from self._resizes()
        refused = CounterMetricFamily(
            "pliant_refused_events", "Input that could not be read, dropped.", labels=["sender"]
        )
        for sender, count in sorted(self._refused.items()):
            refused.add_metric([sender], count)
        yield refused

    def _by_state(self) -> Iterator[Metric]:
        states = Counter(replica.state for replica in self._board_now().replicas.values())
        family = GaugeMetricFamily("pliant_replicas", "Living replicas by state.", labels=["state"])
        for state in ReplicaActivity:
            family.add_metric([state.value], states[state])
        yield family

    def _resizes(self) -> Iterator[Metric]:
        resizes = self._board_now().resizes()
        kinds = Counter(resize.kind.value for resize in resizes)
        family = CounterMetricFamily("pliant_resizes", "Resizes by kind.", labels=["kind"])
        for kind, count in sorted(kinds.items()):
            family.add_metric([kind], count)
        yield family
        pause_s = sum(resize.pause_s or 0.0 for resize in resizes)
        yield CounterMetricFamily("pliant_pause_s", "Seconds of pause, summed.", value=pause_s)
