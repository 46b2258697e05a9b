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

_SHOWS = frozenset({"print", "log", "info", "debug", "write", "set_postfix", "set_description"})
"""Calls that show a value: nothing is computed from it."""


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
    look = _Reading()
    for node in text:
        look.visit(node)
    return look.names


class _Reading(ast.NodeVisitor):
    """Goes through a piece of text as it runs, values before what they are assigned to."""

    def __init__(self) -> None:
        self.names = Names()
        self._set: set[str] = set()

    def visit(self, node: ast.AST) -> None:
        """Note what a piece of text does."""
        match node:
            case ast.Name() | ast.Attribute() if path := _path_of(node):
                self._note(path, is_set=isinstance(node.ctx, ast.Store))
            case ast.Assign(targets=targets, value=value):
                self._all(value, *targets)
            case (
                ast.AnnAssign(target=target, value=value)
                | ast.NamedExpr(target=target, value=value)
            ):
                self._all(value, target)
            case ast.For(target=target, iter=items, body=body):
                self._all(items, target, *body)
            case ast.ListComp() | ast.SetComp() | ast.GeneratorExp():
                self._all(*node.generators, node.elt)
            case ast.comprehension(target=target, iter=items, ifs=ifs):
                self._all(items, target, *ifs)
            case ast.AugAssign(target=target, value=value):
                self._all(value)
                self._add(target)
            case ast.Expr(value=ast.Call(func=ast.Attribute(value=holder)) as call) if not _shows(
                call
            ):
                self._all(*call.args, *call.keywords)
                self._add(holder)
            case ast.Call(func=func, args=args, keywords=keywords):
                if not _shows(node):
                    self._all(getattr(func, "value", func), *args, *keywords)
            case _:
                self.generic_visit(node)

    def _all(self, *parts: ast.AST | None) -> None:
        for part in parts:
            if part is not None:
                self.visit(part)

    def _note(self, path: str, *, is_set: bool) -> None:
        if is_set:
            self._set.add(path)
            self.names.written.add(path)
        elif self._set.isdisjoint(_holders(path)):
            self.names.used.add(path)

    def _add(self, target: ast.AST) -> None:
        path = _path_of(target)
        if path is not None and self._set.isdisjoint(_holders(path)):
            self.names.added.add(path)
            self.names.written.add(path)


def _shows(call: ast.Call) -> bool:
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
