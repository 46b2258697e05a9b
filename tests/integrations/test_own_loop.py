"""Data that each count once and checkpoints that count whole, for scripts with their own loop."""

from __future__ import annotations

import json
import os
import signal
import subprocess
import sys
from collections import Counter
from pathlib import Path
from typing import Any

import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st
from tests.processes.elastic import scale
from tests.processes.launching import running
from torch import nn

import pliant
from pliant.core.errors import ConfigError

SCRIPT = Path(__file__).with_name("train_own_loop.py")
EPOCHS, STEPS = 6, 42
"""Of 50 samples by 8."""


def loaders(world: int, size: int = 7, **options: Any) -> list[pliant.ElasticDataLoader]:
    found = []
    for rank in range(world):
        with pytest.MonkeyPatch.context() as patch:
            patch.setenv("RANK", str(rank))
            patch.setenv("WORLD_SIZE", str(world))
            found.append(pliant.ElasticDataLoader(range(45), size, **options))
    return found


@given(sizes=st.lists(st.integers(1, 7), min_size=1, max_size=6), each=st.integers(1, 4))
def test_each_sample_counts_once_at_any_sizes(sizes: list[int], each: int) -> None:
    """A global batch is the same at any size, and a place goes on at any other."""
    (alone,) = loaders(1)
    order = [batch.tolist() for _ in range(8) for batch in alone]
    state, seen = None, []
    for world in sizes:
        processes = loaders(world)
        for one in processes:
            if state is not None:
                one.load_state_dict(state)
        batches = [iter(one) for one in processes]
        for _ in range(each):
            try:
                shares = [next(one).tolist() for one in batches]
            except StopIteration:
                break
            scales = [one.scale for one in processes]
            used = [s for share, by in zip(shares, scales, strict=True) if by for s in share]
            assert sum(scales) == pytest.approx(world)
            seen.append(used)
        (state,) = ({str(one.state_dict()): one.state_dict() for one in processes}).values()

    assert seen == order[: len(seen)]
    assert Counter(s for batch in order[:7] for s in batch) == Counter(range(45))


def test_a_place_in_other_data_is_refused() -> None:
    (one,), (other,) = loaders(1), loaders(1, size=9)

    with pytest.raises(ConfigError, match="has global_batch_size 7, and now it is 9"):
        other.load_state_dict(one.state_dict())
    with pytest.raises(ConfigError, match="is less than the 3 processes"):
        loaders(3, size=2)
    with pytest.raises(ConfigError, match="45 samples make no global batch of 50"):
        loaders(1, size=50, drop_last=True)


def test_two_loops_at_a_time_are_refused() -> None:
    (one,) = loaders(1)
    for _ in one:
        with pytest.raises(ConfigError, match="has not ended, and another begins"):
            next(iter(one))
        with pytest.raises(ConfigError, match="before the loop over it"):
            one.load_state_dict(one.state_dict())
        break
    assert len(list(one)) == 6, "the rest of the epoch"
    (ordered,) = loaders(1, shuffle=False)
    with pytest.raises(ConfigError, match="has shuffle True, and now it is False"):
        ordered.load_state_dict(one.state_dict())
    for options, said in (
        ({"size": 4.0}, "global_batch_size=4.0 of ElasticDataLoader must be a whole number"),
        ({"seed": None}, "seed=None of ElasticDataLoader must be a whole number"),
        ({"batch_size": 3}, "batch_size of ElasticDataLoader: it divides a global batch itself"),
    ):
        with pytest.raises(ConfigError, match=said):
            loaders(1, **options)
    with pytest.raises(ConfigError, match="needs a length"):
        pliant.ElasticDataLoader(iter(range(3)), 2)


class Kept:
    """Something with a state of any form."""

    def __init__(self, **values: Any) -> None:
        self.values = values

    def state_dict(self) -> dict[str, Any]:
        return self.values

    def load_state_dict(self, state: dict[str, Any]) -> None:
        self.values = state


def test_what_is_beside_the_model_comes_back_as_it_was(tmp_path: Path) -> None:
    """Dicts that have grown, keys that are no texts, lists of dicts; a scheduler, repeatedly."""
    model = nn.Sequential(nn.Linear(2, 2), nn.Linear(2, 1))
    values = {
        "h": {1: 0.5, "1": 2.0},
        "k": [{"a": 1}, {"a": torch.ones(2)}],
        "t": (1, None),
        "e": {},
    }
    for step in (3, 4, 5):
        optimizer = torch.optim.Adam(model.parameters())
        schedule = torch.optim.lr_scheduler.MultiStepLR(optimizer, [3, 5])
        found = Kept()
        kept: dict[str, Any] = {"model": model, "optimizer": optimizer, "schedule": schedule}
        assert pliant.load_checkpoint(tmp_path, found=found, **kept) == (
            step - 1 if step > 3 else None
        )
        assert schedule.milestones == {3: 1, 5: 1}
        optimizer.step()
        schedule.step()
        pliant.save_checkpoint(tmp_path, step, found=Kept(**values), **kept)
    assert str(found.values) == str(values)


def test_a_parameter_without_a_gradient_has_no_state_afterwards_either(tmp_path: Path) -> None:
    def made() -> dict[str, Any]:
        torch.manual_seed(1)
        model = nn.ModuleDict({"used": nn.Linear(2, 1), "unused": nn.Linear(2, 1)})
        return {"model": model, "optimizer": torch.optim.Adam(model.parameters(), lr=0.1)}

    def train(model: Any, optimizer: Any, name: str) -> None:
        optimizer.zero_grad()
        model[name](torch.ones(1, 2)).sum().backward()
        optimizer.step()

    alone, again = made(), made()
    train(**alone, name="used")
    pliant.save_checkpoint(tmp_path, 1, **alone)
    assert pliant.load_checkpoint(tmp_path, **again) == 1
    for one in (alone, again):
        train(**one, name="unused")
    a, b = (one["model"].state_dict() for one in (alone, again))
    assert all(torch.equal(a[name], b[name]) for name in a)


def test_what_does_not_fit_is_refused(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    model, other = nn.Linear(2, 1), nn.Linear(2, 1, bias=False)
    adam = torch.optim.Adam(model.parameters())
    (loader,) = loaders(1)
    assert pliant.load_checkpoint(tmp_path / "new", model=model) is None
    pliant.save_checkpoint(tmp_path / "new", 100, model=model, optimizer=adam, loader=loader)

    def refused(words: str, path: str = "new", **kept: Any) -> None:
        with pytest.raises(ConfigError, match=words):
            pliant.load_checkpoint(tmp_path / path, **kept)

    refused("is of another model: bias is only in the checkpoint", model=other)
    refused("was saved with loader, and is loaded with nothing", model=model, optimizer=adam)
    sgd = torch.optim.SGD(model.parameters())
    refused("is of another optimizer|does not fit", model=model, optimizer=sgd, loader=loader)
    refused("does not fit the model", model=nn.Linear(3, 1))
    refused("is one checkpoint; name the directory", "new/step-00000100", model=model)
    (tmp_path / "file").touch()
    refused("is a file; name the directory", "file", model=model)
    (tmp_path / "plain/1").mkdir(parents=True)
    (tmp_path / "plain/1/.metadata").touch()  # as torch.distributed.checkpoint names it
    refused("what torch.distributed.checkpoint has saved", "plain", model=model)
    with pytest.raises(ConfigError, match="holds step 100, so step 5 would never be the newest"):
        pliant.save_checkpoint(tmp_path / "new", 5, model=model)
    with pytest.raises(ConfigError, match=r"must be a whole number of steps, not 3\.5"):
        pliant.save_checkpoint(tmp_path / "new", 3.5, model=model)  # type: ignore[arg-type]
    (tmp_path / "new/step-junk").mkdir()
    for step in (101, 102, 103):
        pliant.save_checkpoint(tmp_path / "new", step, model=model, optimizer=adam)
    assert len(list((tmp_path / "new").glob("step-0*"))) == 3
    assert pliant.load_checkpoint(tmp_path / "new", model=model) == 103, "to evaluate it"
    (tmp_path / "empty").mkdir()
    assert pliant.load_checkpoint(tmp_path / "empty", model=model) is None
    assert "holds no checkpoint; this is a beginning" in capsys.readouterr().err


def test_the_newest_that_is_whole_is_loaded(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    model = nn.Linear(2, 1)
    optimizer = torch.optim.Adam(model.parameters())
    kept: dict[str, Any] = {"model": model, "optimizer": optimizer}
    wanted = {}
    assert pliant.load_checkpoint(tmp_path, **kept) is None
    for step in range(1, 6):
        model(torch.ones(1, 2)).sum().backward()
        optimizer.step()
        pliant.save_checkpoint(tmp_path, step, **kept)
        wanted[step] = {name: one.clone() for name, one in model.state_dict().items()}
    assert sorted(one.name for one in tmp_path.iterdir()) == [f"step-0000000{n}" for n in (3, 4, 5)]
    newest = tmp_path / "step-00000005"
    path = next(newest.glob("*.distcp"))
    path.write_bytes(path.read_bytes()[:-1] + b"\x00\x01")
    (tmp_path / ".step-00000006").mkdir()

    assert pliant.load_checkpoint(tmp_path, **kept) == 4

    assert f"{newest} is damaged" in capsys.readouterr().err
    assert all(torch.equal(one, wanted[4][name]) for name, one in model.state_dict().items())
    for one in tmp_path.glob("step-*/digests.json"):
        one.unlink()
    with pytest.raises(ConfigError, match=r"every checkpoint in .* is damaged"):
        pliant.load_checkpoint(tmp_path, **kept)
    with pytest.raises(ConfigError, match="keep=0 checkpoints must be at least 1"):
        pliant.save_checkpoint(tmp_path, 1, keep=0, **kept)
    (tmp_path / "file").touch()
    with pytest.raises(ConfigError, match="cannot be written to"):
        pliant.save_checkpoint(tmp_path / "file", 1, **kept)


@pytest.mark.slow
@pytest.mark.processes
@pytest.mark.timeout(300)
def test_a_script_goes_on_at_other_sizes_after_a_kill_and_from_a_damaged_checkpoint(
    tmp_path: Path,
) -> None:
    for name in ("alone", "elastic"):
        (tmp_path / name).mkdir()
    alone, here = tmp_path / "alone", tmp_path / "elastic"
    around = {"RANK": "0", "WORLD_SIZE": "1", "MASTER_ADDR": "127.0.0.1", "MASTER_PORT": "0"}
    words = [sys.executable, str(SCRIPT), str(alone), str(EPOCHS), "0"]
    subprocess.run(words, env=os.environ | around, check=True)

    def steps() -> list[int]:
        return sorted(int(one.stem) for one in here.glob("*.json"))

    with running(
        here, SCRIPT, here, EPOCHS, 0.3, mode="restart", replicas=3, start=1, restarts=5
    ) as job:
        job.wait_for(lambda: max(steps(), default=0) > 6, "it trains")
        scale(job, 3)
        job.wait_for(lambda: _size(job) == 3, "three train")
        before = max(steps())
        job.wait_for(lambda: max(steps()) > before + 3, "they go on")
        os.kill(_one_of(job), signal.SIGKILL)
        job.wait_for(lambda: "ended by SIGKILL" in str(job.records("note")), "it is seen")
        newest = max((here / "kept").glob("step-*"))
        path = next(newest.glob("*.distcp"))
        path.write_bytes(path.read_bytes()[:-9])
        before = max(steps())
        job.wait_for(lambda: max(steps()) > before + 3, "they go on")
        scale(job, 2)
        assert job.exit_code() == 0, job.said()
        job.assert_nothing_is_left()
        printed = "".join(path.read_text() for path in job.out.glob("logs/r*.log"))

    assert f"pliant: {newest} is damaged" in printed
    assert steps() == list(range(1, STEPS + 1))
    for step in steps():
        mine, its = (json.loads((one / f"{step}.json").read_text()) for one in (here, alone))
        assert mine == its
    a, b = (torch.load(one / "weights.pt", weights_only=True) for one in (alone, here))
    torch.testing.assert_close(a, b)


def _size(job: Any) -> int:
    ordered = [len(one["order"]["members"]) for one in job.records("switch")]
    return ordered[-1] if ordered else 0


def _one_of(job: Any) -> int:
    import psutil

    found = [
        one.pid
        for one in psutil.Process(job.process.pid).children(recursive=True)
        if any(str(SCRIPT) in word for word in one.cmdline())
    ]
    return found[-1]
