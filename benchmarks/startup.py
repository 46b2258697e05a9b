"""From the command to the first committed step, pliant beside torchrun: ``benchmarks.startup``.

Also what the coordinator's process weighs and whether torch is in it.  Owns the moments that are
compared and the page.
"""

from __future__ import annotations

import argparse
import sys
import tempfile
import time
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path

import psutil

from benchmarks import harness, pliant_job, torchrun
from benchmarks.harness import Figure, Page, Tail

LIMIT_S = 180.0
FIRST_STEPS = 5
WORKER = harness.ROOT / "benchmarks" / "train_pliant.py"

METHOD = """\
`pliant run --start {size}` and `torchrun --standalone --nproc-per-node={size}` take turns, {times}
times each, with the script of `benchmarks.resize` (model of 9.64M parameters, K={slots}). The clock
starts before the process is created and stops when the user's code after the first step runs, on
the rank that gets there first; files are in the page cache (one start of each before counting).
Memory of the coordinator is the RSS of the process of `pliant run` (coordinator and agent) after
{steps} steps; torch is looked for in its memory map. torchrun's is its agent's."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Start:
    """One start."""

    first_step_s: float
    five_steps_s: float
    rss_mb: float
    has_torch: bool


def moment(tails: Sequence[Tail], step: int) -> float:
    """Return when ``step`` was first finished."""
    return min(tail.at for tail in tails if tail.step == step)


def watch(pid: int, folder: Path, *, began: float) -> Start:
    """Wait for the first steps; then weigh the launcher."""

    def stepped() -> list[Tail] | None:
        tails = harness.read_tails(folder)
        return tails if any(tail.step >= FIRST_STEPS - 1 for tail in tails) else None

    tails = harness.await_true(stepped, timeout_s=LIMIT_S, what=f"step {FIRST_STEPS}")
    launcher = psutil.Process(pid)
    return Start(
        first_step_s=moment(tails, 0) - began,
        five_steps_s=moment(tails, FIRST_STEPS - 1) - began,
        rss_mb=launcher.memory_info().rss / 1e6,
        has_torch=any("libtorch" in part.path for part in launcher.memory_maps()),
    )


def start_pliant(folder: Path, chosen: argparse.Namespace) -> Start:
    """Start and end one job of pliant."""
    script = [
        *(str(WORKER), "--steps", "1000000", "--slots", str(chosen.slots)),
        *("--tails", str(folder / "tails")),
    ]
    size = chosen.size
    began = time.monotonic()
    with pliant_job.running(
        folder, script, least=size, start=size, most=size, name="startup"
    ) as job:
        return watch(job.process.pid, folder / "tails", began=began)


def start_torchrun(folder: Path, chosen: argparse.Namespace) -> Start:
    """Start and end one job of torchrun."""
    command = [
        *(*torchrun.LAUNCHER, "--standalone", f"--nproc-per-node={chosen.size}"),
        *("-m", "benchmarks.train_torchrun", "--steps", "1000000", "--slots", str(chosen.slots)),
        *("--tails", str(folder / "tails")),
    ]
    began = time.monotonic()
    with harness.process(
        command, env=harness.environment(), output=folder / "output.txt"
    ) as started:
        return watch(started.pid, folder / "tails", began=began)


def alone_s(folder: Path, chosen: argparse.Namespace) -> float:
    """Return the time of ``python train.py`` to its first step: what no launcher can beat."""
    command = [
        *(sys.executable, str(WORKER), "--steps", str(FIRST_STEPS), "--slots", str(chosen.slots)),
        *("--tails", str(folder / "tails")),
    ]
    began = time.monotonic()
    with harness.process(
        command, env=harness.environment(), output=folder / "output.txt"
    ) as started:
        if code := started.wait(timeout=LIMIT_S):
            raise RuntimeError(f"exit code {code}\n{(folder / 'output.txt').read_text()[-3000:]}")
    return moment(harness.read_tails(folder / "tails"), 0) - began


def options() -> argparse.Namespace:
    """Read the command line."""
    parser = argparse.ArgumentParser(description=(__doc__ or "").partition(":")[0])
    parser.add_argument("--times", type=int, default=7, help="starts of each side")
    parser.add_argument("--size", type=int, default=2)
    parser.add_argument("--slots", type=int, default=12)
    parser.add_argument("--no-page", action="store_true", help="print the table only")
    parser.add_argument("--smoke", action="store_true", help="one start each, no page")
    chosen = parser.parse_args()
    if chosen.smoke:
        chosen.no_page = True
        chosen.times = 1
    return chosen


def figures_of(ours: list[Start], theirs: list[Start], alone: list[float]) -> list[Figure]:
    """Return all rows."""
    ratios = [a.first_step_s / b.first_step_s for a, b in zip(ours, theirs, strict=True)]
    rows: list[tuple[str, str, Sequence[float], str, str]] = [
        ("start to first step over torchrun", "", ratios, "<= 1.2", "<= 1.1"),
        ("pliant: start to first step", "s", [s.first_step_s for s in ours], "", ""),
        ("torchrun: start to first step", "s", [s.first_step_s for s in theirs], "", ""),
        ("python train.py: start to first step", "s", alone, "", ""),
        ("pliant: start to fifth step", "s", [s.five_steps_s for s in ours], "", ""),
        ("torchrun: start to fifth step", "s", [s.five_steps_s for s in theirs], "", ""),
        ("pliant: RSS of coordinator and agent", "MB", [s.rss_mb for s in ours], "< 100", "< 100"),
        ("torchrun: RSS of its agent", "MB", [s.rss_mb for s in theirs], "", ""),
        ("pliant: torch in the coordinator", "", [s.has_torch for s in ours], "0 (none)", "0"),
    ]
    return [
        Figure(
            name=name, unit=unit, raw=tuple(float(value) for value in raw), target=target, goal=goal
        )
        for name, unit, raw, target, goal in rows
    ]


def main() -> None:
    """Take turns and write the page."""
    chosen = options()
    before = harness.load()
    ours: list[Start] = []
    theirs: list[Start] = []
    alone: list[float] = []
    with tempfile.TemporaryDirectory(prefix="pliant-startup-") as name:
        for turn in range(chosen.times + 1):
            folder = Path(name) / str(turn)
            ours.append(start_pliant(folder / "pliant", chosen))
            theirs.append(start_torchrun(folder / "torchrun", chosen))
            alone.append(alone_s(folder / "alone", chosen))
            print(f"{ours[-1].first_step_s:.2f} {theirs[-1].first_step_s:.2f} s", flush=True)
    page = Page(
        theme="startup",
        summary="From the command to the first committed step, and what the launcher weighs.",
        method=METHOD.format(
            size=chosen.size, times=chosen.times, slots=chosen.slots, steps=FIRST_STEPS
        ),
        figures=tuple(figures_of(ours[1:], theirs[1:], alone[1:])),
        command=harness.command_line("startup"),
        load=(before, harness.load()),
    )
    harness.publish(page, write=not chosen.no_page)


if __name__ == "__main__":
    main()
