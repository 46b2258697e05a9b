"""What a session of a replica of several workers is made of, and what it refuses."""

from __future__ import annotations

from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest
from torch import nn

from pliant.core.errors import ConfigError
from pliant.engine.replica import device_mesh, workers
from pliant.engine.replica.followers import FollowerCrew

TWO: Any = SimpleNamespace(assignment=SimpleNamespace(workers_per_replica=2, place=0))


def check(context: Any = TWO, parameters: Any = None, **more: bool) -> None:
    given = {"has_checkpoint": False, "has_local": False, **more}
    parameters = dict(nn.Linear(2, 2).named_parameters()) if parameters is None else parameters
    workers.check_possible(context, parameters, **given)


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
    with pytest.raises(ConfigError, match=r"Session\(checkpoint=...\) with 2 workers per replica"):
        check(has_checkpoint=True)
    with pytest.raises(ConfigError, match=r'buffers=\{...: "local"\} with 2 workers per replica'):
        check(has_local=True)
    check(None, has_checkpoint=True, has_local=True)


def test_sharded_parameters_are_refused() -> None:
    sharded: Any = type("DTensor", (), {})()

    with pytest.raises(ConfigError, match="parameter 'weight' is sharded"):
        check(None, {"weight": sharded})


def test_a_follower_that_does_not_come_is_told(tmp_path: Path) -> None:
    crew = FollowerCrew(tmp_path, 2, within_s=-1.0)

    with pytest.raises(ConfigError, match="and worker 1 has not within"):
        crew.await_all()
