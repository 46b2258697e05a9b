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

import typer
from rich import box
from rich.progress import Progress
from rich.table import Table
from rich.text import Text

from pliant.cli.arguments import changes_of, some_seconds
from pliant.cli.options import Json
from pliant.cli.printing import draw
from pliant.cli.terminal import PlainConsole, say_aside
from pliant.core.errors import ConfigError
from pliant.core.exits import EXIT_INTERRUPTED, EXIT_OK
from pliant.spec.load import parse_policy
from pliant.spec.policy import BOUNDS, core_policy

if TYPE_CHECKING:  # no other command waits for the core's code
    from pliant.simulate.measures import Measures
    from pliant.simulate.simulation import Simulation

WAYS = "in-place,restart:60,preempt,static"


def simulate(
    cluster: Annotated[
        Path, typer.Argument(metavar="CLUSTER.yaml", help="Nodes, prices, spot traces, inference.")
    ],
    workload: Annotated[
        str,
        typer.Argument(metavar="WORKLOAD.csv|mix:...", help="Jobs, or a generator of them."),
    ],
    ways: Annotated[
        str,
        typer.Option(
            "--way",
            metavar="WAY,...",
            help="How jobs are resized: in-place, restart[:S], pause:S, preempt, static.",
        ),
    ] = WAYS,
    policy: Annotated[
        list[str] | None,
        typer.Option("--policy", metavar="KEY=VALUE", help="A field of the elastic policy."),
    ] = None,
    until: Annotated[
        str | None,
        typer.Option("--until", metavar="TIME", help="End after 14d, 12h, ...  [default: all]"),
    ] = None,
    jobs_to: Annotated[
        Path | None,
        typer.Option("--jobs", metavar="DIR", help="Write a CSV file of all jobs for each way."),
    ] = None,
    as_csv: Annotated[bool, typer.Option("--csv", help="Print CSV instead of a table.")] = False,
    as_json: Json = False,
) -> int:
    """Simulate a cluster with its jobs, for several ways of resizing them."""
    from pliant.simulate.measures import measured
    from pliant.simulate.resize_costs import costs_of
    from pliant.simulate.simulation import Simulation
    from pliant.simulate.world_files import read_world

    chosen = [costs_of(way) for way in ways.split(",")]
    fields: dict[str, Any] = changes_of(policy or [])
    if bound := next((name for name in fields if name in BOUNDS), None):
        raise ConfigError(f"--policy {bound}: the sizes of each job stand in the workload")
    world = read_world(cluster, workload, policy=core_policy(parse_policy(fields)))
    until_s = math.inf if until is None else some_seconds("--until", until)
    columns: list[Measures] = []
    with _interrupts() as is_stopped, _progress() as follow:
        for costs in chosen:
            simulation = Simulation(world, costs, until_s=until_s)
            simulation.run(on_progress=follow(costs.name), is_stopped=is_stopped)
            columns.append(measured(simulation))
            if jobs_to is not None:
                _write_jobs(jobs_to, simulation)
            if is_stopped():
                break
    _print(columns, as_csv=as_csv, as_json=as_json, is_whole=not is_stopped())
    if is_stopped():
        say_aside("pliant: stopped on request; this is the report up to there")
        return EXIT_INTERRUPTED
    return EXIT_OK


def _print(columns: list[Measures], *, as_csv: bool, as_json: bool, is_whole: bool) -> None:
    from pliant.simulate import report

    if as_json:
        print(report.as_json(columns, is_whole=is_whole), end="")
    elif as_csv:
        print(report.as_csv(columns), end="")
    else:
        draw(_drawn(report.table(columns)))


def _drawn(rows: list[tuple[str, ...]]) -> Table:
    table = Table(box=box.SIMPLE_HEAD, header_style="dim")
    for at, name in enumerate(rows[0]):
        table.add_column(name, justify="right" if at else "left", no_wrap=True)
    for row in rows[1:]:
        table.add_row(*map(Text, row))
    return table


def _write_jobs(directory: Path, simulation: Simulation) -> None:
    from pliant.simulate import report

    directory.mkdir(parents=True, exist_ok=True)
    name = simulation.costs.name.replace(":", "-")
    (directory / f"{name}.csv").write_text(report.jobs_csv(simulation.records))


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
