"""What a resize does to training, in a picture: ``python -m benchmarks.curves``.

Owns two runs of one recipe, one alone and one whose size changes, and the picture of both.  Ends
with an error if they differ: in a loss, or in a byte of what they export.
"""

from __future__ import annotations

import argparse
import json
import statistics
import sys
import tempfile
from collections.abc import Callable, Sequence
from dataclasses import dataclass, field
from functools import partial
from pathlib import Path
from pydoc_data.topics import topics
from typing import Any

from benchmarks import harness, pliant_job
from benchmarks.resize import Run
from pliant.core.text import counted
from pliant.observe.timeline import timeline_of

PICTURE = harness.ROOT / "docs" / "explanation" / "what-a-resize-does.svg"
BATCH = 12
LIMIT_S = 1800.0
WIDTH, LEFT, RIGHT = 720, 64, 16
INK, LOUD, PALE = "#57606a", "#0969da", "#d0d7de"

Point = tuple[float, float]


def options() -> argparse.Namespace:
    """Read the command line."""
    parser = argparse.ArgumentParser(description=(__doc__ or "").partition(":")[0])
    parser.add_argument("--steps", type=int, default=600)
    parser.add_argument("--out", type=Path, default=PICTURE, help="file for the picture")
    return parser.parse_args()


@dataclass(frozen=True, slots=True, kw_only=True)
class Course:
    """What a run was like, step by step."""

    losses: list[float]
    sizes: list[int]
    speeds: dict[int, list[float]]
    """Samples per second by size, of steps whose step before had the same replicas."""

    events: list[tuple[int, str]] = field(default_factory=list)
    """At which step what was asked for."""


def job_file(folder: Path, steps: int) -> Path:
    """Write data, which every Python has, and a recipe for them."""
    folder.mkdir()
    lines = "".join(json.dumps({"text": topics[name]}) + "\n" for name in sorted(topics))
    (folder / "texts.jsonl").write_text(lines)
    recipe = {
        "data": {"train": "texts.jsonl", "sequenceLength": 64},
        "training": {"steps": steps, "globalBatchSize": BATCH, "learningRate": 3e-3},
        "export": {"path": "model"},
    }
    document = {
        "apiVersion": "pliant.dev/v1alpha1",
        "kind": "ElasticJob",
        "metadata": {"name": "curves"},
        "spec": {"recipe": recipe},
    }
    path = folder / "job.yaml"
    path.write_text(json.dumps(document))  # which is YAML
    return path


def train(folder: Path, steps: int, *, is_elastic: bool) -> Course:
    """Train; an elastic run grows to 3 replicas, loses one, gets it again and shrinks to 1."""
    script, most = [str(job_file(folder, steps))], 3 if is_elastic else 1
    with pliant_job.running(
        folder / "job", script, least=1, start=1, most=most, name="curves"
    ) as job:
        asked = act(Run(job=job, tails=folder), steps) if is_elastic else []
        if code := job.process.wait(timeout=LIMIT_S):
            said = (folder / "job" / "output.txt").read_text()
            raise RuntimeError(f"exit code {code}\n{said[-3000:]}")
        return course(job.records(), asked)


def act(run: Run, steps: int) -> list[tuple[int, str]]:
    """Change the size of a job, each time a while after the last; return when what was asked."""
    asked: list[tuple[int, str]] = []

    def event(kind: str, does: Callable[[], object], size: int) -> None:
        begins = (len(asked) + 1) * steps // 7
        harness.await_true(
            lambda: run.timeline().num_commits >= begins, timeout_s=LIMIT_S, what=f"step {begins}"
        )
        asked.append((run.timeline().num_commits, kind))
        run.event(kind, does, size=size)

    event("grow", partial(run.job.scale, 2), 2)
    event("grow", partial(run.job.scale, 3), 3)
    event("kill", lambda: run.job.sigkill(run.newest()), 3)
    event("shrink", partial(run.job.scale, 2), 2)
    event("shrink", partial(run.job.scale, 1), 1)
    return asked


def course(records: Sequence[dict[str, Any]], asked: list[tuple[int, str]]) -> Course:
    """Read what a run was like from its log."""
    commits = list(timeline_of(records).commits)
    orders = [one["order"] for one in records if one["kind"] in ("switch", "reform")]
    members = {order["generation"]: len(order["members"]) for order in orders}
    sizes = [members[commit.generation] for commit in commits]
    speeds: dict[int, list[float]] = {}
    for before, after, size in zip(commits, commits[1:], sizes[1:], strict=False):
        if before.generation == after.generation:
            speeds.setdefault(size, []).append(BATCH / (after.mono - before.mono))
    losses = [commit.loss if commit.loss is not None else float("nan") for commit in commits]
    return Course(losses=losses, sizes=sizes, speeds=speeds, events=asked)


def exported(folder: Path) -> dict[str, bytes]:
    """Return the files of the model that a run has exported."""
    return {path.name: path.read_bytes() for path in (folder / "model").iterdir()}


# --- the picture


@dataclass(frozen=True, slots=True, kw_only=True)
class Panel:
    """One chart: from its own units to those of the picture."""

    top: float
    height: float
    across: Point
    up: Point

    def at(self, x: float, y: float) -> Point:
        """Return where a value is."""
        (x0, x1), (y0, y1) = self.across, self.up
        right = LEFT + (WIDTH - LEFT - RIGHT) * (x - x0) / (x1 - x0)
        return right, self.top + self.height * (1 - (y - y0) / (y1 - y0))

    def frame(self, title: str, rows: Sequence[float], columns: Sequence[float] = ()) -> str:
        """Draw the axes with these ticks."""
        found = [text(LEFT, self.top - 8, title, weight="600")]
        for value in rows:
            x, y = self.at(self.across[0], value)
            found.append(f'<path d="M{x:.1f} {y:.1f}H{WIDTH - RIGHT}" stroke="{PALE}"/>')
            found.append(text(x - 6, y + 4, f"{value:g}", anchor="end"))
        for value in columns:
            x, y = self.at(value, self.up[0])
            found.append(text(x, y + 16, f"{value:g}", anchor="middle"))
        return "".join(found)

    def line(self, points: Sequence[Point], color: str, width: float) -> str:
        """Draw a line through values."""
        places = " ".join(f"{x:.1f},{y:.1f}" for x, y in (self.at(*one) for one in points))
        return (
            f'<polyline points="{places}" fill="none" stroke="{color}" stroke-width="{width:g}"/>'
        )


def text(x: float, y: float, said: str, *, anchor: str = "start", weight: str = "400") -> str:
    """Draw words."""
    return (
        f'<text x="{x:.1f}" y="{y:.1f}" fill="{INK}" text-anchor="{anchor}" '
        f'font-weight="{weight}">{said}</text>'
    )


def picture(alone: Course, elastic: Course) -> str:
    """Return both runs as SVG: losses, sizes, and speed by size."""
    last, high = len(elastic.losses), max(elastic.losses)
    ticks = range(0, last + 1, max(1, last // 6 // 50 * 50) or 50)
    losses = Panel(top=34, height=190, across=(0, last), up=(0, high))
    sizes = Panel(top=274, height=90, across=(0, last), up=(0, 3.5))
    speed = {size: statistics.median(found) for size, found in sorted(elastic.speeds.items())}
    speeds = Panel(top=434, height=100, across=(0.5, 3.5), up=(0, 1.3 * max(speed.values())))
    parts = [
        losses.frame("Loss: alone (wide), and through resizes (narrow)", [0, 2, 4], ticks),
        losses.line(list(enumerate(alone.losses, 1)), PALE, 6),
        losses.line(list(enumerate(elastic.losses, 1)), LOUD, 1.2),
        sizes.frame("Replicas, over steps", [1, 2, 3], ticks),
        sizes.line(list(enumerate(elastic.sizes, 1)), LOUD, 2),
    ]
    for step, kind in elastic.events:
        x, y = sizes.at(step, 3.5)
        low = sizes.at(step, 0)[1]
        dashes = f'stroke="{INK}" stroke-dasharray="2 3"'
        parts.append(f'<path d="M{x:.1f} {y:.1f}V{low:.1f}" {dashes}/>')
        parts.append(text(x + 3, y + 8, kind))
    parts.append(speeds.frame("Samples per second (median), by number of replicas", [0]))
    for size, value in speed.items():
        x, y = speeds.at(size, value)
        low = speeds.at(size, 0)[1]
        parts.append(f'<path d="M{x:.1f} {low:.1f}V{y:.1f}" stroke="{LOUD}" stroke-width="48"/>')
        parts.append(text(x, y - 5, f"{value:.3g}", anchor="middle"))
        parts.append(text(x, low + 16, str(size), anchor="middle"))
    font = 'font-family="system-ui, sans-serif" font-size="12"'
    return (
        f'<svg xmlns="http://www.w3.org/2000/svg" viewBox="0 0 {WIDTH} 564" {font}>'
        f'<rect width="100%" height="100%" fill="white"/>{"".join(parts)}</svg>\n'
    )


def main() -> int:
    """Train twice, compare, draw."""
    chosen = options()
    with tempfile.TemporaryDirectory(prefix="pliant-curves-") as name:
        folders = [Path(name) / "alone", Path(name) / "elastic"]
        alone, elastic = (
            train(folder, chosen.steps, is_elastic=folder.name == "elastic") for folder in folders
        )
        is_same = exported(folders[0]) == exported(folders[1])
    differ = [
        n for n, (a, b) in enumerate(zip(alone.losses, elastic.losses, strict=True)) if a != b
    ]
    if differ or not is_same:
        print(f"the losses of {len(differ)} steps differ; what was exported is equal: {is_same}")
        return 1
    chosen.out.write_text(picture(alone, elastic))
    for step, kind in elastic.events:
        print(f"after step {step}: {kind}")
    for size, found in sorted(elastic.speeds.items()):
        speed = statistics.median(found)
        print(f"{counted(size, 'replica')}: {speed:.3g} samples/s, median of {len(found)} steps")
    print(f"the {len(alone.losses)} losses and the weights are the same, bit for bit")
    return 0


if __name__ == "__main__":
    sys.exit(main())
