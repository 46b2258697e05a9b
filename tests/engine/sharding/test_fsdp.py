"""FSDP2 hands over each slot's gradient by itself, with the bits of a model that is whole.

What is private of it was seen to work with torch 2.11 and 2.15; a version that has it elsewhere
fails here.
"""

from __future__ import annotations

import inspect
import os
from pathlib import Path

import pytest
import torch
from tests.live.prompt import run_together

SCRIPT = Path(__file__).with_name("sharding.py")

SEEN = ("2.11", "2.15")
"""Versions of torch with which this passed."""


@pytest.mark.timeout(180)
def test_each_slots_leaves_are_those_of_a_whole_model_and_what_has_none_is_told(
    tmp_path: Path,
) -> None:
    check_on(tmp_path)


def check_on(directory: Path, *kind: str) -> None:
    """Run both processes, on devices of a kind, and look at what they say."""
    commands = [(SCRIPT, directory, rank, *kind) for rank in (0, 1)]

    both = run_together(*commands, cwd=directory, environment=os.environ)

    names = ["0.bias", "0.weight", "2.bias", "2.weight"]
    assert [process.returncode for process in both] == [0, 0], both
    for text in (process.stdout for process in both):
        (equal, cast, skipped, penalty, *refused, drawn) = text.splitlines()[-9:]
        assert equal == f"equal {names}", text
        assert cast.startswith("the gradients of a sharded parameter were cast after they were")
        assert skipped.startswith("a sharded parameter was used in one micro-batch and not in")
        assert penalty.startswith("the loss of a micro-batch goes back to a sharded parameter by")
        for name, line in zip(("Normed", "Muon", "Scaled", "Reduced"), refused, strict=True):
            assert line.startswith(f"{name} adds up over the parts of a sharded parameter, so its")
        assert drawn == "drawn whole, but for rrelu_with_noise and multinomial"


def test_the_base_class_of_a_reduce_scatter_is_where_it_was() -> None:
    from torch.distributed.fsdp._fully_shard._fsdp_api import ReduceScatter

    parameters = list(inspect.signature(ReduceScatter.__call__).parameters)
    assert parameters == ["self", "output_tensor", "input_tensor", "group", "op", "async_op"], (
        f"torch {torch.__version__}; seen with {SEEN}"
    )
