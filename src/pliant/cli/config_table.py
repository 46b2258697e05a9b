"""``pliant config``: all that can be set, made of the objects that mean it.

Owns what a row is and which objects have rows.  Knows nothing of any one setting.
"""

from __future__ import annotations

import inspect
import re
from collections.abc import Callable, Iterator
from dataclasses import asdict, dataclass
from typing import Any, get_args

from pydantic import BaseModel
from rich.padding import Padding
from rich.text import Text
from typer.models import OptionInfo

from pliant.cli import run_commands
from pliant.cli.options import Json
from pliant.cli.printing import draw, print_json
from pliant.cli.settings import SETTINGS, Setting
from pliant.core.exits import EXIT_OK
from pliant.spec.limits import Limits
from pliant.spec.policy import ElasticPolicy

SECONDS = "InSeconds"


@dataclass(frozen=True, slots=True, kw_only=True)
class SettingRow:
    """One thing that can be set."""

    name: str
    default: str
    unit: str
    where: str
    """The ways to set it: option, environment variable, field of the job file, command."""

    meaning: str


Rows = Iterator[SettingRow]


def config(as_json: Json = False) -> int:
    """List every setting and limit: default, unit, where to set it, meaning."""
    if as_json:
        return print_json([asdict(row) for row in rows()])
    for row in rows():
        default = f"  [{row.default} {row.unit}".rstrip() + "]" if row.default else ""
        draw(Text(f"{row.name}{default}"))
        draw(Padding(Text(f"{row.where}\n{row.meaning}"), (0, 0, 0, 4), expand=False))
    return EXIT_OK


def rows() -> Rows:
    """Yield a row for each setting, each limit, each field of the policy, each option of agents."""
    yield from map(_setting, SETTINGS)
    yield from _fields(Limits, "spec.limits", "--limit")
    yield from _fields(ElasticPolicy, "spec.elasticPolicy", "--policy, pliant policy set")
    yield from _options(run_commands.agent, "pliant agent")


def _setting(item: Setting) -> SettingRow:
    places = (item.flag, item.variable, item.file_field)
    default, meaning = _told(item.help)
    return SettingRow(
        name=item.name,
        default=default or ("" if item.default is None else str(item.default).lower()),
        unit="",
        where=", ".join(place for place in places if place),
        meaning=meaning or f"The job's {item.name}.",
    )


def _fields(model: type[BaseModel], place: str, option: str, inside: str = "") -> Rows:
    """Yield the fields of a part of the job file, those of the parts in it after them."""
    for field in model.model_fields.values():
        name = f"{inside}{field.alias}"
        flag = next((one.flag for one in SETTINGS if one.file_field == f"{place}.{name}"), None)
        yield SettingRow(
            name=name,
            default=_default(field.default),
            unit="s" if name.endswith(SECONDS) else "",
            where=f"{flag or option}, {place}",
            meaning=" ".join((field.description or "").split()),
        )
        for part in get_args(field.annotation):
            if isinstance(part, type) and issubclass(part, BaseModel):
                yield from _fields(part, place, option, f"{name}.")


def _options(command: Callable[..., int], called: str) -> Rows:
    """Yield the options of a command that has none of the settings above."""
    for name, parameter in inspect.signature(command, eval_str=True).parameters.items():
        option = parameter.annotation.__metadata__[0]
        if not isinstance(option, OptionInfo):
            continue
        # typer keeps the first name of an annotated option where its default would be
        flags = [
            one for one in (option.default, *(option.param_decls or ())) if str(one).startswith("-")
        ]
        if flags:
            default, meaning = _told(option.help or "")
            given = parameter.default
            yield SettingRow(
                name=name,
                default=default if given in (None, inspect.Parameter.empty) else str(given),
                unit="",
                where=f"{called} {flags[0]}",
                meaning=meaning or f"Its {name}.",
            )


def _told(text: str) -> tuple[str, str]:
    """Return the default that a help text tells, and the rest of it."""
    found = re.search(r"\s*\[(?:default|name): (.*?)\]", text)
    return (found[1], text.replace(found[0], "")) if found else ("", text)


def _default(value: Any) -> str:
    if value is None:
        return "none"
    return f"{value:g}" if isinstance(value, float) else str(value).lower()
