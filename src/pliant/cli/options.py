"""What several commands are told about a job, declared once.

Owns the options that ``pliant run`` and ``pliant coordinator`` share, and how a command takes them
as one value.  Knows nothing of what the settings mean (``settings`` does).
"""

from __future__ import annotations

import inspect
from collections.abc import Callable
from copy import copy
from dataclasses import dataclass
from functools import wraps
from pathlib import Path
from typing import Annotated, Any, TypeVar, get_args

import typer

from pliant.cli import policy_commands, settings

Shared = TypeVar("Shared")


@dataclass(frozen=True, slots=True, kw_only=True)
class JobWords:
    """What was typed about a job."""

    target: str
    """A script, or a job file."""

    arguments: list[str]
    """The script's own."""

    given: dict[str, Any]
    """Settings by their names; None: not given."""


def job_options(
    target: Annotated[str, typer.Argument(metavar="SCRIPT|JOB.YAML", help="What to run.")],
    arguments: Annotated[
        list[str] | None,
        typer.Argument(metavar="ARGS", help="Passed to the script untouched."),
    ] = None,
    low: Annotated[
        int | None, typer.Option("--min", metavar="N", help="Fewest replicas.  [default: 1]")
    ] = None,
    high: Annotated[
        int | None,
        typer.Option(
            "--max", metavar="N", help="Most replicas.  [default: accelerators, or 4 cores]"
        ),
    ] = None,
    start: Annotated[
        int | None,
        typer.Option("--start", metavar="N", help="Replicas to start with.  [default: max]"),
    ] = None,
    name: Annotated[
        str | None, typer.Option("--name", metavar="NAME", help="[default: the script's name]")
    ] = None,
    out: Annotated[
        Path | None,
        typer.Option("--out", metavar="DIR", help="Where its files go.  [default: runs/NAME]"),
    ] = None,
    init: Annotated[
        str | None,
        typer.Option(
            "--init", metavar="PLACE", help="Start from saved weights, or from a checkpoint."
        ),
    ] = None,
    max_restarts: Annotated[
        int | None,
        typer.Option(
            "--max-restarts",
            metavar="N",
            help="Replicas replaced after faults before giving up."
            f"  [default: {settings.DEFAULT_RESTARTS}]",
        ),
    ] = None,
    elastic: Annotated[
        list[str] | None,
        typer.Option(
            "--policy",
            metavar="KEY=VALUE",
            help="A field of elasticPolicy, as pliant policy set takes it; may be repeated.",
        ),
    ] = None,
    port: Annotated[
        int | None,
        typer.Option("--port", metavar="N", help="Port of the REST interface.  [default: any]"),
    ] = None,
) -> JobWords:
    """Take what describes a job, whoever runs it."""
    given = {
        "min_replicas": low,
        "max_replicas": high,
        "start_replicas": start,
        "name": name,
        "out": out,
        "init": init,
        "max_restarts": max_restarts,
        "policy": policy_commands.changes_of(elastic or []),
        "port": port,
    }
    return JobWords(target=target, arguments=arguments or [], given=given)


def takes(
    shared: Callable[..., Shared], **helps: str
) -> Callable[[Callable[..., int]], Callable[..., int]]:
    """Give a command the parameters of ``shared``, before its own, in place of its first.

    The command gets what ``shared`` returns, as the parser of the command line sees one function
    with all of them.

    Args:
        shared: a function whose parameters are options, and which returns one value.
        helps: other words for some of them in this command, by parameter.
    """

    def decorate(command: Callable[..., int]) -> Callable[..., int]:
        common = [_reworded(one, helps.get(one.name)) for one in _parameters(shared)]
        own = _parameters(command)[1:]

        @wraps(command)
        def told(**values: Any) -> int:
            first = shared(**{one.name: values.pop(one.name) for one in common})
            return command(first, **values)

        both = [one.replace(kind=inspect.Parameter.KEYWORD_ONLY) for one in (*common, *own)]
        told.__signature__ = inspect.Signature(both)  # type: ignore[attr-defined]
        return told

    return decorate


def _parameters(function: Callable[..., Any]) -> list[inspect.Parameter]:
    return list(inspect.signature(function, eval_str=True).parameters.values())


def _reworded(parameter: inspect.Parameter, words: str | None) -> inspect.Parameter:
    """Return an option with another help."""
    if words is None:
        return parameter
    kind, option = get_args(parameter.annotation)
    option = copy(option)
    option.help = words
    return parameter.replace(annotation=Annotated[kind, option])
