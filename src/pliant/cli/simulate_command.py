"""``pliant simulate``: what a cluster would do with these jobs, by the core that decides live.

Owns argv, the progress bar and the files that are written.  Knows nothing of what is simulated.
"""

from __future__ import annotations

import math
import signal
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any

from rich import box
from rich.progress import Progress
from rich.table import Table
from rich.text import Text

from pliant.cli.arguments import Json, changes_of, some_seconds
from pliant.cli.help import argument, option
from pliant.cli.terminal import PlainConsole, draw, say_aside
from pliant.core.errors import EXIT_INTERRUPTED, EXIT_OK, ConfigError
from pliant.spec.load import check
from pliant.spec.policy import BOUNDS, ElasticPolicy, core_policy

if TYPE_CHECKING:  # no other command waits for the core's code
    from pliant.core.policy.decide import Policy
    from pliant.simulate.measures import Measures
    from pliant.simulate.resize_costs import ResizeCosts
    from pliant.simulate.simulation import SimulatedWorld

WAYS = "in-place,restart:60,preempt,static"


def simulate(
    cluster: Annotated[Path, argument("CLUSTER.yaml", "Nodes, prices, spot traces.")],
    workload: Annotated[str, argument("WORKLOAD.csv", "Jobs that arrive.")],
    ways: Annotated[
        str,
        option(
            "--way WAY,...",
            "How jobs are resized: in-place, restart[:S[:CHECKPOINT_S]], pause:S, preempt, static.",
        ),
    ] = WAYS,
    policy: Annotated[
        list[str] | None, option("--policy KEY=VALUE", "A field of the elastic policy.")
    ] = None,
    capacity: Annotated[
        list[str] | None, option("--capacity NODES=TRACE", "Which of these nodes are there when.")
    ] = None,
    elastic: Annotated[
        int | None, option("--elastic N", "Let jobs of N or more have half to twice that.")
    ] = None,
    until: Annotated[
        str | None, option("--until TIME", "End after 14d, 12h, ...  [default: all]")
    ] = None,
    jobs_to: Annotated[
        Path | None, option("--jobs DIR", "Write a CSV file of all jobs for each way.")
    ] = None,
    as_json: Json = False,
) -> int:
    """Simulate a cluster with its jobs, for several ways of resizing them."""
    from pliant.simulate.resize_costs import costs_of
    from pliant.simulate.world_files import read_world

    if elastic is not None and elastic < 1:
        raise ConfigError(f"--elastic {elastic} must be at least 1")
    chosen = [costs_of(way) for way in ways.split(",")]
    names = [costs.name for costs in chosen]
    if twice := next((name for name in names if names.count(name) > 1), None):
        raise ConfigError(f"--way names {twice} twice; each is simulated once")
    world = read_world(
        cluster,
        workload,
        policy=_policy(policy or []),
        capacity=_named("--capacity", capacity),
        elastic_from=elastic,
    )
    until_s = math.inf if until is None else some_seconds("--until", until)
    if jobs_to is not None:
        jobs_to.mkdir(parents=True, exist_ok=True)
        for name in names:
            _require_writable(_jobs_file(jobs_to, name))
    for note in world.notes:
        say_aside(note)
    columns, is_whole = _run(world, chosen, until_s, jobs_to=jobs_to)
    _print(columns, as_json=as_json, is_whole=is_whole)
    if not is_whole:
        say_aside("pliant: stopped on request; this is the report up to there")
        return EXIT_INTERRUPTED
    return EXIT_OK


def _named(flag: str, words: list[str] | None) -> dict[str, str]:
    """Read ``NAME=TRACE``, as often as it is given."""
    found: dict[str, str] = {}
    for word in words or ():
        name, equals, text = word.partition("=")
        if not name or not equals or not text:
            raise ConfigError(f"{flag} {word!r} is not NAME=TRACE, such as spot=p3-trace.csv")
        found[name] = text
    return found


def _policy(assignments: list[str]) -> Policy:
    fields: dict[str, Any] = changes_of(assignments)
    if bound := next((name for name in fields if name in BOUNDS), None):
        raise ConfigError(f"--policy {bound}: the sizes of each job stand in the workload")
    return core_policy(check(ElasticPolicy, fields, source="the policy"))


def _run(
    world: SimulatedWorld, chosen: list[ResizeCosts], until_s: float, *, jobs_to: Path | None
) -> tuple[list[Measures], bool]:
    """Simulate one after the other; return what was measured, and whether all came to their end."""
    from pliant.simulate.measures import measured
    from pliant.simulate.report import jobs_csv
    from pliant.simulate.simulation import Simulation

    columns: list[Measures] = []
    with _interrupts() as is_stopped, _progress() as follow:
        for costs in chosen:
            simulation = Simulation(world, costs, until_s=until_s)
            simulation.run(on_progress=follow(costs.name), is_stopped=is_stopped)
            columns.append(measured(simulation))
            if jobs_to is not None:
                _jobs_file(jobs_to, costs.name).write_text(jobs_csv(simulation.records))
            if simulation.is_cut_short:
                return columns, False
    return columns, True


def _print(columns: list[Measures], *, as_json: bool, is_whole: bool) -> None:
    from pliant.simulate import report

    if as_json:
        print(report.as_json(columns, is_whole=is_whole), end="")
    else:
        draw(_drawn(report.table(columns)))


def _drawn(rows: list[tuple[str, ...]]) -> Table:
    table = Table(box=box.SIMPLE_HEAD, header_style="dim")
    for at, name in enumerate(rows[0]):
        widest = max(len(row[at]) for row in rows[1:])  # a name may be cut in two, a figure not
        table.add_column(
            name,
            justify="right" if at else "left",
            min_width=widest if at else None,
            overflow="fold",
        )
    for row in rows[1:]:
        table.add_row(*map(Text, row))
    return table


def _jobs_file(directory: Path, name: str) -> Path:
    return directory / f"{name.replace(':', '-')}.csv"


def _require_writable(path: Path) -> None:
    """Find out before a long simulation what could not be written behind it."""
    is_new = not path.exists()
    path.open("a").close()
    if is_new:
        path.unlink()


@contextmanager
def _interrupts() -> Iterator[Callable[[], bool]]:
    """Let the first Ctrl-C end the simulation with what there is; the second one ends pliant."""
    asked: list[int] = []

    def ask(number: int, _frame: object) -> None:
        asked.append(number)
        signal.signal(signal.SIGINT, before)

    before = signal.signal(signal.SIGINT, ask)
    try:
        yield lambda: bool(asked)
    finally:
        signal.signal(signal.SIGINT, before)


@contextmanager
def _progress() -> Iterator[Callable[[str], Callable[[float], None]]]:
    """Show on a terminal how far each simulation is; elsewhere nothing."""
    console = PlainConsole(stderr=True)
    with Progress(console=console, transient=True, disable=not console.is_terminal) as progress:

        def follow(name: str) -> Callable[[float], None]:
            task = progress.add_task(name, total=1.0)
            return lambda share: progress.update(task, completed=share)

        yield follow
