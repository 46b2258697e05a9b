"""What is noted of the files of a run, and what is refused of them."""

from __future__ import annotations

import json
import os
import re
from pathlib import Path

import pytest
from tests.live.prompt import run_typed

from pliant.core.errors import ConfigError
from pliant.engine.guard.files import FileRecord, Inputs, roots_of

EMPTIES = os.O_WRONLY | os.O_CREAT | os.O_TRUNC


class Worker:
    """A record, the files of whose script lie in a directory, and what it told people."""

    def __init__(self, home: Path, name: str) -> None:
        self.home, self.said = home, list[str]()
        self.record = FileRecord(
            home / "kept", name, roots=[str(home)], left_out=[], noted=self.said.append
        )

    def read(self, name: str) -> None:
        self.record.hear_event("open", (str(self.home / name), "r", os.O_RDONLY))

    def write(self, name: str, text: str, flags: int = EMPTIES) -> None:
        self.record.hear_event("open", (str(self.home / name), "w", flags))
        (self.home / name).write_text(text)

    def make(self, name: str) -> None:
        self.record.hear_event("os.mkdir", (str(self.home / name), 0o777, -1))
        (self.home / name).mkdir(exist_ok=True)

    def train(self, *, leads: bool = True) -> None:
        self.record.begin_call()
        self.record.on_commit(leads)


@pytest.fixture
def home(tmp_path: Path) -> Path:
    (tmp_path / "kept").mkdir()
    (tmp_path / "config").write_text("mse")
    return tmp_path


def trained(home: Path) -> Worker:
    """Return one that has read ``config``, writes ``log``, and has trained since."""
    first = Worker(home, "r1.0")
    first.read("config")
    first.write("log", "rows")
    first.train()
    return first


def test_who_comes_to_a_run_that_trains_may_read_what_that_has_read(home: Path) -> None:
    trained(home)
    joiner = Worker(home, "r2.0")

    joiner.read("config")
    joiner.read("log")
    joiner.record.begin_call()

    assert joiner.said == []


def test_who_comes_and_reads_other_content_is_refused_by_its_name(home: Path) -> None:
    trained(home)
    (home / "config").write_text("l1!")
    joiner = Worker(home, "r2.0")
    joiner.read("config")

    with pytest.raises(ConfigError, match=f"^{home}/config changed after this run began, and the"):
        joiner.record.begin_call()


def test_where_nobody_trains_any_more_other_content_is_told(home: Path) -> None:
    first = trained(home)
    os.close(first.record._lock)
    (home / "config").write_text("l1!")
    joiner = Worker(home, "r2.0")

    joiner.read("config")
    joiner.record.begin_call()

    assert len(joiner.said) == 1
    assert "config changed after this run began; it is taken as it is now" in joiner.said[0]


def test_what_the_run_itself_has_written_since_may_differ(home: Path) -> None:
    first = trained(home)
    first.write("config", "as of step 5")
    joiner = Worker(home, "r2.0")

    joiner.read("config")
    joiner.record.begin_call()

    assert joiner.said == []


def destroyed(worker: Worker, event: str, *args: object) -> None:
    worker.record.hear_event(event, tuple(str(worker.home / a) if a in NAMES else a for a in args))


NAMES = ("log", "out", "mine", "weights")


@pytest.mark.parametrize(
    ("event", "args", "what"),
    [
        ("open", ("log", "w", EMPTIES), "empty log"),
        ("os.remove", ("log", -1), "remove log"),
        ("os.truncate", ("log", 0), "cut off log"),
        ("os.rename", ("mine", "log", -1, -1), "replace log"),
        ("os.rename", ("log", "mine", -1, -1), "move away log"),
        ("shutil.rmtree", ("out", None), "remove out, where out/weights is"),
    ],
)
def test_who_comes_to_a_run_that_trains_destroys_nothing_of_it(
    home: Path, monkeypatch: pytest.MonkeyPatch, event: str, args: tuple[object, ...], what: str
) -> None:
    monkeypatch.chdir(home)
    (home / "out").mkdir()
    first = trained(home)
    first.write("out/weights", "of step 5")
    (home / "mine").touch()
    joiner = Worker(home, "r2.0")

    sentence = f"this replica would {what}, which the run has written before it came; let one"
    with pytest.raises(ConfigError, match=f"^{re.escape(sentence)}"):
        destroyed(joiner, event, *args)
    destroyed(first, event, *args)  # who trains knows what it does
    joiner.write("log", "more", os.O_WRONLY | os.O_CREAT | os.O_APPEND)
    joiner.write("own", "nobody else has it")


def test_when_several_begin_with_the_same_file_it_is_told_once(home: Path) -> None:
    workers = [Worker(home, f"r{number}.0") for number in (1, 2, 3)]

    for worker in workers:
        worker.write("log", "step,loss")

    said = [sentence for worker in workers for sentence in worker.said]
    assert len(said) == 1
    assert re.search("^each replica would empty .*log, at its own time", said[0])


@pytest.mark.parametrize("leads", [True, False])
def test_a_log_that_replicas_keep_open_is_told_by_who_adds_to_it_and_does_not_lead(
    home: Path, *, leads: bool
) -> None:
    worker = Worker(home, "r2.0")
    with (home / "log").open("a", buffering=1) as log, (home / "other").open("a"):
        print("at the top", file=log)
        worker.train(leads=leads)
        assert worker.said == []
        for _ in range(2):
            print("in a tail", file=log)
            worker.record.on_commit(leads)

    assert len(worker.said) == (not leads)
    if not leads:
        assert re.match(r"each replica adds its own lines to .*/log, so that", worker.said[0])


@pytest.mark.parametrize(("leads", "shares"), [(True, True), (False, True), (False, False)])
def test_a_log_that_replicas_open_at_each_step_is_told_too(
    home: Path, *, leads: bool, shares: bool
) -> None:
    """As ``if rank == 0:`` has it in each replica; a file of a replica's own is another matter."""
    first, worker = Worker(home, "r1.0"), Worker(home, "r2.0")
    for one, name in ((first, "log"), (worker, "log" if shares else "r2.log")):
        one.train(leads=leads if one is worker else True)
        one.record.hear_event("open", (str(home / name), "a", os.O_WRONLY | os.O_APPEND))

    assert first.said == []
    assert len(worker.said) == (shares and not leads)


def test_the_checkpoints_are_never_removed_by_who_comes(home: Path) -> None:
    (home / "out/kept").mkdir(parents=True)
    Worker(home, "r1.0").record.leave_out(str(home / "out/kept"))

    with pytest.raises(ConfigError, match=r"would remove .*/out, where .*/out/kept is"):
        destroyed(Worker(home, "r2.0"), "shutil.rmtree", "out", None)


@pytest.mark.parametrize("is_kept", [True, False])
def test_who_goes_on_from_a_checkpoint_destroys_nothing_though_nobody_trains_any_more(
    home: Path, *, is_kept: bool
) -> None:
    """Seen: once all were lost, ``rmtree`` at the top removed the weights of passed epochs."""
    first = trained(home)
    first.record.leave_out(str(home / "kept-steps"))
    os.close(first.record._lock)  # as its death does
    if is_kept:
        (home / "kept-steps/step-5").mkdir(parents=True)
        (home / "kept-steps/step-5/pliant.json").touch()
    again = Worker(home, "r2.0")

    if is_kept:
        with pytest.raises(ConfigError, match=r"would empty .*log, which the run"):
            again.write("log", "step,loss")
    else:  # every step is done again, and every row written
        again.write("log", "step,loss")
        assert "each replica would empty" in again.said[0]


def test_what_the_arguments_name_is_looked_at() -> None:
    assert roots_of("/w", ["--config=a.yaml", "/data/x", "--lr", "/"]) == [
        "/w",
        "/w/a.yaml",
        "/data/x",
        "/w/--lr",
    ]


# What a resume compares


SCRIPT = """\
import sys, torch, pliant
import helper
x = torch.load("data.pt")
model = torch.nn.Linear(4, 1)
with pliant.Session(model=model, optimizer=torch.optim.SGD(model.parameters(), lr=0.1), dataset=x,
                    global_batch_size=8, micro_batch_size=4, shuffle=False,
                    checkpoint=pliant.Checkpoint("kept")) as session:
    for step in session.steps(helper.STEPS):
        for rows in step:
            step.backward(model(rows).square().mean())
"""


def test_other_data_behind_the_same_path_are_refused_and_an_edited_module_is_told(
    tmp_path: Path,
) -> None:
    import torch

    def run(**variables: str) -> tuple[int, str]:
        done = run_typed(tmp_path / "t.py", cwd=tmp_path, environment={**os.environ, **variables})
        return done.returncode, done.stderr

    (tmp_path / "t.py").write_text(SCRIPT)
    (tmp_path / "helper.py").write_text("STEPS = 2")
    torch.save(torch.ones(64, 4), tmp_path / "data.pt")
    assert run()[0] == 0
    (tmp_path / "helper.py").write_text("STEPS = 40 // 10")
    torch.save(torch.zeros(64, 4), tmp_path / "data.pt")

    code, said = run()

    assert code != 0
    assert (
        "sample 0 of the dataset is not what it was when the run was kept: other data lie behind "
        "the same path; put them back, or go on with these: --from-checkpoint anyway (a script "
        "that runs alone: PLIANT_FROM_CHECKPOINT=anyway)" in said
    )
    code, said = run(PLIANT_FROM_CHECKPOINT="anyway")
    assert code == 0, said
    assert "since the checkpoint was written helper changed; the run goes on with what is" in said


def test_another_hash_seed_and_another_file_are_told(monkeypatch: pytest.MonkeyPatch) -> None:
    said: list[str] = []
    inputs = Inputs({}, said.append, goes_on_anyway=False)
    kept = json.loads(inputs.pack())
    monkeypatch.setattr(
        inputs, "pack", lambda: json.dumps(kept | {"reads": {"/a": [1, 1, "b"]}}).encode()
    )

    inputs.compare(json.dumps(kept | {"hash": "1", "reads": {"/a": [1, 1, "a"]}}).encode())

    assert said == [
        "since the checkpoint was written /a changed; the run goes on with what is there now",
        "PYTHONHASHSEED is another than when the run was kept: sets are iterated over in another "
        "order",
    ]


def test_samples_in_the_form_of_an_old_checkpoint_are_not_compared() -> None:
    said: list[str] = []
    inputs = Inputs({0: "mine"}, said.append, goes_on_anyway=False)
    old = json.loads(inputs.pack())
    del old["fetched"]

    inputs.compare(json.dumps(old | {"samples": {"0": "theirs"}}).encode())

    assert said == []
