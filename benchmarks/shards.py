"""FSDP2 inside replicas beside plain HSDP of torch: ``python -m benchmarks.shards``.

Owns the configuration, the ratios and the page.  The measured turns are in ``shards_worker``.
"""

from __future__ import annotations

import argparse
import contextlib
import statistics
import sys
import tempfile
from collections.abc import Iterator, Sequence
from pathlib import Path

from benchmarks import harness, pliant_job
from benchmarks.harness import Figure, Page
from benchmarks.turns import Record, Turns

SIDES = ("pliant", "hsdp")
WARM_TURNS = 2
WORKER = str(harness.ROOT / "benchmarks" / "shards_worker.py")

METHOD = """\
{replicas} replicas of {shard} workers under `pliant run` (`fully_shard` over `pliant.mesh`), and as
many processes of plain PyTorch under `fully_shard` on a mesh of {replicas} x {shard} (HSDP), which
reduce-scatters each micro-batch and all-reduces in the last. GPT of width {width} with {layers}
layers, fp32, AdamW, clipping at 1.0, gloo, one thread per worker; K={slots} micro-batches a step,
each of {micro} samples x 32 tokens. Both jobs are alive together and take turns of {steps} steps;
who has no turn waits. A turn takes as long as its slowest worker. After {warm} turns to warm up,
{blocks} turns of each; a ratio is that of two turns, one after the other. Where workers are more
than cores they share them, on both sides. Pliant sums in an order that does not depend on the
number of workers, each slot by itself, and clips by the norm of whole gradients, one at a time.

Memory: the highest resident memory of a worker in a turn, beyond what the process held before it
had a model; of pliant it includes the windows through which replicas of one node read each other's
sums. The model is sharded before it has any memory."""


def options() -> argparse.Namespace:
    """Read the command line."""
    parser = argparse.ArgumentParser(description=(__doc__ or "").partition(":")[0])
    parser.add_argument("--replicas", type=int, default=2)
    parser.add_argument("--shard", type=int, default=2, help="workers of a replica")
    parser.add_argument("--slots", type=int, default=8, help="micro-batches of a step")
    parser.add_argument("--micro-batch", type=int, default=2)
    parser.add_argument("--width", type=int, default=256)
    parser.add_argument("--layers", type=int, default=8)
    parser.add_argument("--blocks", type=int, default=7, help="turns of each side")
    parser.add_argument("--steps", type=int, default=3, help="in a turn")
    parser.add_argument("--limit", type=float, default=240.0, help="seconds for a turn")
    parser.add_argument("--no-page", action="store_true", help="print the table only")
    chosen = parser.parse_args()
    if chosen.slots % (chosen.replicas * chosen.shard):
        parser.error("--slots must be a multiple of all workers: plain torch divides them evenly")
    return chosen


def words(side: str, chosen: argparse.Namespace, turns: Path) -> list[str]:
    """Return what a worker is started with."""
    names = ("steps", "replicas", "shard", "slots", "micro_batch", "width", "layers")
    said = [[f"--{name.replace('_', '-')}", str(getattr(chosen, name))] for name in names]
    return [
        WORKER,
        "--side",
        side,
        "--turns",
        str(turns),
        *(word for pair in said for word in pair),
    ]


@contextlib.contextmanager
def both_sides(chosen: argparse.Namespace, folder: Path, turns: Path) -> Iterator[None]:
    """Let both jobs live, and wait for their turns."""
    with contextlib.ExitStack() as jobs:
        size = chosen.replicas
        script = ["--workers-per-replica", str(chosen.shard), *words("pliant", chosen, turns)]
        jobs.enter_context(
            pliant_job.running(
                folder / "pliant", script, least=size, start=size, most=size, name="shards"
            )
        )
        for rank in range(size * chosen.shard):
            command = [sys.executable, *words("hsdp", chosen, turns), "--rank", str(rank)]
            command += ["--meeting", f"file://{folder / 'meeting'}"]
            output = folder / "hsdp" / "output.txt"
            jobs.enter_context(harness.process(command, env=harness.environment(), output=output))
        yield


def measure(chosen: argparse.Namespace) -> dict[str, list[list[Record]]]:
    """Return what each worker handed in, by side and turn."""
    size = chosen.replicas * chosen.shard
    with tempfile.TemporaryDirectory(prefix="pliant-shards-") as name:
        folder = Path(name)
        turns = Turns(folder / "turns")
        try:
            with both_sides(chosen, folder, folder / "turns"):
                for side in SIDES:
                    turns.admit(side, size, timeout_s=chosen.limit)
                rounds = range(WARM_TURNS + chosen.blocks)
                told = [[turns.call(side, "go") for side in SIDES] for _ in rounds]
        except (TimeoutError, RuntimeError) as error:
            said = "\n".join(path.read_text()[-3000:] for path in folder.glob("*/output.txt"))
            raise RuntimeError(f"{error}\n{said}") from error
        finally:
            turns.close()
    return {side: [turn[n] for turn in told[WARM_TURNS:]] for n, side in enumerate(SIDES)}


def figures_of(told: dict[str, list[list[Record]]], *, steps: int) -> list[Figure]:
    """Return the rows of the page."""
    step_s = {
        side: [max(record["wall_s"] for record in turn) / steps for turn in turns]
        for side, turns in told.items()
    }
    peak = {
        side: [max(record["peak_bytes"] for record in turn) / 1e6 for turn in turns]
        for side, turns in told.items()
    }
    return [
        Figure(name="step over HSDP's", unit="", raw=_over(step_s)),
        Figure(name="step", unit="s", raw=tuple(step_s["pliant"])),
        Figure(name="HSDP's step", unit="s", raw=tuple(step_s["hsdp"])),
        Figure(name="peak memory of a worker over HSDP's", unit="", raw=_over(peak)),
        Figure(name="peak memory of a worker", unit="MB", raw=tuple(peak["pliant"])),
        Figure(name="peak memory of a worker of HSDP", unit="MB", raw=tuple(peak["hsdp"])),
    ]


def _over(values: dict[str, list[float]]) -> tuple[float, ...]:
    """Return the ratio of each turn to that of the other side after it."""
    both: Sequence[Sequence[float]] = [values[side] for side in SIDES]
    return tuple(ours / theirs for ours, theirs in zip(*both, strict=True))


def main() -> None:
    """Measure, print, write the page."""
    chosen = options()
    before = harness.load()
    figures = figures_of(measure(chosen), steps=chosen.steps)
    ratio = statistics.median(figures[0].raw)
    page = Page(
        theme="shards",
        summary=f"A step of FSDP2 inside replicas takes {ratio:.2f} of plain HSDP's.",
        method=METHOD.format(
            replicas=chosen.replicas,
            shard=chosen.shard,
            width=chosen.width,
            layers=chosen.layers,
            slots=chosen.slots,
            micro=chosen.micro_batch,
            steps=chosen.steps,
            warm=WARM_TURNS,
            blocks=chosen.blocks,
        ),
        figures=tuple(figures),
        command=harness.command_line("shards"),
        load=(before, harness.load()),
    )
    harness.publish(page, write=not chosen.no_page)


if __name__ == "__main__":
    main()
