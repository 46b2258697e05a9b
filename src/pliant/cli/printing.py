"""How commands print: sentences, JSON, and what happens as it happens."""

from __future__ import annotations

import json
import os
from collections.abc import Callable
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


def while_heard(listener: Callable[[Record], None]) -> Callable[[Record], None]:
    """Tell a listener that prints until its reader is gone, whose end is not the end of who tells.

    A closed terminal, ``pliant pool start | head``.
    """
    is_heard = True

    def tell(one: Record) -> None:
        nonlocal is_heard
        try:
            if is_heard:
                listener(one)
        except OSError:
            is_heard = False
            nowhere = os.open(os.devnull, os.O_WRONLY)
            os.dup2(nowhere, 1)  # for what is in the buffer still
            os.close(nowhere)

    return tell
