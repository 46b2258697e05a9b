"""Starts ``pliant`` processes by forking one that has imported it: faster than Python starts.

python tests/pool/nursery.py     one JSON request a line on stdin, one answer a line on stdout

{"argv": [...], "out": PATH, "cwd": PATH, "environ": {...}, "waits": [silent_s, grace_s]}
    -> {"pid": 4711}     its output goes to PATH, its exit code to PATH.code once it has ended
"""

from __future__ import annotations

import json
import os
import select
import signal
import sys
from dataclasses import replace
from pathlib import Path
from typing import Any

import uvicorn.protocols.http.h11_impl  # noqa: F401  # what the pool would import later

import pliant.cli.start
import pliant.cli.top
import pliant.http.server
import pliant.pool.app
from pliant.cli import claim
from pliant.cli.main import code_of
from pliant.machine.processes import signal_at_parents_death
from pliant.pool.claims import PoolSettings
from pliant.run import pool_host

RUN = pool_host.run_pool
IMPORTED = (pliant.cli.start, pliant.cli.top, pliant.http.server, pliant.pool.app, claim)


def main() -> None:
    woken, wake = os.pipe()
    os.set_blocking(wake, False)
    signal.set_wakeup_fd(wake)
    signal.signal(signal.SIGCHLD, lambda number, frame: None)
    outs: dict[int, Path] = {}
    rest = b""
    while True:
        ready, _, _ = select.select([0, woken], [], [])
        if woken in ready:
            os.read(woken, 4096)
        reap(outs)
        if 0 in ready:
            data = os.read(0, 1 << 16)
            if not data:
                return
            *lines, rest = (rest + data).split(b"\n")
            for line in lines:
                asked = json.loads(line)
                pid = start(asked, (woken, wake))
                outs[pid] = Path(asked["out"])
                reap(outs)
                os.write(1, json.dumps({"pid": pid}).encode() + b"\n")


def reap(outs: dict[int, Path]) -> None:
    """Write down the exit codes of those that have ended."""
    for pid in list(outs):
        ended, status = os.waitpid(pid, os.WNOHANG)
        if ended:
            code = outs.pop(pid).with_suffix(".code")
            fresh = code.with_suffix(".fresh")
            fresh.write_text(str(os.waitstatus_to_exitcode(status)))
            fresh.replace(code)


def start(asked: dict[str, Any], ours: tuple[int, int]) -> int:
    pid = os.fork()
    if pid:
        return pid
    code = 70
    try:
        signal_at_parents_death(signal.SIGKILL)  # nothing outlives the nursery
        signal.set_wakeup_fd(-1)
        signal.signal(signal.SIGCHLD, signal.SIG_DFL)
        os.setsid()
        for fd in ours:
            os.close(fd)
        out = os.open(asked["out"], os.O_WRONLY | os.O_CREAT | os.O_APPEND, 0o600)
        nothing = os.open(os.devnull, os.O_RDONLY)
        for old, new in ((nothing, 0), (out, 1), (out, 2)):
            os.dup2(old, new)
        os.chdir(asked["cwd"])
        os.environ.clear()
        os.environ.update(asked["environ"])
        if asked.get("waits"):
            wait_for(*asked["waits"])
        code = code_of(asked["argv"])
    except BaseException as error:
        code = error.code if isinstance(error, SystemExit) else 70  # type: ignore[assignment]
        if not isinstance(error, SystemExit):
            sys.excepthook(type(error), error, error.__traceback__)
    finally:
        sys.stdout.flush()
        sys.stderr.flush()
        os._exit(code)


def wait_for(silent_s: float, grace_s: float) -> None:
    """Give the pool that is started other waits than those of people."""
    settings = PoolSettings(silent_s=silent_s, grace_s=grace_s)

    def run(config: pool_host.PoolConfig, *, listener: pool_host.Listener) -> int:
        return RUN(replace(config, settings=settings), listener=listener)

    pool_host.run_pool = run


if __name__ == "__main__":
    main()
