"""What the real libraries have after a job that was killed, restored and resumed."""

from __future__ import annotations

from copy import copy
from functools import partial
from pathlib import Path

import pytest
from tests.coordinator.test_tracking import log
from tests.observe.story import Story, eventful

from pliant.coordinator import tracking as module
from pliant.coordinator.trackers import tracker_of
from pliant.coordinator.tracking import tracking
from pliant.machine import run_files
from pliant.observe.status import Board, board_of


def two_lives(out: Path, where: str, *, forgets: bool) -> None:
    """Log steps 0 to 3, be killed (and forget that 2 and 3 were passed on), go on at 2, to 5."""
    board = board_of(eventful().records)
    for first, last in ((0, 1), (2, 3)):
        log(out, *({"step": step, "loss": 10.0 - step} for step in range(first, last + 1)))
        known = out / run_files.TRACKING
        before = known.read_bytes() if known.exists() else b""
        with tracking([where], out, "gpt", lambda: board):
            pass
    if forgets:
        known.write_bytes(before)
    log(out, *({"step": step, "loss": 10.0 - step} for step in range(2, 6)))
    with tracking([where], out, "gpt", lambda: board):
        pass


WHOLE = [(step, 10.0 - step) for step in range(6)]


@pytest.mark.parametrize("forgets", [False, True], ids=["told", "killed"])
@pytest.mark.filterwarnings("ignore::DeprecationWarning")
def test_tensorboard_has_each_step_once(tmp_path: Path, forgets: bool) -> None:
    pytest.importorskip("tensorboard", reason="pip install tensorboard")
    from tensorboard.backend.event_processing.event_accumulator import EventAccumulator

    two_lives(tmp_path, f"tensorboard:{tmp_path / 'tb'}", forgets=forgets)

    found = EventAccumulator(str(tmp_path / "tb/gpt"))
    found.Reload()
    assert [(one.step, one.value) for one in found.Scalars("loss")] == WHOLE
    texts = [one.tensor_proto.string_val[0] for one in found.Tensors("pliant/resizes")]
    assert b"join of r3, r4: grow from 2 to 4 replicas: 4 asked for; 4 replicas" in texts


@pytest.mark.slow
@pytest.mark.parametrize("forgets", [False, True], ids=["told", "killed"])
@pytest.mark.filterwarnings("ignore")
def test_mlflow_has_one_run_with_each_step_once(
    tmp_path: Path, forgets: bool, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("MLFLOW_ALLOW_FILE_STORE", "true")
    mlflow = pytest.importorskip("mlflow", reason="pip install mlflow-skinny")

    where = f"file:{tmp_path / 'mlruns'}"
    two_lives(tmp_path, f"mlflow:{where}", forgets=forgets)

    client = mlflow.MlflowClient(where)
    (run,) = client.search_runs([client.get_experiment_by_name("gpt").experiment_id])
    history = client.get_metric_history(run.info.run_id, "loss")
    assert sorted((one.step, one.value) for one in history) == WHOLE
    tag = run.data.tags["pliant.resize.2.join"]
    assert "join of r3, r4" in tag
    assert run.info.status == "KILLED", "its last state is no end"


@pytest.mark.slow
@pytest.mark.filterwarnings("ignore")
def test_the_last_checkpoint_of_a_finished_run_is_registered_once(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("MLFLOW_ALLOW_FILE_STORE", "true")
    mlflow = pytest.importorskip("mlflow", reason="pip install mlflow-skinny")
    where, place = f"file:{tmp_path / 'mlruns'}", str(tmp_path / "kept" / "step-4")
    (tmp_path / run_files.HOLDER).write_text("gpt-12ab\n")
    story = Story().started().start("r1").spare("r1").switch("r1").steps(3)
    story.steps(1).saved("step-4").records[-1].update(committed=4, place=place, digest="d1")
    unfinished = board_of(story.records)
    story.write("job_ended", exit_code=0, reason="finished 4 steps")
    finished = board_of(story.records)

    for board in (unfinished, finished, finished):
        with tracking([f"mlflow:{where}"], tmp_path, "gpt", partial(copy, board)):
            pass

    client = mlflow.MlflowClient(where)
    (version,) = client.search_model_versions("name='gpt'")
    (run,) = client.search_runs([client.get_experiment_by_name("gpt").experiment_id])
    assert (version.source, version.run_id) == (place, run.info.run_id)
    assert {name: version.tags[f"pliant.{name}"] for name in ("digest", "step", "run")} == {
        "digest": "d1",
        "step": "4",
        "run": "gpt-12ab",
    }
    assert run.info.status == "FINISHED"


@pytest.mark.slow
@pytest.mark.filterwarnings("ignore")
def test_without_a_registry_the_run_says_so(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("MLFLOW_ALLOW_FILE_STORE", "true")
    mlflow = pytest.importorskip("mlflow", reason="pip install mlflow-skinny")

    def refuse(*_: object, **__: object) -> None:
        raise mlflow.exceptions.MlflowException("a server takes no directory of another machine")

    monkeypatch.setattr(mlflow.MlflowClient, "create_model_version", refuse)
    tracker = tracker_of(f"mlflow:file:{tmp_path}")
    known_as, _ = tracker.begin("gpt", "", {})

    tracker.close("finished", {"checkpoint": "there", "digest": "d1", "step": "4", "run": "gpt-1"})

    run = mlflow.MlflowClient(f"file:{tmp_path}").get_run(known_as)
    assert run.data.tags["pliant.checkpoint"] == "there"
    assert "a server takes no directory" in run.data.tags["pliant.not_registered"]
    assert run.info.status == "FINISHED"


@pytest.mark.slow
@pytest.mark.filterwarnings("ignore")
def test_wandb_keeps_an_offline_run(tmp_path: Path) -> None:
    pytest.importorskip("wandb", reason="pip install wandb")

    tracker = tracker_of(f"wandb:{tmp_path / 'w'}")
    known_as, _ = tracker.begin("gpt", "", {})
    tracker.log(0, {"loss": 1.0})
    tracker.close("finished", {})

    assert list((tmp_path / "w").rglob(f"run-{known_as}.wandb"))


def test_a_library_that_raises_ends_nothing(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    def broken(where: str) -> None:
        raise RuntimeError("it cannot be imported")

    monkeypatch.setattr(module, "tracker_of", broken)
    board = Board()

    with tracking(["mlflow:there"], tmp_path, "gpt", lambda: board):
        pass

    assert "mlflow:there takes no values now: it cannot be imported" in caplog.text
