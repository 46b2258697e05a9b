"""Accelerate's objects, whose steps are a session's."""

from __future__ import annotations

import re
from importlib.util import find_spec
from pathlib import Path

import pytest
from tests.integrations.playing import (
    alone,
    are_equal,
    elastic,
    refusal,
    suspend_and_resume,
    weights,
)

HERE = Path(__file__).parent
SCRIPT = HERE / "train_accelerate.py"

pytestmark = [
    pytest.mark.processes,
    pytest.mark.slow,
    pytest.mark.timeout(700),
    pytest.mark.skipif(find_spec("accelerate") is None, reason="pip install accelerate"),
]


def check_same(one: Path, other: Path) -> None:
    assert are_equal(one, other)
    assert (one / "best.json").read_text() == (other / "best.json").read_text()


@pytest.mark.parametrize("accumulated", ["1", pytest.param("2", marks=pytest.mark.frameworks)])
def test_a_script_has_accelerates_bits_where_nothing_is_clipped(
    tmp_path: Path, accumulated: str
) -> None:
    alone(tmp_path, SCRIPT, "plain", "--plain", "--accumulate", accumulated)
    alone(tmp_path, SCRIPT, "ours", "--accumulate", accumulated)

    check_same(tmp_path / "plain", tmp_path / "ours")


@pytest.mark.frameworks
def test_beside_accelerate_numbers_differ_in_their_last_digit(tmp_path: Path) -> None:
    alone(tmp_path, SCRIPT, "plain", "--plain", "--clip", "0.5")
    alone(tmp_path, SCRIPT, "ours", "--clip", "0.5")

    one, other = weights(tmp_path / "plain"), weights(tmp_path / "ours")
    assert max(float((one[n] - other[n]).abs().max()) for n in one) < 1e-6


@pytest.mark.frameworks
def test_replicas_come_and_go_while_a_script_accelerates(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    long = ("--epochs", "40", "--clip", "0.5")
    alone(tmp_path / "alone", SCRIPT, "out", *long)
    elastic(tmp_path / "elastic", monkeypatch, SCRIPT, "kept", "--pace", "0.4", *long)

    check_same(tmp_path / "alone/out", tmp_path / "elastic/kept")


@pytest.mark.frameworks
def test_a_script_is_suspended_and_goes_on_at_another_size(tmp_path: Path) -> None:
    alone(tmp_path / "alone", SCRIPT, "out", "--epochs", "40")
    suspend_and_resume(tmp_path, SCRIPT, "--epochs", "40")

    check_same(tmp_path / "alone/out", tmp_path / "out")


@pytest.mark.frameworks
@pytest.mark.parametrize(
    ("wrong", "sentence"),
    [
        ("gather", "gather() within a step has only this replica's"),
        ("modulo", "AdamW.step() was not called for a micro-batch"),
        ("outside", "AdamW.step() stands outside of the loop"),
    ],
)
def test_what_an_elastic_script_cannot_do_is_refused(
    tmp_path: Path, wrong: str, sentence: str
) -> None:
    assert sentence in refusal(tmp_path, SCRIPT, "out", "--wrong", wrong)


def test_the_page_shows_few_changed_lines() -> None:
    page = (HERE.parents[1] / "docs/howto/trainers.md").read_text()
    (diff,) = re.findall(r"## Accelerate\n\n```diff\n(.*?)```", page, re.DOTALL)
    lines = [line[0] for line in diff.splitlines()]

    assert lines.count("+") <= 5
    assert "from pliant.integrations.accelerate import ElasticAccelerator" in diff
