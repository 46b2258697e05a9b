"""Whatever is refused is refused with the sentence that the page shows."""

from __future__ import annotations

import ast
import re
import shlex
from collections.abc import Iterator
from pathlib import Path

import pytest
from tests.features import refusals
from tests.features.refusals import Refusal

from pliant.cli.main import code_of
from pliant.core.errors import ConfigError, UsageError

ROOT = Path(__file__).resolve().parents[2]
ALL = [row for table in refusals.TABLES.values() for row in table]
SCRIPTS = [row for row in ALL if row.script is not None]
COMMANDS = [row for row in ALL if row.command]


@pytest.mark.parametrize("row", SCRIPTS, ids=lambda row: row.sentence[:60])
def test_a_script_is_refused_with_this_sentence(
    row: Refusal, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.chdir(tmp_path)
    assert row.script is not None

    with pytest.raises((ConfigError, UsageError)) as caught:
        row.script()

    pattern = re.escape(row.sentence).replace(re.escape(" ... "), ".* ")
    assert re.fullmatch(pattern, str(caught.value)), str(caught.value)


@pytest.mark.parametrize("row", COMMANDS, ids=lambda row: row.sentence[:60])
def test_a_command_is_refused_with_this_sentence(
    row: Refusal,
    tmp_path: Path,
    monkeypatch: pytest.MonkeyPatch,
    capsys: pytest.CaptureFixture[str],
) -> None:
    monkeypatch.chdir(tmp_path)
    monkeypatch.setenv("XDG_STATE_HOME", str(tmp_path / "state"))
    Path("train.py").touch()
    Path("job.yaml").write_text(refusals.JOB.replace(*row.replaced))

    code = code_of(shlex.split(row.command))

    assert (code, capsys.readouterr().err) == (2, f"pliant: {row.sentence}\n")


def test_what_is_not_reproduced_here_names_a_test_that_is_there() -> None:
    for row in ALL:
        if row.script is None and not row.command:
            path, _, name = row.proof.partition("::")
            assert f"def {name}(" in (ROOT / path).read_text(), row.sentence


def test_every_refusal_of_the_engine_is_on_the_page() -> None:
    missing = [
        place for place, pattern in raised() if not any(pattern.search(row.sentence) for row in ALL)
    ]

    assert missing == []


NOT_OF_SCRIPTS = {"bootstrap.py", "tail_team.py"}
"""An environment that nobody sets by hand; an evaluation on some replicas only, of which another
sentence on the page tells."""


def raised() -> Iterator[tuple[str, re.Pattern[str]]]:
    """Yield where the engine refuses something, and how the sentence looks."""
    for path in sorted((ROOT / "src/pliant/engine").rglob("*.py")):
        for node in ast.walk(ast.parse(path.read_text())):
            if not isinstance(node, ast.Raise) or not isinstance(node.exc, ast.Call):
                continue
            if path.name in NOT_OF_SCRIPTS:
                continue
            if ast.unparse(node.exc.func) in ("ConfigError", "UsageError", "CodecError"):
                yield f"{path.name}:{node.lineno}", pattern_of(node.exc.args[0])


def pattern_of(sentence: ast.expr) -> re.Pattern[str]:
    """Return a pattern of a string, or of an f-string with anything in its gaps."""
    parts = sentence.values if isinstance(sentence, ast.JoinedStr) else [sentence]
    texts = [
        re.escape(str(part.value)) if isinstance(part, ast.Constant) else ".*" for part in parts
    ]
    return re.compile("".join(texts))
