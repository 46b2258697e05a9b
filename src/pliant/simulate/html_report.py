"""One page for people: what was simulated, the table, and pictures; it opens without a network.

Owns the order of the page and what is shown of a simulation.  Draws nothing itself (``svg``).
"""

from __future__ import annotations

from collections.abc import Sequence
from html import escape

from pliant.simulate import report, svg
from pliant.simulate.measures import Measures
from pliant.simulate.simulation import Simulation
from pliant.simulate.svg import Band

COLUMNS = 320
"""Stretches of time in a picture."""

MOST_JOBS = 10
"""Jobs with a colour of their own; the rest is one."""

STYLE = """\
body{font:15px/1.5 system-ui,sans-serif;color:var(--ink);background:var(--paper)}
body{max-width:900px;margin:32px auto;padding:0 16px}h1{font-size:26px}
.table{overflow-x:auto}table{border-collapse:collapse;font-size:13px}
td,th{padding:3px 14px 3px 0;text-align:right}td{white-space:pre}
td:first-child,th:first-child{text-align:left}
tr:nth-child(odd) td,code{background:color-mix(in srgb,var(--idle) 30%,var(--paper))}
code{padding:2px 5px;overflow-wrap:anywhere}
"""


def page(
    simulations: Sequence[Simulation],
    columns: Sequence[Measures],
    *,
    command: str,
    advice: str,
    answers: Sequence[str] = (),
) -> str:
    """Return the whole page.

    ``advice`` is what follows from a sweep, or nothing; ``answers`` come before all figures.
    """
    title = "What the cluster would do"
    parts = [f"<h1>{title}</h1>", f"<p><code>{escape(command)}</code></p>"]
    parts += [f"<p>{escape(answer)}</p>" for answer in answers]
    parts += [f"<p>{escape(advice)}</p>"] if advice else []
    parts.append(_table(columns))
    for column, simulation in zip(columns, simulations, strict=True):
        parts.append(svg.areas(f"{column.way}: who had how many", *_allocation(simulation)))
        parts.append(svg.areas(f"{column.way}: use of the cluster", *_use(simulation)))
    body = "\n".join(parts)
    head = '<meta charset="utf-8"><meta name="viewport" content="width=device-width">'
    head += f"<title>{title}</title><style>{svg.STYLE}{STYLE}</style>"
    return f'<!doctype html>\n<html lang="en"><head>{head}</head>\n<body>\n{body}\n</body></html>\n'


def _table(columns: Sequence[Measures]) -> str:
    first, *rows = report.table(columns)
    head = "".join(f"<th>{escape(cell).replace('=', '=<wbr>')}</th>" for cell in first)
    lines = ("".join(f"<td>{escape(cell)}</td>" for cell in row) for row in rows)
    body = "".join(f"<tr>{line}</tr>" for line in lines)
    return f'<div class="table"><table><tr>{head}</tr>{body}</table></div>\n'


def _use(simulation: Simulation) -> tuple[list[Band], float, str]:
    accounts = simulation.pool.accounts
    width_s = accounts.width_s
    there, held, serving = zip(*accounts.bins, strict=True) if accounts.bins else ((), (), ())
    return (
        [
            Band("inference", svg.SERVING, [value / width_s for value in serving]),
            Band(
                "training",
                svg.TRAINING,
                [(a - b) / width_s for a, b in zip(held, serving, strict=True)],
            ),
            Band("idle", svg.IDLE, [(a - b) / width_s for a, b in zip(there, held, strict=True)]),
        ],
        width_s,
        "accelerators",
    )


def _allocation(simulation: Simulation) -> tuple[list[Band], float, str]:
    """Return how many each of the largest jobs had, and all others together."""
    end_s = max(simulation.pool.now_s, 1.0)
    width_s = end_s / COLUMNS
    found = sorted(simulation.records, key=lambda one: -one.held_device_s)
    largest = sorted(found[:MOST_JOBS], key=lambda one: one.arrival_s)
    bands = [
        Band(f"inference {one.entry.name}", svg.SERVING, _means(one.sizes, width_s, end_s))
        for one in simulation.services
    ]
    bands += [
        Band(one.name, svg.COLOURS[at % len(svg.COLOURS)], _means(one.sizes, width_s, end_s))
        for at, one in enumerate(largest)
    ]
    if rest := found[MOST_JOBS:]:
        total = [0.0] * COLUMNS
        for one in rest:
            _add_means(total, one.sizes, width_s, end_s)
        bands.append(Band(f"{len(rest)} other jobs", svg.REST, total))
    return bands, width_s, "accelerators"


def _means(sizes: Sequence[tuple[float, int]], width_s: float, end_s: float) -> list[float]:
    total = [0.0] * COLUMNS
    _add_means(total, sizes, width_s, end_s)
    return total


def _add_means(
    total: list[float], sizes: Sequence[tuple[float, int]], width_s: float, end_s: float
) -> None:
    """Add the mean size in each stretch of time."""
    ends = [at_s for at_s, _ in sizes[1:]] + [end_s]
    for (at_s, size), until_s in zip(sizes, ends, strict=True):
        while size and at_s < until_s:
            column = int(at_s / width_s)
            if (column + 1) * width_s <= at_s:  # rounded down to the column before
                column += 1
            column = min(column, COLUMNS - 1)
            edge_s = until_s if column == COLUMNS - 1 else min(until_s, (column + 1) * width_s)
            total[column] += size * (edge_s - at_s) / width_s
            at_s = edge_s
