"""What a session of a replica of several workers is made of, and what it refuses."""

from __future__ import annotations

import os
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest
import torch
from tests.live.prompt import run_typed
from torch import nn
from torch.distributed.fsdp import FSDPModule

from pliant.core.errors import ConfigError
from pliant.engine import local_tensors
from pliant.engine import several_workers as workers
from pliant.engine.member.inner_channel import FollowerCame
from pliant.engine.member.replica_workers import ReplicaWorkers
from pliant.engine.sharding import device_mesh
from pliant.engine.sharding.stages import Stages

WORK = SimpleNamespace(verify_every=0)
TWO: Any = SimpleNamespace(assignment=SimpleNamespace(workers_per_replica=2, place=0, work=WORK))
PLAIN: Any = SimpleNamespace(model=nn.Linear(2, 2), optimizers=[], scaler=None)
TOLD = ["gradient_divide_factor", "requires_gradient_sync", "custom_reduce_scatter"]
if hasattr(FSDPModule, "set_manual_backward_finalization"):  # torch 2.11 has none
    TOLD.append("manual_backward_finalization")
REFUSING = Path(__file__).parent / "sharding/refusing.py"


def check(context: Any = TWO, **more: bool) -> None:
    workers.check_possible(context, PLAIN, **{"has_local": False, **more})


@pytest.fixture
def meshed(monkeypatch: Any) -> None:
    monkeypatch.setattr(device_mesh, "_made", SimpleNamespace())


def test_a_script_says_what_its_workers_are_for() -> None:
    with pytest.raises(ConfigError) as refused:
        check()

    assert str(refused.value) == (
        "a replica of this job has 2 workers, and the script has not said what each is for; call "
        "pliant.mesh(shard=2) before the session is made"
    )
    check(None)  # one worker needs no mesh


@pytest.mark.usefixtures("meshed")
def test_what_several_workers_cannot_do_is_told() -> None:
    check()
    with pytest.raises(ConfigError, match=r'buffers=\{...: "local"\} with 2 workers per replica'):
        check(has_local=True)
    check(None, has_local=True)


@pytest.mark.timeout(180)
def test_what_cannot_be_done_with_a_sharded_model_is_told(tmp_path: Path) -> None:
    done = run_typed(REFUSING, cwd=tmp_path, environment=os.environ)

    said = [line.removeprefix("said: ") for line in done.stdout.splitlines()]
    assert [line for line in said if line == "nothing"] == [], done.stderr
    words = ["fused=True with", "step.grad_norm of"]
    words += ["FullyShardedDataParallel", "Short keeps", "is not this replica's", "two dimensions"]
    words += ["CPUOffloadPolicy", "several groups", "calls no hooks on its gradient"]
    words += ["is under replicate, which", "and not by fully_shard", "nothing is wrong with"]
    words += [f"'the model' was told set_{one}(" for one in TOLD]
    assert [word for word, line in zip(words, said, strict=True) if word not in line] == []


def test_what_cannot_be_done_with_a_model_in_stages_is_told(monkeypatch: Any) -> None:
    stages = Stages()
    scaled: Any = SimpleNamespace(model=nn.Linear(2, 2), scaler=object())
    workers.check_stages(stages, scaled, is_durable=True)  # a model that is whole

    stages.is_several = True
    monkeypatch.setattr(stages, "gather_texts", lambda text: [text, '["other"]'])
    workers.check_stages(stages, PLAIN, is_durable=True)
    monkeypatch.setattr(stages, "gather_texts", lambda text: [text, text])
    workers.check_stages(stages, PLAIN, is_durable=False)
    with pytest.raises(ConfigError, match="two stages of the model have 'weight', and a"):
        workers.check_stages(stages, PLAIN, is_durable=True)
    with pytest.raises(ConfigError, match="scaler= with a model in stages"):
        workers.check_stages(stages, scaled, is_durable=False)


def test_workers_are_compared_with_the_first_of_their_stage(tmp_path: Path) -> None:
    """Workers 0 and 1 have one stage, 2 and 3 the other; the last one is not like its first."""

    def said(shape: str, seed: str = "1") -> tuple[tuple[str, str], ...]:
        return (("seed", seed), ("parameter 'a'", shape))

    def compare(*followers: tuple[tuple[str, str], ...]) -> None:
        (meeting := tmp_path / str(len(list(tmp_path.iterdir())))).mkdir()
        workers = ReplicaWorkers(
            meeting, 4, traits=said("[2]"), within_s=9.0, stage_of=lambda place: place // 2
        )
        for place, traits in enumerate(followers, start=1):
            workers._endpoints[place] = "there"
            workers._came[place] = FollowerCame(place=place, endpoint="there", traits=traits)
        try:
            workers.await_all()
        finally:
            workers._listener.close()

    compare(said("[2]"), said("[3]"), said("[3]"))
    with pytest.raises(ConfigError, match=r"'a' is \[4\] on worker 3 .* and \[3\] on worker 2"):
        compare(said("[2]"), said("[3]"), said("[4]"))
    with pytest.raises(ConfigError, match=r"seed is 2 on worker 2 .* and 1 on worker 0"):
        compare(said("[2]"), said("[3]", "2"), said("[3]", "2"))


def test_parts_that_are_no_boxes_are_not_for_checkpoints(monkeypatch: Any) -> None:
    """Along its first dimension ``tp`` cuts a tensor, and FSDP what is left of it."""
    monkeypatch.setattr(local_tensors, "is_sharded", lambda tensor: True)
    placed = SimpleNamespace(dim=0, is_replicate=lambda: False)
    tensor: Any = SimpleNamespace(
        shape=torch.Size([6, 4]),
        placements=(placed, placed),
        device_mesh=SimpleNamespace(mesh_dim_names=("shard", "tp"), shape=(2, 2)),
    )

    with pytest.raises(ConfigError, match=r"shape \[6, 4\] is sharded over 4 workers by two"):
        local_tensors.part_of(tensor, {"shard": 0, "tp": 0})


def test_a_follower_that_does_not_come_is_told(tmp_path: Path) -> None:
    workers = ReplicaWorkers(tmp_path, 2, traits=(), within_s=-1.0)

    with pytest.raises(ConfigError, match="and worker 1 has not within"):
        workers.await_all()
