"""``train_model.py``, but that each worker tells a test the secrets that it learns.

They go into the pipe that ``TOLD_AT`` names, and nowhere else.
"""

from __future__ import annotations

import os
import runpy
import sys
from pathlib import Path

ROOT = Path(__file__).resolve().parents[2]
sys.path.insert(0, str(ROOT))

from pliant.core.values import Generation  # noqa: E402
from pliant.engine.member.group_builds import GroupBuilds  # noqa: E402

_learn = GroupBuilds.learn


def _learn_and_tell(self: GroupBuilds, generation: Generation, secret: str) -> None:
    with Path(os.environ["TOLD_AT"]).open("ab", buffering=0) as told:
        told.write(f"{secret}\n".encode())
    _learn(self, generation, secret)


GroupBuilds.learn = _learn_and_tell  # type: ignore[method-assign]
runpy.run_path(str(ROOT / "tests" / "processes" / "train_model.py"), run_name="__main__")
