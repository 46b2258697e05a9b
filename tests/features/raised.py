"""Where the package refuses something, and every sentence that it may do so with.

Owns how a sentence is found in the source: written where it is raised, put together before in
variables, returned by a function, or given on from another error.  Knows nothing of the page.
"""

from __future__ import annotations

import ast
import itertools
import re
from collections.abc import Iterable, Iterator
from dataclasses import dataclass
from functools import cache
from pathlib import Path

PACKAGE = Path(__file__).resolve().parents[2] / "src/pliant"

KINDS = {"ConfigError", "ForbiddenError", "RefusedError", "UsageError", "impossible"}
"""What people or their claims are refused with; kinds of these as well."""

TOLD = ("engine/worker/other_scripts.py", "engine/worker/script_errors.py")
"""Modules that end a script with a sentence which nobody raises."""

ANYTHING = "\0\0"
"""Stands for what is not known before it is said; its name may be between the two."""

_PLACE = re.compile("\0([^\0]*)\0")

THIN = 7
"""Letters without which what is known says nothing."""

DEEPEST = 6
"""Variables and functions that lead to one another."""


@dataclass(frozen=True)
class Raised:
    """One sentence that something is refused with."""

    place: str
    text: str
    """As the source has it where it is raised."""
    sentence: str
    """How it looks when it is said."""

    def __str__(self) -> str:
        return f"{self.place}: {self.text} / {self.shown}"

    @property
    def shown(self) -> str:
        """It with constants, and the names of what is not known before, such as {path}."""
        return _PLACE.sub(_shown, self.sentence).strip()

    @property
    def is_known(self) -> bool:
        """Whether enough of it is known to tell it from others."""
        return is_told_apart(self.sentence)

    def is_in(self, said: str) -> bool:
        """Whether it may look like this when it is said."""
        at = 0
        for part in _PLACE.sub(ANYTHING, self.sentence).split(ANYTHING):
            found = said.find(part, at)
            if found < 0:
                return False
            at = found + len(part)
        return True


def _shown(found: re.Match[str]) -> str:
    return found[1][1:] if found[1][:1] == "=" else f"{{{found[1]}}}" if found[1] else "..."


def is_told_apart(sentence: str) -> bool:
    """Whether enough of a sentence is known."""
    return len(re.sub(r"\W", "", _PLACE.sub("", sentence))) >= THIN


@dataclass(frozen=True)
class Scope:
    """A function, and the module that it is in."""

    module: Path
    function: ast.AST

    def values(self, name: str) -> list[ast.expr]:
        """Return all that a name is set to: in the function, else where it is a constant."""
        found = _assigned(ast.walk(self.function), name)
        path, constant = _imported(name, self.module) or (self.module, name)
        if not found and name.isupper() and path.is_file():
            return _assigned(parsed(path).body, constant)
        return found

    def is_caught(self, name: str) -> bool:
        """Whether a name is that of a caught error."""
        return any(
            isinstance(node, ast.ExceptHandler) and node.name == name
            for node in ast.walk(self.function)
        )


def _assigned(nodes: Iterable[ast.AST], name: str) -> list[ast.expr]:
    found: list[ast.expr] = []
    for node in nodes:
        match node:
            case ast.Assign(targets=targets, value=value):
                found += [got for one in targets for got in _values(one, value, name)]
            case ast.AnnAssign(target=ast.Name(id=id_), value=ast.expr() as value) if id_ == name:
                found.append(value)
            case ast.NamedExpr(target=ast.Name(id=id_), value=value) if id_ == name:
                found.append(value)
            case ast.AugAssign(target=ast.Name(id=id_)) if id_ == name:
                found.append(ast.Constant(value=None))  # more of it, whatever that is
    return found


@cache
def raised() -> tuple[Raised, ...]:
    """Return every sentence that people are refused with."""
    return tuple(_raised())


def _raised() -> Iterator[Raised]:
    for path in sorted(PACKAGE.rglob("*.py")):
        for scope, sentence in _calls(path):
            place, text = f"{path.relative_to(PACKAGE)}:{sentence.lineno}", ast.unparse(sentence)
            for said in dict.fromkeys(_ways(sentence, scope, 0)):
                if said:
                    yield Raised(place, text, said)


def _calls(path: Path) -> Iterator[tuple[Scope, ast.expr]]:
    tree = parsed(path)
    inside: list[tuple[ast.AST, ast.AST]] = [(tree, tree)]
    while inside:  # each node with the innermost function around it
        node, function = inside.pop()
        if isinstance(node, ast.FunctionDef | ast.AsyncFunctionDef):
            function = node
        if isinstance(node, ast.Call) and (sentence := _sentence(node)) is not None:
            yield Scope(path, function), sentence
        inside += [(inner, function) for inner in ast.iter_child_nodes(node)]
    if path.relative_to(PACKAGE).as_posix() in TOLD:
        yield from ((Scope(path, tree), sentence) for sentence in _texts(tree))


def _texts(node: ast.AST) -> Iterator[ast.expr]:
    """Yield every long text but docstrings and notes."""
    for inner in ast.iter_child_nodes(node):
        match inner:
            case ast.Expr(value=ast.Constant()):
                pass
            case ast.Call(func=ast.Attribute(attr="_noted")):
                pass
            case ast.Constant(value=str()) | ast.JoinedStr():
                if re.search(r"\bthe script\b|; ", ast.unparse(inner)):
                    yield inner
            case _:
                yield from _texts(inner)


def _sentence(call: ast.Call) -> ast.expr | None:
    """Return what a call refuses something with; None: it is no refusal."""
    name = getattr(call.func, "attr", getattr(call.func, "id", ""))
    if name in _kinds() and call.args:
        return call.args[0]
    if name == "_refusal" and isinstance(call.args[-1], ast.Constant | ast.JoinedStr):
        return call.args[-1]  # the codec's, behind the path of a value
    return next(
        (one.value for one in call.keywords if name == "Refuse" and one.arg == "reason"), None
    )


@cache
def _kinds() -> set[str]:
    """Return the names of all errors that people are refused with."""
    trees = [parsed(path) for path in PACKAGE.rglob("*.py")]
    classes = [one for tree in trees for one in tree.body if isinstance(one, ast.ClassDef)]
    found = set(KINDS)
    while more := {c.name for c in classes if found & {ast.unparse(b) for b in c.bases}} - found:
        found |= more
    return found


@cache
def parsed(path: Path) -> ast.Module:
    return ast.parse(path.read_text())


def _ways(node: ast.expr, scope: Scope, depth: int) -> list[str]:
    """Return what an expression may be."""
    if depth > DEEPEST:
        return [ANYTHING]
    match node:
        case ast.Constant(value=None) | ast.Constant(value=False):
            return [""]
        case ast.Constant(value=value):
            return [str(value)]
        case ast.JoinedStr(values=parts):
            return _joined(parts, scope, depth)
        case ast.BinOp(left=left, op=ast.Add(), right=right):
            both = (_ways(left, scope, depth + 1), _ways(right, scope, depth + 1))
            return ["".join(one) for one in itertools.product(*both)]
        case ast.Call(func=ast.Name(id="str"), args=[ast.Name(id=name)]) if scope.is_caught(name):
            return [""]  # it is found where it is raised first
        case _:
            found = [way for one in _others(node, scope) for way in _ways(one, scope, depth + 1)]
            return found or _returned(node, scope, depth)


def _others(node: ast.expr, scope: Scope) -> list[ast.expr]:
    """Return the expressions one of which another one is."""
    match node:
        case ast.BinOp(left=left, op=ast.Mult()):
            return [left, ast.Constant(value=None)]
        case ast.IfExp(body=body, orelse=other):
            return [body, other]
        case ast.BoolOp(values=values):
            return values
        case ast.Name(id=name):
            return scope.values(name)
        case ast.Call(func=ast.Attribute(value=inner, attr="format" | "split")):
            return [inner]
        case ast.Call(func=ast.Attribute(value=ast.Constant(value=" "), attr="join"), args=[inner]):
            return [inner]
        case _:
            return []


def _joined(parts: list[ast.expr], scope: Scope, depth: int) -> list[str]:
    plain = "".join(_plain(part, scope) for part in parts)
    if is_told_apart(plain):
        return [plain]
    each = [
        _ways(part.value if isinstance(part, ast.FormattedValue) else part, scope, depth + 1)
        for part in parts
    ]
    return ["".join(one) for one in itertools.product(*each)]


def _plain(part: ast.expr, scope: Scope) -> str:
    """Return a part of a sentence, or the place of one; constants of modules are known."""
    if isinstance(part, ast.FormattedValue) and isinstance(part.value, ast.Name):
        found = scope.values(part.value.id) if part.value.id.isupper() else []
        if len(found) == 1 and isinstance(found[0], ast.Constant):
            return "\0=" + str(found[0].value) + "\0"  # a test may have another
    return str(part.value) if isinstance(part, ast.Constant) else f"\0{_name_of(part)}\0"


def _name_of(node: ast.expr) -> str:
    """Return what people may call a part that is not known before, or nothing."""
    match node:
        case ast.FormattedValue(value=inner) | ast.Subscript(value=inner):
            return _name_of(inner)
        case ast.Name(id=name) | ast.Attribute(attr=name):
            return name.strip("_").lower()
        case ast.Call(func=ast.Attribute(attr="join"), args=[inner]):
            return _name_of(inner)
        case _:
            return ""


def _returned(call: ast.expr, scope: Scope, depth: int) -> list[str]:
    """Return what a function of the package says; of anything else nothing is known."""
    found = _function(call.func, scope.module) if isinstance(call, ast.Call) else None
    if found is None:
        return [ANYTHING]
    path, function = found
    inner = Scope(path, function)
    returns = [
        node.value
        for node in ast.walk(function)
        if isinstance(node, ast.Return) and node.value is not None
    ]
    return [way for one in returns for way in _ways(one, inner, depth + 1)] or [ANYTHING]


def _function(func: ast.expr, module: Path) -> tuple[Path, ast.FunctionDef] | None:
    """Find a function that is called: of this module, or imported from another."""
    match func:
        case ast.Name(id=name):
            path, name = _imported(name, module) or (module, name)
        case ast.Attribute(value=ast.Name(id=alias), attr=name):
            of = _imported(alias, module)
            if of is None:
                return None
            path = (
                of[0].parent / of[0].stem / f"{of[1]}.py" if of[0].suffix else of[0] / f"{of[1]}.py"
            )
        case _:
            return None
    if not path.is_file():
        return None
    for node in parsed(path).body:
        if isinstance(node, ast.FunctionDef) and node.name == name:
            return path, node
    return None


def _imported(name: str, module: Path) -> tuple[Path, str] | None:
    """Return from which module, or package, a name comes, and its name there."""
    for node in ast.walk(parsed(module)):
        if not isinstance(node, ast.ImportFrom) or not str(node.module).startswith("pliant"):
            continue
        for alias in node.names:
            if (alias.asname or alias.name) == name:
                place = PACKAGE.joinpath(*str(node.module).split(".")[1:])
                file = place.with_suffix(".py")
                return (file if file.is_file() else place), alias.name
    return None


def _values(target: ast.expr, value: ast.expr, name: str) -> list[ast.expr]:
    """Return what a name becomes where a value is assigned."""
    match target, value:
        case ast.Name(id=id_), _ if id_ == name:
            return [value]
        case ast.Tuple(elts=targets), ast.Tuple(elts=values):
            return [
                got for one in zip(targets, values, strict=False) for got in _values(*one, name)
            ]
        case ast.Tuple(elts=targets), _ if any(ast.unparse(one) == name for one in targets):
            return [ast.Attribute(value=value, attr="part")]  # anything
        case _:
            return []
