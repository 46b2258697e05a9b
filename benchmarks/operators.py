"""What an operator of many jobs costs: memory, a restart, a look at a job, requests at rest.

Owns the objects and the page.  The API server is that of the tests, in a process of its own; no
training, no kubelet: pods run because their status says so.
"""

from __future__ import annotations

import argparse
import asyncio
import json
import resource
import subprocess
import sys
import time
from collections.abc import AsyncIterator, Iterator
from contextlib import asynccontextmanager, contextmanager

from tests.kube.fake_api import FakeApi, served
from tests.kube.jobs import manifest
from tests.kube.world import World

from benchmarks import harness
from benchmarks.harness import Figure, Page
from pliant.core.operator.plan import plan
from pliant.kube import demand
from pliant.kube.client import Api, Call
from pliant.kube.connection import Cluster
from pliant.kube.operator import Operator, Settings

JOBS, PODS_OF_JOB, WORKLOADS_OF_JOB = 200, 5, 2
REST_S = 30.0
ROUND_S = 0.1
SMALL, LARGE = 64, 1000

METHOD = """\
{jobs} jobs of 2 replicas at least and 4 at most (sizes 2 and 4), each with a coordinator, 4 agents,
a base Workload and one increment: {pods} pods, {workloads} Workloads. A first operator, started
beside manifests alone, makes all of it; then {rounds} others are started one after the other, each
a new process. A restart is over once every job was looked at without an error and nothing is left
to do. A look at a job is timed without its requests, from the objects to the plan; its p99 is a
bound, that of the histogram. At rest, requests are counted for {rest:g} s. Then one job that trains
with {small} replicas can use {large}: timed until as many have their pods and the status says so,
increment by increment, each admitted after {round_ms:g} ms at most. The API server and what
coordinators answer are the tests' (Python, on the same cores), so times by the clock are theirs."""


def serve(*, large: bool) -> None:
    """Be the API server until stdin ends; print where it is, and where coordinators answer."""
    fake = FakeApi()
    world = World(fake, quota=10**6)
    world.useful, world.slots, world.round_s = 4, LARGE, ROUND_S
    if large:
        world.useful = SMALL
        bounds = {"minReplicas": SMALL, "maxReplicas": LARGE}
        fake.create(manifest("large", elasticPolicy=bounds))
    for number in range(0 if large else JOBS):
        policy = {
            "minReplicas": 2,
            "maxReplicas": 4,
            "replicaDiscreteValues": [2, 4],
            "scalingTimeoutInSeconds": 1,
        }
        fake.create(manifest(f"job{number}", elasticPolicy=policy))
    with served(fake) as cluster, world.going_on() as port:
        print(json.dumps({"url": cluster.url, "port": port}), flush=True)
        for _ in sys.stdin:
            world.useful = LARGE


@asynccontextmanager
async def operator_at(url: str) -> AsyncIterator[tuple[Operator, list[Call]]]:
    """Run one operator; yields it, and the requests that it makes."""
    calls: list[Call] = []

    def heard(call: Call, code: int, took_s: float) -> None:
        calls.append(call)
        operator.metrics.heard(call, code, took_s)

    api = Api(Cluster(url=url, context="benchmark"), heard=heard)
    identity = str(time.monotonic())
    settings = Settings(image="pliant", namespace="pliant-system", identity=identity)
    operator = Operator(api, settings, decide=plan)
    stop = asyncio.Event()
    task = asyncio.create_task(operator.run(stop))
    yield operator, calls
    stop.set()
    await task
    await api.close()


async def operate(url: str) -> dict[str, float]:
    """Be one operator until everything rests; return its figures."""
    began_s = time.monotonic()
    async with operator_at(url) as (operator, calls):
        while not (_sizes(operator) == [4] * JOBS and _rests(operator)):
            await asyncio.sleep(0.05)
        took_s = time.monotonic() - began_s
        asked = len(calls)
        await asyncio.sleep(REST_S)
    own = operator.metrics.own.buckets()
    bound = next(most for most, count in own if count >= 0.99 * own[-1][1])
    return {
        "restart_s": took_s,
        "memory_mib": resource.getrusage(resource.RUSAGE_SELF).ru_maxrss / 1024,
        "own_p99_ms": float(bound) * 1000,
        "rest_per_s": (len(calls) - asked) / REST_S,
        "requests": asked,
    }


async def grow(url: str) -> None:
    """Be one operator of a job that grows; say when it has each of its two sizes."""
    async with operator_at(url) as (operator, _):
        for size in (SMALL, LARGE):
            while _sizes(operator) != [size]:
                await asyncio.sleep(0.02)
            print(size, flush=True)


def _sizes(operator: Operator) -> list[int | None]:
    return [(body.get("status") or {}).get("replicas") for body in operator.stores.jobs]


def _rests(operator: Operator) -> bool:
    return operator.metrics.results["ok"] >= JOBS and len(operator.queue) == 0


def time_growth() -> float:
    """Return how long the large job takes, in seconds."""
    with process("--serve", "--large") as server:
        assert server.stdout is not None
        assert server.stdin is not None
        place = json.loads(server.stdout.readline())
        with process("--grow", place["url"], "--port", str(place["port"])) as one:
            assert one.stdout is not None
            one.stdout.readline()
            began_s = time.monotonic()
            server.stdin.write("grow\n")
            server.stdin.flush()
            one.stdout.readline()
            return time.monotonic() - began_s


@contextmanager
def process(*arguments: str) -> Iterator[subprocess.Popen[str]]:
    """Run this module in a process of its own."""
    command = [sys.executable, "-m", "benchmarks.operators", *arguments]
    pipes = {"stdin": subprocess.PIPE, "stdout": subprocess.PIPE}
    with subprocess.Popen(command, text=True, cwd=harness.ROOT, **pipes) as started:  # type: ignore[call-overload]
        try:
            yield started
        finally:
            started.kill()


def main() -> None:
    """Measure, and write the page."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--rounds", type=int, default=3)
    parser.add_argument("--no-page", action="store_true")
    parser.add_argument("--serve", action="store_true", help=argparse.SUPPRESS)
    parser.add_argument("--large", action="store_true", help=argparse.SUPPRESS)
    parser.add_argument("--grow", help=argparse.SUPPRESS)
    parser.add_argument("--operate", help=argparse.SUPPRESS)
    parser.add_argument("--port", type=int, help=argparse.SUPPRESS)
    chosen = parser.parse_args()
    if chosen.serve:
        return serve(large=chosen.large)
    if chosen.port:
        vars(demand).update(PORT=chosen.port)
    if chosen.grow:
        return asyncio.run(grow(chosen.grow))
    if chosen.operate:
        return print(json.dumps(asyncio.run(operate(chosen.operate))))
    before, rounds = harness.load(), []
    with process("--serve") as server:
        assert server.stdout is not None
        place = json.loads(server.stdout.readline())
        for number in range(chosen.rounds + 1):
            with process("--operate", place["url"], "--port", str(place["port"])) as one:
                said = json.loads(one.communicate(timeout=600)[0])
            print("first" if number == 0 else f"restart {number}", said, flush=True)
            rounds.append(said)
    growth = []
    for number in range(chosen.rounds):
        growth.append(time_growth())
        print("growth", number + 1, growth[-1], flush=True)
    harness.publish(_page(rounds, growth, before), write=not chosen.no_page)
    return None


def _page(rounds: list[dict[str, float]], growth: list[float], before: float) -> Page:
    def figure(name: str, unit: str, key: str, target: str = "") -> Figure:
        raw = tuple(one[key] for one in rounds[1:])
        return Figure(name=name, unit=unit, raw=raw, target=target)

    return Page(
        theme="operator",
        summary=f"What one operator of {JOBS} jobs costs.",
        method=METHOD.format(
            jobs=JOBS,
            pods=JOBS * PODS_OF_JOB,
            workloads=JOBS * WORKLOADS_OF_JOB,
            rounds=len(growth),
            small=SMALL,
            large=LARGE,
            round_ms=ROUND_S * 1000,
            rest=REST_S,
        ),
        figures=(
            figure("memory, at most", "MiB", "memory_mib", "< 150"),
            figure("restart to reconciled", "s", "restart_s", "< 10"),
            figure("look at a job, own time, p99 at most", "ms", "own_p99_ms", "< 50"),
            figure("requests at rest", "/s", "rest_per_s", "< 1"),
            figure("requests of a restart", "", "requests"),
            Figure(
                name=f"from {SMALL} to {LARGE} replicas", unit="s", raw=tuple(growth), target="< 60"
            ),
            Figure(name="first start: all made", unit="s", raw=(rounds[0]["restart_s"],)),
        ),
        command=harness.command_line("operators"),
        load=(before, harness.load()),
    )


if __name__ == "__main__":
    main()
