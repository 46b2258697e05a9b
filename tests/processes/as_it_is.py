"""A script as torchrun starts it, without torch: says how it was started, counts, keeps its count.

What else it is to do files in its directory say: ``fail-RANK``, ``deaf-RANK``, ``end-RANK``, at an
event ``die-RANK``, ``late-RANK``, ``mute-RANK`` and ``stay-RANK``, and ``over``.
"""

from __future__ import annotations

import json
import os
import signal
import sys
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any

NAMES = ("RANK", "LOCAL_RANK", "WORLD_SIZE", "LOCAL_WORLD_SIZE", "GROUP_RANK", "ROLE_RANK")


def main() -> None:
    here = Path(sys.argv[1])
    rank = int(os.environ["RANK"])
    told = {name: value for name, value in os.environ.items() if _is_told(name)}
    kept = here / "kept"
    step = int(kept.read_text()) if kept.exists() else 0
    with (here / "starts").open("a") as file:
        file.write(json.dumps({"rank": rank, "pid": os.getpid(), "step": step, **told}) + "\n")
    if (here / f"deaf-{rank}").exists():
        signal.signal(signal.SIGTERM, signal.SIG_IGN)
    event, calls = None, 0
    if "--event" in sys.argv:
        import pliant

        event = pliant.elastic_event
    while not (here / "over").exists():
        time.sleep(0.01)
        if (here / f"fail-{rank}").exists():
            (here / f"fail-{rank}").unlink()
            raise ValueError("no such sample")
        if (here / f"end-{rank}").exists():
            return
        step, calls = step + 1, calls + 1
        if rank == 0:
            (here / "new").write_text(str(step))
            (here / "new").replace(kept)
        if event is not None and not (here / f"silent-{rank}").exists():
            _look(here, event, rank, step, calls)


def _look(here: Path, event: Callable[[], Any], rank: int, step: int, call: int) -> None:
    if (found := event()) is None:
        return
    with (here / "seen").open("a") as file:
        seen = {
            "rank": rank,
            "step": step,
            "call": call,
            "reason": found.reason,
            "sizes": [found.old_size],
        }
        seen["sizes"].append(found.new_size)
        file.write(json.dumps({**seen, "leaving": found.leaving}) + "\n")
    if (here / f"die-{rank}").exists():
        os.kill(os.getpid(), signal.SIGKILL)
    if (here / f"late-{rank}").exists():
        time.sleep(max(0.0, found.deadline - time.time()) + 0.5)
    if not (here / f"mute-{rank}").exists():
        found.saved(step, str(here / "kept"))
    while (here / f"stay-{rank}").exists():
        time.sleep(0.01)
    sys.exit(0)


def _is_told(name: str) -> bool:
    return name in NAMES or name.startswith(("MASTER_", "TORCHELASTIC_", "ROLE_", "GROUP_", "OMP_"))


if __name__ == "__main__":
    main()
