"""A ledger's lines are whole or absent, also on a disk that was full for a while."""

from __future__ import annotations

import json
import os
from pathlib import Path

from pliant.engine.data.ledger import Ledger


def test_lines_that_the_disk_does_not_take_are_missed_and_no_other(tmp_path: Path) -> None:
    path = tmp_path / "ledger" / "r1.jsonl"
    ledger = Ledger(path)
    ledger.commit(lineage=1, step=0, generation=1, digest="a")

    file, full = os.dup(ledger._fd), os.open("/dev/full", os.O_WRONLY)
    os.dup2(full, ledger._fd)
    ledger.commit(lineage=1, step=1, generation=1, digest="b")
    os.dup2(file, ledger._fd)
    for fd in (file, full):
        os.close(fd)
    ledger.commit(lineage=1, step=2, generation=1, digest="c")
    ledger.close()

    lines = [json.loads(line) for line in path.read_text().splitlines() if line]
    assert [line["step"] for line in lines] == [0, 2]
