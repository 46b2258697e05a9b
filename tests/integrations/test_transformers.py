"""A Trainer of Hugging Face and trl's, whose replicas come and go: what they leave is the same."""

from __future__ import annotations

import json
import os
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
    history,
    refusal,
    suspend_and_resume,
    weights,
)

HERE = Path(__file__).parent
TRAINER, TRL = HERE / "train_transformers.py", HERE / "train_trl.py"
LONG = 120

pytestmark = [
    pytest.mark.processes,
    pytest.mark.slow,
    pytest.mark.timeout(700),
    pytest.mark.skipif(find_spec("transformers") is None, reason="pip install transformers"),
]

WATCHED = {
    "max_steps": LONG,
    "eval_strategy": "steps",
    "eval_steps": 12,
    "save_strategy": "steps",
    "save_steps": 12,
    "save_total_limit": 3,
    "load_best_model_at_end": True,
    "include_num_input_tokens_seen": "all",
}
"""Evaluated, saved, rotated, and the best taken at the end."""


def words(**arguments: Any) -> tuple[str, str]:
    return "--arguments", json.dumps(arguments)


def check_same(one: Path, other: Path) -> None:
    """Assert that two runs left the same weights, history, calls of callbacks and files."""
    assert are_equal(one, other)
    assert history(one) == history(other)
    assert (one / "best.json").read_text() == (other / "best.json").read_text()


def test_a_trainer_with_one_micro_batch_a_step_has_the_frameworks_bits(tmp_path: Path) -> None:
    arguments = words(gradient_accumulation_steps=1, max_grad_norm=0, max_steps=6)
    alone(tmp_path, TRAINER, "plain", "--plain", *arguments)
    alone(tmp_path, TRAINER, "ours", *arguments)

    assert are_equal(tmp_path / "plain", tmp_path / "ours")
    assert files(tmp_path / "plain") == files(tmp_path / "ours")
    assert [sorted(one) for one in history(tmp_path / "plain")] == [
        sorted(one) for one in history(tmp_path / "ours")
    ]


@pytest.mark.frameworks
@pytest.mark.parametrize(
    ("name", "arguments", "ours"),
    [
        ("accumulated", {}, []),
        ("cut", {"gradient_accumulation_steps": 1, "per_device_train_batch_size": 8}, ["4"]),
        ("in order", {"train_sampling_strategy": "sequential", "optim": "adafactor"}, []),
    ],
)
def test_beside_the_framework_numbers_differ_in_their_last_digit(
    tmp_path: Path, name: str, arguments: dict[str, Any], ours: list[str]
) -> None:
    slots = ["--elastic", json.dumps({"slots": int(ours[0])})] if ours else []
    alone(tmp_path, TRAINER, "plain", "--plain", *words(**arguments))
    alone(tmp_path, TRAINER, "ours", *slots, *words(**arguments))

    one, other = weights(tmp_path / "plain"), weights(tmp_path / "ours")
    assert max(float((one[n] - other[n]).abs().max()) for n in one) < 1e-6
    for a, b in zip(history(tmp_path / "plain"), history(tmp_path / "ours"), strict=True):
        assert a.keys() == b.keys()
        assert [b[n] for n in a] == pytest.approx(list(a.values()), rel=1e-6)


@pytest.mark.frameworks
def test_replicas_come_and_go_while_a_trainer_evaluates_and_saves(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    alone(tmp_path / "alone", TRAINER, "out", *words(**WATCHED))
    job = elastic(
        tmp_path / "elastic", monkeypatch, TRAINER, "kept", "--pace", "0.4", *words(**WATCHED)
    )

    check_same(tmp_path / "alone/out", tmp_path / "elastic/kept")
    assert files(tmp_path / "alone/out") == files(tmp_path / "elastic/kept")
    logs = "".join(log.read_text() for log in (job.out / "logs").glob("r*.log"))
    assert logs.count("'eval_loss'") == LONG // 12


@pytest.mark.frameworks
def test_a_trainer_is_suspended_and_goes_on_at_another_size(tmp_path: Path) -> None:
    alone(tmp_path / "alone", TRAINER, "out", *words(**WATCHED))
    suspend_and_resume(tmp_path, TRAINER, *words(**WATCHED))

    check_same(tmp_path / "alone/out", tmp_path / "out")


@pytest.mark.frameworks
def test_a_loss_of_a_scripts_own_logs_the_same_everywhere(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    own = ("--loss", "scaled", *words(max_steps=LONG, logging_steps=12))
    alone(tmp_path / "alone", TRAINER, "out", *own)
    elastic(tmp_path / "elastic", monkeypatch, TRAINER, "kept", "--pace", "0.4", *own)

    assert [line["length"] for line in history(tmp_path / "alone/out")[:-1]] == [24.0] * 10
    check_same(tmp_path / "alone/out", tmp_path / "elastic/kept")


@pytest.mark.frameworks
def test_early_stopping_ends_at_the_same_step(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    early = [*words(**WATCHED), "--patience", "6"]
    alone(tmp_path / "alone", TRAINER, "out", *early)
    elastic(tmp_path / "elastic", monkeypatch, TRAINER, "kept", "--pace", "0.4", *early)

    assert history(tmp_path / "alone/out")[-1]["step"] < LONG
    check_same(tmp_path / "alone/out", tmp_path / "elastic/kept")


@pytest.mark.frameworks
@pytest.mark.parametrize("kind", [["sft", "--lora", "--gpt-oss"], ["dpo", "--lora"]])
def test_the_trainers_of_trl_are_elastic(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, kind: list[str]
) -> None:
    pytest.importorskip("trl", reason="pip install trl peft")
    steps = words(max_steps=80, logging_steps=10)
    alone(tmp_path / "alone", TRL, "out", *kind, *steps)
    elastic(tmp_path / "elastic", monkeypatch, TRL, "kept", *kind, "--pace", "0.4", *steps)

    check_same(tmp_path / "alone/out", tmp_path / "elastic/kept")


@pytest.mark.frameworks
def test_trl_beside_the_framework_logs_the_same(tmp_path: Path) -> None:
    pytest.importorskip("trl", reason="pip install trl peft")
    alone(tmp_path, TRL, "plain", "dpo", "--lora", "--plain")
    alone(tmp_path, TRL, "ours", "dpo", "--lora")

    for a, b in zip(history(tmp_path / "plain"), history(tmp_path / "ours"), strict=True):
        assert a.keys() == b.keys()
        assert [b[n] for n in a] == pytest.approx(list(a.values()), rel=1e-4, abs=1e-6)


@pytest.mark.frameworks
@pytest.mark.parametrize(
    ("given", "sentence"),
    [
        (words(auto_find_batch_size=True), "per_device_train_batch_size"),
        ((*words(gradient_accumulation_steps=1), "--elastic", '{"slots": 3}'), "slots=3"),
        (words(resume_from_checkpoint="out/checkpoint-5"), "pliant.Checkpoint"),
        ((*words(resume_from_checkpoint=True), "--kept", "kept"), "begin at step 0"),
        (words(lr_scheduler_type="greedy", eval_strategy="epoch"), "GreedyLR"),
        (words(torch_compile=True), "model.compile()"),
        (("--loss", "unsaid"), "loss_is_scaled_for_ga = True"),
        (("--loss", "local"), "changes self.seen"),
        (words(dataloader_drop_last=True, per_device_train_batch_size=8), "drop_last"),
    ],
)
def test_what_an_elastic_run_cannot_do_is_refused(
    tmp_path: Path, given: tuple[str, ...], sentence: str
) -> None:
    assert sentence in refusal(tmp_path, TRAINER, "out", *given)


def test_every_option_has_an_answer() -> None:
    script = (
        "import dataclasses; from transformers import TrainingArguments; "
        "print(*[f.name for f in dataclasses.fields(TrainingArguments) if f.init])"
    )
    said = subprocess.run(
        [sys.executable, "-c", script], capture_output=True, text=True, check=True, timeout=200,
        env=os.environ | {"HF_HUB_OFFLINE": "1"},
    )  # fmt: skip
    from pliant.integrations.transformers_options import TRAINING_ARGUMENTS

    assert set(said.stdout.split()) == TRAINING_ARGUMENTS.keys()


def test_the_page_shows_one_changed_line() -> None:
    page = (HERE.parents[1] / "docs/howto/trainers.md").read_text()
    for title in ("Hugging Face", "trl"):
        (diff,) = re.findall(rf"## {title}\n\n```diff\n(.*?)```", page, re.DOTALL)
        signs = [line[0] for line in diff.splitlines()]
        assert (signs.count("-"), signs.count("+")) == (1, 1)
        imported = diff.partition("+")[2].split()[1]
        assert find_spec(imported) is not None
