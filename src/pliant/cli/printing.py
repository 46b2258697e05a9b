"""How commands print: sentences, JSON, and what happens as it happens."""

from __future__ import annotations

import json
from typing import Any

from rich.console import Console
from rich.text import Text

from pliant.cli.screens import clock
from pliant.observe import log
from pliant.observe.log import Record
from pliant.observe.pool import move_of, sentence


def as_json(values: Any) -> int:
    """Print one JSON value for machines; return the exit code of success."""
    print(json.dumps(log.plain(values), indent=2))
    return 0


def say(text: str) -> None:
    """Print a sentence, in one line."""
    Console(highlight=False).print(Text(text), soft_wrap=True)


def record(one: Record) -> None:
    """Print one record of an event log as it is."""
    print(json.dumps(one), flush=True)


def move(one: Record) -> None:
    """Print what a record of a pool's log tells people, if it tells something."""
    told = move_of(one)
    if told is not None:
        print(f"{clock(told.at)}  {sentence(told)}", flush=True)
