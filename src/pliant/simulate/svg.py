"""Pictures as SVG text: stacked areas over time.

Owns scales, axes and colours.  Knows nothing of what is shown.  Nothing is loaded from anywhere, so
that a page with these pictures opens without a network.
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from html import escape
from typing import NamedTuple

COLOURS = (
    "#e07b39", "#59a14f", "#e15759", "#76b7b2", "#edc948", "#b07aa1", "#9c755f", "#ff9da7",
    "#1b9e8f", "#6b4c9a",
)  # fmt: skip
"""Of jobs; none of them is that of a kind of use below, and each is readable on light and dark."""

TRAINING, SERVING, IDLE, REST = "#2a9d8f", "#3d7eaa", "var(--idle)", "var(--faint)"

STYLE = """\
:root{color-scheme:light dark;--paper:#fff}
:root{--ink:#22313f;--faint:#677784;--grid:#e4e8eb;--idle:#dde3e7}
@media(prefers-color-scheme:dark){
:root{--ink:#e3e8ec;--faint:#9aa8b3;--grid:#2f3a44;--idle:#3a4752;--paper:#161b20}}
figure{margin:28px 0;overflow-x:auto}figcaption{font-weight:600;margin-bottom:6px}
svg{width:100%;min-width:640px;display:block}svg text{font-size:11px;fill:var(--faint)}
svg line{stroke:var(--grid)}svg polygon,svg rect{stroke:var(--paper);stroke-width:.5}
.legend span{margin-right:16px;font-size:12px;white-space:nowrap;display:inline-block}
.legend i{display:inline-block;width:11px;height:11px;margin-right:5px;border-radius:2px}
"""
"""What a page with pictures needs; a narrow one scrolls them instead of shrinking their text."""

WIDTH, HEIGHT = 860, 280
LEFT, RIGHT, TOP, BOTTOM = 58, 12, 30, 34
"""Room for labels around the plot, in pixels."""


class Band(NamedTuple):
    """One layer of a stack: its name, its colour, and a value for each place."""

    name: str
    colour: str
    values: Sequence[float]


def areas(title: str, bands: Sequence[Band], width_s: float, unit: str) -> str:
    """Draw layers over time, one value for each ``width_s`` seconds."""
    totals = [sum(values) for values in zip(*(band.values for band in bands), strict=True)]
    most = _nice(max(totals, default=0.0))
    span_s = max(len(totals) * width_s, 1.0)
    floor = [0.0] * len(totals)
    shapes = []
    for band in bands:
        roof = [low + value for low, value in zip(floor, band.values, strict=True)]
        shapes.append(_area(floor, roof, most, band))
        floor = roof
    unit_s, word = next(
        (one for one in ((86_400.0, "days"), (3600.0, "hours"), (60.0, "minutes"))
         if span_s >= 3 * one[0]),
        (1.0, "seconds"),
    )  # fmt: skip
    marks = [(at * unit_s / span_s, f"{at:g}") for at in _ticks(span_s / unit_s)]
    frame = [_y_axis(most, unit), _x_axis(marks, word)]
    shown = [(band.name, band.colour) for band in bands if any(band.values)]
    return _picture(title, [*frame, *shapes], shown)


# --- parts


def _y(value: float, most: float) -> float:
    return HEIGHT - BOTTOM - value / most * (HEIGHT - TOP - BOTTOM)


def _area(floor: Sequence[float], roof: Sequence[float], most: float, band: Band) -> str:
    if not any(band.values):
        return ""
    step = (WIDTH - LEFT - RIGHT) / max(len(roof), 1)

    def edge(values: Sequence[float]) -> list[str]:
        return [
            f"{LEFT + step * (i + side):.1f},{_y(value, most):.1f}"
            for i, value in enumerate(values)
            for side in (0, 1)
        ]

    points = " ".join([*edge(roof), *reversed(edge(floor))])
    tip = escape(band.name)
    return f'<polygon points="{points}" fill="{band.colour}"><title>{tip}</title></polygon>'


def _y_axis(most: float, unit: str) -> str:
    shapes = []
    for value in _ticks(most):
        y = _y(value, most)
        shapes.append(f'<line x1="{LEFT}" x2="{WIDTH - RIGHT}" y1="{y:.1f}" y2="{y:.1f}"/>')
        shapes.append(_text(LEFT - 6, y + 4, _figure(value), anchor="end"))
    shapes.append(_text(4, TOP - 14, unit, anchor="start"))
    return "".join(shapes)


def _x_axis(marks: Sequence[tuple[float, str]], word: str) -> str:
    wide, y = WIDTH - LEFT - RIGHT, HEIGHT - BOTTOM + 16
    shapes = [_text(LEFT + share * wide, y, text, anchor="middle") for share, text in marks]
    return "".join([*shapes, _text(WIDTH - RIGHT, y + 15, word, anchor="end")])


def _text(x: float, y: float, text: str, *, anchor: str) -> str:
    return f'<text x="{x:.1f}" y="{y:.1f}" text-anchor="{anchor}">{escape(text)}</text>'


def _picture(title: str, shapes: Sequence[str], legend: Sequence[tuple[str, str]]) -> str:
    keys = "".join(
        f'<span><i style="background:{colour}"></i>{escape(name)}</span>' for name, colour in legend
    )
    return (
        f'<figure><figcaption>{escape(title)}</figcaption><svg viewBox="0 0 {WIDTH} {HEIGHT}" '
        f'role="img" aria-label="{escape(title)}">{"".join(shapes)}</svg>'
        f'<div class="legend">{keys}</div></figure>\n'
    )


def _nice(value: float) -> float:
    """Return a round number that is not below this one."""
    if value <= 0 or not math.isfinite(value):
        return 1.0
    unit = 10.0 ** math.floor(math.log10(value))
    return next(unit * part for part in (1, 1.5, 2, 3, 4, 5, 6, 8, 10) if unit * part >= value)


def _ticks(most: float) -> list[float]:
    """Return about five round numbers from 0 on."""
    if most <= 0:
        return [0.0]
    unit = 10.0 ** math.floor(math.log10(most))
    step = next(unit * part for part in (0.1, 0.2, 0.25, 0.5, 1, 2) if most / (unit * part) <= 6)
    return [step * number for number in range(math.floor(most / step + 1e-9) + 1)]


def _figure(value: float) -> str:
    return f"{value:,.0f}" if value >= 100 else f"{value:.3g}"
