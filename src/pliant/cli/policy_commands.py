"""``pliant policy ...``: what keeps the job at its size, and how to change it while it runs.

Owns how fields are typed and shown.  Knows nothing of what they mean; the job checks them.
"""

from __future__ import annotations

import json
from collections.abc import Iterable, Mapping
from typing import Annotated, Any

import typer
import yaml
from rich.console import Console

from pliant.core.errors import ConfigError
from pliant.core.exits import EXIT_OK
from pliant.http.client import Client
from pliant.machine import jobs
from pliant.spec.policy import told

LISTS = ("replicaDiscreteValues",)
"""Fields of which ``2,4,8`` is a value."""

app = typer.Typer(
    name="policy",
    no_args_is_help=True,
    rich_markup_mode=None,
    help="Show or change the elastic policy of a running job.",
)

Job = Annotated[
    str | None, typer.Option("--job", metavar="NAME", help="Which job, if several run.")
]
Json = Annotated[bool, typer.Option("--json", help="Print JSON instead of text.")]


@app.command(name="show")
def show(job: Job = None, as_json: Json = False) -> int:
    """Show every field, as a job file has it."""
    policy = Client(jobs.find_job(job)).policy()
    if as_json:
        print(json.dumps(policy, indent=2))
        return EXIT_OK
    for line in lines_of(policy):
        _console().print(line, soft_wrap=True)
    return EXIT_OK


@app.command(name="set")
def set_fields(
    words: Annotated[
        list[str],
        typer.Argument(metavar="KEY=VALUE", help="E.g. maxReplicas=6; none sets the default."),
    ],
    job: Job = None,
    as_json: Json = False,
) -> int:
    """Change fields of the policy; what contradicts itself changes nothing."""
    answer = Client(jobs.find_job(job)).set_policy(changes_of(words))
    _console().print_json(data=answer) if as_json else _console().print(
        str(answer.get("reason") or "accepted"), soft_wrap=True
    )
    return EXIT_OK


def changes_of(words: Iterable[str]) -> dict[str, Any]:
    """Read ``maxReplicas=6``, ``replicaDiscreteValues=2,4,8``, ``backoff.factor=3``.

    Raises:
        ConfigError: a word is no such assignment, or a field is given twice.
    """
    changes: dict[str, Any] = {}
    for word in words:
        key, equals, text = word.partition("=")
        if not equals or not key or not text:
            raise ConfigError(f"{word!r} is not KEY=VALUE, for instance maxReplicas=6")
        *outer, name = key.split(".")
        place = changes
        for part in outer:
            inner = place.setdefault(part, {})
            if not isinstance(inner, dict):
                raise ConfigError(f"{key} and {part} are both given")
            place = inner
        if name in place:
            raise ConfigError(f"{key} is given twice")
        place[name] = _value(name, text)
    return changes


def words_of(changes: Mapping[str, Any]) -> list[str]:
    """Return the words that ``changes_of`` reads as these changes."""
    return told(changes).replace(", ", ",").split()


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


def _value(name: str, text: str) -> Any:
    if text.lower() in ("none", "null"):
        return None
    if name in LISTS and not text.startswith("["):
        text = f"[{text}]"
    try:
        return yaml.safe_load(text)
    except yaml.YAMLError:
        return text


def _console() -> Console:
    return Console(highlight=False, markup=False)
