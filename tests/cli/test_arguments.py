"""Whether the word after ``--pool`` is a pool's name or what is to run."""

from __future__ import annotations

from pathlib import Path

import pytest

from pliant.cli.arguments import with_name

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
