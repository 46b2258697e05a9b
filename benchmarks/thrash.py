"""What capacity that comes and goes costs a job: ``python -m benchmarks.thrash``.

Owns the capacity (the devices of a real pool, set anew at moments from a seed), the policies
that are compared, and the page.  The job is ``thrash_worker``; what it lost is for
``pliant.observe.goodput`` to say.
"""

from __future__ import annotations

import argparse
import contextlib
import random
import subprocess
import tempfile
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path

from benchmarks import harness, pliant_job
from benchmarks.harness import Figure, Page
from pliant.observe.goodput import goodput_of
from pliant.observe.timeline import timeline_of

DEVICES = 4
LIMIT_S = 240.0
WORKER = harness.ROOT / "benchmarks" / "thrash_worker.py"

STILL = "still"

STAYS_S = {"seconds": (0.5, 3.0), "longer": (5.0, 10.0)}
"""How long capacity stays as it is, by the name of the weather."""

POLICIES = {
    "off": "amortization=false",
    "default": "amortization=true",
    "calm": "scalingTimeoutInSeconds=1 minStabilityPeriodInSeconds=5 backoff.initialInSeconds=5 "
    "backoff.maxInSeconds=40 backoff.resetAfterInSeconds=60",
}
"""``--policy`` of each side."""

METHOD = """\
A pool of {devices} devices (`pliant pool set --devices N`). The
job (a GPT of 0.03M parameters, K=8, a micro-batch waits for {pace:g} s so that more replicas are
faster on any machine) starts with {devices} replicas; from its first step on the pool has a
number from 1 to {fewer} and {devices} in turn, each for a time drawn from a seed, the same for
every side: {stays}. It goes on until the job has done its {steps} steps. Sides: {policies}.
*goodput*: committed samples per second from the first step to the end of the job. *lost to
resizes*: what the gaps between steps of two generations exceed a normal step. *resizes*: joins
and drains that took effect. *started*: processes, those of the beginning among them. All runs
must end with one digest, that of a run whose devices stay (*still*) among them."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Run:
    """What became of one job."""

    goodput: float
    train_s: float
    lost_s: float
    resizes: int
    started: int
    flips: int
    digest: str


def stays(seed: int, weather: str) -> Iterator[tuple[int, float]]:
    """Yield numbers of devices and for how many seconds each is there; for ever."""
    chance = random.Random(f"{seed} {weather}")
    if weather == STILL:
        yield DEVICES, LIMIT_S
        raise TimeoutError(f"the job did not end within {LIMIT_S:g} s")
    while True:
        for devices in (chance.randint(1, DEVICES - 1), DEVICES):
            yield devices, chance.uniform(*STAYS_S[weather])


@contextlib.contextmanager
def pool(folder: Path) -> Iterator[None]:
    """Run a pool of its own."""
    command = [*pliant_job.CLI, "pool", "start", "--devices", str(DEVICES)]
    environment = harness.environment(XDG_STATE_HOME=str(folder / "state"))
    record = folder / "state" / "pliant" / "pools" / "default.json"
    with harness.process(command, env=environment, output=folder / "pool.txt"):
        harness.await_true(record.exists, timeout_s=LIMIT_S, what="the pool's start")
        yield


def set_devices(folder: Path, number: int) -> None:
    """Let the pool of this folder have so many."""
    command = [*pliant_job.CLI, "pool", "set", "--devices", str(number)]
    environment = harness.environment(XDG_STATE_HOME=str(folder / "state"))
    subprocess.run(command, env=environment, check=True, stdout=subprocess.DEVNULL)


def measure(folder: Path, *, policy: str, weather: str, seed: int, steps: int, pace: float) -> Run:
    """Run one job to its end; in weather ``still`` its devices stay."""
    folder.mkdir(parents=True)
    digest = folder / "digest"
    script = [str(WORKER), "--steps", str(steps), "--pace", str(pace), "--digest", str(digest)]
    flips = 0
    with (
        pool(folder),
        pliant_job.running(
            folder,
            ["--pool=default", *(f"--policy={field}" for field in policy.split()), *script],
            least=1,
            start=DEVICES,
            most=DEVICES,
            name="thrash",
        ) as job,
    ):

        def has_begun() -> int:
            if job.process.poll() is not None:
                raise RuntimeError((folder / "output.txt").read_text()[-4000:])
            return timeline_of(job.records()).num_commits

        harness.await_true(has_begun, timeout_s=LIMIT_S, what="the first step")
        for devices, stay_s in stays(seed, weather):
            set_devices(folder, devices)
            with contextlib.suppress(subprocess.TimeoutExpired):
                job.process.wait(stay_s)
                break
            flips += 1
        if job.process.returncode:
            raise RuntimeError((folder / "output.txt").read_text()[-4000:])
        records = job.records()
    timeline, figures = timeline_of(records), goodput_of(records)
    train_s = figures.wall_s - figures.start_s
    return Run(
        goodput=figures.committed_samples / train_s,
        train_s=train_s,
        lost_s=figures.downtime_s,
        resizes=len(timeline.resizes()),
        started=len(timeline.lives),
        flips=flips,
        digest=digest.read_text(),
    )


def figures_of(runs: dict[tuple[str, str], list[Run]]) -> Iterator[Figure]:
    """Yield the rows of all sides."""
    columns = (
        ("goodput", "goodput", "samples/s"),
        ("train_s", "time for the same work", "s"),
        ("lost_s", "lost to resizes", "s"),
        ("resizes", "resizes", ""),
        ("started", "started", ""),
        ("flips", "flips of the capacity", ""),
    )
    for (weather, policy), found in runs.items():
        for column, name, unit in columns:
            raw = tuple(float(getattr(run, column)) for run in found)
            yield Figure(name=f"{weather}, {policy}: {name}", unit=unit, raw=raw)


def options() -> argparse.Namespace:
    """Read the command line."""
    parser = argparse.ArgumentParser(description=(__doc__ or "").partition(":")[0])
    parser.add_argument("--rounds", type=int, default=1, help="seeds")
    parser.add_argument("--seed", type=int, default=1, help="the first one")
    parser.add_argument("--steps", type=int, default=80)
    parser.add_argument("--pace", type=float, default=0.05, help="seconds of a micro-batch")
    parser.add_argument("--no-page", action="store_true", help="print the table only")
    parser.add_argument("--smoke", action="store_true", help="few steps, no page")
    chosen = parser.parse_args()
    if chosen.smoke:
        chosen.no_page, chosen.steps = True, 20
    return chosen


def main() -> None:
    """Measure all sides, each under the same capacity, and write the page."""
    chosen = options()
    before = harness.load()
    sides = [(STILL, "off"), *((weather, policy) for weather in STAYS_S for policy in POLICIES)]
    runs: dict[tuple[str, str], list[Run]] = {side: [] for side in sides}
    with tempfile.TemporaryDirectory(prefix="pliant-thrash-") as scratch:
        for seed in range(chosen.seed, chosen.seed + chosen.rounds):
            for weather, policy in sides:
                run = measure(
                    Path(scratch) / f"{seed}-{weather}-{policy}",
                    policy=POLICIES[policy],
                    weather=weather,
                    seed=seed,
                    steps=chosen.steps,
                    pace=chosen.pace,
                )
                print(f"{weather}, {policy}, seed {seed}: {run}", flush=True)
                runs[weather, policy].append(run)
    digests = {run.digest for found in runs.values() for run in found}
    if len(digests) != 1:
        raise SystemExit(f"the results differ: {digests}")
    spans = "; ".join(f"*{name}*, {low:g} to {high:g} s" for name, (low, high) in STAYS_S.items())
    page = Page(
        theme="thrash",
        summary="Capacity that comes and goes: what following every change of it costs a job, and "
        "what the policy's waits bring.",
        method=METHOD.format(
            devices=DEVICES,
            fewer=DEVICES - 1,
            pace=chosen.pace,
            steps=chosen.steps,
            stays=spans,
            policies="; ".join(f"*{name}*, `{words}`" for name, words in POLICIES.items()),
        ),
        figures=tuple(figures_of(runs)),
        command=harness.command_line("thrash"),
        load=(before, harness.load()),
        notes=("All runs ended with one digest, that of the run in still weather among them.",),
    )
    harness.publish(page, write=not chosen.no_page)


if __name__ == "__main__":
    main()
