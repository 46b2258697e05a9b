"""The code blocks of a page, and how a page says what becomes of each when it is tested.

Every block of README and ``docs/`` names a language, and that says what is done with it:

    sh        each line is a command; they are run one after the other, by bash
    console   commands after "$ ", and below each what it prints, which is compared (``shown.py``)
    python    a script, run alone; of a page with ">>>" in it all together are one doctest
    yaml      a job, pool or cluster file, or a part of one from "spec:" on: it must be valid
    json      it must be JSON
    text      a picture or a format: nothing to run, so no line of it may begin with a command
    mermaid   a picture

All of a page happens in one fresh directory that has ``examples/``, with a home of its own, from
top to bottom, and everything must end with exit code 0.  After each command the test waits, as a
person would, until the jobs that run have the size they were asked for.  What is otherwise stands
in an HTML comment before the block, which readers do not see:

    <!-- test: not run: needs root -->          the block is not run, and why
    <!-- test: not run: pliant agent: ... -->   commands that begin like this are not run, and why
    <!-- test: goes on -->                      the last command goes on meanwhile, as in a terminal
                                                of its own; the next one comes when its job trains
    <!-- test: goes on: pliant agent -->        those that begin like this do
    <!-- test: goes on at once: pliant co -->   and the next one comes as soon as it says something
    <!-- test: interrupted: pliant logs -f -->  those get Ctrl-C once they have said something
    <!-- test: exits 3: pliant claim -->        those end with this code (without a name: the last);
                                                if they go on, at Ctrl-C at the page's end
    <!-- test: all ended -->                    first, all that goes on has come to its end
    <!-- test: needs: openssl -->               the block is run where that command is installed
    <!-- test: soak -->                         the block is run by `make soak` only, which forks
                                                nothing (``walk.py``)
    <!-- test: elsewhere -->                    the block is run in another directory
    <!-- test: for "3000" take "30" -->         so that the test is short
    <!-- test: file: train.py -->               what the block says is also written to that file
    <!-- test: $ cp examples/minimal.py x.py -->    a command to run before the block
    <!-- test: python: ... -->                  lines before each python block from here on; where
                                                they end with a colon, the block is what follows it
"""

from __future__ import annotations

import re
import textwrap
from dataclasses import dataclass, field
from pathlib import Path

ROOT = Path(__file__).resolve().parents[2]
PAGES = (ROOT / "README.md", *sorted((ROOT / "docs").rglob("*.md")))

LANGUAGES = frozenset({"sh", "console", "python", "yaml", "json", "text", "mermaid"})
VERBS = (
    "not run",
    "goes on",
    "goes on at once",
    "interrupted",
    "all ended",
    "soak",
    "needs",
    "elsewhere",
    "file",
    "python",
)

COMMAND = re.compile(r"\s*(\$ |(pliant|python3?|pip|pipx|uv|make|openssl) )")
"""How a line begins that should be in a block that is run."""

_COMMENT = re.compile(r"<!-- test: (.*?)\s*-->", re.DOTALL)
_FENCE = re.compile(r"( *)```(\w*)\s*$")


class PageError(Exception):
    """A page says what nobody can follow; names page and line."""


@dataclass(frozen=True, slots=True)
class Note:
    """One comment: what is otherwise, and of which commands."""

    verb: str
    text: str = ""

    def is_of(self, command: str) -> bool:
        """Whether it is of this command; one that names none is of the last of its block."""
        return bool(self.text) and command.startswith(self.text)


@dataclass(slots=True)
class Block:
    """One fenced block."""

    place: str
    """Page and line, for messages."""

    language: str
    lines: list[str] = field(default_factory=list)
    notes: list[Note] = field(default_factory=list)

    @property
    def text(self) -> str:
        """Return what stands in it, with the substitutions of its notes."""
        text = "\n".join(self.lines) + "\n"
        for note in self.notes:
            if note.verb == "for":
                old, new = note.text.split("\n")
                if old not in text:
                    raise PageError(f"{self.place}: {old!r} is not in the block")
                text = text.replace(old, new)
        return text

    def note(self, verb: str) -> Note | None:
        """Return its first note with a verb."""
        return next((note for note in self.notes if note.verb == verb), None)

    @property
    def reason(self) -> str | None:
        """Why none of it is run; None if it is."""
        return next(
            (n.text for n in self.notes if n.verb == "not run" and not self._begins(n)), None
        )

    def _begins(self, note: Note) -> bool:
        return any(line.lstrip("$ ").startswith(note.text.split(": ")[0]) for line in self.lines)


@dataclass(frozen=True, slots=True)
class Page:
    """The blocks of a page, in order, and the notes behind the last of them."""

    path: Path
    blocks: tuple[Block, ...]

    @property
    def name(self) -> str:
        """Return its path in the repository."""
        return (
            str(self.path.relative_to(ROOT)) if self.path.is_relative_to(ROOT) else str(self.path)
        )


def read_page(path: Path) -> Page:
    """Read the blocks of a page.

    Raises:
        PageError: a block without a language, or a comment that says nothing known.
    """
    text, blocks, notes = path.read_text(), [], []
    name = str(path.relative_to(ROOT)) if path.is_relative_to(ROOT) else path.name
    starts = {match.start(): match for match in _COMMENT.finditer(text)}
    block: Block | None = None
    indent, position = "", 0
    for number, line in enumerate(text.splitlines(keepends=True), start=1):
        fence = _FENCE.match(line)
        place = f"{name}:{number}"
        if block is None:
            at = position + len(line) - len(line.lstrip())
            if line.strip() and at in starts:
                notes.append(_note(starts[at][1], place))
        if fence and block is None:
            indent, language = fence.groups()
            if language not in LANGUAGES:
                known = ", ".join(sorted(LANGUAGES))
                raise PageError(f"{place}: a block names its language, one of {known}")
            block, notes = Block(place, language, [], notes), []
        elif fence and block is not None:
            blocks.append(block)
            block = None
        elif block is not None:
            block.lines.append(line.removeprefix(indent).rstrip("\n"))
        position += len(line)
    if block is not None:
        raise PageError(f"{block.place}: the block has no end")
    return Page(path, tuple(blocks))


def _note(text: str, place: str) -> Note:
    if text.startswith("$ "):
        return Note("$", text.removeprefix("$ "))
    if substitution := re.fullmatch(r'for "(.*)" take "(.*)"', text):
        return Note("for", "\n".join(substitution.groups()))
    if exits := re.fullmatch(r"exits (\d+)(?:: (.*))?", text):
        return Note(f"exits {exits[1]}", exits[2] or "")
    verb, _, rest = text.partition(":")
    if verb not in VERBS or (verb == "not run" and not rest.strip()):
        raise PageError(f"{place}: nobody knows what {text!r} means; see tests/pages/blocks.py")
    # In a list the comment is indented as its block is.
    is_python = verb == "python"
    return Note(verb, textwrap.dedent(rest.removeprefix(" ")) if is_python else rest.strip())
