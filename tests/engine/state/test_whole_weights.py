"""What ``session.save`` writes of a model of which each worker of a replica has a part."""

from __future__ import annotations

import os
from pathlib import Path

import pytest
from tests.live.prompt import run_together

SCRIPT = Path(__file__).with_name("writing.py")


@pytest.mark.timeout(180)
def test_two_workers_write_what_one_would_of_a_model_that_is_whole(tmp_path: Path) -> None:
    commands = [(SCRIPT, tmp_path, rank) for rank in (0, 1)]

    both = run_together(*commands, cwd=tmp_path, environment=os.environ)

    refused = (
        "two stages of the model have 'bias', and session.save writes one; give the layers of each "
        "stage the names that they have in the whole model"
    )
    first = ["sharded: the same file", "staged: the same weights", refused]
    first += ["No space left on device", "File exists", "large: held as mapped"]
    assert [one.stdout.splitlines()[-6:] for one in both] == [first, [refused]], both
