"""Draw small faults in the source, one at a time, and see whether a test notices.

    python tools/mutate.py --count 20                     # of core, engine, agent, coordinator
    python tools/mutate.py core/membership --count 10 --seed 3
    python tools/mutate.py --tier "not slow and not soak and not frameworks"
    python tools/mutate.py --count 60 --all-but old.log   # go on where an earlier output ends
    python tools/mutate.py --count 60 --list              # only say what would be changed

A mutation negates a condition, shifts a bound, swaps min and max, ``and`` and ``or``, drops a
statement, ...  It is made in a copy of the checkout, never in place.  There the tests run that
import the changed module, also through others, those nearest to it first, until one fails or the
time is over.  A test that fails without the mutation as well says nothing and is left out.  The
copy has an environment of its own, so every process that a test starts imports the copy.
"""

from __future__ import annotations

import argparse
import ast
import os
import random
import re
import shutil
import signal
import subprocess
import sys
import tempfile
import time
from collections.abc import Iterable, Iterator
from contextlib import contextmanager, suppress
from dataclasses import dataclass
from pathlib import Path

ROOT = Path(__file__).resolve().parents[1]
PACKAGE = Path("src") / "pliant"
ROOMS = ("core", "engine", "agent", "coordinator")
TIER = "not soak and not frameworks"
LIMIT_S = 120.0

BATCHES = (3, 12, 48, 96)
"""Test files of one pytest after the other; the last one has the rest.  Early ones start fast."""

SURVIVED, TIMED_OUT = "SURVIVED", "TIMED OUT"

LOGS = {"_log", "log", "logger", "logging", "warnings"}
SAME = (ast.Eq, ast.Is, ast.In, ast.Lt, ast.Gt)
OTHER = (ast.NotEq, ast.IsNot, ast.NotIn, ast.LtE, ast.GtE)
CHANGED = dict(zip(SAME + OTHER, OTHER + SAME, strict=True))
BOUNDS = (ast.Lt, ast.LtE, ast.Gt, ast.GtE)
SWAPPED = {"min": "max", "max": "min", "any": "all", "all": "any"}


@dataclass(frozen=True)
class Mutation:
    """One change of one module."""

    path: str
    """File below ``src/pliant``."""
    line: int
    what: str
    start: int
    """First byte that is replaced, and the first one behind."""
    end: int
    new: str

    @property
    def key(self) -> tuple[str, str]:
        """What an output calls it."""
        return f"{self.path}:{self.line}", self.what

    def applied(self, source: bytes) -> bytes:
        """Return the module with the fault in it."""
        return source[: self.start] + self.new.encode() + source[self.end :]


class _Finder(ast.NodeVisitor):
    """Collects the mutations of a module; passes over what changes nothing that happens."""

    def __init__(self, path: str, source: bytes) -> None:
        self.path, self.source = path, source
        self.found: list[Mutation] = []
        self._starts = [0]
        for line in source.splitlines(keepends=True):
            self._starts.append(self._starts[-1] + len(line))
        self._tests: set[int] = set()
        self._is_init = False

    def _add(self, node: ast.expr | ast.stmt, kind: str, new: str) -> None:
        assert node.end_lineno is not None
        assert node.end_col_offset is not None
        start = self._starts[node.lineno - 1] + node.col_offset
        end = self._starts[node.end_lineno - 1] + node.end_col_offset
        old = " ".join(self.source[start:end].decode().split())
        what = f"{kind}: {old}".replace("|", "/")
        what = what if len(what) <= 90 else f"{what[:87]}..."
        self.found.append(Mutation(self.path, node.lineno, what, start, end, new))

    def _drop(self, node: ast.stmt) -> None:
        self._add(node, "dropped", "pass")

    def _change(self, node: ast.expr, kind: str, changed: ast.expr) -> None:
        self._add(node, kind, f"({ast.unparse(changed)})")

    def visit_JoinedStr(self, node: ast.JoinedStr) -> None:
        """Pass over text for people."""

    def visit_FunctionDef(self, node: ast.FunctionDef | ast.AsyncFunctionDef) -> None:
        """Look into the body only: not at annotations, decorators and the docstring."""
        around, self._is_init = self._is_init, node.name == "__init__"
        for statement in node.body:
            self.visit(statement)
        self._is_init = around

    visit_AsyncFunctionDef = visit_FunctionDef  # noqa: N815 - ast's name

    def visit_AnnAssign(self, node: ast.AnnAssign) -> None:
        """Look at the value only."""
        if node.value is not None:
            self.visit(node.value)

    def visit_Raise(self, node: ast.Raise) -> None:
        """Drop it; what it says is for people."""
        self._drop(node)

    def visit_Expr(self, node: ast.Expr) -> None:
        """Drop a call, unless it only logs."""
        value = node.value.value if isinstance(node.value, ast.Await) else node.value
        if isinstance(value, ast.Call):
            if ast.unparse(value.func).partition(".")[0] in LOGS | {"assert_never"}:
                return
            self._drop(node)
            self.visit(value)

    def visit_Assign(self, node: ast.Assign) -> None:
        """Drop it where the name is there without it: else nobody could miss that."""
        if ast.unparse(node.targets[0]) == "__all__":
            return
        target = node.targets[0]
        names = {one.id for one in ast.walk(node.value) if isinstance(one, ast.Name)}
        is_there = isinstance(target, ast.Attribute | ast.Subscript) and not self._is_init
        if is_there or (isinstance(target, ast.Name) and target.id in names):
            self._drop(node)
        self.visit(node.value)

    def visit_AugAssign(self, node: ast.AugAssign | ast.Delete) -> None:
        """Drop it."""
        self._drop(node)
        self.generic_visit(node)

    visit_Delete = visit_AugAssign  # noqa: N815 - ast's name

    def visit_Return(self, node: ast.Return) -> None:
        """Swap True and False."""
        if isinstance(node.value, ast.Constant) and isinstance(node.value.value, bool):
            self._change(node.value, "swapped", ast.Constant(value=not node.value.value))
        self.generic_visit(node)

    def visit_If(self, node: ast.If) -> None:
        """Negate the condition, unless it is for types or for a script."""
        text = ast.unparse(node.test)
        if text != "TYPE_CHECKING" and "__name__" not in text:
            self._negate(node.test)
            self.generic_visit(node)

    def _negate(self, test: ast.expr) -> None:
        if not isinstance(test, ast.Constant):  # while True
            self._tests.add(id(test))
            self._change(test, "negated", ast.UnaryOp(op=ast.Not(), operand=test))

    def visit_While(self, node: ast.While | ast.IfExp) -> None:
        """Negate the condition."""
        self._negate(node.test)
        self.generic_visit(node)

    visit_IfExp = visit_While  # noqa: N815 - ast's name

    def visit_comprehension(self, node: ast.comprehension) -> None:
        """Negate the conditions."""
        for test in node.ifs:
            self._negate(test)
        self.generic_visit(node)

    def visit_Compare(self, node: ast.Compare) -> None:
        """Shift a bound; turn round an equality that is no condition by itself."""
        for at, op in enumerate(node.ops):
            if isinstance(op, BOUNDS) or id(node) not in self._tests:
                ops = [*node.ops[:at], CHANGED[type(op)](), *node.ops[at + 1 :]]
                changed = ast.Compare(left=node.left, ops=ops, comparators=node.comparators)
                self._change(node, f"shifted to {type(ops[at]).__name__}", changed)
        for number in (node.left, *node.comparators):
            self._shift(number)
        self.generic_visit(node)

    def visit_BinOp(self, node: ast.BinOp) -> None:
        """Swap plus and minus, shift a number."""
        other = {ast.Add: ast.Sub, ast.Sub: ast.Add}.get(type(node.op))
        values = (getattr(one, "value", None) for one in ast.walk(node))
        if not any(isinstance(value, str | bytes) for value in values):
            if other is not None:
                changed = ast.BinOp(left=node.left, op=other(), right=node.right)
                self._change(node, "swapped + and -", changed)
            self._shift(node.left)
            self._shift(node.right)
        self.generic_visit(node)

    def visit_Slice(self, node: ast.Slice) -> None:
        """Shift its bounds."""
        for bound in (node.lower, node.upper):
            self._shift(bound)
        self.generic_visit(node)

    def visit_BoolOp(self, node: ast.BoolOp) -> None:
        """Swap ``and`` and ``or``."""
        other = ast.Or() if isinstance(node.op, ast.And) else ast.And()
        self._change(node, "swapped and/or", ast.BoolOp(op=other, values=node.values))
        self.generic_visit(node)

    def visit_Call(self, node: ast.Call) -> None:
        """Swap min and max, any and all."""
        if isinstance(node.func, ast.Name) and node.func.id in SWAPPED:
            self._add(node.func, f"swapped in {ast.unparse(node)}", SWAPPED[node.func.id])
        self.generic_visit(node)

    def _shift(self, node: ast.expr | None) -> None:
        if isinstance(node, ast.Constant) and type(node.value) is int:
            self._change(node, "shifted by 1", ast.Constant(value=node.value + 1))


def mutations_of(path: str, source: bytes) -> list[Mutation]:
    """Return every mutation of a module of the package."""
    finder = _Finder(path, source)
    finder.visit(ast.parse(source))
    return finder.found


def drawn(rooms: Iterable[str], seed: int, count: int) -> list[Mutation]:
    """Draw mutations of rooms, or of modules; a seed means the same ones in the same source."""
    found: list[Mutation] = []
    for room in rooms:
        at = ROOT / PACKAGE / room
        for path in sorted(at.rglob("*.py")) if at.is_dir() else [at]:
            name = path.relative_to(ROOT / PACKAGE).as_posix()
            found += mutations_of(name, path.read_bytes())
    return random.Random(seed).sample(found, min(count, len(found)))


class Imports:
    """Who imports whom, as far as the text says: also in a string that names a module or a file."""

    def __init__(self, root: Path = ROOT) -> None:
        self._root = root
        self._names = {
            _module_of(path.relative_to(root)): path
            for top in ("src", "tests", "tools", "benchmarks", "examples")
            for path in (root / top).rglob("*.py")
        }
        self._importers: dict[str, set[str]] = {}
        for name, path in self._names.items():
            for imported in self._imported(path):
                self._importers.setdefault(imported, set()).add(name)

    def tests_of(self, module: Path) -> list[str]:
        """Return the test files that import a module, also through others, the nearest first."""
        goal = _module_of(module)
        steps, newest = {goal: 0}, {goal}
        while newest:
            newest = {one for name in newest for one in self._importers.get(name, ())} - set(steps)
            steps |= dict.fromkeys(newest, max(steps.values()) + 1)
        paths = {self._names[name].relative_to(self._root): far for name, far in steps.items()}
        tests = {path: far for path, far in paths.items() if path.name.startswith("test_")}
        return [str(p) for p in sorted(tests, key=lambda p: (tests[p], _strange(p, module), p))]

    def _imported(self, path: Path) -> Iterator[str]:
        tree = ast.parse(path.read_bytes())
        texts = {one.value for one in ast.walk(tree) if isinstance(one, ast.Constant)}
        for node in ast.walk(tree):
            match node:
                case ast.Import(names=names):
                    yield from self._known(alias.name for alias in names)
                case ast.ImportFrom(module=str(module), names=names):
                    for alias in names:
                        inner = f"{module}.{alias.name}"
                        yield inner if inner in self._names else module
                case ast.Constant(value=str(text)):
                    yield from self._known([text, *re.findall(r"(?:from|import) ([\w.]+)", text)])
                    beside = path.parent / text if len(text) < 80 else path
                    if text.endswith(".py") and beside.is_file():
                        yield _module_of(beside.resolve().relative_to(self._root))
                case _:
                    pass
        if "-m" in texts and "pliant" in texts:
            yield "pliant.__main__"
        for directory in path.parents:  # the one of all tests says nothing
            if directory in (self._root / "tests", self._root):
                break
            yield from self._known([_module_of((directory / "conftest").relative_to(self._root))])

    def _known(self, names: Iterable[str]) -> Iterator[str]:
        yield from (name for name in names if name in self._names and name != "pliant")


def _module_of(path: Path) -> str:
    parts = path.with_suffix("").parts
    parts = parts[1:] if parts[0] == "src" else parts
    return ".".join(parts[:-1] if parts[-1] == "__init__" else parts)


def _strange(test: Path, module: Path) -> tuple[bool, bool]:
    """Return whether a test is not called as a module is, and not in its room."""
    return module.stem not in test.stem, module.parts[2:-1] != test.parts[1:-1]


class Copy:
    """A copy of the checkout, with an environment that imports it."""

    def __init__(self, directory: Path, tier: str) -> None:
        self.root, self._tier = directory / "checkout", tier
        ignored = shutil.ignore_patterns(".git", ".venv*", "__pycache__", ".*_cache", "runs")
        shutil.copytree(ROOT, self.root, ignore=ignored, symlinks=True)
        self._python = self.root / ".venv/bin/python"
        venv = [sys.executable, "-m", "venv", "--without-pip", str(self.root / ".venv")]
        subprocess.run(venv, check=True)
        packages = [place for place in sys.path if place.endswith("-packages")]
        (found,) = (self.root / ".venv/lib").glob("python*/site-packages")
        (found / "copy.pth").write_text("\n".join([str(self.root / "src"), *packages, ""]))
        self._unsound: list[str] = []
        self._sound: set[str] = set()

    @contextmanager
    def changed(self, path: Path, text: bytes) -> Iterator[None]:
        """Have another text in one file for a while."""
        source = (self.root / path).read_bytes()
        (self.root / path).write_bytes(text)
        try:
            yield
        finally:
            (self.root / path).write_bytes(source)

    def noticed(self, path: Path, text: bytes, tests: list[str], limit_s: float) -> str:
        """Return the first test that fails for another text alone, SURVIVED, or TIMED OUT."""
        for batch in _batches(tests):
            while batch:
                began = time.monotonic()
                with self.changed(path, text):
                    failed = self._first_failure(batch, limit_s)
                limit_s -= time.monotonic() - began
                if failed is None or failed == TIMED_OUT:
                    break
                if failed in self._sound or self._first_failure([failed], LIMIT_S) is None:
                    self._sound.add(failed)
                    return failed
                if failed in self._unsound:  # it can't be deselected: its file can't be read
                    batch = [one for one in batch if one != failed.partition("::")[0]]
                self._unsound.append(failed)
            if failed == TIMED_OUT or limit_s <= 0:
                return TIMED_OUT
        return SURVIVED

    def _first_failure(self, tests: list[str], limit_s: float) -> str | None:
        command = [str(self._python), "-m", "pytest", "-x", "-q", "--tb=no", "-m", self._tier]
        command += ["-p", "no:cacheprovider", "-p", "no:randomly", *tests]
        command += [f"--deselect={one}" for one in self._unsound if one not in tests]
        here = {"PATH": f"{self._python.parent}:{os.environ.get('PATH', '')}"}
        here |= {"PYTHONPATH": str(self.root / "src"), "PYTHONDONTWRITEBYTECODE": "1"}
        with subprocess.Popen(
            command,
            cwd=self.root,
            env={**os.environ, **here},
            stdin=subprocess.DEVNULL,
            stdout=subprocess.PIPE,
            stderr=subprocess.STDOUT,
            errors="replace",  # a test may print anything
            start_new_session=True,
        ) as running:
            try:
                said, _ = running.communicate(timeout=max(limit_s, 1.0))
            except BaseException as error:
                _end(running)
                if isinstance(error, subprocess.TimeoutExpired):
                    return TIMED_OUT
                raise
        if running.returncode in (0, 5):  # 5: none of them is in the tier
            return None
        found = re.search(r"^(?:FAILED|ERROR) (.+?)(?: - .*)?$", said, re.MULTILINE)
        return found.group(1) if found else tests[0]


def _end(running: subprocess.Popen[str]) -> None:
    """End tests that take too long; they have some seconds to end what they started."""
    with suppress(ProcessLookupError):
        os.killpg(running.pid, signal.SIGTERM)
        try:
            running.communicate(timeout=20)
        except subprocess.TimeoutExpired:
            os.killpg(running.pid, signal.SIGKILL)


def _batches(tests: list[str]) -> Iterator[list[str]]:
    for size in BATCHES:
        yield tests[:size]
        tests = tests[size:]
    yield tests


def verdicts_of(path: str) -> dict[tuple[str, str], str]:
    """Read the verdicts of an earlier output."""
    lines = Path(path).read_text().splitlines()
    rows = [line.removeprefix("| ").split(" | ") for line in lines if line.startswith("| ")]
    return {(row[0], row[1]): row[2] for row in rows if len(row) == 4}


def main() -> int:
    """Run, print a verdict for each mutation and the share that was noticed."""
    parser = argparse.ArgumentParser(description=__doc__.partition("\n")[0])
    parser.add_argument("rooms", nargs="*", default=ROOMS, help="below src/pliant")
    parser.add_argument("--count", type=int, default=20, help="mutations to draw (default 20)")
    parser.add_argument("--seed", type=int, default=0, help="another one draws others")
    parser.add_argument("--tier", default=TIER, help=f"pytest's marker expression ({TIER})")
    parser.add_argument("--limit", type=float, default=LIMIT_S, help="seconds for one mutation")
    parser.add_argument("--all-but", type=verdicts_of, default={}, help="an earlier output")
    parser.add_argument("--list", action="store_true", help="print the mutations and stop")
    arguments = parser.parse_args()
    if unknown := [room for room in arguments.rooms if not (ROOT / PACKAGE / room).exists()]:
        parser.error(f"{unknown[0]} is no room or module below src/pliant")
    verdicts: list[str] = []
    imports = Imports()
    with tempfile.TemporaryDirectory(prefix="pliant-mutate-") as scratch:
        copy = None if arguments.list else Copy(Path(scratch), arguments.tier)
        for mutation in drawn(arguments.rooms, arguments.seed, arguments.count):
            place, what = mutation.key
            path = PACKAGE / mutation.path
            tests = imports.tests_of(path)
            if copy is None:
                print(f"{place} {what} ({len(tests)} test files)")
                continue
            began = time.monotonic()
            text = mutation.applied((copy.root / path).read_bytes())
            verdict = arguments.all_but.get(mutation.key)
            verdict = verdict or copy.noticed(path, text, tests, arguments.limit)
            verdicts.append(verdict)
            took_s = time.monotonic() - began
            print(f"| {place} | {what} | {verdict} | {took_s:.0f} s |", flush=True)
    survived, timed_out = verdicts.count(SURVIVED), verdicts.count(TIMED_OUT)
    if count := len(verdicts):
        share = (count - survived - timed_out) / count
        print(f"\n{share:.0%} of {count} noticed; {survived} survived; {timed_out} timed out")
    return 0


if __name__ == "__main__":
    sys.exit(main())
