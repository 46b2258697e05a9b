"""Text that others wrote, as plain text: what would steer a terminal is shown and not obeyed.

Owns which characters these are, and how they look.  Knows nothing of where the text goes:
terminals, log lines and sentences show it like this; files and JSON keep it as it is.
"""

from __future__ import annotations

import re
from typing import Any

_STEERING = re.compile(
    "[\x00-\x08\x0b-\x1f\x7f-\x9f"  # controls, but for tab and newline
    "\u061c\u200e\u200f\u2028-\u202e\u2066-\u2069"  # other lines, other directions
    "\ud800-\udfff]"  # halves of a character: no output takes them
)


def printable(text: str) -> str:
    r"""Return the text with control characters written out, its lines and tabs as they are.

    >>> printable("a\x1b[31mred\r")
    'a\\x1b[31mred\\r'
    """
    return _STEERING.sub(lambda found: found[0].encode("unicode_escape").decode(), text)


def in_one_line(text: str) -> str:
    r"""Return the same without its line breaks, so that it cannot pass for a line of ours.

    >>> in_one_line("boom\n12:00:00  the job ends")
    'boom 12:00:00  the job ends'
    """
    return printable(text).replace("\n", " ").strip()


def line_left(text: str) -> str:
    r"""Return, printable, what a terminal leaves of a line that was written over, as progress is.

    >>> line_left(" 10%\r 90%\r100%")
    '100%'
    """
    return printable(text.rstrip("\r").rpartition("\r")[2])


def printable_values(value: Any) -> Any:
    """Return a value made of what JSON has, with every text in it printable."""
    match value:
        case str():
            return printable(value)
        case dict():
            return {printable_values(key): printable_values(item) for key, item in value.items()}
        case list() | tuple() | set() | frozenset():
            return [printable_values(item) for item in value]
        case _:
            return value
