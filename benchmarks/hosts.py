"""Several hosts on a slow network, beside torchrun and DDP there: ``python -m benchmarks.hosts``.

Owns the sides that are compared, the events, and the page.  Hosts are those of the tests
(``tests.live.namespaces``), each end of the network limited by ``tc tbf``.  Needs root.

    two levels   pliant: each host adds up its own first
    flat         pliant as it was: every member for itself, through sockets
    torchrun     DDP over gloo, accumulating the same micro-batches
"""

from __future__ import annotations

import argparse
import statistics
import sys
import tempfile
import time
from collections.abc import Iterator, Sequence
from dataclasses import dataclass, field
from itertools import pairwise
from pathlib import Path

import psutil
from tests.live import namespaces
from tests.live.namespaces import NetworkHost

from benchmarks import harness, network
from benchmarks.harness import Figure, Page
from benchmarks.torchrun import LAUNCHER, TUNED
from pliant.observe.reading import read

SIDES = ("two levels", "flat", "torchrun")
LIMIT_S = 240.0
WARM_STEPS = 4
SETTLE_STEPS = 6
"""Steps at full size before the next event."""

METHOD = """\
Each host is a set of namespaces (network, processes, shared memory) with {each} workers of a GPT of
9.64M parameters (43 MB of gradients; a step has two micro-batches for each worker), on one bridge;
each end sends and receives at the rate. All hosts share the {cores} cores of one machine, so what
is computed takes longer than on hosts of their own, on all sides alike. *step*: median of {steps}
steps. *sent*: bytes that left the busiest host, of one step. *kill*: the longest gap between steps
that nobody had made before, around a SIGKILL of one worker, less a normal step, {kills} times.
pliant goes on with the others and takes a replacement in later (*join*: the same around that);
torchrun ({tuned}) starts all workers again, from a checkpoint of every tenth step."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Case:
    """One network."""

    hosts: int
    rate: str
    each: int

    @property
    def name(self) -> str:
        """How its rows begin."""
        return f"{self.hosts} hosts, {self.rate}"

    @property
    def workers(self) -> int:
        """Of all hosts."""
        return self.hosts * self.each


@dataclass(slots=True, kw_only=True)
class Result:
    """What one side took."""

    steps_s: list[float] = field(default_factory=list)
    sent_mb: list[float] = field(default_factory=list)
    kills_s: list[float] = field(default_factory=list)
    joins_s: list[float] = field(default_factory=list)


@dataclass(frozen=True, slots=True, kw_only=True)
class Moment:
    """A step that nobody had made before."""

    step: int
    at: float
    size: int


def progress(steps: Sequence[tuple[float, int, int]]) -> list[Moment]:
    """Return the first making of each step, of (at, step, size) in order of time."""
    found: list[Moment] = []
    for at, step, size in steps:
        if not found or step > found[-1].step:
            found.append(Moment(step=step, at=at, size=size))
    return found


def longest_gap_s(moments: Sequence[Moment], since: float) -> float:
    """Return the longest time between two steps of which the later is after a moment."""
    gaps = [b.at - a.at for a, b in pairwise(moments) if b.at >= since]
    return max(gaps, default=0.0)


class Side:
    """One way to train on all hosts; see the module's text."""

    def __init__(self, hosts: Sequence[NetworkHost], case: Case, slots: int, folder: Path) -> None:
        self.hosts, self.case, self.slots, self.folder = hosts, case, slots, folder
        folder.mkdir()

    def start(self) -> None:
        """Start everything."""
        raise NotImplementedError

    def moments(self) -> list[Moment]:
        """Return the steps so far."""
        raise NotImplementedError

    def hurt(self) -> None:
        """Send SIGKILL to a worker of the last host."""
        raise NotImplementedError

    def environment(self, host: NetworkHost) -> dict[str, str]:
        """Return what programs of a host find."""
        return harness.environment(
            XDG_STATE_HOME=str(self.folder / host.name), GLOO_SOCKET_IFNAME="eth0"
        )

    def run(self, host: NetworkHost, *words: object) -> None:
        """Start a program on a host."""
        out = self.folder / f"{host.name}.txt"
        environment = self.environment(host)
        host.start(*words, environment=environment, cwd=harness.ROOT, out=out)

    def end(self) -> None:
        """End all programs of the hosts."""
        for host in self.hosts:
            host.inside("sh", "-c", "kill -9 -1 || true")
            for program in host.programs:
                program.end()
            host.programs.clear()

    def later(self, count: int, *, size: int, since: float = 0.0) -> list[Moment]:
        """Wait for so many steps at one size after a moment; return them."""

        def are_there() -> list[Moment] | None:
            found = [m for m in self.moments() if m.at > since and m.size == size]
            return found if len(found) >= count else None

        what = f"{self.case.name}: {count} steps of {size} workers"
        try:
            return harness.await_true(are_there, timeout_s=LIMIT_S, what=what)
        except TimeoutError as error:
            said = [f"{p.name}: {p.read_text()[-1500:]}" for p in self.folder.glob("*.txt")]
            raise SystemExit("\n".join([str(error), *said])) from None


class Pliant(Side):
    """A coordinator on the first host, an agent on each."""

    more: tuple[str, ...] = ()

    def start(self) -> None:
        """Start the coordinator, then the agents."""
        place, out, count = f"{self.hosts[0].address}:7000", self.folder / "run", self.case.workers
        words: tuple[object, ...] = (sys.executable, "-m", "pliant", "coordinator")
        words = (*words, "--listen", place, "--out", out, "--min", 1)
        words = (*words, "--start", count, "--max", count, "--max-restarts", 100)
        script = ("-m", "benchmarks.train_pliant", "--steps", 1_000_000, "--slots", self.slots)
        self.run(self.hosts[0], *words, *script, "--tails", self.folder / "tails", *self.more)
        harness.await_true((out / "token").exists, timeout_s=LIMIT_S, what="a token")
        for host in self.hosts:
            words = (sys.executable, "-m", "pliant", "agent", "--join", place, "--devices")
            self.run(host, *words, self.case.each, "--token-file", out / "token")

    def moments(self) -> list[Moment]:
        """Return the commits of the log, with the size of the newest generation entered."""
        sizes: dict[int, int] = {}
        steps = []
        for record in read(self.folder / "run" / "events.jsonl"):
            if record["kind"] in ("switch", "reform"):
                order = record["order"]
                sizes[order["generation"]] = len(order["members"])
            elif record["kind"] == "commit":
                steps.append((record["mono"], record["step"], sizes.get(record["generation"], 0)))
        return progress(steps)

    def hurt(self) -> None:
        """Kill the newest worker of the last host; the log has its number there."""
        host, records = self.hosts[-1], read(self.folder / "run" / "events.jsonl")
        here = [one for one in records if one["kind"] == "worker" and one["node"] == host.name]
        host.inside("sh", "-c", f"kill -9 {here[-1]['pid']}")


class Flat(Pliant):
    """As before decision 17."""

    more = ("--flat",)


class TorchrunDDP(Side):
    """An agent on each host."""

    def start(self) -> None:
        """Start all agents."""
        first = f"{self.hosts[0].address}:29400"
        for host in self.hosts:
            words: tuple[object, ...] = (*LAUNCHER, f"--nnodes=1:{len(self.hosts)}", *TUNED)
            is_first = host is self.hosts[0]  # names of namespaces cannot be looked up
            words = (*words, f"--rdzv-conf=last_call_timeout=1,is_host={is_first}")
            words = (*words, f"--nproc-per-node={self.case.each}", "--rdzv-backend=c10d")
            words = (*words, f"--rdzv-endpoint={first}", "--rdzv-id=hosts", "--max-restarts=100")
            words = (*words, f"--local-addr={host.address}", "-m", "benchmarks.train_torchrun")
            words = (*words, "--steps", 1_000_000, "--slots", self.slots)
            words = (*words, "--tails", self.folder / "tails")
            self.run(host, *words, "--checkpoint", self.folder / "newest.pt")

    def environment(self, host: NetworkHost) -> dict[str, str]:
        """Return it with what torchrun's own store needs."""
        return super().environment(host) | {"TORCH_DISABLE_SHARE_RDZV_TCP_STORE": "1"}

    def moments(self) -> list[Moment]:
        """Return the steps that the first rank has finished."""
        tails = harness.read_tails(self.folder / "tails")
        return progress([(tail.at, tail.step, tail.size) for tail in tails])

    def hurt(self) -> None:
        """Kill a worker of the last host."""
        (agent,) = self.hosts[-1].programs
        agent.process().children()[-1].kill()


KINDS: dict[str, type[Side]] = dict(zip(SIDES, (Pliant, Flat, TorchrunDDP), strict=True))


def sent_bytes(host: NetworkHost) -> int:
    """Return what has left a host."""
    for line in Path(f"/proc/{host.init}/net/dev").read_text().splitlines():
        name, _, counts = line.partition(":")
        if name.strip() == "eth0":
            return int(counts.split()[8])
    return 0


def measure(side: Side, steps: int, kills: int) -> Result:
    """Let one side train, and hurt it."""
    result, size = Result(), side.case.workers
    side.start()
    before = side.later(WARM_STEPS, size=size)[-1]
    sent, made = [sent_bytes(host) for host in side.hosts], len(side.moments())
    last = side.later(steps, size=size, since=before.at)
    most = max(sent_bytes(host) - was for host, was in zip(side.hosts, sent, strict=True))
    result.sent_mb = [most / 1e6 / (len(side.moments()) - made)]
    result.steps_s = [b.at - a.at for a, b in pairwise([before, *last])]
    normal_s = statistics.median(result.steps_s)
    for _ in range(kills):
        side.hurt()
        since = time.monotonic()
        rest = side.later(SETTLE_STEPS, size=size, since=since)
        moments = side.moments()
        small = [m for m in moments if since < m.at < rest[0].at and m.size < size]
        result.kills_s.append(longest_gap_s([m for m in moments if m.at <= rest[0].at], since))
        if small:
            around = [m for m in moments if small[-1].at <= m.at]
            result.joins_s.append(longest_gap_s(around, since) - normal_s)
            first = [m for m in moments if m.at <= small[-1].at]
            result.kills_s[-1] = longest_gap_s(first, since)
        result.kills_s[-1] -= normal_s
    side.end()
    return result


def figures_of(results: dict[tuple[Case, str], Result]) -> Iterator[Figure]:
    """Yield the rows."""
    for (case, side), found in results.items():
        name = f"{case.name}: {side}"
        yield Figure(name=f"{name}, step", unit="s", raw=tuple(found.steps_s))
        base = results.get((case, "torchrun"))
        if base is not None and side != "torchrun":
            ratio = statistics.median(found.steps_s) / statistics.median(base.steps_s)
            yield Figure(name=f"{name}, step over DDP's", unit="", raw=(ratio,))
        yield Figure(name=f"{name}, sent", unit="MB", raw=tuple(found.sent_mb))
        if found.kills_s:
            yield Figure(name=f"{name}, kill", unit="s", raw=tuple(found.kills_s))
        if found.joins_s:
            yield Figure(name=f"{name}, join", unit="s", raw=tuple(found.joins_s))


def options() -> argparse.Namespace:
    """Read the command line."""
    parser = argparse.ArgumentParser(description=(__doc__ or "").partition(":")[0])
    parser.add_argument("--hosts", type=int, nargs="+", default=[2, 4])
    parser.add_argument("--rates", nargs="+", choices=network.RATES, default=list(network.RATES))
    parser.add_argument("--each", type=int, default=2, help="workers of a host")
    parser.add_argument("--sides", nargs="+", choices=SIDES, default=list(SIDES))
    parser.add_argument("--steps", type=int, default=12)
    parser.add_argument("--kills", type=int, default=2)
    parser.add_argument("--no-page", action="store_true", help="print the table only")
    return parser.parse_args()


def main() -> None:
    """Measure all sides on all networks, and write the page."""
    chosen = options()
    if why := namespaces.obstacle():
        raise SystemExit(f"skipped: {why}")
    before = harness.load()
    results: dict[tuple[Case, str], Result] = {}
    cases = [Case(hosts=n, rate=r, each=chosen.each) for n in chosen.hosts for r in chosen.rates]
    with tempfile.TemporaryDirectory(prefix="pliant-hosts-") as scratch:
        for number, case in enumerate(cases):
            folder = Path(scratch) / str(number)
            folder.mkdir()
            names = [f"h{index}" for index in range(1, case.hosts + 1)]
            with namespaces.network(folder, *names) as lent:
                of_a_millisecond = round(network.RATES[case.rate] / 8 / 1000)
                for host in lent.hosts:
                    burst = str(of_a_millisecond)
                    lent.slow_down(host, case.rate, 50 * of_a_millisecond, burst=burst)
                for name in chosen.sides:
                    slots = 2 * case.workers
                    side = KINDS[name](lent.hosts, case, slots, folder / name.replace(" ", "-"))
                    results[case, name] = measure(side, chosen.steps, chosen.kills)
                    print(f"{case.name}: {name}: {results[case, name]}", flush=True)
    page = Page(
        theme="hosts",
        summary="Several hosts on a slow network: a step, what is sent, and what a loss costs.",
        method=METHOD.format(
            each=chosen.each,
            cores=psutil.cpu_count(),
            steps=chosen.steps,
            kills=chosen.kills,
            tuned=" ".join(TUNED),
        ),
        figures=tuple(figures_of(results)),
        command=harness.command_line("hosts"),
        load=(before, harness.load()),
    )
    harness.publish(page, write=not chosen.no_page)


if __name__ == "__main__":
    main()
