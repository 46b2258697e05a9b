"""The log that the page is timed with is one that the page can show."""

from __future__ import annotations

import json
from pathlib import Path

from benchmarks.view import write_log

from pliant.observe.view import LogView


def test_the_log_of_the_benchmark_is_one_of_a_run(tmp_path: Path) -> None:
    log = tmp_path / "events.jsonl"
    write_log(log, 500, 50)

    found = json.loads(LogView(log).as_json())

    assert found["headline"]["step"] == 500
    assert len(found["resizes"]) == 49
    assert {one["cause"] for one in found["pauses"]} == {"join", "loss"}
