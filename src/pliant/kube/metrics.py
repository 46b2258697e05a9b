"""Numbers of the operator for Prometheus: what users of controllers look for.

Owns the sums that they are read from; their names are in ``observe.metric_table``.  Jobs are not
among the labels: there is no bound to them.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable, Iterator, Mapping

from prometheus_client.core import Metric

from pliant.http.exposition import Value, families
from pliant.kube.client import Call
from pliant.observe.durations import Durations
from pliant.observe.metric_table import OPERATOR

BOUNDS_S = (0.001, 0.005, 0.01, 0.025, 0.05, 0.1, 0.25, 0.5, 1.0, 2.5, 5.0, 10.0)
"""Of what is measured in seconds; 50 ms of its own is what a reconciliation may take."""

PHASES = (
    *("Pending", "Starting", "Running", "Suspending"),
    *("Suspended", "Succeeded", "Failed", "Stopped"),
)


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
        self.reconciled = Durations(BOUNDS_S)
        self.own = Durations(BOUNDS_S)
        self.requests = Durations(BOUNDS_S)
        self.results: Counter[str] = Counter()
        """Of reconciliations: ``ok``, ``conflict``, ``error``."""
        self.actions: Counter[str] = Counter()
        self.watch_failures: Counter[tuple[str, ...]] = Counter()
        """By kind and reason."""
        self._requests: Counter[tuple[str, ...]] = Counter()

    def heard(self, call: Call, code: int, took_s: float) -> None:
        """Note an answer of the API server."""
        method = "WATCH" if "watch" in call.params else call.method
        self._requests[method, call.plural, str(code) if code else "none"] += 1
        if method != "WATCH":
            self.requests.note(took_s)

    def collect(self) -> Iterator[Metric]:
        """Yield every metric with its value now."""
        phases, kind = self._phases(), "pliant_operator"
        values: dict[str, Value] = {
            f"{kind}_jobs": {(phase,): phases.get(phase, 0) for phase in PHASES},
            f"{kind}_leader": self._leads(),
            f"{kind}_queue_depth": self._depth(),
            f"{kind}_reconcile_seconds": self.reconciled,
            f"{kind}_plan_seconds": self.own,
            f"{kind}_api_request_seconds": self.requests,
            f"{kind}_reconciles_total": {(one,): n for one, n in self.results.items()},
            f"{kind}_actions_total": {(one,): n for one, n in self.actions.items()},
            f"{kind}_watch_failures_total": {**self.watch_failures},
            f"{kind}_api_requests_total": {**self._requests},
        }
        yield from families(OPERATOR, values, {})
