"""What helps who types: help pages, the pages of the documentation, and what a shell completes.

Owns that a list of commands says the whole of each sentence, however narrow the terminal is, and
nothing of a program's types; that no option is given twice; where the documentation lies (beside
the package in a wheel, in ``docs`` of a checkout); and where names to complete are found.  The
scripts for shells are Typer's.
"""

from __future__ import annotations

import contextlib
import inspect
import os
from collections.abc import Callable, Iterable
from functools import partial
from pathlib import Path
from typing import Annotated, Any

import typer
from typer.completion import get_completion_inspect_parameters
from typer.core import TyperGroup

from pliant.cli.terminal import say
from pliant.core.errors import ConfigError
from pliant.core.text import order_of, replica_of
from pliant.machine import run_files
from pliant.machine.registry import StateDirectory
from pliant.observe.runs import find_run, known_runs


def option(spelt: str, help: str, **more: Any) -> Any:
    """Declare an option as help pages spell it: ``--job NAME``, ``-f --follow``."""
    *flags, last = spelt.split()
    if last.startswith("-"):
        return typer.Option(*flags, last, help=help, **more)
    return typer.Option(*flags, metavar=last, help=help, show_envvar=False, **more)


def argument(metavar: str, help: str, **more: Any) -> Any:
    """Declare an argument."""
    return typer.Argument(metavar=metavar, help=help, **more)


def with_parameters(
    function: Callable[..., int], parameters: Iterable[inspect.Parameter]
) -> Callable[..., int]:
    """Let the parser see these parameters in place of those of a function; return the function."""
    named = [one.replace(kind=inspect.Parameter.KEYWORD_ONLY) for one in parameters]
    vars(function)["__signature__"] = inspect.Signature(named)
    return function


WHOLE = 1_000
"""Characters of a command's first sentence that are shown: all of them."""


class CommandGroup(TyperGroup):
    """A group whose commands are listed with their whole sentences."""

    def format_commands(self, ctx: Any, formatter: Any) -> None:
        """List the commands; typer's own list cuts each to what is left of one line."""
        named = [(name, self.get_command(ctx, name)) for name in self.list_commands(ctx)]
        with formatter.section("Commands"):
            formatter.write_dl(
                [(name, command.get_short_help_str(WHOLE)) for name, command in named if command]
            )

    def get_command(self, ctx: Any, cmd_name: str) -> Any:
        """Return a command whose help does not say ``<list[str]>`` beside an argument's name."""
        command = super().get_command(ctx, cmd_name)
        for param in command.params if command is not None else ():
            if param.param_type_name == "argument":  # an instance's: newer typers ask it for help
                vars(param)["display_type_rich"] = _no_type
        if command is not None and "make_parser" not in vars(command):
            vars(command)["make_parser"] = partial(_parser, command.make_parser)
        return command


def _parser(make: Callable[[Any], Any], ctx: Any) -> Any:
    """Return a command's parser, which refuses what it would drop: all but the last of a value."""
    parser = make(ctx)
    parse = parser.parse_args

    def parse_args(args: list[str]) -> Any:
        found = parse(args=args)
        for param in found[2]:
            takes_one = param.param_type_name == "option" and not (
                param.multiple or param.is_flag or param.count
            )
            if takes_one and found[2].count(param) > 1:
                raise ConfigError(
                    f"{param.opts[-1]} is given more than once: give it once, with commas if it "
                    "takes several values"
                )
        return found

    parser.parse_args = parse_args
    return parser


def _no_type(ctx: Any) -> str:
    """Return the type of an argument for people: none."""
    return ""


def job_names(incomplete: str) -> list[str]:
    """Return the names of jobs that begin like this."""
    with contextlib.suppress(Exception):
        names = dict.fromkeys(run.job for run in known_runs(StateDirectory.of(os.environ)))
        return [name for name in names if name.startswith(incomplete)]
    return []


def replica_names(ctx: typer.Context, incomplete: str) -> list[str]:
    """Return the names of replicas, of the job that is meant, that begin like this."""
    return list(dict.fromkeys(replica_of(name) for name in worker_names(ctx, incomplete)))


def worker_names(ctx: typer.Context, incomplete: str) -> list[str]:
    """Return the names of replicas and workers, of the job that is meant, that begin like this."""
    with contextlib.suppress(Exception):
        out = ctx.params.get("out")
        run = find_run(ctx.params.get("job"), out and Path(out), StateDirectory.of(os.environ))
        names = [path.stem for path in (run / run_files.LOGS).glob("r*.log")]
        found = sorted({*names, *map(replica_of, names)}, key=order_of)
        return [name for name in found if name.startswith(incomplete)]
    return []


_HERE = Path(__file__).resolve()
PLACES = (_HERE.parents[1] / "docs", _HERE.parents[3] / "docs")


def docs(
    page: Annotated[str | None, argument("PAGE", "Its name, e.g. bring-your-script.")] = None,
) -> int:
    """Show a page of the documentation; without a name, list them."""
    place = next(filter(Path.is_dir, PLACES), PLACES[0])
    pages = {path.stem: path for path in sorted(place.rglob("*.md"))}
    if page is None:
        return say("\n".join((*pages, f"files: {place}")))
    if (found := pages.get(Path(page).stem)) is None:
        raise ConfigError(f"there is no page {page!r}; all are in pliant docs")
    return say(found.read_text())


VARIABLE = "_PLIANT_COMPLETE"
"""By which a shell asks the program itself, and a person for what a shell has to read."""


def prepare() -> None:
    """Let the program answer the shells, which ask it by a variable."""
    get_completion_inspect_parameters()  # Typer keeps what it registers with these options
