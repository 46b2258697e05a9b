"""Numbers of the operator for Prometheus: what users of controllers look for.

Owns their names, and the sums that they are read from.  Jobs are not among the labels: there is no
bound to them.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable, Iterator, Mapping
from typing import Any

from prometheus_client.core import (
    CounterMetricFamily,
    GaugeMetricFamily,
    HistogramMetricFamily,
    Metric,
)

from pliant.kube.client import Call

BOUNDS_S = (0.001, 0.005, 0.01, 0.025, 0.05, 0.1, 0.25, 0.5, 1.0, 2.5, 5.0, 10.0)
"""Of what is measured in seconds; 50 ms of its own is what a reconciliation may take."""

PHASES = (
    *("Pending", "Starting", "Running", "Suspending"),
    *("Suspended", "Succeeded", "Failed", "Stopped"),
)


class Durations:
    """Of one kind of thing, in seconds."""

    def __init__(self) -> None:
        self._counts = [0] * (len(BOUNDS_S) + 1)
        self._sum_s = 0.0

    def note(self, took_s: float) -> None:
        """Count one."""
        at = next((i for i, most_s in enumerate(BOUNDS_S) if took_s <= most_s), len(BOUNDS_S))
        self._counts[at] += 1
        self._sum_s += took_s

    def metric(self, name: str, help_text: str) -> Metric:
        """Return them as a histogram."""
        sums = [sum(self._counts[: i + 1]) for i in range(len(self._counts))]
        names = [*map(str, BOUNDS_S), "+Inf"]
        buckets = list(zip(names, map(float, sums), strict=True))
        return HistogramMetricFamily(name, help_text, buckets=buckets, sum_value=self._sum_s)


class OperatorMetrics:
    """What the operator has counted since it was started."""

    def __init__(
        self,
        *,
        phases: Callable[[], Mapping[str, int]],
        depth: Callable[[], int],
        leads: Callable[[], bool],
    ) -> None:
        """``phases``: jobs by phase now; ``depth``: those that wait to be looked at."""
        self._phases, self._depth, self._leads = phases, depth, leads
        self.reconciled = Durations()
        self.own = Durations()
        self.requests = Durations()
        self.results: Counter[str] = Counter()
        """Of reconciliations: ``ok``, ``conflict``, ``error``."""
        self.actions: Counter[str] = Counter()
        self.watch_failures: Counter[tuple[str, str]] = Counter()
        """By kind and reason."""
        self._requests: Counter[tuple[str, str, str]] = Counter()

    def heard(self, call: Call, code: int, took_s: float) -> None:
        """Note an answer of the API server."""
        method = "WATCH" if "watch" in call.params else call.method
        self._requests[method, call.plural, str(code) if code else "none"] += 1
        if method != "WATCH":
            self.requests.note(took_s)

    def collect(self) -> Iterator[Metric]:
        """Yield every metric with its value now."""
        jobs = GaugeMetricFamily("pliant_operator_jobs", "Jobs by phase.", labels=["phase"])
        phases = self._phases()
        for phase in PHASES:
            jobs.add_metric([phase], phases.get(phase, 0))
        yield jobs
        yield GaugeMetricFamily(
            "pliant_operator_leader", "1 while it decides.", value=float(self._leads())
        )
        yield GaugeMetricFamily(
            "pliant_operator_queue_depth", "Jobs that are to be looked at.", value=self._depth()
        )
        name = "pliant_operator_reconcile_seconds"
        yield self.reconciled.metric(name, "Looking at a job, with its requests.")
        yield self.own.metric("pliant_operator_plan_seconds", "Of that, reading and deciding.")
        name = "pliant_operator_api_request_seconds"
        yield self.requests.metric(name, "Requests to the API server, but for watches.")
        yield _counted("reconciles", "Jobs that were looked at.", ["result"], self.results)
        yield _counted("actions", "Actions that were carried out.", ["action"], self.actions)
        labels = ["resource", "reason"]
        said = "Lists and watches that failed."
        yield _counted("watch_failures", said, labels, self.watch_failures)
        labels = ["method", "resource", "code"]
        yield _counted("api_requests", "Requests to the API server.", labels, self._requests)


def _counted(name: str, help_text: str, labels: list[str], counts: Mapping[Any, int]) -> Metric:
    family = CounterMetricFamily(f"pliant_operator_{name}", help_text, labels=labels)
    for key, count in sorted(counts.items()):
        family.add_metric([key] if isinstance(key, str) else list(key), count)
    return family
