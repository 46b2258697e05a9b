"""Cut a log in processes that die at every line of it; run as ``python cutting.py DIRECTORY``.

Prints one line per process: the number of lines that it was let run, and whether it died.
"""

from __future__ import annotations

import os
import signal
import sys
from pathlib import Path
from types import FrameType
from typing import Any

from pliant.observe import log as log_module
from pliant.observe import parts

HERE = {log_module.__file__, parts.__file__}


def die_after(number: int) -> Any:
    """Return a trace function that kills this process at a line of the log's own code."""
    left = number

    def trace(frame: FrameType, event: str, arg: object) -> Any:
        nonlocal left
        if frame.f_code.co_filename not in HERE:
            return None
        if event == "line":
            if left == 0:
                os.kill(os.getpid(), signal.SIGKILL)
            left -= 1
        return trace

    return trace


def cut(path: Path, number: int) -> None:
    """Be a coordinator whose log is cut at its fourth record."""
    log = log_module.Journal(path, job="j")
    log.carried = lambda: [{"v": 1, "kind": "job_started", "command": ["train.py"]}]
    for step in range(4):
        log.write("commit", step=step)
    sys.settrace(die_after(number))
    log.cut()
    log.write("commit", step=4)
    sys.settrace(None)


def main() -> None:
    number = 0
    while True:
        path = Path(sys.argv[1]) / str(number) / "events.jsonl"
        if (pid := os.fork()) == 0:
            cut(path, 1 << 30)
            cut(path, number)
            os._exit(0)
        died = os.waitstatus_to_exitcode(os.waitpid(pid, 0)[1]) == -signal.SIGKILL
        sys.stdout.write(f"{number} {int(died)}\n")
        number += 1
        if not died:
            return


if __name__ == "__main__":
    main()
