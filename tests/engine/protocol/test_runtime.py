"""The protocol's value has one writer, and no flag is set from outside of its object."""

from __future__ import annotations

import ast
from collections.abc import Iterator
from pathlib import Path

import pytest

import pliant

ROOMS = ("engine/protocol", "engine/groups", "engine/worker", "agent")
OTHERS = {
    "sys",  # what the interpreter would have set
    "stop",  # an exception of the script's
    "error",
    "module",  # the script's
    "watchdog",  # threads and options take some values only so
    "options",
}
"""Names of what is no object of the package."""


def assigned(path: Path) -> Iterator[ast.Attribute]:
    """Find every attribute that a module assigns to."""
    for node in ast.walk(ast.parse(path.read_text())):
        if isinstance(node, ast.Attribute) and isinstance(node.ctx, ast.Store | ast.Del):
            yield node


@pytest.mark.parametrize("room", ROOMS)
def test_no_attribute_of_another_object_is_assigned(room: str) -> None:
    files = sorted((Path(pliant.__file__).parent / room).rglob("*.py"))
    found = [
        f"{file.name}:{node.lineno}: {ast.unparse(node)}"
        for file in files
        for node in assigned(file)
        if not (isinstance(node.value, ast.Name) and node.value.id in {"self", "cls", *OTHERS})
    ]

    assert files
    assert found == []


def test_the_protocols_value_is_replaced_in_one_place() -> None:
    rooms = Path(pliant.__file__).parent / "engine"
    found = [
        f"{file.name}: {ast.unparse(node)}"
        for file in sorted((rooms / "protocol").glob("*.py"))
        for node in assigned(file)
        if node.attr in ("_member", "member") and file.name != "alone.py"
    ]

    assert found == ["runtime.py: self._member", "runtime.py: self._member"]  # made, replaced
