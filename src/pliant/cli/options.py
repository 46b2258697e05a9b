"""The options that several commands have, each declared once.

Owns how a command takes the settings of a job (``settings``).  Knows nothing of what they mean.
"""

from __future__ import annotations

import inspect
from collections.abc import Callable, Sequence
from functools import wraps
from pathlib import Path
from typing import Annotated, Any

import typer

from pliant.cli.arguments import changes_of
from pliant.cli.names import job_names
from pliant.cli.settings import SETTINGS, Setting

Job = Annotated[
    str | None,
    typer.Option(
        "--job", metavar="NAME", help="Which job, if several run.", autocompletion=job_names
    ),
]
Json = Annotated[bool, typer.Option("--json", help="Print JSON instead of text.")]
LogJson = Annotated[
    bool, typer.Option("--json", help="Print the event log's records as they come.")
]
Out = Annotated[
    Path | None,
    typer.Option("--out", metavar="DIR", help="Look at the run in this directory instead."),
]
TlsCa = Annotated[
    Path | None,
    typer.Option(
        "--tls-ca",
        metavar="FILE",
        envvar="PLIANT_TLS_CA",
        show_envvar=False,
        help="The coordinator speaks TLS; this CA signs its certificate.",
    ),
]
TlsCertificate = Annotated[
    Path | None,
    typer.Option(
        "--tls-certificate",
        metavar="FILE",
        envvar="PLIANT_TLS_CERTIFICATE",
        show_envvar=False,
        help="This host's, if the coordinator wants one.",
    ),
]
TlsKey = Annotated[
    Path | None,
    typer.Option(
        "--tls-key",
        metavar="FILE",
        envvar="PLIANT_TLS_KEY",
        show_envvar=False,
        help="Of that certificate.",
    ),
]
PoolName = Annotated[
    str | None,
    typer.Option(
        "--pool",
        metavar="NAME",
        envvar="PLIANT_POOL",
        show_envvar=False,
        help="Which pool, if several run.",
    ),
]
Detach = Annotated[
    bool, typer.Option("--detach", help="Run in the background; follow it with status.")
]
Target = Annotated[str, typer.Argument(metavar="SCRIPT|-m MODULE|JOB.YAML", help="What to run.")]
Arguments = Annotated[
    list[str] | None,
    typer.Argument(
        metavar="ARGS",
        help="The script's; behind -- if they look like options of pliant.",
    ),
]


def with_settings(
    command: str, settings: Sequence[Setting] = SETTINGS
) -> Callable[[Callable[..., int]], Callable[..., int]]:
    """Give a command the options of its settings, before its own, in place of its first parameter.

    The command gets what was given, by setting; the parser sees one function with all options.
    """
    own = [item for item in settings if command in item.commands]

    def decorate(function: Callable[..., int]) -> Callable[..., int]:
        @wraps(function)
        def run(**values: Any) -> int:
            return function(
                {item.name: _given(item, values.pop(item.name)) for item in own}, **values
            )

        _, *rest = inspect.signature(function, eval_str=True).parameters.values()
        both = [*(_parameter(item, command) for item in own), *rest]
        keyword = [one.replace(kind=inspect.Parameter.KEYWORD_ONLY) for one in both]
        run.__signature__ = inspect.Signature(keyword)  # type: ignore[attr-defined]
        return run

    return decorate


def _parameter(item: Setting, command: str) -> inspect.Parameter:
    kind: Any = {dict: list[str] | None, bool: bool}.get(item.kind, item.kind | None)
    option = typer.Option(
        item.flag,
        metavar="N" if item.kind is int else item.metavar,
        help=item.help_in.get(command, item.help),
    )
    return inspect.Parameter(
        item.name,
        inspect.Parameter.KEYWORD_ONLY,
        default=False if item.kind is bool else None,
        annotation=Annotated[kind, option],
    )


def _given(item: Setting, value: Any) -> Any:
    """Return what was typed; None: the option was not."""
    if item.kind is dict:
        return changes_of(value or ())
    return None if value is False else value
