"""Help pages, pages of the documentation, and what shells complete."""

from __future__ import annotations

import ast
import os
import pty
import re
import select
import shutil
import signal
import subprocess
import sys
import time
from pathlib import Path

import pytest
from tests.observe.test_run_index import gone
from tests.observe.test_runs import begun

from pliant.cli import help
from pliant.cli.main import code_of
from pliant.machine.registry import StateDirectory

Captured = pytest.CaptureFixture[str]


@pytest.fixture
def home(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    for name in ("XDG_DATA_HOME", "XDG_CONFIG_HOME", "ZDOTDIR", "SHELL"):
        monkeypatch.delenv(name, raising=False)
    monkeypatch.setenv("HOME", str(tmp_path))
    monkeypatch.setenv("XDG_STATE_HOME", str(tmp_path / "state"))
    monkeypatch.chdir(tmp_path)
    return tmp_path


def test_names_of_jobs_and_replicas_are_completed(
    home: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    state = StateDirectory(home / "state" / "pliant")
    run = begun(state, "gpt", gone())
    begun(state, "cnn", gone())
    (run.out / "logs").mkdir()
    for name in ("r1", "r10", "r2", "forkserver"):
        (run.out / "logs" / f"{name}.log").touch()

    class Typed:
        params = {"job": "gpt"}  # noqa: RUF012

    assert sorted(help.job_names("")) == ["cnn", "gpt"]
    assert help.job_names("g") == ["gpt"]
    assert help.replica_names(Typed, "r") == ["r1", "r2", "r10"]  # type: ignore[arg-type]
    Typed.params = {"job": "gone"}
    assert help.replica_names(Typed, "r") == []  # type: ignore[arg-type]


TYPED = {
    "pliant sus": "pliant suspend",
    "pliant logs --fo": "pliant logs --follow",
    "pliant logs --job g": "pliant logs --job gpt",
    "pliant run fi": "pliant run fit.py",
}
"""What is typed before the key, and what stands there after it."""


@pytest.fixture
def user(home: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """A home with a job and a script, and ``pliant`` on the path of its shells."""
    begun(StateDirectory(home / "state" / "pliant"), "gpt", gone())
    (home / "fit.py").touch()
    program = home / "bin" / "pliant"
    program.parent.mkdir()
    program.write_text(f'#!/bin/sh\nexec {sys.executable} -m pliant "$@"\n')
    program.chmod(0o755)
    monkeypatch.setenv("PATH", f"{program.parent}:{os.environ['PATH']}")
    return home


def script_for(shell: str) -> str:
    """Return what a shell has to read."""
    environ = {**os.environ, "_PLIANT_COMPLETE": f"source_{shell}"}
    return subprocess.run(
        ["pliant"], env=environ, capture_output=True, text=True, check=True
    ).stdout


def needs(shell: str) -> pytest.MarkDecorator:
    return pytest.mark.skipif(shutil.which(shell) is None, reason=f"{shell} is not installed")


@pytest.mark.timeout(60)
def test_bash_completes_commands_options_and_jobs(user: Path) -> None:
    (user / "script").write_text(script_for("bash"))
    ask = """
        source ./script
        try() { COMP_WORDS=("$@"); COMP_CWORD=$(($# - 1)); COMPREPLY=()
            ${function} pliant; echo "${COMPREPLY[@]}"; }
        function=$(complete -p pliant | sed -n 's/.*-F \\([^ ]*\\).*/\\1/p')
        try pliant sus; try pliant logs --fo; try pliant logs --job g
    """

    done = subprocess.run(
        ["bash", "--norc", "-c", ask], cwd=user, capture_output=True, text=True, check=False
    )

    assert done.stdout.split("\n")[:3] == ["suspend", "--follow", "gpt"], done.stderr


@needs("fish")
@pytest.mark.timeout(180)
def test_fish_completes_commands_options_jobs_and_files(user: Path) -> None:
    script = user / ".config/fish/completions/pliant.fish"
    script.parent.mkdir(parents=True)
    script.write_text(script_for("fish"))

    for typed, completed in TYPED.items():
        done = subprocess.run(
            ["fish", "-c", f"complete -C '{typed}'"],
            cwd=user,
            capture_output=True,
            text=True,
            check=False,
        )

        found = [line.partition("\t")[0] for line in done.stdout.splitlines()]
        assert found == [completed.rpartition(" ")[2]], (typed, done.stderr)


@needs("zsh")
@pytest.mark.timeout(240)
def test_zsh_completes_commands_options_jobs_and_files_on_a_terminal(user: Path) -> None:
    (user / "script").write_text(script_for("zsh"))
    (user / ".zshrc").write_text("autoload -Uz compinit && compinit\n. ~/script\n")
    environ = {**os.environ, "TERM": "vt100"}
    pid, terminal = pty.fork()
    if pid == 0:
        os.execvpe("zsh", ["zsh", "-i"], environ)  # what people type
    try:
        for typed, completed in TYPED.items():
            os.write(terminal, f"\x15{typed}\t".encode())  # on an empty line

            assert is_shown(terminal, completed), typed
    finally:
        os.kill(pid, signal.SIGKILL)
        os.waitpid(pid, 0)
        os.close(terminal)


def is_shown(terminal: int, text: str, within_s: float = 50.0) -> bool:
    """Whether a text comes to be on a terminal."""
    said, until_s = b"", time.monotonic() + within_s
    while time.monotonic() < until_s:
        if select.select([terminal], [], [], 0.2)[0]:
            said += os.read(terminal, 4096)
        if text.encode() in re.sub(rb"\x00|\x1b\[[0-9;?]*[A-Za-z]", b"", said):
            return True
    return False


SOURCES = Path(__file__).parents[2] / "src" / "pliant"
NAMED = re.compile(r"pliant docs ([a-z-]+)")


def sentences() -> list[str]:
    """Return every text of the sources but docstrings."""
    found = []
    for path in SOURCES.rglob("*.py"):
        tree = ast.parse(path.read_text())
        docs = {id(node.value) for node in ast.walk(tree) if isinstance(node, ast.Expr)}
        found += [
            node.value
            for node in ast.walk(tree)
            if isinstance(node, ast.Constant)
            and isinstance(node.value, str)
            and id(node) not in docs
        ]
    return found


def test_every_page_that_a_sentence_names_is_shown(capsys: pytest.CaptureFixture[str]) -> None:
    said = sentences()
    named = {name for text in said for name in NAMED.findall(text)}

    assert named >= {"bring-your-script"}
    for name in named:
        assert code_of(["docs", name]) == 0
        assert capsys.readouterr().out.startswith("# ")
    assert [text for text in said if re.search(r"docs/\S+\.md", text)] == []


def test_without_a_name_all_pages_are_listed(capsys: pytest.CaptureFixture[str]) -> None:
    assert code_of(["docs"]) == 0
    assert {"run-a-job", "glossary"} <= set(capsys.readouterr().out.split())
    assert code_of(["docs", "nothing"]) == 2
