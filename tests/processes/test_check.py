"""``pliant check``: real scripts, alone and with replicas that join and are killed."""

from __future__ import annotations

import os
import signal
import subprocess
import sys
import time
from pathlib import Path

import pytest
from tests.processes.habits import HABITS, Habit

from pliant.core.checked import (
    FEWEST_STEPS,
    Difference,
    causes,
    differences,
    histories,
    of_training,
    without_noise,
)
from pliant.run.check import CheckStage, play, play_alone

pytestmark = pytest.mark.processes

RIGHT = Habit(
    history="kill",
    kinds=(),
    tail="if session.leader:\n    print('loss', step.loss)\n"
    "    with open(pliant.run_dir() / 'a.txt', 'a') as own: own.write(f'{step.index}')\n"
    "log = globals().get('log') or session.open_log('log.csv')\n"
    "print(step.index, file=log)\nsession.log(loss=step.loss)",
    behind="print('end', session.committed)",
)
SHARDED = Habit(
    history="join",
    kinds=(),
    top="from torch.distributed.fsdp import fully_shard",
    made="fully_shard(model, mesh=pliant.mesh(shard=2)['shard'])",
)
DEFAULT = "the next batch is drawn behind the forward"
"""The rest is a soak: each takes half a minute of a processor."""


def _stage(tmp_path: Path, script: str, *, workers: int = 1) -> CheckStage:
    directory = tmp_path / "here"
    directory.mkdir()
    (directory / "train.py").write_text(script)
    return CheckStage(
        words=("train.py",),
        directory=directory,
        linked=frozenset(),
        work=tmp_path,
        steps=9,
        workers=workers,
        environ=dict(os.environ),
    )


def _played(
    tmp_path: Path, habit: Habit, *, workers: int = 1
) -> tuple[list[Difference], list[str]]:
    """Play the one history in which a habit shows; return what differs, and the causes."""
    stage = _stage(tmp_path, habit.script(), workers=workers)
    alone = play_alone(stage, "alone").trace
    assert not alone.fault
    history = next(
        one for one in histories(alone.committed, is_durable=False) if one.name == habit.history
    )
    trace = play(stage, history, 120).trace
    found = differences(alone, trace)
    return found, causes(alone, found, trace.notes)


def _assert_seen(tmp_path: Path, name: str) -> None:
    habit = HABITS[name]
    found, said = _played(tmp_path, habit)
    kinds = {one.kind for one in found}
    if habit.kinds == ("random",):
        stage = _again(tmp_path)
        again = play_alone(stage, "again").trace
        assert of_training(differences(play_alone(stage, "once").trace, again))
        return
    assert kinds & set(habit.kinds), (kinds, said)
    words = " ".join([*(one.sentence for one in found), *said])
    assert habit.named in words


def _again(tmp_path: Path) -> CheckStage:
    (tmp_path / "more").mkdir()
    return _stage(tmp_path / "more", (tmp_path / "here" / "train.py").read_text())


@pytest.mark.timeout(180)
def test_a_wrong_habit_is_seen_and_its_cause_is_named(tmp_path: Path) -> None:
    _assert_seen(tmp_path, DEFAULT)


@pytest.mark.soak
@pytest.mark.timeout(400)
@pytest.mark.parametrize("name", [name for name in HABITS if name != DEFAULT])
def test_each_wrong_habit_is_seen(tmp_path: Path, name: str) -> None:
    _assert_seen(tmp_path, name)


@pytest.mark.timeout(180)
def test_a_script_in_which_nothing_is_wrong_is_the_same_though_its_leader_is_killed(
    tmp_path: Path,
) -> None:
    found, _ = _played(tmp_path, RIGHT)

    assert without_noise(found, []) == []
    replicas = {one.name.split(".")[0] for one in (tmp_path / "kill/recordings").glob("r*")}
    assert replicas == {"r1", "r2", "r3"}


@pytest.mark.soak
@pytest.mark.timeout(400)
def test_replicas_of_several_workers_are_the_same_though_one_joins(tmp_path: Path) -> None:
    found, _ = _played(tmp_path, SHARDED, workers=2)

    assert found == []
    assert list((tmp_path / "join/recordings").glob("r2.1-*"))


@pytest.mark.soak
@pytest.mark.timeout(120)
def test_a_check_that_is_told_to_end_leaves_nothing(tmp_path: Path) -> None:
    (tmp_path / "train.py").write_text("import time\nopen('began', 'w')\ntime.sleep(600)\n")
    (tmp_path / "kept").mkdir()
    environ = {**os.environ, "TMPDIR": str(tmp_path / "kept")}
    check = subprocess.Popen(
        [sys.executable, "-m", "pliant", "check", "train.py"], cwd=tmp_path, env=environ
    )
    while not list((tmp_path / "kept").glob("*/alone/directory/began")):
        time.sleep(0.05)

    check.send_signal(signal.SIGTERM)

    assert check.wait(30) == 130
    assert list((tmp_path / "kept").iterdir()) == []


def test_a_change_has_steps_before_it_and_behind_it() -> None:
    for one in histories(FEWEST_STEPS, is_durable=True):
        assert one.hold_from is None or 0 < one.hold_from < FEWEST_STEPS
