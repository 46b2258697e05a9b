"""Numbers as Prometheus reads them: made of the table of metrics and of values by name.

Owns the way from a row and its value to what is served.  Knows nothing of what is counted.
"""

from __future__ import annotations

import math
from collections.abc import Iterator, Mapping, Sequence

from prometheus_client.core import (
    CounterMetricFamily,
    GaugeMetricFamily,
    HistogramMetricFamily,
    Metric,
)

from pliant.observe.durations import Durations
from pliant.observe.metric_table import Row

Value = float | Durations | Mapping[tuple[str, ...], float] | None
"""A number; of a metric with labels one for each set of these; None: not known yet."""


def families(
    rows: Sequence[Row], values: Mapping[str, Value], labels: Mapping[str, str]
) -> Iterator[Metric]:
    """Yield every metric of a table with its value, and those that have an older name.

    ``labels``: of all of them, but not of older names, which never had them.
    """
    for row in rows:
        value = values[row.name]
        if value is None:
            continue
        yield _family(row, row.name, value, labels)
        if row.old:
            yield _family(row, row.old, value.sum_s if isinstance(value, Durations) else value, {})


def _family(row: Row, name: str, value: Value, fixed: Mapping[str, str]) -> Metric:
    names, own = [*fixed, *row.labels], list(fixed.values())
    said = row.help if name == row.name else f"Until the next release: use {row.name}."
    if isinstance(value, Durations):
        found = HistogramMetricFamily(name, said, labels=names)
        found.add_metric(own, value.buckets(), value.sum_s)
        return found
    kind = GaugeMetricFamily if row.kind == "gauge" else CounterMetricFamily
    family = kind(name, said, labels=names)
    samples = value if isinstance(value, Mapping) else {(): value}
    for labels, number in sorted(samples.items()):
        family.add_metric([*own, *labels], _number(number))
    return family


def _number(value: float | None) -> float:
    """Return a number as Prometheus takes it; one beyond all floats is infinite."""
    try:
        return float(value or 0.0)
    except OverflowError:
        return math.inf
