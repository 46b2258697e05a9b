"""The tool that draws small faults draws what something can notice, and sees who does."""

from __future__ import annotations

import ast
import textwrap
from pathlib import Path

import pytest
from tools import mutate

ROOMS = ("core/membership", "agent/uplink.py")

SOURCE = '''
"""Some words."""
from typing import TYPE_CHECKING
if TYPE_CHECKING:
    import os
__all__ = ["size"]
_log = logging.getLogger(__name__)

def size(count: int = 3) -> int:
    """More words."""
    if count < 1:
        raise ValueError(f"{count + 1} is {count - 1}")
    _log.info("%d", count + 1)
    count = count + 2
    return min(count, 9)
'''

CHILD = """
import subprocess, sys
from pliant.sizes import size

def test_here(): assert size(1) == 2

def test_there():
    asked = [sys.executable, "-c", "from pliant.sizes import size; print(size(1))"]
    assert subprocess.check_output(asked, env={}) == b"2\\n"

def test_that_never_passes(): raise RuntimeError
"""


def test_only_what_changes_something_is_drawn() -> None:
    found = mutate.mutations_of("sizes.py", SOURCE.encode())

    assert [one.what for one in found] == [
        "negated: count < 1",
        "shifted to LtE: count < 1",
        "shifted by 1: 1",
        'dropped: raise ValueError(f"{count + 1} is {count - 1}")',
        "dropped: count = count + 2",
        "swapped + and -: count + 2",
        "shifted by 1: 2",
        "swapped in min(count, 9): min",
    ]


def test_each_is_another_program_and_a_seed_draws_the_same_ones() -> None:
    drawn = mutate.drawn(ROOMS, seed=1, count=40)

    assert drawn == mutate.drawn(ROOMS, seed=1, count=40)
    for one in drawn:
        source = (mutate.ROOT / mutate.PACKAGE / one.path).read_bytes()
        assert ast.dump(ast.parse(one.applied(source))) != ast.dump(ast.parse(source)), one


def test_tests_are_found_that_import_a_module_through_others_or_by_its_name(tmp_path: Path) -> None:
    written(tmp_path, "src/pliant/sizes.py", "")
    written(tmp_path, "src/pliant/sums.py", "def add():\n    from pliant.sizes import size")
    written(tmp_path, "tests/helper.py", "from pliant import sums")
    written(tmp_path, "tests/a/test_far.py", "from tests.helper import sums")
    written(tmp_path, "tests/a/conftest.py", "import pliant.sums")
    written(tmp_path, "tests/test_sizes.py", "CODE = 'import pliant.sizes; print()'")
    written(tmp_path, "tests/test_by_name.py", 'WORDS = ["-m", "pliant.sizes"]')
    written(tmp_path, "tests/test_other.py", "import os")

    tests = mutate.Imports(tmp_path).tests_of(Path("src/pliant/sizes.py"))

    assert tests == ["tests/test_sizes.py", "tests/test_by_name.py", "tests/a/test_far.py"]


@pytest.mark.slow
def test_who_notices_is_named_unless_it_fails_anyhow(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    checkout, path = tmp_path / "it", Path("src/pliant/sizes.py")
    written(checkout, "pyproject.toml", "[tool.pytest.ini_options]")
    written(checkout, "src/pliant/sizes.py", "def size(n):\n    return n + 1\n")
    written(checkout, "tests/test_sizes.py", CHILD)
    monkeypatch.setattr(mutate, "ROOT", checkout)
    copy = mutate.Copy(tmp_path / "copy", "not soak")

    def verdict_of(text: str, *tests: str) -> str:
        return copy.noticed(path, text.encode(), [f"tests/test_sizes.py{t}" for t in tests], 60.0)

    assert verdict_of("def size(n): return n * 2\n", "") == mutate.SURVIVED
    assert verdict_of("def size(n): return 3\n", "").endswith("::test_here")
    assert verdict_of("def size(n): return 3\n", "::test_there").endswith("::test_there")


def test_an_earlier_output_is_gone_on_with(tmp_path: Path) -> None:
    log = tmp_path / "log"
    log.write_text("| core/a.py:3 | negated: x | SURVIVED | 3 s |\n| core/b.py:1 | cut of")

    assert mutate.verdicts_of(str(log)) == {("core/a.py:3", "negated: x"): "SURVIVED"}


def written(root: Path, path: str, text: str) -> None:
    (root / path).parent.mkdir(parents=True, exist_ok=True)
    (root / path).write_text(textwrap.dedent(text))
