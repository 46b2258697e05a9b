"""How words are read that the parser cannot tell: the one behind ``--pool``, and durations."""

from __future__ import annotations

from pathlib import Path

import pytest

from pliant.cli.arguments import seconds, with_name
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
    assert seconds(text) == pytest.approx(value_s)


@pytest.mark.parametrize("text", ["", "soon", "-1s", "3 days", "nan"])
def test_what_is_no_duration_is_refused(text: str) -> None:
    with pytest.raises(ConfigError, match="is no duration; write it like 30s, 5m or 1h"):
        seconds(text)
