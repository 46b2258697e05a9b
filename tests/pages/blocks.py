"""The code blocks of a page, and how a page says what becomes of each when it is tested.

Every block of README and ``docs/`` names a language, and that says what is done with it:

    sh        each line is a command; they are run one after the other, by bash
    console   commands after "$ ", and below each what it prints, which is compared (``shown.py``)
    python    a script, run alone; of a page with ">>>" in it all together are one doctest
    yaml      a job, pool or cluster file, or a part of one from "spec:" on: it must be valid
    json      it must be JSON
    text      a picture or a format: nothing to run, so no line of it may begin with a command
    mermaid   a picture
    diff      what is changed in a script; nothing to run
    {eval-rst}  what Sphinx fills in; ``make docs`` runs it

All of a page happens in one fresh directory that has ``examples/``, with a home of its own, from
top to bottom, and everything must end with exit code 0.  After each command the test waits, as a
person would, until the jobs that run have the size they were asked for.  What is otherwise stands
in ``directives/`` under the page's path.  The block has a comment of one word before it, and the
file says below ``[word]``, one directive a line (lines that are indented go on with it):

    not run: needs root           the block is not run, and why
    not run: pliant agent: ...    commands that begin like this are not run, and why
    goes on                       the last command goes on meanwhile, as in a terminal of its own;
                                  the next one comes when its job trains
    goes on: pliant agent         those that begin like this do
    goes on at once: pliant co    and the next one comes as soon as it says something
    interrupted: pliant logs -f   those get Ctrl-C once they have said something
    exits 3: pliant claim         those end with this code (without a name: the last); if they go
                                  on, at Ctrl-C at the page's end
    all ended                     first, all that goes on has come to its end
    needs: openssl                the block is run where that command is installed
    soak                          the block is run by `make soak` only, which forks nothing
    elsewhere                     the block is run in another directory
    for "3000" take "30"          so that the test is short
    file: train.py                what the block says is also written to that file
    $ cp examples/minimal.py x    a command to run before the block
    python: ...                   lines before each python block from here on; where they end with
                                  a colon, the block is what follows it
"""

from __future__ import annotations

import re
import textwrap
from dataclasses import dataclass, field
from pathlib import Path

ROOT = Path(__file__).resolve().parents[2]
PAGES = (ROOT / "README.md", *sorted((ROOT / "docs").rglob("*.md")))
DIRECTIVES = Path(__file__).parent / "directives"

LANGUAGES = frozenset(
    {"sh", "console", "python", "yaml", "json", "text", "mermaid", "diff", "{eval-rst}"}
)
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

_WORD = re.compile(r" *<!-- (\w+) -->$")
_SECTION = re.compile(r"\[(\w+)\]$")
_FENCE = re.compile(r"( *)```(\w*|\{eval-rst\})\s*$")


class PageError(Exception):
    """A page says what nobody can follow; names page and line."""


@dataclass(frozen=True, slots=True)
class Note:
    """One directive: what is otherwise, and of which commands."""

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
    """The blocks of a page, in order."""

    path: Path
    blocks: tuple[Block, ...]


def directives_of(page: Path) -> Path:
    """Return the path of a page's directives, which need not exist."""
    name = page.relative_to(ROOT) if page.is_relative_to(ROOT) else Path(page.name)
    parts = name.parts[1:] if name.parts[0] == "docs" else name.parts
    return DIRECTIVES.joinpath(*parts).with_suffix(".txt")


def read_page(path: Path, directives: Path | None = None) -> Page:
    """Read the blocks of a page, and what its directives say of them.

    Raises:
        PageError: a block without a language, a word without directives or the other way round, or
            a directive that says nothing known.
    """
    name = str(path.relative_to(ROOT)) if path.is_relative_to(ROOT) else path.name
    notes_of = read_directives(directives or directives_of(path))
    unused, blocks = set(notes_of), []
    block: Block | None = None
    indent, word = "", None
    for number, line in enumerate(path.read_text().splitlines(), start=1):
        fence = _FENCE.match(line)
        place = f"{name}:{number}"
        if fence and block is None:
            indent, language = fence.groups()
            if language not in LANGUAGES:
                known = ", ".join(sorted(LANGUAGES))
                raise PageError(f"{place}: a block names its language, one of {known}")
            if word and word not in notes_of:
                raise PageError(f"{place}: no directives are called [{word}]")
            unused.discard(word or "")
            block = Block(place, language, [], notes_of[word] if word else [])
        elif fence and block is not None:
            blocks.append(block)
            block = None
        elif block is not None:
            block.lines.append(line.removeprefix(indent))
        word = match[1] if (match := _WORD.match(line)) else None
    if block is not None:
        raise PageError(f"{block.place}: the block has no end")
    if unused:
        raise PageError(f"{name}: no block is called {', '.join(sorted(unused))}")
    return Page(path, tuple(blocks))


def read_directives(path: Path) -> dict[str, list[Note]]:
    """Return the directives below each ``[word]`` of a file; none if there is no file."""
    notes: dict[str, list[Note]] = {}
    lines: list[str] = path.read_text().splitlines() if path.is_file() else []
    while lines:
        first, more = lines.pop(0), []
        while lines and (not lines[0] or lines[0].startswith(" ")):
            more.append(lines.pop(0))
        if section := _SECTION.match(first):
            notes[section[1]] = below = []
        else:
            text = textwrap.dedent("\n".join(more)).rstrip()
            below.append(_note("\n".join(filter(None, (first, text))), path.name))
    return notes


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
    return Note(verb, rest.strip("\n") if verb == "python" else rest.strip())
