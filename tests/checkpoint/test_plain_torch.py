"""Checkpoints are PyTorch's own: plain torch reads ours, and we read plain torch's."""

from __future__ import annotations

import os
import subprocess
import sys
from pathlib import Path
from typing import Any

import pytest
import torch
from tests.checkpoint import plain_torch
from tests.checkpoint.reading import nested
from tests.checkpoint.states import plain_save, same, save
from tests.live.prompt import run_typed

from pliant.checkpoint import catalogue
from pliant.checkpoint.dcp.index import Contents
from pliant.checkpoint.dcp.read import load, open_checkpoint
from pliant.checkpoint.failures import UntrustedError
from pliant.checkpoint.store.directory import LocalStorage

pytestmark = [pytest.mark.processes, pytest.mark.timeout(180)]


def plain(*arguments: str | Path) -> str:
    """Run the script where pliant cannot be imported from."""
    environ = {key: value for key, value in os.environ.items() if key != "PYTHONPATH"}
    done = subprocess.run(
        [sys.executable, "-W", "ignore", plain_torch.__file__, *map(str, arguments)],
        capture_output=True,
        text=True,
        env=environ,
        check=False,
    )
    assert done.returncode == 0, done.stderr
    return done.stdout.strip()


def forked(*arguments: str | Path) -> str:
    """Run the script where torch is loaded already."""
    place = Path(arguments[1]).parent
    done = run_typed(plain_torch.__file__, *arguments, cwd=place, environment=os.environ)
    assert done.returncode == 0, done.stderr
    return done.stdout.strip()


def flattened(state: Any, prefix: str = "") -> dict[str, Any]:
    if not isinstance(state, dict | list) or (
        isinstance(state, list) and not any(isinstance(part, dict) for part in state)
    ):
        return {prefix: state}
    pairs = state.items() if isinstance(state, dict) else enumerate(state)
    found: dict[str, Any] = {}
    for key, value in pairs:
        found |= flattened(value, f"{prefix}.{key}" if prefix else str(key))
    return found


@pytest.fixture
def ours(tmp_path: Path) -> Path:
    """A checkpoint of ours, by three members, with the state beside it."""
    model, optimizer = plain_torch.model_and_optimizer()
    plain_torch.step(model, optimizer)
    state = plain_torch.state_of(model, optimizer, full=True)
    torch.save(state, tmp_path / "STATE")
    items = flattened(state)
    contents = Contents(
        tensors={
            **{name: value for name, value in items.items() if torch.is_tensor(value)},
            "extra.ema": torch.ones(3),
        },
        objects={
            **{name: value for name, value in items.items() if not torch.is_tensor(value)},
            "pliant.document": b"\xff",
        },
    )
    return tmp_path / save(LocalStorage(str(tmp_path)), state=contents, num_shares=3).name


def test_plain_torch_loads_ours_in_one_process_without_pliant(ours: Path) -> None:
    assert plain("read", ours) == "same"


def test_plain_torch_loads_ours_into_a_model_sharded_over_four_processes(ours: Path) -> None:
    assert forked("sharded", ours) == "same"


def test_a_sharded_checkpoint_of_plain_torch_loads_whole(tmp_path: Path) -> None:
    forked("write", tmp_path / "theirs", tmp_path / "whole.pt")
    expected = torch.load(tmp_path / "whole.pt", weights_only=True)
    storage = LocalStorage(str(tmp_path))

    checkpoint = open_checkpoint(storage, "theirs")
    found = load(checkpoint)

    assert checkpoint.manifest is None
    wanted = flattened(expected)
    assert found.keys() == wanted.keys()
    assert [name for name in wanted if not same(found[name], wanted[name])] == []
    assert nested(checkpoint, found)["optim"]["param_groups"] == expected["optim"]["param_groups"]
    chunks = [len(item.chunks) for item in checkpoint.items.values() if "0.weight" in item.name]
    assert max(chunks) == 4
    verdict = catalogue.verify(storage, "theirs")
    assert (verdict.is_sound, verdict.has_digests) == (True, False)


def test_an_object_of_plain_torch_that_is_code_needs_trust(tmp_path: Path) -> None:
    plain_save({"extra": {"where": tmp_path}}, tmp_path / "theirs")
    checkpoint = open_checkpoint(LocalStorage(str(tmp_path)), "theirs")

    with pytest.raises(
        UntrustedError, match=r"extra\.where in .* holds more than tensors and plain"
    ):
        load(checkpoint)
    assert load(checkpoint, trust=True) == {"extra.where": tmp_path}
