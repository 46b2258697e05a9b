"""Where commands print: a console that shows text and obeys none of it.

Owns that nothing printed is taken for markup, an emoji's name or a terminal's control sequence,
wherever it came from.  Knows nothing of what is shown.
"""

from __future__ import annotations

import os
import sys
from collections.abc import Iterable

from rich.console import Console, ConsoleOptions, RenderableType
from rich.segment import Segment

from pliant.core.printable import in_one_line, printable


class PlainConsole(Console):
    """Takes text as it is, whoever wrote it; the colours are those of our own styles."""

    def __init__(self, **options: object) -> None:
        settings: dict[str, object] = {"markup": False, "emoji": False, "highlight": False}
        super().__init__(**(settings | options))  # type: ignore[arg-type]  # Rich's own options

    def render(
        self, renderable: RenderableType, options: ConsoleOptions | None = None
    ) -> Iterable[Segment]:
        """Yield what is drawn; what the views have let pass shows here at the latest."""
        for segment in super().render(renderable, options):
            if segment.control:
                yield segment
            else:
                yield Segment(printable(segment.text), segment.style)


def open_closed_streams() -> None:
    """Open the standard streams that whoever has started this process has closed.

    They lead nowhere, errors to standard output if that is open.  Else a file that is opened later
    would get such a number, and what is printed.
    """
    is_shown = sys.stdout is not None
    for number, name in enumerate(("stdin", "stdout", "stderr")):
        if getattr(sys, name) is None:
            to_stdout = name == "stderr" and is_shown
            opened = os.dup(1) if to_stdout else os.open(os.devnull, os.O_RDWR)
            if opened != number:
                os.dup2(opened, number)
                os.close(opened)
            os.set_inheritable(number, True)
            file = open(number, "w" if number else "r", closefd=False)  # noqa: SIM115  for good
            setattr(sys, name, file)


def complain(sentence: str, code: int) -> int:
    """Say in one line on stderr what is wrong; return the exit code."""
    say_aside(f"pliant: {' '.join(sentence.split())}")
    return code


def say_aside(sentence: str) -> None:
    """Print a sentence on stderr, in one line."""
    print(in_one_line(sentence), file=sys.stderr, flush=True)
