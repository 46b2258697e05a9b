"""A script that runs alone keeps its state, and goes on from it with the same bits."""

from __future__ import annotations

import subprocess
import sys
import threading
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
import torch
from tests.engine import models

import pliant
from pliant.checkpoint import writer
from pliant.checkpoint.dcp import shares
from pliant.checkpoint.failures import StorageError, Trouble
from pliant.core.errors import ConfigError, PermanentError

STEPS = 9


class Died(Exception):  # noqa: N818  what happens to a process
    pass


def train(
    model: str, place: Path, steps: int = STEPS, *, die_at: int | None = None, **changes: Any
) -> str:
    def on_tail(session: pliant.Session, step: Any) -> None:
        if step.index == die_at:
            raise Died

    options = {"every": "2steps", **changes.pop("checkpoint", {})}
    return models.train(
        models.build(model),
        steps,
        on_tail=on_tail,
        checkpoint=pliant.Checkpoint(place, **options),
        **changes,
    )


def names(place: Path) -> list[str]:
    return sorted(path.parent.name for path in place.glob("step-*/pliant.json"))


def flip_a_byte(checkpoint: Path) -> None:
    data = max(checkpoint.glob("*.distcp"), key=lambda path: path.stat().st_size)
    bytes_ = bytearray(data.read_bytes())
    bytes_[len(bytes_) // 2] ^= 1
    data.write_bytes(bytes_)


@pytest.mark.parametrize("model", sorted(models.CASES))
def test_a_script_that_died_goes_on_and_ends_with_the_same_bits(tmp_path: Path, model: str) -> None:
    for die_at in (4, 7):
        with pytest.raises(Died):
            train(model, tmp_path, die_at=die_at)

    digest = train(model, tmp_path)

    assert digest == models.train(models.build(model), STEPS)
    assert names(tmp_path)[-1].startswith(f"step-{STEPS:08d}-l")
    assert not (tmp_path / "lease.json").exists()


def test_a_run_that_goes_on_has_as_many_steps_before_it_as_are_left(tmp_path: Path) -> None:
    case = models.build("gpt")
    with pytest.raises(Died):
        train("gpt", tmp_path, die_at=4)

    with case.session(checkpoint=pliant.Checkpoint(tmp_path, every="2steps")) as session:
        steps = session.steps(STEPS)

        assert session.committed in (2, 4)  # whichever was published last
        assert len(steps) == STEPS - session.committed
        steps.leave()


def test_a_finished_run_is_only_read_again(tmp_path: Path) -> None:
    digest = train("frozen", tmp_path)  # in two calls of steps()

    assert train("frozen", tmp_path, die_at=0) == digest


Start = Callable[..., None]


@pytest.fixture
def start(monkeypatch: pytest.MonkeyPatch) -> Start:
    """Make this process look as if ``python SCRIPT ARGUMENTS`` had started it."""

    def as_if(script: Path, *arguments: object, resume: str = "") -> None:
        script.parent.mkdir(exist_ok=True)
        script.write_text("# train\n" if not script.exists() else script.read_text())
        monkeypatch.setattr(sys.modules["__main__"], "__file__", str(script), raising=False)
        monkeypatch.setattr(sys, "argv", [str(script), *map(str, arguments)])
        monkeypatch.setenv("PLIANT_FROM_CHECKPOINT", resume)

    return as_if


def test_a_run_that_goes_on_says_first_from_where(
    tmp_path: Path, start: Start, capsys: pytest.CaptureFixture[str]
) -> None:
    kept = tmp_path / "kept"
    start(tmp_path / "train.py", "--to", kept, "--rate", "0.1")
    train("gpt", kept, 6)
    start(tmp_path / "moved" / "train.py", f"--to={kept}", "--rate", "0.1")
    sys.argv[1:2] = ["--to", str(kept)]
    (tmp_path / "moved" / "train.py").write_text("# train better\n")

    train("gpt", kept)

    said = capsys.readouterr().err
    assert (
        f"pliant: the run goes on after step 6, from checkpoint step-00000006-l1 of {kept}" in said
    )
    assert "by train.py --to <checkpoints> --rate 0.1; the script has changed since\n" in said
    assert "nothing to do" not in said


@pytest.mark.parametrize(
    ("script", "arguments", "why"),
    [
        ("tune.py", ("--steps", 9), "and this is another script: tune.py --steps 9"),
    ],
)
def test_what_another_run_wrote_is_not_gone_on_from_unless_asked(
    tmp_path: Path, start: Start, script: str, arguments: tuple[object, ...], why: str
) -> None:
    kept = tmp_path / "kept"
    start(tmp_path / "train.py", "--steps", 9)
    digest = train("gpt", kept)
    before = names(kept)

    start(tmp_path / script, *arguments)
    with pytest.raises(ConfigError, match=f"was written by train.py --steps 9, {why}; give this"):
        train("gpt", kept)
    assert names(kept) == before

    start(tmp_path / script, *arguments, resume="anyway")
    assert train("gpt", kept, die_at=0) == digest


def test_a_longer_run_goes_on_and_says_what_changed(
    tmp_path: Path, start: Start, capsys: pytest.CaptureFixture[str]
) -> None:
    start(tmp_path / "train.py", "--steps", 6)
    train("gpt", tmp_path / "kept", 6)
    start(tmp_path / "train.py", "--steps", STEPS)

    digest = train("gpt", tmp_path / "kept")

    assert digest == models.train(models.build("gpt"), STEPS)
    said = capsys.readouterr().err
    assert f"by train.py --steps 6; its arguments are now --steps {STEPS}" in said


def test_a_run_that_begins_anew_trains_in_a_history_of_its_own(
    tmp_path: Path, start: Start, capsys: pytest.CaptureFixture[str]
) -> None:
    start(tmp_path / "train.py", "--steps", 9)
    digest = train("gpt", tmp_path / "kept")

    start(tmp_path / "tune.py", resume="never")
    train("gpt", tmp_path / "kept", 4)
    assert "pliant: begins at step 0; what others wrote to" in capsys.readouterr().err

    start(tmp_path / "tune.py")
    assert train("gpt", tmp_path / "kept") == digest
    assert "goes on after step 4, from checkpoint step-00000004-l2" in capsys.readouterr().err


def test_a_run_that_is_at_its_last_step_says_that_it_trained_nothing(
    tmp_path: Path, start: Start, capsys: pytest.CaptureFixture[str]
) -> None:
    start(tmp_path / "train.py")
    train("gpt", tmp_path / "kept")
    assert "nothing to do" not in capsys.readouterr().err

    train("gpt", tmp_path / "kept")

    said = capsys.readouterr().err
    assert f"pliant: already finished ({STEPS} steps), and the script runs what stands" in said


def test_a_checkpoint_without_an_origin_is_gone_on_from_with_a_sentence(
    tmp_path: Path,
    start: Start,
    monkeypatch: pytest.MonkeyPatch,
    capsys: pytest.CaptureFixture[str],
) -> None:
    with monkeypatch.context() as notebook:
        notebook.delattr(sys.modules["__main__"], "__file__", raising=False)
        train("gpt", tmp_path / "kept")
    start(tmp_path / "train.py")

    train("gpt", tmp_path / "kept")

    assert "; it does not say with which arguments it was written\n" in capsys.readouterr().err


def test_another_word_for_what_to_go_on_from_is_refused(tmp_path: Path, start: Start) -> None:
    start(tmp_path / "train.py", resume="yes")
    with pytest.raises(ConfigError, match="PLIANT_FROM_CHECKPOINT=yes must be one of auto, any"):
        train("gpt", tmp_path / "kept")


def test_a_damaged_checkpoint_is_skipped_with_a_warning(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    digest = train("gpt", tmp_path)
    newest = names(tmp_path)[-1]
    flip_a_byte(tmp_path / newest)

    assert train("gpt", tmp_path) == digest
    said = capsys.readouterr().err
    assert f"pliant: checkpoint {newest} is skipped: " in said
    assert "does not match" in said


def test_a_history_that_goes_back_behind_a_damaged_one_is_kept_again(tmp_path: Path) -> None:
    train("gpt", tmp_path)
    oldest, *newer = names(tmp_path)
    for name in newer:
        flip_a_byte(tmp_path / name)

    with pytest.raises(Died):
        train("gpt", tmp_path, die_at=STEPS - 1, checkpoint={"every": "1steps", "keep": 9})

    again = [name for name in names(tmp_path) if name.endswith("-l2")]
    assert int(oldest.split("-")[1]) < int(again[0].split("-")[1]) < STEPS


def test_where_every_checkpoint_is_damaged_nothing_else_is_trained(tmp_path: Path) -> None:
    train("gpt", tmp_path)
    for name in names(tmp_path):
        flip_a_byte(tmp_path / name)

    with pytest.raises(ConfigError, match="no checkpoint of this run can be used; the last one"):
        train("gpt", tmp_path)


def test_where_every_checkpoint_lacks_a_file_nothing_else_is_trained(tmp_path: Path) -> None:
    train("gpt", tmp_path)
    for path in tmp_path.glob("step-*/*.distcp"):
        path.unlink()

    with pytest.raises(ConfigError, match="no checkpoint of this run can be used; the last one"):
        train("gpt", tmp_path)


def test_a_history_is_not_opened_under_the_number_of_one_that_is_damaged(tmp_path: Path) -> None:
    with pytest.raises(Died):
        train("gpt", tmp_path, checkpoint={"every": "4steps"}, die_at=7)
    train("gpt", tmp_path, checkpoint={"every": "4steps"})
    of_the_second = [name for name in names(tmp_path) if name.endswith("-l2")]
    for name in of_the_second:
        flip_a_byte(tmp_path / name)

    train("gpt", tmp_path, checkpoint={"every": "4steps"})

    assert of_the_second
    assert names(tmp_path)[-1] == f"step-{STEPS:08d}-l3"


def test_only_so_many_are_kept_and_the_milestones(tmp_path: Path) -> None:
    train("gpt", tmp_path, 12, checkpoint={"every": "1steps", "keep": 2, "milestones": 6})

    kept = [int(name.split("-")[1]) for name in names(tmp_path)]
    assert kept[-1] == 12
    assert len(kept) <= 3


def test_a_run_with_another_seed_does_not_go_on_from_there(tmp_path: Path) -> None:
    train("gpt", tmp_path)

    with pytest.raises(ConfigError, match=r"seed is 7 here and 11 in checkpoint step-00000009-l1"):
        train("gpt", tmp_path, seed=7)


def tune(place: Path, lr: float, *, steps: int = 4) -> list[float]:
    """Return the rates of each step, of which every one halves the last."""
    pliant.seed(3)
    model = torch.nn.Linear(4, 3)
    optimizer = torch.optim.SGD(model.parameters(), lr=lr, momentum=0.9)
    rates = []
    with pliant.Session(
        model=model,
        optimizer=optimizer,
        scheduler=torch.optim.lr_scheduler.StepLR(optimizer, 1, 0.5),
        dataset=models.Points(8),
        global_batch_size=8,
        micro_batch_size=4,
        checkpoint=pliant.Checkpoint(place, every="1steps"),
    ) as session:
        for phase in (2, steps):
            for step in session.steps(phase):
                rates.append(optimizer.param_groups[0]["lr"])
                for points, labels in step:
                    step.backward(torch.nn.functional.cross_entropy(model(points), labels))
            session.save(place.with_name(f"after-{phase}.pt"))
            if session.leader:
                with place.with_name(f"led-{phase}").open("a") as file:
                    file.write("once\n")
    return rates


def test_a_run_with_another_rate_does_not_go_on_from_there_and_a_longer_one_does(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    """Of a sweep, the second run saved the weights of the first."""
    place = tmp_path / "kept"
    tune(place, 0.1)

    with pytest.raises(ConfigError, match=r"lr of optimizer 0 is 0\.3 here and 0\.1 in checkpoint"):
        tune(place, 0.3)
    assert tune(place, 0.1, steps=6) == [0.1 / 16, 0.1 / 32]
    monkeypatch.setenv("PLIANT_FROM_CHECKPOINT", "anyway")
    assert tune(place, 0.3, steps=7) == [0.1 / 64]
    assert "lr of optimizer 0 is 0.3 here and 0.1 in checkpoint" in capsys.readouterr().err


def test_a_run_that_is_done_again_leaves_what_its_first_phases_wrote(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    """Their files were replaced by weights that nobody had trained."""
    tune(tmp_path / "kept", 0.1)
    files = [tmp_path / name for name in ("after-2.pt", "led-2", "after-4.pt")]
    before = [file.read_bytes() for file in files]
    assert "past this call of steps()" not in capsys.readouterr().err

    tune(tmp_path / "kept", 0.1)

    assert [file.read_bytes() for file in files] == before
    said = capsys.readouterr().err
    assert (
        said.count("is at step 4, past this call of steps(): until it is there nobody leads") == 1
    )


def test_what_a_nan_leads_to_may_change_where_a_run_goes_on(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    train("gpt", tmp_path)

    train("gpt", tmp_path, on_nonfinite="skip")

    assert "on_nonfinite is skip here and warn in checkpoint" in capsys.readouterr().err


def test_a_run_may_go_on_where_torch_has_other_kernels_and_says_so(
    tmp_path: Path, capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    train("gpt", tmp_path)
    monkeypatch.setattr(torch.backends.cpu, "get_cpu_capability", lambda: "NONE")
    train("gpt", tmp_path)

    assert "kernels is NONE here and" in capsys.readouterr().err


def test_a_second_job_is_refused_while_the_first_lives(tmp_path: Path) -> None:
    code = """
import sys
import threading
from pliant.checkpoint.lease import JobLease
from pliant.checkpoint.store.open import open_storage
JobLease(open_storage(sys.argv[1]), "first").ensure()
print("held", flush=True)
sys.stdin.read()
"""
    first = subprocess.Popen(
        [sys.executable, "-c", code, tmp_path],
        stdin=subprocess.PIPE,
        stdout=subprocess.PIPE,
        text=True,
    )
    assert first.stdout is not None
    assert first.stdout.readline() == "held\n"
    with pytest.raises(ConfigError, match="belongs to another job: job first"):
        train("gpt", tmp_path)
    first.kill()
    first.wait()
    first.communicate()

    assert train("gpt", tmp_path) == models.train(models.build("gpt"), STEPS)


def test_what_storage_refuses_is_told_and_the_training_goes_on(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    place = tmp_path / "kept"

    def on_tail(session: pliant.Session, step: Any) -> None:
        if step.index == 0:
            place.rename(tmp_path / "away")
            place.touch()

    def on_end(session: pliant.Session) -> None:
        place.unlink()  # what tries again may be there before anything could be moved back

    digest = models.train(
        models.build("gpt"),
        4,
        on_tail=on_tail,
        checkpoint=pliant.Checkpoint(place, every="1steps", max_unprotected="1h"),
        on_end=on_end,
    )

    assert digest == models.train(models.build("gpt"), 4)
    assert "no checkpoint after step " in capsys.readouterr().err
    assert names(place)[-1] == "step-00000004-l1"  # the last one was tried until it could be


@pytest.mark.parametrize(
    ("options", "sentence"),
    [
        ({"every": "often"}, "every='often' is no interval"),
        ({"keep": 0}, "keep=0 checkpoints must be at least 1"),
        ({"milestones": 0}, "milestones=0 must be at least 1"),
        ({"max_unprotected": "9steps"}, "max_unprotected='9steps' must be a time"),
    ],
)
def test_impossible_arguments_are_refused(
    tmp_path: Path, options: dict[str, Any], sentence: str
) -> None:
    with pytest.raises(ConfigError, match=sentence):
        pliant.Checkpoint(tmp_path, **options)


def test_a_script_whose_last_checkpoint_has_no_room_does_not_end_well(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    def full(*_: object, **__: object) -> None:
        raise StorageError(str(tmp_path), Trouble.FULL, doing="written")

    monkeypatch.setattr(shares, "write_share", full)
    monkeypatch.setattr(writer, "NEEDED_WAIT_S", 0.01)

    with pytest.raises(PermanentError, match=r"step 9 is not in a checkpoint: .* storage is full"):
        train("gpt", tmp_path, checkpoint={"every": "1h"})


def test_a_script_whose_last_checkpoint_is_never_written_does_not_end_well(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    over = threading.Event()
    monkeypatch.setattr(shares, "write_share", lambda *_, **__: over.wait(60))
    monkeypatch.setattr(writer, "CLOSE_S", 0.05)
    monkeypatch.setattr("pliant.engine.member.alone.KEPT_S", 0.0)

    try:
        with pytest.raises(PermanentError, match="step 9 is not in a checkpoint: the last check"):
            train("gpt", tmp_path, checkpoint={"every": "1h"})
    finally:
        over.set()


class Stages(models.Points):
    """Points of which a script changes the stage."""

    stage = 0

    def __init__(self) -> None:
        super().__init__(40)
        self.stage = 1


def test_a_run_that_goes_on_names_what_its_dataset_and_its_model_lack(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    """A tail changed it; the script that is started again begins with what it makes."""
    for total in (2, 4):
        dataset = Stages()
        drop = torch.nn.Dropout(0.5)
        with pliant.Session(
            model=(model := torch.nn.Sequential(drop, torch.nn.Linear(4, 3))),
            optimizer=torch.optim.SGD(model.parameters(), lr=0.1),
            dataset=dataset,
            global_batch_size=8,
            micro_batch_size=2,
            checkpoint=pliant.Checkpoint(tmp_path, every="1steps"),
        ) as session:
            for step in session.steps(total):
                for points, labels in step:
                    step.backward(torch.nn.functional.cross_entropy(model(points), labels))
                dataset.stage = 3
                drop.p = 0.25

    said = capsys.readouterr()
    assert "the dataset's 'stage' is 1 here and 3 in the checkpoint" in said.out + said.err
    assert "the model's '0.p' is 0.5 here and 0.25 in the checkpoint" in said.out + said.err
