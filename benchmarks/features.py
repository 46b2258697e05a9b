"""What exactness costs with each feature, over plain PyTorch: ``python -m benchmarks.features``.

Owns the configurations and the page.  The trainings are in ``workloads``, the measured turns in
``features_worker``.
"""

from __future__ import annotations

import argparse
import tempfile
from pathlib import Path

from benchmarks import harness
from benchmarks.harness import Figure, Page
from benchmarks.steady import Case, block_ratios, read_turns, run_job
from benchmarks.workloads import workloads

WARM_TURNS = 3
SLOTS = 8

METHOD = """\
K={slots} micro-batches a step, fp32 unless said, one thread per worker. Every worker of
`pliant run` also trains a model of its own in plain PyTorch, one step in the tail of each step of
pliant, so that both sides see the same noise; a barrier goes before each turn. Plain PyTorch at W=1
is a loop that accumulates the same number of micro-batches of a shuffled DataLoader; at W=2 and 4
it is the same under DDP (`no_sync` but for the last micro-batch; `find_unused_parameters` for the
mixture of experts). Plain PyTorch combines neither losses nor BatchNorm statistics, and seeds
nothing per sample. Wall time of a turn: its slowest rank. After {warm} turns to warm up, {blocks}
blocks of {turns} turns; the ratio of a block is that of the two medians. Where replicas are more
than cores they share them, on both sides."""


def options() -> argparse.Namespace:
    """Read the command line."""
    parser = argparse.ArgumentParser(description=__doc__.partition("\n")[0] if __doc__ else None)
    parser.add_argument("--sizes", type=int, nargs="+", default=[1, 2, 4])
    parser.add_argument("--only", nargs="+", help="names of features, or parts of them")
    parser.add_argument("--reduction", default="exact")
    parser.add_argument("--blocks", type=int, default=5)
    parser.add_argument("--turns", type=int, default=8, help="turns in a block")
    parser.add_argument("--limit", type=float, default=300.0, help="seconds per configuration")
    parser.add_argument("--no-page", action="store_true", help="print the table only")
    chosen = parser.parse_args()
    if not named(chosen):
        parser.error(f"--only names no feature; there are: {'; '.join(workloads())}")
    return chosen


def named(chosen: argparse.Namespace) -> list[str]:
    """List the features that were asked for."""
    return [
        name for name in workloads() if not chosen.only or any(part in name for part in chosen.only)
    ]


def measure(feature: str, size: int, chosen: argparse.Namespace) -> Figure:
    """Run one job; return the ratio of its turns."""
    case = Case(slots=SLOTS, size=size, reduction=chosen.reduction)
    rounds = WARM_TURNS + chosen.blocks * chosen.turns
    arguments = ["--feature", feature, "--rounds", str(rounds), "--size", str(size)]
    with tempfile.TemporaryDirectory(prefix="pliant-features-") as name:
        run_job(case, "features_worker.py", arguments, Path(name), limit_s=chosen.limit)
        sides = {side: turns[WARM_TURNS:] for side, turns in read_turns(Path(name)).items()}
    wall, _ = block_ratios(sides["pliant"], sides["plain"], turns=chosen.turns)
    return Figure(name=f"{feature}: W={size}", unit="", raw=tuple(wall))


def main() -> None:
    """Measure every feature at every size and write the page."""
    chosen = options()
    before = harness.load()
    figures = []
    for name in named(chosen):
        for size in chosen.sizes:
            figures.append(measure(name, size, chosen))
            print(harness.table(figures[-1:]), flush=True)
    page = Page(
        theme="features",
        summary="Time of an exact step with each feature, over plain PyTorch.",
        method=METHOD.format(
            slots=SLOTS, warm=WARM_TURNS, blocks=chosen.blocks, turns=chosen.turns
        ),
        figures=tuple(figures),
        command=harness.command_line("features"),
        load=(before, harness.load()),
    )
    harness.publish(page, write=not chosen.no_page)


if __name__ == "__main__":
    main()
