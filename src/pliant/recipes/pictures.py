"""The demo's two pictures: the loss of both runs, and who trained when.

Owns their layout.  Knows nothing of how the runs were made: everything comes from the timelines
of their event logs.  matplotlib is imported here and nowhere else.
"""

from __future__ import annotations

from collections.abc import Sequence
from itertools import pairwise
from pathlib import Path
from typing import Any

import matplotlib as mpl
from matplotlib.axes import Axes
from matplotlib.figure import Figure
from matplotlib.lines import Line2D
from matplotlib.patches import Patch

from pliant.observe.prose import pause
from pliant.observe.timeline import Commit, ReplicaLife, Resize, ResizeKind, Timeline

INK, FAINT, GRID = "#22313f", "#8795a1", "#e4e8eb"
TRAINING, STARTING, PALE = "#2a9d8f", "#e9c46a", "#b8ddd8"
KINDS = {
    ResizeKind.JOIN: ("joined", "#2a6f97"),
    ResizeKind.DRAIN: ("drained", "#8e5ea2"),
    ResizeKind.LOSS: ("killed", "#d1495b"),
    ResizeKind.RESTORE: ("restored", "#3a7d44"),
}
"""Word and colour of each."""

MARKS = {"signal": (ResizeKind.LOSS, "X"), "left": (ResizeKind.DRAIN, "D")}
"""How a life ended, and what marks it."""

LABEL_SHARE = 0.105
"""Width of a label as a share of the axis, at the size the pictures have."""

STYLE: dict[Any, Any] = {
    "font.size": 10,
    "axes.edgecolor": FAINT,
    "axes.labelcolor": INK,
    "axes.spines.top": False,
    "axes.spines.right": False,
    "text.color": INK,
    "xtick.color": FAINT,
    "ytick.color": FAINT,
    "figure.facecolor": "white",
    "savefig.dpi": 150,
}


def draw_loss(path: Path, elastic: Timeline, static: Timeline, *, identical: bool) -> None:
    """Draw the loss of both runs over steps; below it their difference, step by step."""
    with mpl.rc_context(STYLE):
        figure = Figure(figsize=(9, 5.2), layout="constrained")
        top, bottom = figure.subplots(2, 1, sharex=True, height_ratios=(5, 1))
        ours, theirs = _losses(elastic), _losses(static)
        top.plot(*_columns(theirs), color=PALE, linewidth=6, label="undisturbed, one replica")
        top.plot(*_columns(ours), color=INK, linewidth=1.2, label="elastic, 2 to 4 replicas")
        _mark_resizes(top, elastic.resizes(), len(ours))
        top.set_ylabel("loss (nats per byte)")
        top.grid(axis="y", color=GRID)
        top.legend(frameon=False, loc="upper right")
        _title(
            top,
            "Four replicas, one drained, one killed: the same loss, bit for bit"
            if identical
            else "The two runs differ",
        )
        both = sorted(ours.keys() & theirs.keys())
        differences = [ours[step] - theirs[step] for step in both]
        bottom.plot(both, differences, color=INK, linewidth=1.2)
        equal = sum(difference == 0.0 for difference in differences)
        bottom.set_ylabel("difference")
        bottom.set_xlabel(f"step    ({equal} of {len(both)} losses equal to the last bit)")
        if equal == len(both):
            bottom.set_ylim(-1, 1)
            bottom.set_yticks([0], ["0"])
        bottom.grid(axis="y", color=GRID)
        figure.savefig(path)


def draw_timeline(path: Path, elastic: Timeline) -> None:
    """Draw who trained when; below it how long each step took, pauses included."""
    commits = list(elastic.commits)
    lives = list(elastic.lives.values())
    if not commits or not lives:
        return
    begin = min(life.requested for life in lives)
    end = commits[-1].mono
    with mpl.rc_context(STYLE):
        figure = Figure(figsize=(9, 5.8), layout="constrained")
        top, bottom = figure.subplots(2, 1, sharex=True, height_ratios=(3, 2.4))
        _draw_lives(top, lives, elastic.resizes(), begin, end)
        _draw_steps(bottom, commits, elastic.resizes(), begin)
        _title(top, "Who trained when, and what each change cost")
        figure.savefig(path)


def _draw_lives(
    axes: Axes, lives: Sequence[ReplicaLife], resizes: Sequence[Resize], begin: float, end: float
) -> None:
    for row, life in enumerate(lives):
        last = min(life.ended if life.ended is not None else end, end)
        joined = life.joined if life.joined is not None else last
        axes.barh(
            row, joined - life.requested, left=life.requested - begin, height=0.5, color=STARTING
        )
        axes.barh(row, last - joined, left=joined - begin, height=0.5, color=TRAINING)
        if life.how in MARKS and last < end:
            kind, mark = MARKS[life.how]
            (word, color), at = KINDS[kind], (last - begin, row)
            axes.plot(*at, marker=mark, color=color, markersize=9, markeredgecolor="white")
            beside: dict[str, Any] = {"xytext": (6, 0), "textcoords": "offset points"}
            axes.annotate(f"  {word}", at, va="center", color=color, fontsize=9, **beside)
    for resize in resizes:
        axes.axvline(resize.mono - begin, color=KINDS[resize.kind][1], linewidth=0.8, alpha=0.5)
    axes.set_yticks(range(len(lives)), [life.replica for life in lives], color=INK)
    axes.invert_yaxis()
    axes.tick_params(axis="y", length=0)
    axes.legend(
        handles=[
            Patch(color=STARTING, label="starting, others train on"),
            Patch(color=TRAINING, label="training"),
            _marker("X", ResizeKind.LOSS, "SIGKILL"),
            _marker("D", ResizeKind.DRAIN, "drained"),
        ],
        frameon=False,
        ncols=4,
        loc="lower left",
        bbox_to_anchor=(0, -0.16),
        fontsize=9,
        handlelength=1.2,
    )


def _draw_steps(
    axes: Axes, commits: Sequence[Commit], resizes: Sequence[Resize], begin: float
) -> None:
    times = [commit.mono - begin for commit in commits[1:]]
    gaps = [later.mono - earlier.mono for earlier, later in pairwise(commits)]
    axes.vlines(times, 0, gaps, color=PALE, linewidth=2)
    axes.scatter(times, gaps, s=9, color=TRAINING, zorder=3, label="time from commit to commit")
    lanes = lanes_of([resize.mono - begin for resize in resizes], LABEL_SHARE * max(times))
    ceiling = max(gaps) * (1.2 + 0.28 * max(lanes, default=0))
    for resize, lane in zip(resizes, lanes, strict=True):
        at = resize.mono - begin
        axes.axvline(at, color=KINDS[resize.kind][1], linewidth=0.8, alpha=0.5)
        _label(axes, resize, at, ceiling * (0.99 - 0.18 * lane), with_pause=True)
    axes.set_ylim(0, ceiling)
    axes.set_xlabel("seconds")
    axes.set_ylabel("seconds per step")
    axes.grid(axis="y", color=GRID)


def _marker(shape: str, kind: ResizeKind, label: str) -> Line2D:
    return Line2D([], [], marker=shape, linestyle="", color=KINDS[kind][1], label=label)


def _mark_resizes(axes: Axes, resizes: Sequence[Resize], num_steps: int) -> None:
    low, high = axes.get_ylim()
    axes.set_ylim(low, high)
    lanes = lanes_of([resize.step for resize in resizes], LABEL_SHARE * num_steps)
    for resize, lane in zip(resizes, lanes, strict=True):
        axes.axvline(resize.step, color=KINDS[resize.kind][1], linewidth=0.8, alpha=0.6)
        _label(axes, resize, resize.step, high - (high - low) * (0.02 + 0.11 * lane))


def _label(axes: Axes, resize: Resize, x: float, y: float, *, with_pause: bool = False) -> None:
    text = f"{', '.join(resize.replicas)} {KINDS[resize.kind][0]}"
    if with_pause and resize.pause_s is not None:
        text += f"\npause {pause(resize.pause_s)}"
    axes.annotate(
        text,
        (x, y),
        xytext=(3, 0),
        textcoords="offset points",
        va="top",
        fontsize=8,
        color=KINDS[resize.kind][1],
        bbox={"facecolor": "white", "edgecolor": "none", "alpha": 0.75, "pad": 0.5},
    )


def lanes_of(xs: Sequence[float], width: float) -> list[int]:
    """Give each label, from left to right, the highest lane in which it hits no earlier one."""
    ends: list[float] = []
    lanes = []
    for x in xs:
        lane = next((n for n, end in enumerate(ends) if end <= x), len(ends))
        ends[lane : lane + 1] = [x + width]
        lanes.append(lane)
    return lanes


def _title(axes: Axes, text: str) -> None:
    axes.set_title(text, loc="left", fontsize=12, fontweight="bold", color=INK, pad=10)


def _losses(timeline: Timeline) -> dict[int, float]:
    return {commit.step: commit.loss for commit in timeline.commits if commit.loss is not None}


def _columns(points: dict[int, float]) -> tuple[list[Any], list[Any]]:
    steps = sorted(points)
    return steps, [points[step] for step in steps]
