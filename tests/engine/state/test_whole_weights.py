"""What ``session.save`` writes of a model of which each worker of a replica has a part."""

from __future__ import annotations

import subprocess
import sys
from pathlib import Path

import pytest

SCRIPT = Path(__file__).with_name("writing.py")


@pytest.mark.timeout(180)
def test_two_workers_write_what_one_would_of_a_model_that_is_whole(tmp_path: Path) -> None:
    both = [
        subprocess.Popen(
            [sys.executable, SCRIPT, tmp_path, str(rank)],
            stdout=subprocess.PIPE,
            stderr=subprocess.STDOUT,
            text=True,
        )
        for rank in (0, 1)
    ]

    said = [process.communicate(timeout=150)[0].splitlines() for process in both]

    refused = (
        "two stages of the model have 'bias', and session.save writes one; give the layers of each "
        "stage the names that they have in the whole model"
    )
    first = ["sharded: the same file", "staged: the same weights", refused]
    first += ["No space left on device", "File exists", "large: held as mapped"]
    assert [lines[-6:] for lines in said] == [first, [refused]]
