"""Models and loggers of other people's libraries, in our examples, while replicas come and go."""

from __future__ import annotations

import io
import subprocess
import sys
from pathlib import Path

import pytest
import torch
from tests.engine import models
from tests.processes.elastic import kill, scale
from tests.processes.launching import RunningJob, running

import pliant

pytestmark = [pytest.mark.processes, pytest.mark.frameworks, pytest.mark.timeout(240)]

EXAMPLES = Path(__file__).resolve().parents[2] / "examples"
END_S = 150.0


def alone(directory: Path, *words: object) -> None:
    directory.mkdir()
    subprocess.run([sys.executable, *map(str, words)], cwd=directory, check=True, timeout=END_S)


def elastic(monkeypatch: pytest.MonkeyPatch, directory: Path, *words: object) -> RunningJob:
    """Train with a third replica that joins and a leader that is killed."""
    directory.mkdir()
    monkeypatch.chdir(directory)
    with running(directory, *words, replicas=3, warm=True) as job:
        scale(job, 2)
        job.wait_for_steps(2)
        scale(job, 3)
        job.wait_for_steps(6)
        kill(job, "r1")
        assert job.process.wait(END_S) == 0, job.said()
        job.assert_nothing_is_left()
    return job


def scalars(directory: Path, name: str) -> list[tuple[int, float]]:
    from tensorboard.backend.event_processing.event_accumulator import EventAccumulator

    log = EventAccumulator(str(directory / "runs" / "tensorboard"))
    log.Reload()
    return [(event.step, event.value) for event in log.Scalars(name)]


def test_a_hugging_face_model_ends_with_the_same_weights(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    pytest.importorskip("transformers", reason="pip install transformers")
    script = EXAMPLES / "huggingface_lm.py"
    alone(tmp_path / "alone", script, 40)
    elastic(monkeypatch, tmp_path / "elastic", script, 40)

    one, other = (
        torch.load(tmp_path / where / "runs" / "llama.pt", weights_only=True)
        for where in ("alone", "elastic")
    )
    assert one.keys() == other.keys()
    assert all(torch.equal(one[name], other[name]) for name in one)


def test_a_progress_bar_counts_what_is_left(tmp_path: Path) -> None:
    tqdm = pytest.importorskip("tqdm", reason="pip install tqdm")
    for done, total in ((0, 3), (3, 5)):
        case = models.build("gpt")
        with case.session(checkpoint=pliant.Checkpoint(tmp_path, every="1steps")) as session:
            bar = tqdm.tqdm(session.steps(total), file=io.StringIO())
            assert (bar.total, session.committed) == (total - done, done)
            for step in bar:
                for batch in step:
                    step.backward(case.compute(batch)[0])
            assert bar.n == bar.total


def test_a_torchvision_model_logs_the_same_to_tensorboard(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    pytest.importorskip("torchvision", reason="pip install torchvision")
    pytest.importorskip("tensorboard", reason="pip install tensorboard")
    script = EXAMPLES / "torchvision_resnet.py"
    alone(tmp_path / "alone", script, 14)
    elastic(monkeypatch, tmp_path / "elastic", script, 14)

    for name in ("loss", "accuracy"):
        expected, logged = (scalars(tmp_path / where, name) for where in ("alone", "elastic"))
        assert [step for step, _ in expected] == list(range(14))
        assert len(logged) == len(set(logged))
        assert set(logged) <= set(expected)
        assert len(logged) >= 13  # what the killed leader had not yet written is gone with it


def test_mlflow_gets_one_run_from_one_leader_after_another(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    mlflow = pytest.importorskip("mlflow", reason="pip install mlflow-skinny")
    monkeypatch.setenv("MLFLOW_ALLOW_FILE_STORE", "true")
    elastic(monkeypatch, tmp_path / "elastic", Path(__file__).with_name("log_to_mlflow.py"))

    client = mlflow.MlflowClient(f"file:{Path.cwd()}/mlruns")
    experiment = client.get_experiment_by_name("sums")
    (run,) = client.search_runs([experiment.experiment_id])
    steps = [metric.step for metric in client.get_metric_history(run.info.run_id, "loss")]
    assert len(steps) == len(set(steps))
    assert len(steps) >= 199
