"""README and the pages of docs are executed as they are written.

What is done with each kind of block, and how a page says what is otherwise: ``blocks.py``.
"""

from __future__ import annotations

import doctest
import re
from collections.abc import Iterator
from pathlib import Path

import pytest
import typer
from tests.live.stage import stage
from tests.pages.blocks import COMMAND, PAGES, ROOT, read_page
from tests.pages.walk import Walk

from pliant.cli.main import app

WALKED = [p for p in PAGES if "```" in p.read_text()]
EVERY_PAGE = pytest.mark.parametrize("path", PAGES, ids=lambda path: str(path.relative_to(ROOT)))
INLINE = re.compile(r"(?<!`)`(pliant [^`]+)`")


@pytest.mark.processes
@pytest.mark.timeout(400)
@pytest.mark.parametrize("path", WALKED, ids=lambda path: str(path.relative_to(ROOT)))
def test_a_page_can_be_followed_from_top_to_bottom(path: Path, tmp_path: Path) -> None:
    page = read_page(path)
    with stage(forked=False) as fresh, stage(forked=True) as forked:
        Walk(page, tmp_path, fresh, forked).all_of_it()


@pytest.mark.soak
@pytest.mark.processes
@pytest.mark.timeout(1200)
@pytest.mark.parametrize("path", WALKED, ids=lambda path: str(path.relative_to(ROOT)))
def test_all_of_a_page_can_be_followed_as_it_is_typed(path: Path, tmp_path: Path) -> None:
    page = read_page(path)
    with stage(forked=False) as fresh, stage(forked=True) as forked:
        Walk(page, tmp_path, fresh, forked, is_soak=True).all_of_it()


@EVERY_PAGE
def test_examples_at_a_prompt_print_what_is_shown(path: Path) -> None:
    if ">>> " not in path.read_text():
        return

    failed, tried = doctest.testfile(str(path), module_relative=False)

    assert tried > 0
    assert failed == 0


@EVERY_PAGE
def test_a_picture_hides_no_command(path: Path) -> None:
    pictures = [b for b in read_page(path).blocks if b.language in ("text", "mermaid")]

    hidden = [f"{b.place}: {line}" for b in pictures for line in b.lines if COMMAND.match(line)]

    assert hidden == []


@EVERY_PAGE
def test_commands_in_a_sentence_exist_with_all_their_options(path: Path) -> None:
    commands = dict(_commands(typer.main.get_command(app), ("pliant",)))
    text = re.sub(r"^( *)```.*?^\1```", "", path.read_text(), flags=re.DOTALL | re.MULTILINE)
    wrong = []
    for said in INLINE.findall(text):
        words = said.split()
        name = max(
            (each for each in commands if tuple(words[: len(each)]) == each), key=len, default=()
        )
        options = {word.partition("=")[0] for word in words if re.match(r"--?[a-z]", word)}
        module = {"-m"} if name in (("pliant", "run"), ("pliant", "coordinator")) else set()
        unknown = options - commands.get(name, set()) - {"--help"} - module
        is_command = len(name) > 1 or options or not re.match(r"[a-z-]+$", words[1])
        if unknown or not is_command:
            wrong.append(said)

    assert wrong == []


def _commands(command: object, name: tuple[str, ...]) -> Iterator[tuple[tuple[str, ...], set[str]]]:
    """Yield every command with its options."""
    options = {o for p in command.params for o in (*p.opts, *p.secondary_opts)}  # type: ignore[attr-defined]
    yield name, options
    for each, inner in getattr(command, "commands", {}).items():
        yield from _commands(inner, (*name, each))
