"""The house: every part has its room, a name one meaning there, nothing goes round in a circle.

What is known to break a rule stands in a list below; such a list may only become shorter.
"""

from __future__ import annotations

import ast
from collections import defaultdict
from collections.abc import Iterator
from functools import cache
from graphlib import CycleError, TopologicalSorter
from pathlib import Path

import pytest

ROOT = Path(__file__).parents[1]
SOURCE = ROOT / "src" / "pliant"

CROSS_MODULE_TESTS = {
    "checkpoint/test_broken_disk.py": "a whole job whose storage fails",
    "checkpoint/test_compare_and_export.py": "both read one pair of checkpoints",
    "checkpoint/test_plain_torch.py": "plain PyTorch reads ours, and ours reads its",
    "checkpoint/test_session_elsewhere.py": "a session keeps and restores on a store of objects",
    "cli/test_damaged_runs.py": "all commands that look at a run, on logs that are damaged",
    "core/job/test_died_together.py": "of one event follows something in several modules",
    "core/allocation/test_machine.py": "a state machine of everything that can happen to a pool",
    "core/allocation/test_page.py": "the examples of docs/explanation/allocation.md",
    "core/operator/test_scenarios.py": "what an operator does, scenario by scenario",
    "core/operator/test_any_order.py": "everything that can happen to a job on a cluster",
    "core/test_explorer.py": "controller and members in every order of events",
    "dashboard/test_in_a_browser.py": "the page, its servers and a real browser",
    "engine/test_against_plain_loop.py": "a session alone and a plain loop",
    "engine/test_checkpointing.py": "a session, the state and the checkpoints of it",
    "engine/test_nonfinite.py": "what a session does with a nan, from the slot to the optimizer",
    "observe/test_restore.py": "status, timeline and audit of a run that was restored",
    "pool/test_live.py": "real pools and claims in processes of their own",
    "pool/test_protocol.py": "claims, pool and allocation in every order of messages",
    "pool/test_storm.py": "a pool, jobs and claims, anyone of which may die",
    "pool/test_story.py": "a day of a shared pool",
    "recipes/test_beside_trainers.py": "a recipe, and the same by trainers of others",
    "recipes/test_page.py": "a page, followed from an empty directory",
    "recipes/test_runs.py": "whole runs, whose replicas come and go",
    "recipes/test_recipes.py": "model and data, trained",
}
"""Tests beside a room of the source that are of more than one module, and of what."""

MOST_LINES = 600
"""400 is where STYLE asks which room is missing; a list of modules at 399 answers nothing."""


@cache
def modules() -> dict[str, ast.Module]:
    """Return the syntax of every module by its name below ``pliant``."""
    return {_name_of(path): ast.parse(path.read_text()) for path in SOURCE.rglob("*.py")}


def _name_of(path: Path) -> str:
    parts = path.relative_to(SOURCE).with_suffix("").parts
    return ".".join(part for part in parts if part != "__init__") or "pliant"


def imports_of(tree: ast.Module) -> Iterator[str]:
    """Yield what a module imports of the package, wherever in it the import stands."""
    for node in ast.walk(tree):
        if isinstance(node, ast.ImportFrom):
            for name in (f"{node.module}.{alias.name}" for alias in node.names):
                is_module = name.removeprefix("pliant.") in modules()
                yield (name if is_module else str(node.module)).removeprefix("pliant.")
        elif isinstance(node, ast.Import):
            yield from (alias.name.removeprefix("pliant.") for alias in node.names)


def test_the_tests_of_a_module_are_found_by_its_path() -> None:
    tests = ROOT / "tests"
    rooms = [path.name for path in SOURCE.iterdir() if (path / "__init__.py").is_file()]
    lost = set()
    for path in (path for room in rooms for path in (tests / room).rglob("test_*.py")):
        place = path.relative_to(tests)
        if not (SOURCE / place.with_name(place.name.removeprefix("test_"))).is_file():
            lost.add(str(place))

    assert lost <= CROSS_MODULE_TESTS.keys(), "no module has this path: name it or list it"


def test_a_class_has_its_name_for_itself_in_its_room() -> None:
    where = defaultdict(list)
    for name, tree in modules().items():
        for node in ast.walk(tree):
            if isinstance(node, ast.ClassDef):
                where[name.partition(".")[0], node.name].append(name)
    double = {name: at for name, at in where.items() if len(at) > 1}

    assert double == {}, "give each a name of its own"


def test_no_import_leads_back_to_its_module_wherever_it_stands() -> None:
    imports = {name: set(imports_of(tree)) & modules().keys() for name, tree in modules().items()}

    try:
        TopologicalSorter(imports).prepare()
    except CycleError as error:
        pytest.fail("imported by each other: " + ", ".join(error.args[1]))


def _folder_of(name: str) -> str | None:
    """Return the folder of a room that a module is in; None: it is in the room itself."""
    room, _, rest = name.partition(".")
    part = rest.partition(".")[0]
    return f"{room}.{part}" if part and (SOURCE / room / part).is_dir() else None


def test_no_two_folders_of_a_room_import_each_other() -> None:
    arrows = {
        (one, other)
        for name, tree in modules().items()
        for imported in imports_of(tree)
        if (one := _folder_of(name)) and (other := _folder_of(imported))
        if one != other and one.partition(".")[0] == other.partition(".")[0]
    }

    mutual = {(one, other) for one, other in arrows if one < other and (other, one) in arrows}
    assert mutual == set(), "neither can be understood without the other"


@pytest.mark.parametrize("verb", ["take", "look", "hear"])
def test_a_function_says_what_it_takes_looks_at_or_hears(verb: str) -> None:
    where = [
        f"{name}:{node.lineno}"
        for name, tree in modules().items()
        for node in ast.walk(tree)
        if isinstance(node, ast.FunctionDef | ast.AsyncFunctionDef)
        if node.name.lstrip("_") == verb
    ]

    assert len(where) <= 1, f"{verb} what? {where}"


def test_a_module_is_short_enough_to_be_read_in_one_sitting() -> None:
    sizes = {_name_of(p): len(p.read_text().splitlines()) for p in SOURCE.rglob("*.py")}
    long = {name: size for name, size in sizes.items() if size > MOST_LINES}

    assert long == {}, f"over {MOST_LINES} lines"


def test_every_room_says_what_it_is_for() -> None:
    rooms = {_name_of(path) for path in SOURCE.rglob("__init__.py")}
    silent = [name for name in rooms if not ast.get_docstring(modules()[name])]

    assert silent == [], "a room begins with what it is for"
