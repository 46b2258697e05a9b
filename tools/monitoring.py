"""The files of ``deploy`` for Prometheus and Grafana, made from the table of metrics.

A panel shows all metrics of its title: a gauge as it is, a counter by its growth in five minutes, a
histogram by its median and its 95th percentile.
"""

from __future__ import annotations

import json
from typing import Any

import yaml

from pliant.observe.metric_table import ALERTS, TABLES, Row

MADE = "# Made by `python -m tools.make_pages` from pliant.observe.metric_table; change that.\n"

SOURCE = {"type": "prometheus", "uid": "${datasource}"}

WIDTH, HEIGHT, ACROSS = 8, 7, 3


def files() -> dict[str, str]:
    """Return every file that is made, by its path."""
    boards = {f"deploy/grafana/{name}.json": dashboard(name) for name in TABLES}
    texts = {path: json.dumps(board, indent=1) + "\n" for path, board in boards.items()}
    return {"deploy/prometheus/alerts.yaml": MADE + yaml.safe_dump(rules(), width=100), **texts}


def rules() -> dict[str, Any]:
    """Return the alert rules as Prometheus reads them."""
    found = [
        {
            "alert": one.name,
            "expr": one.expr,
            "for": one.after,
            "labels": {"severity": one.severity},
            "annotations": {"summary": one.summary},
        }
        for one in ALERTS
    ]
    return {"groups": [{"name": "pliant", "rules": found}]}


def queries_of(row: Row, chosen: str) -> list[tuple[str, str]]:
    """Return what shows a metric, each with its legend; ``chosen``: the matchers of labels."""
    by = ", ".join(["run", *row.labels] if chosen else [*row.labels])
    legend = " ".join([row.name.removeprefix("pliant_"), *(f"{{{{{one}}}}}" for one in row.labels)])
    if row.kind == "gauge":
        return [(f"{row.name}{chosen}", legend)]
    if row.kind == "counter":
        is_rate = "per second" in row.panel
        grown = f"{'rate' if is_rate else 'increase'}({row.name}{chosen}[5m])"
        return [(f"sum by ({by}) ({grown})", legend)]
    rate = f"sum by ({', '.join(filter(None, [by, 'le']))}) (rate({row.name}_bucket{chosen}[5m]))"
    shares = ((0.5, "median"), (0.95, "95 %"))
    return [(f"histogram_quantile({q}, {rate})", f"{legend} {said}") for q, said in shares]


def dashboard(name: str) -> dict[str, Any]:
    """Return a dashboard of Grafana."""
    chosen = '{run=~"$run"}' if name == "job" else ""
    titles = list(dict.fromkeys(row.panel for row in TABLES[name] if row.panel))
    panels = [
        _panel(number, title, [row for row in TABLES[name] if row.panel == title], chosen)
        for number, title in enumerate(titles)
    ]
    variables: list[dict[str, Any]] = [
        {"name": "datasource", "label": "Data source", "type": "datasource", "query": "prometheus"}
    ]
    if chosen:
        runs = "label_values(pliant_generation, run)"
        variables.append(
            {
                "name": "run",
                "label": "Run",
                "type": "query",
                "datasource": SOURCE,
                "query": {"query": runs, "refId": "runs"},
                "definition": runs,
                "refresh": 2,
                "multi": True,
                "includeAll": True,
                "current": {"text": "All", "value": "$__all"},
            }
        )
    return {
        "uid": f"pliant-{name}",
        "title": f"pliant: {name}",
        "tags": ["pliant"],
        "schemaVersion": 39,
        "refresh": "10s",
        "time": {"from": "now-1h", "to": "now"},
        "templating": {"list": variables},
        "panels": panels,
    }


def _panel(number: int, title: str, rows: list[Row], chosen: str) -> dict[str, Any]:
    queries = [query for row in rows for query in queries_of(row, chosen)]
    return {
        "id": number + 1,
        "title": title,
        "description": " ".join(f"{row.name}: {row.help}" for row in rows),
        "type": "timeseries",
        "datasource": SOURCE,
        "gridPos": {
            "x": number % ACROSS * WIDTH,
            "y": number // ACROSS * HEIGHT,
            "w": WIDTH,
            "h": HEIGHT,
        },
        "fieldConfig": {"defaults": {"unit": rows[0].unit, "min": 0}, "overrides": []},
        "options": {"legend": {"displayMode": "list", "placement": "bottom"}},
        "targets": [
            {
                "refId": chr(ord("A") + at),
                "datasource": SOURCE,
                "expr": query,
                "legendFormat": ("{{run}} " if chosen else "") + legend,
            }
            for at, (query, legend) in enumerate(queries)
        ],
    }
