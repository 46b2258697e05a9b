"""A small trace simulated first and really run then: ``python -m benchmarks.predict``.

Owns the trace, the order (calibrate, predict, run) and the page.  What is measured beforehand is
``calibration``'s; what happens is the pool's and the job's own.  Nothing is fitted to the run that
is predicted: the prediction is printed before that run is started.

    calibration run --> curve, pauses --> simulation --> predicted goodput
                                     same trace --> real pool, real job --> measured goodput
"""

from __future__ import annotations

import argparse
import contextlib
import tempfile
import threading
import time
from collections.abc import Sequence
from dataclasses import asdict, dataclass, replace
from pathlib import Path
from typing import Any

import psutil
from examples.simulations import generate

from benchmarks import calibration, harness, pliant_job, thrash
from benchmarks.calibration import Calibration
from benchmarks.harness import Figure, Page
from pliant.observe.log import Record
from pliant.simulate.elastic_run import ElasticRun
from pliant.simulate.resize_costs import IN_PLACE
from pliant.simulate.simulation import SimulatedWorld, Simulation
from pliant.spec.cluster import ClusterSpec
from pliant.spec.trace import Change, parse_trace
from pliant.spec.workload import WorkloadJob

DEVICES = 4
SCALE = 60.0
"""So many times as fast as the trace is it played: an hour in a minute.  Pauses are not."""

SPOT: dict[str, Any] = {
    "nodes": 4,
    "days": 0.1667,
    "losses_per_hour": 3,
    "burst": 1.3,
    "away_s": 1500,
}

SEEDS = (21, 25)
"""Of traces with a change every ten seconds or so, and always a device."""

STAIRS = ((4, 20), (3, 15), (2, 20), (1, 30), (2, 20), (3, 15), (4, 15), (1, 30), (4, 15), (2, 20),
          (4, 15), (3, 15), (4, 15))  # fmt: skip
"""Devices of the calibration run, and for how many seconds."""

WORKER = harness.ROOT / "benchmarks" / "thrash_worker.py"
LIMIT_S = 120.0

METHOD = """\
The model is that of `pliant demo` (a GPT of 3.2M parameters), K={slots}; a micro-batch waits for
{pace:g} s as for an accelerator, so that {devices} replicas are faster than one on any machine;
what a step computes besides, and all that resizing costs, is real. *calibration*: a run of its
own, before all others, on {devices} devices that come and go in steps of 15 to 30 s: mean step at
each size, mean pause of a join and of a leave, mean time from starting a replica until it can
join, and the time from the beginning of the trace until the job has its devices. *predicted*:
`pliant.simulate` with these figures and the trace, its times divided by {scale:g}, pauses as they
are; made before the run. *measured*: `pliant pool set --devices N` at the moments of the
trace, and `pliant run --pool`; samples committed from the beginning of the trace to its end,
{seconds:g} s later. *difference*: predicted to measured. *busy with others*: share of the
processors' time that was used while the run went on, and not by it."""


FIRST = """\
`--first`: all processes of calibration and runs went before those of others on the machine (their
scheduling groups have the highest priority, `/proc/PID/autogroup`). Without it, others that compute
slow the calibration and each run by another share, and nothing can be predicted."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Goodput:
    """What a job did with a trace."""

    samples_per_s: float
    """Committed, from the beginning of the trace to its end."""

    resizes: int


@dataclass(frozen=True, slots=True, kw_only=True)
class Round:
    """One trace, simulated and run."""

    seed: int
    predicted: Goodput
    measured: Goodput
    busy: float

    @property
    def difference(self) -> float:
        """By which share the prediction is too high."""
        return self.predicted.samples_per_s / self.measured.samples_per_s - 1


def predict(known: Calibration, changes: Sequence[Change], *, until_s: float) -> Goodput:
    """Simulate the job on devices that come and go; times are those of the real run."""
    most = max(known.step_s)
    job = WorkloadJob(
        name="job",
        arrival_s=known.launch_s,
        work_s=1e6,
        devices=most,
        max_devices=most,
        num_slots=known.num_slots,
        curve=tuple((size, 1 / step_s) for size, step_s in known.step_s.items()),
        step_s=known.step_s[most],
        start_s=known.start_s,
    )
    costs = replace(
        IN_PLACE,
        name="calibrated",
        join_pause_s=known.join_pause_s,
        join_pause_s_per_gb=0.0,
        leave_pause_s=known.leave_pause_s,
    )
    # a pool lets a job leave at the end of its step, however long that takes
    nodes = [{"name": "all", "count": most, "noticeInSeconds": 3600}]
    world = SimulatedWorld(
        cluster=ClusterSpec.model_validate({"nodes": nodes}),
        jobs=[job],
        capacity={"all": changes},
    )
    simulation = Simulation(world, costs, until_s=until_s)
    simulation.run()
    (claimant,) = simulation.pool.claimants.values()
    assert isinstance(claimant, ElasticRun)
    steps = int(claimant.done_s / job.step_s)
    samples_per_s = steps * known.samples / until_s
    return Goodput(samples_per_s=samples_per_s, resizes=claimant.record.resizes)


def measured(records: Sequence[Record], *, began_at: float, until_s: float) -> Goodput:
    """Count what a run committed within the trace."""
    story = calibration.story_of(records)
    inside = [
        commit
        for commit, at in zip(story.commits, story.commit_at, strict=True)
        if at <= began_at + until_s
    ]
    sizes = [story.sizes[number] for number in dict.fromkeys(one.generation for one in inside)]
    return Goodput(
        samples_per_s=sum(one.samples for one in inside) / until_s, resizes=len(sizes) - 1
    )


def stairs() -> tuple[list[Change], float]:
    """Return the devices of the calibration run, and its length."""
    at_s, changes = 0.0, []
    for devices, stay_s in STAIRS:
        changes.append(Change(at_s=at_s, devices=devices))
        at_s += stay_s
    return changes, at_s


def played(trace: str | None, *, seed: int, scale: float) -> list[Change]:
    """Return a trace as it is when it is played."""
    if trace is None:
        changes = [Change(at_s=at, devices=n) for at, n in generate.spot(**SPOT, seed=seed)]
    else:
        changes = parse_trace(Path(trace).read_text(), source=trace, most=DEVICES)
    return [replace(one, at_s=one.at_s / scale) for one in changes]


@dataclass(frozen=True, slots=True, kw_only=True)
class Ran:
    """A run that is over."""

    records: list[Record]
    began_at: float
    """Wall-clock time at which its trace began."""

    busy: float


def run(
    folder: Path,
    changes: Sequence[Change],
    chosen: argparse.Namespace,
    *,
    until_s: float,
) -> Ran:
    """Run the job in a pool whose devices come and go as the trace says."""
    folder.mkdir(parents=True)
    script = ["--pool=default", str(WORKER), "--demo", "--steps=1000000"]
    script += [f"--slots={chosen.slots}", f"--pace={chosen.pace}"]
    with (
        thrash.pool(folder),
        pliant_job.running(
            folder, script, least=1, start=DEVICES, most=DEVICES, name="predict"
        ) as job,
    ):
        began_at, machine = time.time(), psutil.cpu_times()
        for one in changes:
            time.sleep(max(0.0, began_at + one.at_s - time.time()))
            thrash.set_devices(folder, one.devices)
        time.sleep(max(0.0, began_at + until_s + 1 - time.time()))
        if job.process.poll() is not None:
            raise RuntimeError((folder / "output.txt").read_text()[-4000:])
        busy = _busy_with_others(machine, psutil.Process(job.process.pid))
        return Ran(records=job.records(), began_at=began_at, busy=busy)


def _busy_with_others(before: Any, job: psutil.Process) -> float:
    """Return the share of the processors' time since then that others than the job have used."""
    after = psutil.cpu_times()
    passed_s = sum(after) - sum(before)
    idle_s = after.idle + after.iowait - before.idle - before.iowait
    own_s = sum(sum(one.cpu_times()[:4]) for one in (job, *job.children(recursive=True)))
    return float(max(0.0, passed_s - idle_s - own_s) / passed_s)


def calibrated(folder: Path, chosen: argparse.Namespace) -> Calibration:
    """Run the job on the stairs."""
    changes, until_s = stairs()
    ran = run(folder, changes, chosen, until_s=until_s)
    return calibration.calibration_of(
        ran.records, began_at=ran.began_at, num_slots=chosen.slots, devices=DEVICES
    )


def one_round(folder: Path, known: Calibration, seed: int, chosen: argparse.Namespace) -> Round:
    """Predict, then run."""
    changes, until_s = played(chosen.trace, seed=seed, scale=chosen.scale), chosen.seconds
    predicted = predict(known, changes, until_s=until_s)
    print(f"trace {seed}, predicted: {predicted}", flush=True)
    ran = run(folder, changes, chosen, until_s=until_s)
    found = Round(
        seed=seed,
        predicted=predicted,
        measured=measured(ran.records, began_at=ran.began_at, until_s=until_s),
        busy=ran.busy,
    )
    print(f"trace {seed}, measured: {found.measured}, {found.difference:+.1%}", flush=True)
    return found


def go_first() -> None:
    """Let this process, and from now on all below it, go before others of the machine.

    Linux shares processors out by session, whatever is nice within one; only root may be first.
    """
    family = psutil.Process()
    known: set[int] = set()
    while True:
        with contextlib.suppress(psutil.Error):
            for one in {
                family.pid,
                *(child.pid for child in family.children(recursive=True)),
            } - known:
                with contextlib.suppress(FileNotFoundError, ProcessLookupError):
                    Path(f"/proc/{one}/autogroup").write_text("-19")
                    known.add(one)
        time.sleep(0.3)


def figures_of(known: Calibration, rounds: Sequence[Round]) -> list[Figure]:
    """Return the rows of the page."""
    figures = [
        Figure(name=f"calibration: step of {size}", unit="s", raw=(step_s,))
        for size, step_s in known.step_s.items()
    ]
    for name in ("join_pause_s", "leave_pause_s", "start_s", "launch_s"):
        words = name.removesuffix("_s").replace("_", " ")
        figures.append(Figure(name=f"calibration: {words}", unit="s", raw=(getattr(known, name),)))
    for seed in dict.fromkeys(one.seed for one in rounds):
        these = [one for one in rounds if one.seed == seed]
        sides = {"predicted": [one.predicted for one in these]}
        sides["measured"] = [one.measured for one in these]
        for side, found in sides.items():
            goodputs = tuple(one.samples_per_s for one in found)
            resizes = tuple(float(one.resizes) for one in found)
            figures.append(
                Figure(name=f"trace {seed}: {side} goodput", unit="samples/s", raw=goodputs)
            )
            figures.append(Figure(name=f"trace {seed}: {side} resizes", unit="", raw=resizes))
        apart = tuple(one.difference * 100 for one in these)
        target = "-5 to 5 %"
        figures.append(
            Figure(
                name=f"trace {seed}: difference", unit="%", raw=apart, target=target, goal=target
            )
        )
        busy = tuple(one.busy * 100 for one in these)
        figures.append(Figure(name=f"trace {seed}: busy with others", unit="%", raw=busy))
    return figures


def options() -> argparse.Namespace:
    """Read the command line."""
    parser = argparse.ArgumentParser(description=(__doc__ or "").partition(":")[0])
    parser.add_argument("--calibrate", type=Path, metavar="FILE", help="measure into it; no more")
    parser.add_argument("--calibration", type=Path, metavar="FILE", help="one measured earlier")
    parser.add_argument("--trace", help="a file  [default: nodes that come and go]")
    parser.add_argument("--scale", type=float, default=SCALE, help="times as fast as the trace")
    parser.add_argument("--seconds", type=float, default=240.0, help="length of a run")
    parser.add_argument("--seeds", type=int, nargs="+", default=SEEDS, help="of the traces")
    parser.add_argument("--rounds", type=int, default=2, help="runs of each trace")
    parser.add_argument("--slots", type=int, default=12)
    parser.add_argument("--pace", type=float, default=0.3, help="seconds that a micro-batch waits")
    parser.add_argument(
        "--first", action="store_true", help="before others of the machine, where they compute"
    )
    parser.add_argument("--no-page", action="store_true", help="print the table only")
    return parser.parse_args()


def main() -> None:
    """Calibrate, predict, run, compare, and write the page."""
    chosen = options()
    if chosen.first:
        threading.Thread(target=go_first, daemon=True).start()
    before = harness.load()
    with tempfile.TemporaryDirectory(prefix="pliant-predict-") as scratch:
        folder = Path(scratch)
        known = (
            calibration.read(chosen.calibration)
            if chosen.calibration
            else calibrated(folder / "calibration", chosen)
        )
        print(f"calibration: {known}", flush=True)
        if chosen.calibrate:
            calibration.write(known, chosen.calibrate)
            return
        rounds = [
            one_round(folder / f"{seed}-{number}", known, seed, chosen)
            for number in range(chosen.rounds)
            for seed in chosen.seeds
        ]
    page = Page(
        theme="predict",
        summary="What a simulation says of a run before it happens, beside what the run did.",
        method=METHOD.format(
            slots=chosen.slots,
            pace=chosen.pace,
            devices=DEVICES,
            scale=chosen.scale,
            seconds=chosen.seconds,
        ),
        figures=tuple(figures_of(known, rounds)),
        command=harness.command_line("predict"),
        load=(before, harness.load()),
        notes=(FIRST,) if chosen.first else (),
        raw={"calibration": asdict(known), "trace": chosen.trace or SPOT},
    )
    harness.publish(page, write=not chosen.no_page)


if __name__ == "__main__":
    main()
