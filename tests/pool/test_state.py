"""What a pool has written, a later version of it reads and writes again."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

from pliant.core.tenancy import Demand
from pliant.pool.state import StateFile

WRITTEN = (
    '{"version":1,"name":"default","life":"old","given":{"devices":8,'
    '"teams":null,"classes":null},"size":8,"devices":8,"number":8,"revision":9,"cordoned":[3],'
    '"drained":[],"classes":{"nightly":-500},"teams":[{"name":"a","quota":2,"borrowLimit":null,'
    '"reclaim":{"from":"LowerPriority","by":null}}],"claims":[{"name":"gpt","since":5.0,'
    '"wanted":{"kind":"elastic","team":"a","priority":"high","min_replicas":2,"ask_replicas":3,'
    '"sizes":[2,3],"num_slots":8,"can_suspend":true,"notice_s":4.5},"pid":1,"started":"77",'
    '"revision":9,"replicas":2,"suspend":false,"devices":[0,1],"leaving":[]}]}'
)


def is_in(old: Any, new: Any) -> bool:
    """Whether all that the old file said is in the new one, which may say more."""
    if isinstance(old, dict):
        return all(name in new and is_in(value, new[name]) for name, value in old.items())
    if isinstance(old, list):
        return len(old) == len(new) and all(map(is_in, old, new))
    return bool(old == new)


def test_a_file_of_an_earlier_version_is_read_and_keeps_its_shape(tmp_path: Path) -> None:
    old, new = tmp_path / "old.json", tmp_path / "new.json"
    old.write_text(WRITTEN)

    saved = StateFile(old).read()
    assert saved is not None
    StateFile(new).write(saved)

    assert is_in(json.loads(WRITTEN), json.loads(new.read_text()))
    assert saved.claims[0].wanted == Demand(
        team="a",
        priority="high",
        min_replicas=2,
        ask_replicas=3,
        sizes=(2, 3),
        num_slots=8,
        can_suspend=True,
        notice_s=4.5,
    )
