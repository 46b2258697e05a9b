"""Kept names: which variables a loop of a script keeps from one round for the next, by its text.

A loop over micro-batches that uses a variable before it sets it (the next batch, drawn behind the
backward of the current one; a position in a file) uses what the round before has left, and that may
have been another replica's.  Owns what is read, set and added to by a piece of text.  Must not know
which variables change as it runs: those are given.

Text is read in the order of its lines: what one branch sets counts as set behind it.
"""

from __future__ import annotations

import ast
from collections.abc import Collection, Iterable, Iterator
from dataclasses import dataclass, field
from typing import Any

_SHOWS = frozenset({"print", "log", "info", "debug", "write", "set_postfix", "set_description"})
"""Calls that show a value: nothing is computed from it."""

_FIRST = frozenset({"generators", "iter", "value"})
"""Parts of a piece of text that run before the others."""


@dataclass(slots=True)
class Names:
    """Of a piece of text; attributes by their path, as ``self.at``."""

    used: set[str] = field(default_factory=set)
    """Used before they are set."""

    added: set[str] = field(default_factory=set)
    """Added to, as in ``n += 1`` and ``losses.append(loss)``."""

    written: set[str] = field(default_factory=set)


def loop_at(text: bytes, line: int) -> Names | None:
    """Return the names of the loop whose head is at a line; None if there is no such loop."""
    loops = [
        node
        for node in ast.walk(_parsed(text))
        if isinstance(node, ast.For) and node.lineno <= line <= (node.iter.end_lineno or 0)
    ]
    loop = max(loops, key=lambda node: node.lineno, default=None)
    return None if loop is None else _names_of([loop.target, *loop.body])


def functions_of(text: bytes) -> Iterator[Names]:
    """Iterate over what each function does with attributes and global variables."""
    for node in ast.walk(_parsed(text)):
        if isinstance(node, ast.FunctionDef):
            shared = {
                n for each in ast.walk(node) if isinstance(each, ast.Global) for n in each.names
            }
            names = _names_of(node.body)
            yield Names(
                *(
                    {name.rpartition(".")[2] for name in each if "." in name or name in shared}
                    for each in (names.used, names.added, names.written)
                )
            )


def kept(
    changed: Iterable[str], loop: Names, functions: Collection[Names]
) -> tuple[list[str], list[str]]:
    """Return which of the changed variables the next round uses, and which are only added to."""
    used: list[str] = []
    added: list[str] = []
    for path in sorted(changed):
        is_used, is_added = path in loop.used, path in loop.added
        if path not in loop.used | loop.written:  # a function that the loop calls changes it
            holder = next((one for one in _holders(path) if one in loop.used | loop.added), "")
            last = path.rpartition(".")[2]
            mine = [names for names in functions if last in names.written]
            is_used = any(last in names.used for names in mine)
            is_added = is_used or any(last in names.added for names in mine)
            is_used = is_used and (not holder or holder in loop.used)
        if is_used or is_added:
            (used if is_used else added).append(path)
    return used, added


def _parsed(text: bytes) -> ast.AST:
    try:
        return ast.parse(text)
    except (SyntaxError, ValueError, RecursionError):
        return ast.Module([], [])


def _names_of(text: Iterable[ast.AST]) -> Names:
    names, known = Names(), set[str]()
    for path, what in (event for node in text for event in _events(node)):
        if what == "set":
            known.add(path)
            names.written.add(path)
        elif known.isdisjoint(_holders(path)):
            (names.used if what == "used" else names.added).add(path)
            if what == "added":
                names.written.add(path)
    return names


def _events(node: ast.AST) -> Iterator[tuple[str, str]]:
    """Yield which names a piece of text uses, sets and adds to, values before their targets."""
    added: ast.AST | None = None
    parts: list[Any]
    match node:
        case ast.Name() | ast.Attribute() if path := _path_of(node):
            yield path, "set" if isinstance(node.ctx, ast.Store) else "used"
            return
        case ast.AugAssign(target=target, value=value):
            parts, added = [value], target
        case ast.Call() if _shows(node):
            return
        case ast.Expr(
            value=ast.Call(func=ast.Attribute(value=holder), args=args, keywords=more)
        ) if not _shows(node.value):
            parts, added = [*args, *more], holder
        case ast.Call(func=func, args=args, keywords=more):
            parts = [getattr(func, "value", func), *args, *more]
        case _:
            fields = sorted(node._fields, key=lambda name: name not in _FIRST)
            values = [getattr(node, name, None) for name in fields]
            parts = [
                one for value in values for one in (value if isinstance(value, list) else [value])
            ]
    for part in parts:
        if isinstance(part, ast.AST):
            yield from _events(part)
    if added is not None and (path := _path_of(added)):
        yield path, "added"


def _shows(call: Any) -> bool:
    return getattr(call.func, "attr", getattr(call.func, "id", "")) in _SHOWS


def _path_of(node: ast.AST) -> str | None:
    """Return ``a.b`` of a name or of an attribute of one; None of anything else."""
    if isinstance(node, ast.Name):
        return node.id
    if isinstance(node, ast.Attribute) and (holder := _path_of(node.value)) is not None:
        return f"{holder}.{node.attr}"
    return None


def _holders(path: str) -> Iterator[str]:
    """Iterate over a path and what holds it, the longest first."""
    while path:
        yield path
        path = path.rpartition(".")[0]
