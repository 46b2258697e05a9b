"""Lightning's Trainer, whose replicas come and go: what it logs, keeps and decides is the same."""

from __future__ import annotations

import json
import re
import subprocess
import sys
from importlib.util import find_spec
from pathlib import Path
from typing import Any

import pytest
from tests.integrations.playing import (
    alone,
    are_equal,
    elastic,
    files,
    refusal,
    suspend_and_resume,
    weights,
)

HERE = Path(__file__).parent
SCRIPT = HERE / "train_lightning.py"
LONG = ("--samples", "88", "--arguments", json.dumps({"max_epochs": 20, "num_sanity_val_steps": 0}))

pytestmark = [
    pytest.mark.processes,
    pytest.mark.slow,
    pytest.mark.timeout(700),
    pytest.mark.skipif(find_spec("lightning") is None, reason="pip install lightning"),
]


def words(**arguments: Any) -> tuple[str, str]:
    return "--arguments", json.dumps(arguments)


BY_HAND = words(gradient_clip_val=None, accumulate_grad_batches=1)


def logged(path: Path) -> list[str]:
    return (path / "csv/version_0/metrics.csv").read_text().splitlines()


def check_same(one: Path, other: Path) -> None:
    """Assert that two runs left the same weights, metrics, calls of callbacks and files.

    What the leader that was killed had not written of its last step is missing in its log.
    """
    assert are_equal(one, other)
    assert (one / "best.json").read_text() == (other / "best.json").read_text()
    rows = iter(logged(one))
    assert all(row in rows for row in logged(other))
    assert len(logged(one)) - len(logged(other)) <= 2
    assert files(one) == files(other)


@pytest.mark.parametrize("accumulated", [1, pytest.param(2, marks=pytest.mark.frameworks)])
def test_a_trainer_has_lightnings_bits_where_nothing_is_clipped(
    tmp_path: Path, accumulated: int
) -> None:
    given = words(accumulate_grad_batches=accumulated, gradient_clip_val=None, max_epochs=3)
    alone(tmp_path, SCRIPT, "plain", "--plain", *given)
    alone(tmp_path, SCRIPT, "ours", *given)

    assert are_equal(tmp_path / "plain", tmp_path / "ours")
    assert files(tmp_path / "plain") == files(tmp_path / "ours")
    assert logged(tmp_path / "plain")[0] == logged(tmp_path / "ours")[0]
    if accumulated == 1:
        assert logged(tmp_path / "plain") == logged(tmp_path / "ours")


@pytest.mark.frameworks
def test_beside_lightning_numbers_differ_in_their_last_digit(tmp_path: Path) -> None:
    alone(tmp_path, SCRIPT, "plain", "--plain")
    alone(tmp_path, SCRIPT, "ours")

    one, other = weights(tmp_path / "plain"), weights(tmp_path / "ours")
    assert max(float((one[n] - other[n]).abs().max()) for n in one) < 1e-6


@pytest.mark.frameworks
@pytest.mark.parametrize("more", [(), ("--schedule", "plateau"), ("--schedule", "step")], ids=str)
def test_replicas_come_and_go_while_a_trainer_fits(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, more: tuple[str, ...]
) -> None:
    alone(tmp_path / "alone", SCRIPT, "out", *LONG, *more)
    elastic(tmp_path / "elastic", monkeypatch, SCRIPT, "kept", "--pace", "0.4", *LONG, *more)

    check_same(tmp_path / "alone/out", tmp_path / "elastic/kept")


@pytest.mark.frameworks
def test_a_trainer_stops_early_at_the_same_step(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    early = (*LONG, "--patience", "12")
    alone(tmp_path / "alone", SCRIPT, "out", *early)
    elastic(tmp_path / "elastic", monkeypatch, SCRIPT, "kept", "--pace", "0.4", *early)

    said = json.loads((tmp_path / "alone/out/best.json").read_text())
    assert said["step"] == 13 * 6
    check_same(tmp_path / "alone/out", tmp_path / "elastic/kept")


@pytest.mark.frameworks
def test_a_fit_is_suspended_and_goes_on_at_another_size(tmp_path: Path) -> None:
    alone(tmp_path / "alone", SCRIPT, "out", *LONG)
    suspend_and_resume(tmp_path, SCRIPT, *LONG)

    one, other = tmp_path / "alone/out", tmp_path / "out"
    assert are_equal(one, other)
    assert (one / "best.json").read_text() == (other / "best.json").read_text()


@pytest.mark.frameworks
@pytest.mark.parametrize(
    ("given", "sentence"),
    [
        (
            ("--wrong", "manual", *words(gradient_clip_val=None, accumulate_grad_batches=1)),
            "optimises by hand",
        ),
        (("--wrong", "local"), "changes self.seen"),
        (("--wrong", "maximum"), "reduce_fx='mean'"),
        (words(limit_train_batches=3), "limit_train_batches"),
        (words(max_time="00:01:00:00"), "Timer"),
        (("--elastic", '{"slots": 6}'), "slots=6"),
    ],
)
def test_what_an_elastic_fit_cannot_do_is_refused(
    tmp_path: Path, given: tuple[str, ...], sentence: str
) -> None:
    assert sentence in refusal(tmp_path, SCRIPT, "out", *given)


def test_every_option_has_an_answer() -> None:
    script = (
        "import inspect; from lightning.pytorch import Trainer; "
        "print(*list(inspect.signature(Trainer.__init__).parameters)[1:])"
    )
    said = subprocess.run(
        [sys.executable, "-c", script], capture_output=True, text=True, check=True, timeout=200
    )
    from pliant.integrations.lightning_options import TRAINER

    assert set(said.stdout.split()) == TRAINER.keys()


def test_the_page_shows_few_changed_lines() -> None:
    page = (HERE.parents[1] / "docs/howto/trainers.md").read_text()
    (diff,) = re.findall(r"## Lightning\n\n```diff\n(.*?)```", page, re.DOTALL)
    added = [line for line in diff.splitlines() if line.startswith("+")]

    assert len(added) <= 5
    assert "from pliant.integrations.lightning import ElasticStrategy" in added[0]
