"""How commands print: sentences, JSON, and what happens as it happens."""

from __future__ import annotations

import json
from collections.abc import Callable
from typing import Any

from rich.console import RenderableType
from rich.text import Text

from pliant.cli.screens import clock
from pliant.cli.terminal import PlainConsole
from pliant.core.exits import EXIT_OK
from pliant.core.printable import in_one_line
from pliant.observe import log
from pliant.observe.log import Record
from pliant.observe.pool_history import Teller, sentence


def print_json(values: Any) -> int:
    """Print one JSON value for machines; return the exit code of success."""
    print(json.dumps(log.plain(values), indent=2))
    return EXIT_OK


def draw(drawn: RenderableType, *, soft_wrap: bool = False) -> int:
    """Print a table, a panel or a text; return the exit code of success."""
    PlainConsole().print(drawn, soft_wrap=soft_wrap)
    return EXIT_OK


def say(text: str) -> int:
    """Print a sentence, in one line; return the exit code of success."""
    return draw(Text(text), soft_wrap=True)


def claim_printer(*, as_json: bool) -> Callable[..., None]:
    """Return what says where a claim stands, to a person or to a program, at each change."""
    last: tuple[str, str] | None = None

    def tell(state: str, text: str, **values: Any) -> None:
        nonlocal last
        if (state, text) == last:
            return
        last = (state, text)
        if as_json:
            print(json.dumps({"state": state, "reason": text, **values}), flush=True)
        else:
            say(text)

    return tell


def print_record(record: Record) -> None:
    """Print one record of an event log as it is."""
    print(json.dumps(record), flush=True)


def move_printer() -> Callable[[Record], None]:
    """Return what prints what each record of a pool's log tells people, if it tells something."""
    teller = Teller()

    def tell(record: Record) -> None:
        move = teller.move_of(record)
        if move is not None:
            print(f"{clock(move.at)}  {in_one_line(sentence(move))}", flush=True)

    return tell
