"""``pliant policy ...``: what keeps the job at its size, and how to change it while it runs.

Owns how fields are shown.  Knows nothing of what they mean; the job checks them.
"""

from __future__ import annotations

import json
from collections.abc import Mapping
from typing import Annotated, Any

import typer
from rich.console import Console

from pliant.cli.arguments import changes_of, state_directory
from pliant.cli.options import Job, Json
from pliant.core.exits import EXIT_OK
from pliant.http.client import Client
from pliant.machine.jobs import find_job

app = typer.Typer(
    name="policy",
    no_args_is_help=True,
    rich_markup_mode=None,
    help="Show or change the elastic policy of a running job.",
)


@app.command(name="show")
def show(job: Job = None, as_json: Json = False) -> int:
    """Show every field, as a job file has it."""
    policy = Client(find_job(job, state_directory().jobs)).policy()
    if as_json:
        print(json.dumps(policy, indent=2))
        return EXIT_OK
    for line in lines_of(policy):
        _console().print(line, soft_wrap=True)
    return EXIT_OK


@app.command(name="set")
def set_fields(
    fields: Annotated[
        list[str],
        typer.Argument(metavar="KEY=VALUE", help="E.g. maxReplicas=6; none sets the default."),
    ],
    job: Job = None,
    as_json: Json = False,
) -> int:
    """Change fields of the policy; what contradicts itself changes nothing."""
    answer = Client(find_job(job, state_directory().jobs)).set_policy(changes_of(fields))
    _console().print_json(data=answer) if as_json else _console().print(
        str(answer.get("reason") or "accepted"), soft_wrap=True
    )
    return EXIT_OK


def lines_of(policy: Mapping[str, Any], indent: str = "") -> list[str]:
    """Return the policy as a job file has it; unset fields say so."""
    lines = []
    for name, value in policy.items():
        if isinstance(value, Mapping):
            lines += [f"{indent}{name}:", *lines_of(value, f"{indent}  ")]
        else:
            shown = "none" if value is None else json.dumps(value)
            lines.append(f"{indent}{name}: {shown.removesuffix('.0')}")
    return lines


def _console() -> Console:
    return Console(highlight=False, markup=False)
