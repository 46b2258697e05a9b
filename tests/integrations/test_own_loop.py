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
