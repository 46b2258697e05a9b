"""How words are read: devices, teams, users, durations, and what stands behind a script."""

from __future__ import annotations

import shlex
from pathlib import Path
from typing import Any

import pytest
import typer
from typer.core import TyperGroup

from pliant.cli.arguments import of_script, rules_of, seconds, users_of, with_name
from pliant.cli.main import app
from pliant.core.errors import ConfigError

ALONE = ("--resume", "--detach", "--json")


@pytest.mark.parametrize(
    ("typed", "meant"),
    [
        ("train.py --pool x", "train.py --pool x"),
        ("--pool train.py", "--pool=default train.py"),
        ("--pool train.py --steps 5", "--pool=default train.py --steps 5"),
        ("--pool examples/train", "--pool=default examples/train"),
        ("--pool train", "--pool=default train"),
        ("--pool gpus train.py", "--pool=gpus train.py"),
        ("--pool gpus train.py --pool x", "--pool=gpus train.py --pool x"),
        ("--pool=gpus train.py", "--pool=gpus train.py"),
        ("--pool --priority high train.py", "--pool=default --priority high train.py"),
        ("--resume --pool train.py", "--resume --pool=default train.py"),
        ("--name --pool --pool a b.py", "--name --pool --pool=a b.py"),
        ("--max=4 --pool job.yaml", "--max=4 --pool=default job.yaml"),
        ("--pool -- train.py", "--pool=default -- train.py"),
        ("--pool", "--pool=default"),
        ("-m package.train", "-- -m package.train"),
        ("-mpackage.train --min 3", "-- -m package.train --min 3"),
        ("--max 2 -m package.train -m 3", "--max 2 -- -m package.train -m 3"),
        ("--pool -m package.train", "--pool=default -- -m package.train"),
        ("--pool gpus -m package.train --pool x", "--pool=gpus -- -m package.train --pool x"),
        ("train.py -m package.train", "train.py -m package.train"),
        ("--max", "--max"),
        ("", ""),
    ],
)
def test_a_pool_without_a_name_is_the_default_pool(typed: str, meant: str) -> None:
    assert with_name(typed.split(), alone=ALONE) == meant.split()


def test_a_file_is_no_pool_whatever_it_is_called(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.chdir(tmp_path)
    (tmp_path / "train").touch()

    assert with_name(["--pool", "train", "x"], alone=ALONE) == ["--pool=default", "train", "x"]


@pytest.mark.parametrize(
    ("text", "value_s"),
    [("30", 30.0), ("30s", 30.0), ("1.5m", 90.0), ("2min", 120.0), ("1h", 3600.0), ("5ms", 0.005)],
)
def test_durations_have_units(text: str, value_s: float) -> None:
    assert seconds("--for", text) == pytest.approx(value_s)


@pytest.mark.parametrize("text", ["", "soon", "-1s", "3 days", "nan"])
def test_what_is_no_duration_is_refused(text: str) -> None:
    with pytest.raises(ConfigError, match=r"^--for .* is no duration; write it like 30s, 5m or 1h"):
        seconds("--for", text)


def test_a_duration_that_no_message_may_say_is_refused() -> None:
    assert seconds("--for", "11574d") == pytest.approx(1e9, rel=1e-4)
    with pytest.raises(ConfigError, match=r"9+h is too long; at most 1e\+09 s can be waited for"):
        seconds("--for", "9" * 400 + "h")


FLAGS = {"--max", "--max-restarts", "--out", "--json"}


def words_of_script(script: Path, *typed: str) -> list[str]:
    return of_script([str(script)], typed, flags=FLAGS, alone=ALONE, command="pliant run")


def test_what_stands_behind_the_script_is_the_scripts(tmp_path: Path) -> None:
    script = tmp_path / "fit.py"
    script.write_text("add_argument('--out')  # and --max-steps")

    assert words_of_script(script, "5", "--lr", "1", "-v") == ["5", "--lr", "1", "-v"]
    assert words_of_script(script, "--out", "w.pt", "--out=w.pt") == ["--out", "w.pt", "--out=w.pt"]
    assert words_of_script(script, "--", "--max", "2") == ["--max", "2"]
    assert words_of_script(script, "a", "--", "--max") == ["a", "--", "--max"]
    assert words_of_script(tmp_path / "gone.py", "--max", "2") == ["--max", "2"]


@pytest.mark.parametrize(
    ("typed", "shown"),
    [
        (("--max", "2"), "--max 2"),
        (("5", "--max=2"), "--max=2"),
        (("--json",), "--json"),
        (("--json", "--lr", "3"), "--json"),
        (("--json", "data.csv"), "--json"),  # takes no value
        (("--out", "a b", "c'd"), "--out 'a b'"),
    ],
)
def test_an_option_of_ours_behind_a_script_that_does_not_name_it_is_asked_about(
    tmp_path: Path, typed: tuple[str, ...], shown: str
) -> None:
    script = tmp_path / "fit.py"
    script.write_text("add_argument('--max-steps')")

    with pytest.raises(ConfigError) as caught:
        words_of_script(script, *typed)

    flag, theirs = shown.partition("=")[0].partition(" ")[0], shlex.join(typed)
    assert str(caught.value) == (
        f"{flag} stands behind {script}, which does not name it: write pliant run {shown} {script} "
        f"if it is for pliant, and pliant run {script} -- {theirs} if it is for the script"
    )


def test_help_behind_a_script_is_the_scripts(tmp_path: Path) -> None:
    script = tmp_path / "fit.py"
    script.write_text("import argparse\n")
    command = typer.main.get_command(app)
    assert isinstance(command, TyperGroup)

    context = command.commands["run"].make_context("run", [str(script), "5", "--help"])

    assert context.params["arguments"] == ["5", "--help"]


NOTHING: dict[str, Any] = {
    "quota": None,
    "no_quota": False,
    "borrow_limit": None,
    "no_borrow_limit": False,
    "reclaim": None,
    "by": None,
}


@pytest.mark.parametrize(
    ("typed", "said"),
    [
        ({}, {}),
        ({"quota": 0}, {"quota": 0}),
        ({"no_quota": True}, {"quota": None}),
        ({"quota": 2, "borrow_limit": 0}, {"quota": 2, "borrowLimit": 0}),
        ({"quota": 2, "no_borrow_limit": True}, {"quota": 2, "borrowLimit": None}),
        ({"reclaim": "Never"}, {"reclaim": {"from": "Never"}}),
        ({"by": ["urgent", "high"]}, {"reclaim": {"by": ["urgent", "high"]}}),
        ({"by": ["*"]}, {"reclaim": {"by": None}}),
    ],
)
def test_only_what_is_named_is_said(typed: dict[str, Any], said: dict[str, Any]) -> None:
    assert rules_of(*{**NOTHING, **typed}.values()) == said


@pytest.mark.parametrize(
    ("typed", "sentence"),
    [
        ({"quota": 2, "no_quota": True}, "--quota 2 and --no-quota: leave out one of them"),
        (
            {"quota": 2, "borrow_limit": 1, "no_borrow_limit": True},
            "--borrow-limit 1 and --no-borrow-limit: leave out one of them",
        ),
        ({"borrow_limit": 1}, "--borrow-limit 1 counts from a quota; give --quota, too"),
        ({"borrow_limit": 1, "no_quota": True}, "--borrow-limit 1 counts from a quota"),
    ],
)
def test_what_contradicts_itself_is_refused(typed: dict[str, Any], sentence: str) -> None:
    with pytest.raises(ConfigError) as caught:
        rules_of(*{**NOTHING, **typed}.values())

    assert str(caught.value).startswith(sentence)


def test_who_is_not_named_leaves_it_as_it_was_and_everybody_is_a_star() -> None:
    assert users_of(None) == users_of([]) == {}
    assert users_of(["ada", "cy"]) == {"users": ["ada", "cy"]}
    assert users_of(["*"]) == {"users": None}
