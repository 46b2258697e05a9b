"""What a step of pliant costs when nothing changes, over DDP: ``python -m benchmarks.steady``.

Owns the configurations, the ratios and the page.  The measured turns are in ``steady_worker``.
"""

from __future__ import annotations

import argparse
import json
import statistics
import subprocess
import tempfile
from collections.abc import Iterable, Sequence
from dataclasses import dataclass, replace
from pathlib import Path

from benchmarks import harness, pliant_job, torchrun
from benchmarks.harness import Figure, Page
from benchmarks.steady_ddp import ALONE, DDP, ONE_BATCH, PLAIN
from benchmarks.transports import GLOO, GLOO_WINDOWS, SOCKETS, TRANSPORTS, WINDOWS

WARM_TURNS = 3
_USERS = "DDP as torchrun starts it"

DESCRIPTION = "exact and fast step of pliant over DDP accumulating the same micro-batches"

METHOD = """\
Model: byte-level GPT, 9.64M parameters, 116 MB with Adam state, fp32, AdamW, clipping at 1.0;
micro-batches of {micro} samples x {length} tokens, on {device}; one thread per worker. Every worker
of `pliant run` also holds a DDP copy of the model on a gloo group of its own
(`gradient_as_bucket_view=True`, `no_sync` for all but the last micro-batch) and does one DDP step
in the tail of each step, so both sides see the same noise, heap and cores. A barrier goes before
each turn. A turn of pliant is everything between two tails: data, seeding, slots, reduction, vote,
commit, clipping, optimizer, ledger, membership. A turn of DDP is data, slots, all-reduce, clipping,
optimizer; it reduces no loss. Gradients travel through shared memory unless a row says otherwise;
a job of each transport is run in turn, {jobs} times. Gloo is the exchange as it was before pliant
had sockets of its own (`benchmarks/gloo_baseline.py`); "over gloo" compares the ratios to DDP, for
which each job has its own. Wall time of a turn: its slowest rank; CPU time: summed over ranks
and threads. After {warm} turns to warm up, {blocks} blocks of {turns} turns; the ratio of a block
is that of the two medians (CPU: of the two sums).

"As torchrun starts it" is DDP in a job of its own, run in turn with those of pliant: the same step,
and nothing else in the process. In the jobs of pliant glibc keeps freed memory on both sides, as
the agent of pliant has it for every worker (`MALLOC_MMAP_THRESHOLD_`, `MALLOC_TRIM_THRESHOLD_`).
Under torchrun it returns it to the kernel, and gets it back page by page, unless users set those
variables, so a ratio to that is what users see who come from torchrun; the ratio without it is that
of the two ways to train. Its turns alternate with nothing, so compare its blocks with care.

Gradient copies: bytes of all tensors but parameters, moments and data before a step, plus the peak
of what is allocated until the optimizer runs, over the bytes of one gradient; a run of its own with
one token per micro-batch, so that activations do not count. It holds the sums of the formula, two
reduced buffers that alternate, and the shards that a worker receives."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Case:
    """One configuration."""

    slots: int
    size: int
    reduction: str
    transport: str = WINDOWS

    @property
    def name(self) -> str:
        """How the case is called in the table."""
        through = "" if self.transport == WINDOWS else f" through {self.transport}"
        return f"{self.reduction} K={self.slots} W={self.size}{through}"

    @property
    def limits(self) -> tuple[str, str]:
        """Target and goal of the ratio of wall time."""
        if self.transport != WINDOWS:
            return "", ""
        if self.reduction == "fast":
            return "", "<= 1.00"
        if self.slots % self.size:
            return "", "<= 1.08"
        return "<= 1.10", "<= 1.03 (P = W), else 1.08"


@dataclass(frozen=True, slots=True, kw_only=True)
class Turn:
    """One turn over all ranks."""

    wall_s: float
    cpu_s: float


def read_turns(folder: Path) -> dict[str, list[Turn]]:
    """Combine the ranks' records: slowest rank for wall time, sum for CPU time."""
    found: dict[tuple[str, int], list[dict[str, float]]] = {}
    for path in folder.glob("*.turns"):
        for line in path.read_text().splitlines():
            record = json.loads(line)
            found.setdefault((record["side"], record["turn"]), []).append(record)
    sides: dict[str, list[Turn]] = {}
    for (side, _), records in sorted(found.items()):
        turn = Turn(
            wall_s=max(record["wall_s"] for record in records),
            cpu_s=sum(record["cpu_s"] for record in records),
        )
        sides.setdefault(side, []).append(turn)
    return sides


def block_ratios(
    ours: Sequence[Turn], theirs: Sequence[Turn], *, turns: int
) -> tuple[list[float], list[float]]:
    """Return the ratios of wall and of CPU time, one per block of ``turns`` turns."""
    wall, cpu = [], []
    for start in range(0, min(len(ours), len(theirs)) - turns + 1, turns):
        a, b = ours[start : start + turns], theirs[start : start + turns]
        wall.append(statistics.median(t.wall_s for t in a) / statistics.median(t.wall_s for t in b))
        cpu.append(sum(t.cpu_s for t in a) / sum(t.cpu_s for t in b))
    return wall, cpu


def measure(case: Case, chosen: argparse.Namespace) -> dict[str, list[Turn]]:
    """Run one job and return its turns without the warm-up."""
    rounds = WARM_TURNS + chosen.blocks * chosen.turns
    arguments = [
        *("--rounds", str(rounds), "--size", str(case.size)),
        *("--micro-batch", str(chosen.micro_batch), "--length", str(chosen.length)),
        *("--transport", case.transport, "--device", chosen.device),
    ]
    with tempfile.TemporaryDirectory(prefix="pliant-steady-") as name:
        run_job(case, "steady_worker.py", arguments, Path(name), limit_s=chosen.limit)
        return {side: turns[WARM_TURNS:] for side, turns in read_turns(Path(name)).items()}


def run_job(
    case: Case, worker: str, arguments: Sequence[str], folder: Path, *, limit_s: float
) -> None:
    """Run one job of pliant to its end."""
    script = [
        *(str(harness.ROOT / "benchmarks" / worker), *arguments, "--slots", str(case.slots)),
        *("--reduction", case.reduction, "--folder", str(folder)),
    ]
    size = case.size
    with pliant_job.running(
        folder, script, least=size, start=size, most=size, name="steady"
    ) as job:
        if code := job.process.wait(timeout=limit_s):
            output = (folder / "output.txt").read_text()
            raise RuntimeError(f"{case.name}: exit code {code}\n{output[-4000:]}")


def measure_alone(case: Case, chosen: argparse.Namespace) -> list[Turn]:
    """Run DDP as torchrun starts it, and return its turns without the warm-up."""
    with tempfile.TemporaryDirectory(prefix="pliant-steady-") as name:
        words = [
            *(*torchrun.LAUNCHER, "--standalone", f"--nproc-per-node={case.size}"),
            *(str(harness.ROOT / "benchmarks" / "steady_ddp.py"), "--folder", name),
            *("--rounds", str(WARM_TURNS + chosen.blocks * chosen.turns)),
            *("--slots", str(case.slots), "--micro-batch", str(chosen.micro_batch)),
            *("--length", str(chosen.length), "--device", chosen.device),
        ]
        subprocess.run(
            words,
            env=harness.users_environment(),
            cwd=harness.ROOT,
            check=True,
            timeout=chosen.limit,
            capture_output=True,
        )
        return read_turns(Path(name))[ALONE][WARM_TURNS:]


def copies_of(case: Case, *, limit_s: float) -> Iterable[Figure]:
    """Yield the measured peak of gradient copies of one configuration; one value per worker."""
    with tempfile.TemporaryDirectory(prefix="pliant-memory-") as name:
        arguments = ["--transport", case.transport]
        run_job(case, "memory_worker.py", arguments, Path(name), limit_s=limit_s)
        found = [json.loads(path.read_text()) for path in sorted(Path(name).glob("*.memory"))]
    for part, what in (
        ("copies", "gradients' worth of memory in a worker, buffers and shards included"),
        ("formula", "gradient copies by the formula"),
    ):
        raw = tuple(float(record[part]) for record in found)
        yield Figure(name=f"{case.name}: {what}", unit="", raw=raw)


def figures_of(case: Case, sides: dict[str, list[Turn]], *, turns: int) -> Iterable[Figure]:
    """Yield the rows of one configuration."""
    ours, ddp, whole = sides["pliant"], sides[DDP], sides[ONE_BATCH]
    wall, cpu = block_ratios(ours, ddp, turns=turns)
    target, goal = case.limits
    yield Figure(
        name=f"{case.name}: wall over DDP", unit="", raw=tuple(wall), target=target, goal=goal
    )
    yield Figure(name=f"{case.name}: CPU over DDP", unit="", raw=tuple(cpu))
    if alone := sides.get(ALONE):
        wall, cpu = block_ratios(ours, alone, turns=turns)
        yield Figure(name=f"{case.name}: wall over {_USERS}", unit="", raw=tuple(wall))
        yield Figure(name=f"{case.name}: CPU over {_USERS}", unit="", raw=tuple(cpu))
    if plain := sides.get(PLAIN):
        wall, _ = block_ratios(ours, plain, turns=turns)
        yield Figure(name=f"{case.name}: wall over a plain loop", unit="", raw=tuple(wall))
    one, _ = block_ratios(ours, whole, turns=turns)
    yield Figure(
        name=f"{case.name}: wall over DDP with one batch per rank", unit="", raw=tuple(one)
    )
    yield Figure(name=f"{case.name}: step", unit="s", raw=tuple(turn.wall_s for turn in ours))
    yield Figure(name=f"{case.name}: DDP's step", unit="s", raw=tuple(turn.wall_s for turn in ddp))
    if alone:
        raw = tuple(turn.wall_s for turn in alone)
        yield Figure(name=f"{case.name}: the step of {_USERS}", unit="s", raw=raw)


def options() -> argparse.Namespace:
    """Read the command line."""
    parser = argparse.ArgumentParser(description=DESCRIPTION)
    parser.add_argument("--slots", type=int, nargs="+", default=[8, 12])
    parser.add_argument("--sizes", type=int, nargs="+", default=[2, 3, 4])
    parser.add_argument("--reductions", nargs="+", default=["exact", "fast"])
    parser.add_argument(
        "--transports", nargs="+", choices=TRANSPORTS, default=[WINDOWS, SOCKETS, GLOO]
    )
    parser.add_argument("--jobs", type=int, default=1, help="of each transport, in turn")
    parser.add_argument("--uneven", action="store_true", help="also sizes that do not divide")
    parser.add_argument("--blocks", type=int, default=5)
    parser.add_argument("--turns", type=int, default=5, help="turns in a block")
    parser.add_argument("--micro-batch", type=int, default=2)
    parser.add_argument("--length", type=int, default=32)
    parser.add_argument("--limit", type=float, default=600.0, help="seconds per configuration")
    parser.add_argument(
        "--device", default="cpu", help="as torch names it; each replica has one: see --sizes"
    )
    parser.add_argument("--skip-torchrun", action="store_true", help="no DDP in a job of its own")
    parser.add_argument("--skip-memory", action="store_true", help="do not count gradient copies")
    parser.add_argument("--no-page", action="store_true", help="print the table only")
    parser.add_argument("--smoke", action="store_true", help="one short block, no page")
    chosen = parser.parse_args()
    if chosen.device != "cpu":  # how gradients travel is for --exchange to say
        chosen.transports, chosen.skip_memory = [WINDOWS], True
    if chosen.smoke:
        chosen.no_page = True
        chosen.blocks, chosen.turns = 1, 2
    return chosen


def cases(chosen: argparse.Namespace) -> list[list[Case]]:
    """List the configurations that were asked for; those together differ in the transport."""
    return [
        [
            Case(slots=slots, size=size, reduction=reduction, transport=transport)
            for transport in chosen.transports
        ]
        for slots in chosen.slots
        for size in chosen.sizes
        for reduction in chosen.reductions
        if size <= slots and (chosen.uneven or slots % size == 0)
    ]


def figures_together(together: Sequence[Case], chosen: argparse.Namespace) -> Iterable[Figure]:
    """Yield the rows of configurations whose jobs are run in turn, and how they compare."""
    sides: dict[Case, dict[str, list[Turn]]] = {case: {} for case in together}
    for _ in range(chosen.jobs):
        for case in together:
            for side, turns in measure(case, chosen).items():
                sides[case].setdefault(side, []).extend(turns)
        if not chosen.skip_torchrun:
            alone = measure_alone(together[0], chosen)
            for case in together:
                sides[case].setdefault(ALONE, []).extend(alone)
    for case in together:
        yield from figures_of(case, sides[case], turns=chosen.turns)
        if case.reduction == "exact" and case.transport == WINDOWS and not chosen.skip_memory:
            yield from copies_of(case, limit_s=chosen.limit)
    over_ddp = {
        case.transport: block_ratios(sides[case]["pliant"], sides[case][DDP], turns=chosen.turns)
        for case in together
    }
    for new, old in ((SOCKETS, GLOO), (WINDOWS, GLOO_WINDOWS)):
        if new in over_ddp and old in over_ddp:
            name = replace(together[0], transport=new).name
            for what, ours, theirs in zip(
                ("wall", "CPU"), over_ddp[new], over_ddp[old], strict=True
            ):
                raw = tuple(a / b for a, b in zip(ours, theirs, strict=True))
                yield Figure(name=f"{name}: {what} over {old}", unit="", raw=raw)


def main() -> None:
    """Measure every configuration and write the page."""
    chosen = options()
    before = harness.load()
    figures: list[Figure] = []
    for together in cases(chosen):
        print(f"{together[0].name} ...", flush=True)
        rows = list(figures_together(together, chosen))
        print(harness.table(rows), flush=True)
        figures += rows
    page = Page(
        theme="steady",
        summary="What a step of pliant costs over DDP when nothing changes.",
        method=METHOD.format(
            micro=chosen.micro_batch,
            length=chosen.length,
            device=chosen.device,
            warm=WARM_TURNS,
            blocks=chosen.blocks,
            turns=chosen.turns,
            jobs=chosen.jobs,
        ),
        figures=tuple(figures),
        command=harness.command_line("steady"),
        load=(before, harness.load()),
    )
    harness.publish(page, write=not chosen.no_page)


if __name__ == "__main__":
    main()
