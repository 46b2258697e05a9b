"""The reference pages that are made from the source: commands, files, metrics, events."""

from __future__ import annotations

import dataclasses
import inspect
import typing
from collections.abc import Iterable, Iterator
from typing import Any, get_args

import typer
from pydantic import BaseModel
from pydantic_core import PydanticUndefined

from pliant.cli.main import app
from pliant.core.commands import Command, type_name
from pliant.core.events import AgentEvent, PeopleEvent, WorkerEvent
from pliant.integrations.lightning_options import TRAINER
from pliant.integrations.transformers_options import TRAINING_ARGUMENTS, TRL_OPTIONS
from pliant.observe.metric_table import ALERTS, TABLES, Row
from pliant.spec.job import ElasticJob
from pliant.spec.pool import PoolFile

MADE = "Made by `python -m tools.make_pages` from the source; change that.\n"


def cli_page() -> str:
    """Return every command with its options, as ``--help`` has them."""
    text = f"# Commands\n\n{MADE}\nEvery command takes `--help`.\n"
    for words, command in _commands("pliant", typer.main.get_command(app)):
        text += f"\n## {words}\n\n{' '.join((command.help or '').split())}\n"
        rows = [row for each in command.params if (row := _parameter(each))]
        if rows:
            text += "\n" + table_of(("argument or option", "meaning"), rows)
    return text


def _commands(words: str, command: Any) -> Iterator[tuple[str, Any]]:
    for name, each in getattr(command, "commands", {}).items():
        if not each.hidden:
            yield f"{words} {name}", each
            yield from _commands(f"{words} {name}", each)


def _parameter(each: Any) -> tuple[str, str] | None:
    if getattr(each, "hidden", False):
        return None
    if each.param_type_name == "argument":
        return f"`{each.metavar or each.name.upper()}`", each.help or ""
    value = "" if each.is_flag else f" {each.metavar or each.type.name.upper()}"
    names = ", ".join(f"`{name}`" for name in (*each.opts, *each.secondary_opts))
    return names + (f"{value}" and f" `{value.strip()}`"), each.help or ""


def files_page() -> str:
    """Return the fields of the job file and of the pool file, from their models."""
    text = f"# Job files and pool files\n\n{MADE}"
    for kind, model in (("Job file", ElasticJob), ("Pool file", PoolFile)):
        text += f"\n## {kind}\n\n{_line(inspect.getdoc(model))}\n\n"
        text += table_of(("field", "default", "meaning"), _fields(model, ""))
    return text


def _fields(model: type[BaseModel], under: str) -> Iterator[tuple[str, str, str]]:
    for name, field in model.model_fields.items():
        path = f"{under}{field.alias or name}"
        inner = _model_in(field.annotation)
        known = field.default not in (None, PydanticUndefined) and inner is None
        default = f"`{field.default}`" if known else ""
        yield f"`{path}`", default, _line(field.description)
        if inner is not None:
            is_many = typing.get_origin(field.annotation) in (list, dict, tuple)
            yield from _fields(inner, f"{path}{'[]' if is_many else ''}.")


def _model_in(annotation: Any) -> type[BaseModel] | None:
    if isinstance(annotation, type) and issubclass(annotation, BaseModel):
        return annotation
    inner = (_model_in(each) for each in typing.get_args(annotation))
    return next((each for each in inner if each is not None), None)


METRICS = """\
`GET /metrics`, for Prometheus. What is not known yet is left out. Every metric of a job has the
label `run`, its name. Old names are served until the next release.
[Watch with Prometheus](../howto/watch-with-prometheus.md) shows how to scrape it; the panel is that
of the dashboards in `deploy/grafana/`.
"""


def metrics_page() -> str:
    """Return what ``/metrics`` of a job, of a pool and of an operator has, and the alerts."""
    text = f"# Metrics\n\n{MADE}\n{METRICS}"
    titles = {"job": "a job", "pool": "a pool", "operator": "the operator of a cluster"}
    for name, rows in TABLES.items():
        text += f"\n## Of {titles[name]}\n\n"
        head = ("name", "type", "labels", "meaning", "panel", "old name")
        text += table_of(head, map(_metric, rows))
    text += "\n## Alerts\n\n"
    rows_of = ((f"`{one.name}`", f"`{one.expr}`", one.after, one.severity) for one in ALERTS)
    return text + table_of(("alert", "expression", "for", "severity"), rows_of)


def _metric(row: Row) -> tuple[str, ...]:
    labels = ", ".join(f"`{label}`" for label in row.labels)
    old = f"`{row.old}`" if row.old else ""
    return f"`{row.name}`", row.kind, labels, row.help, row.panel, old


def events_page() -> str:
    """Return what the core hears and orders, which ``events.jsonl`` has line by line."""
    text = f"# Events and commands\n\n{MADE}\n"
    text += (
        "A line of `events.jsonl` has `kind` (the name below), `at` and "
        "the fields. What else it tells is in [records](records.md).\n"
    )
    for title, kinds in (
        ("What workers say", WorkerEvent),
        ("What agents say", AgentEvent),
        ("What people ask", PeopleEvent),
        ("What the core orders", Command),
    ):
        rows = [
            (
                f"`{type_name(kind)}`",
                ", ".join(f"`{field.name}`" for field in dataclasses.fields(kind)),
                _line(kind.__doc__),
            )
            for kind in sorted(get_args(kinds), key=lambda kind: inspect.getsourcelines(kind)[1])
        ]
        text += f"\n## {title}\n\n{table_of(('name', 'fields', 'meaning'), rows)}"
    return text


def table_of(head: tuple[str, ...], rows: Iterable[tuple[str, ...]]) -> str:
    """Return a Markdown table."""
    lines = [head, tuple("---" for _ in head), *rows]
    cells = ([cell.replace("|", "\\|") for cell in line] for line in lines)
    return "".join(f"| {' | '.join(line)} |\n" for line in cells)


def _line(text: str | None) -> str:
    """Return the first paragraph of a docstring as one line of Markdown."""
    return " ".join((text or "").split("\n\n")[0].split()).replace("``", "`")


def trainers_page() -> str:
    """Return what becomes of each option of a trainer."""
    text = (
        f"# Options of trainers\n\n{MADE}\nWhat becomes of each option where a trainer is elastic: "
        "see [keep your trainer](../howto/trainers.md).\n"
    )
    tables = {
        "TrainingArguments of transformers": TRAINING_ARGUMENTS,
        "Further ones of SFTConfig and DPOConfig of trl": TRL_OPTIONS,
        "Trainer of Lightning": TRAINER,
    }
    for title, answers in tables.items():
        text += f"\n## {title}\n\n"
        rows = ((f"`{name}`", one.kind, one.says) for name, one in answers.items())
        text += table_of(("option", "", "how, why, or what to do instead"), rows)
    return text + "\nAll other options of SFTConfig and DPOConfig are taken.\n"
