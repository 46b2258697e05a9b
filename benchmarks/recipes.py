"""A recipe beside the same model in a plain loop: ``python -m benchmarks.recipes``.

Owns the configurations, the ratios and the page.  The measured turns are in ``recipes_worker``.
"""

from __future__ import annotations

import argparse
import contextlib
import statistics
import subprocess
import sys
import tempfile
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from pathlib import Path

from benchmarks import harness, pliant_job
from benchmarks.harness import Figure, Page
from benchmarks.turns import Record, Turns
from pliant.core.text import counted

SIDES = ("recipe", "plain")
WARM_TURNS = 2
WORKER = str(harness.ROOT / "benchmarks" / "recipes_worker.py")

METHOD = """\
The same Llama of transformers on both sides, with the same weights at the start: pre-training by a
recipe under `pliant run`, and a loop of PyTorch as its documentation has it
(`model(input_ids=..., labels=...).loss`), by two processes each. Unsharded: two replicas beside
DDP (`gradient_as_bucket_view=True`, which adds up in the last micro-batch of a step only).
Sharded: one replica of two workers (`fully_shard` of each layer) beside `fully_shard` of each
layer on a mesh of 2, which reduce-scatters in each micro-batch. Alike: fp32, AdamW as torch has it,
clipping at 1.0, gloo, one thread per worker, and what glibc keeps. 124M is a Llama with the width,
layers and vocabulary of GPT-2 small and tied embeddings; tiny has 0.1M parameters. Each text is
one sample. The recipe adds up and logs its loss; the loop does not.

{sizes}.

Both jobs are alive together and take turns; who has no turn waits. A turn takes as long as its
slowest worker; processor time is that of both. After {warm} turns to warm up, {blocks} turns of
each; a ratio is that of two turns, one after the other."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Size:
    """What is trained, and for how long at a time."""

    model: str
    slots: int
    micro_batch: int
    length: int
    steps: int
    """Of a turn."""

    def __str__(self) -> str:
        return (
            f"{self.slots} micro-batches a step, each of {self.micro_batch} x {self.length} "
            f"tokens, and {counted(self.steps, 'step')} a turn"
        )


SIZES = {
    "tiny": Size(model="tiny", slots=8, micro_batch=1, length=128, steps=20),
    "tiny, long": Size(model="tiny", slots=8, micro_batch=8, length=256, steps=4),
    "124M": Size(model="124M", slots=4, micro_batch=2, length=128, steps=1),
}


def options() -> argparse.Namespace:
    """Read the command line."""
    parser = argparse.ArgumentParser(description=(__doc__ or "").partition(":")[0])
    parser.add_argument("--sizes", nargs="+", choices=SIZES, default=list(SIZES))
    parser.add_argument("--ways", nargs="+", choices=("DDP", "FSDP2"), default=["DDP", "FSDP2"])
    parser.add_argument("--blocks", type=int, default=7, help="turns of each side")
    parser.add_argument("--limit", type=float, default=240.0, help="seconds for a turn")
    parser.add_argument("--no-page", action="store_true", help="print the table only")
    return parser.parse_args()


def words(name: str, way: str, side: str, folder: Path) -> list[str]:
    """Return what a worker is started with."""
    size = SIZES[name]
    return [
        *(WORKER, "--folder", str(folder), "--side", side, "--turns", str(folder / "turns")),
        *("--slots", str(size.slots), "--micro-batch", str(size.micro_batch)),
        *("--length", str(size.length), "--steps", str(size.steps)),
        *(["--sharded"] if way == "FSDP2" else []),
    ]


@contextlib.contextmanager
def both_sides(name: str, way: str, folder: Path) -> Iterator[None]:
    """Let both jobs live, and wait for their turns."""
    replicas, workers = (2, 1) if way == "DDP" else (1, 2)
    with contextlib.ExitStack() as jobs:
        script = ["--workers-per-replica", str(workers), *words(name, way, "recipe", folder)]
        jobs.enter_context(
            pliant_job.running(
                folder / "recipe", script, least=replicas, start=replicas, most=replicas, name="job"
            )
        )
        for rank in range(2):
            command = [sys.executable, *words(name, way, "plain", folder), "--rank", str(rank)]
            command += ["--meeting", f"file://{folder / 'meeting'}"]
            output = folder / "plain" / "output.txt"
            jobs.enter_context(harness.process(command, env=harness.environment(), output=output))
        yield


def measure(name: str, way: str, chosen: argparse.Namespace) -> dict[str, list[list[Record]]]:
    """Return what each worker handed in, by side and turn."""
    with tempfile.TemporaryDirectory(prefix="pliant-recipes-") as directory:
        folder = Path(directory)
        made = [sys.executable, WORKER, "--make", SIZES[name].model, "--folder", str(folder)]
        made += ["--length", str(SIZES[name].length)]
        subprocess.run(made, env=harness.environment(), check=True)
        turns = Turns(folder / "turns")
        try:
            with both_sides(name, way, folder):
                for side in SIDES:
                    turns.admit(side, 2, timeout_s=chosen.limit)
                rounds = range(WARM_TURNS + chosen.blocks)
                told = [[turns.call(side, "go") for side in SIDES] for _ in rounds]
        except (TimeoutError, RuntimeError) as error:
            said = "\n".join(path.read_text()[-3000:] for path in folder.glob("*/output.txt"))
            raise RuntimeError(f"{error}\n{said}") from error
        finally:
            turns.close()
    return {side: [turn[n] for turn in told[WARM_TURNS:]] for n, side in enumerate(SIDES)}


def figures_of(
    name: str, way: str, told: dict[str, list[list[Record]]], *, steps: int
) -> list[Figure]:
    """Return the rows of one model and way."""
    wall_s, cpu_s = (
        {side: [most(turn, field) / steps for turn in turns] for side, turns in told.items()}
        for field, most in (("wall_s", _slowest), ("cpu_s", _all))
    )
    target = "<= 1.05" if way == "DDP" else ""
    case = f"{name} beside {way}"
    return [
        Figure(name=f"{case}: wall of a step, ratio", unit="", raw=_over(wall_s), target=target),
        Figure(name=f"{case}: processor time, ratio", unit="", raw=_over(cpu_s)),
        Figure(name=f"{case}: step of the recipe", unit="s", raw=tuple(wall_s["recipe"])),
        Figure(name=f"{case}: step of the loop", unit="s", raw=tuple(wall_s["plain"])),
    ]


def _slowest(turn: Sequence[Record], field: str) -> float:
    return max(float(record[field]) for record in turn)


def _all(turn: Sequence[Record], field: str) -> float:
    return sum(float(record[field]) for record in turn)


def _over(values: dict[str, list[float]]) -> tuple[float, ...]:
    """Return the ratio of each turn to that of the other side after it."""
    pairs = zip(values["recipe"], values["plain"], strict=True)
    return tuple(ours / theirs for ours, theirs in pairs)


def main() -> None:
    """Measure, print, write the page."""
    chosen = options()
    before = harness.load()
    figures: list[Figure] = []
    for name in chosen.sizes:
        for way in chosen.ways:
            print(f"{name} beside {way} ...", flush=True)
            told = measure(name, way, chosen)
            rows = figures_of(name, way, told, steps=SIZES[name].steps)
            print(harness.table(rows), flush=True)
            figures += rows
    ratios = [f for f in figures if f.name.endswith("wall of a step, ratio")]
    said = ", ".join(f"{f.name.partition(':')[0]} {statistics.median(f.raw):.2f}" for f in ratios)
    page = Page(
        theme="recipes",
        summary=f"The step of a recipe over that of a plain loop: {said}.",
        method=METHOD.format(
            sizes="; ".join(f"{name}: {SIZES[name]}" for name in chosen.sizes),
            warm=WARM_TURNS,
            blocks=chosen.blocks,
        ),
        figures=tuple(figures),
        command=harness.command_line("recipes"),
        load=(before, harness.load()),
    )
    harness.publish(page, write=not chosen.no_page)


if __name__ == "__main__":
    main()
