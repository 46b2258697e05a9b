"""What is forked for a test is like what a user starts, and nothing of it is left behind."""

from __future__ import annotations

import json
import os
import signal
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import psutil
import pytest
from tests.live.stage import MARK, ForkedStage, Stage, stage, zygote

pytestmark = [pytest.mark.processes, pytest.mark.timeout(120)]

LOOK = """
import json, os, random, signal, sys, tempfile

handlers = {number: str(signal.getsignal(number)) for number in signal.valid_signals()}
found = {
    "argv": sys.argv,
    "path": sys.path,
    "name": __name__,
    "file": __file__,
    "cwd": os.getcwd(),
    "environment": dict(os.environ),
    "temporary": tempfile.gettempdir(),
    "handlers": handlers,
    "blocked": [int(number) for number in signal.pthread_sigmask(signal.SIG_BLOCK, [])],
    "files": [os.path.realpath(f"/proc/self/fd/{number}") for number in (0, 1, 2)],
    "more files": len(os.listdir("/proc/self/fd")) - 3,
    "leads its session": os.getsid(0) == os.getpgid(0) == os.getpid(),
    "umask": os.umask(0o22),
}
print(json.dumps(found), flush=True)
print(random.random(), flush=True)
"""

LEAVE = """
import os, subprocess, sys

child = subprocess.Popen(["sleep", "600"], start_new_session=True)
print(child.pid, flush=True)
"""


@pytest.fixture(params=[False, True], ids=["fresh", "forked"])
def here(request: pytest.FixtureRequest) -> Iterator[Stage]:
    with stage(forked=request.param) as lent:
        yield lent


def said_by(program: str, tmp_path: Path, here: Stage, *words: object) -> list[str]:
    script, out = tmp_path / "script.py", tmp_path / "said.txt"
    script.write_text(program)
    out.write_text("")
    environment = {**os.environ, "TMPDIR": str(tmp_path), "OF_THE_TEST": "1"}
    started = here.start(script, *words, out=out, environment=environment)
    assert started.wait(20) == 0, out.read_text()
    return out.read_text().splitlines()


def test_a_forked_program_finds_what_a_fresh_one_finds(tmp_path: Path) -> None:
    found: list[Any] = []
    numbers = set()
    for forked in (False, True, True):
        with stage(forked=forked) as here:
            look, number = said_by(LOOK, tmp_path, here, "a", 1)
        numbers.add(number)
        found.append(json.loads(look))
        found[-1]["environment"].pop(MARK, None)

    assert found[1] == found[0]
    assert found[2] == found[0]
    assert len(numbers) == 3


def test_what_a_program_says_and_complains_of_can_be_read_from_its_start_on(
    tmp_path: Path, here: Stage
) -> None:
    script, out, err = (tmp_path / name for name in ("script.py", "out", "err"))
    script.write_text("import sys; print('said'); sys.exit('complained')")

    program = here.start(script, out=out, err=err, environment=os.environ)

    assert out.exists()
    assert err.exists()
    assert program.wait(20) == 1
    assert (out.read_text(), err.read_text()) == ("said\n", "complained\n")


def test_an_exception_is_told_as_python_tells_it(tmp_path: Path, here: Stage) -> None:
    script, out = tmp_path / "script.py", tmp_path / "said.txt"
    hook = "sys.excepthook = lambda *found: (print('found', found[1]), sys.exit(4))"
    text = "import sys\n{}\nraise KeyError('mine')\n"
    for each, code in (("", 1), (hook, 4)):
        script.write_text(text.format(each))
        started = here.start(script, out=out, environment=dict(os.environ))
        assert started.wait(20) == code, out.read_text()

    plain, hooked = out.read_text().split("KeyError: 'mine'\n")
    assert plain.splitlines() == [
        "Traceback (most recent call last):",
        f'  File "{script}", line 3, in <module>',
        "    raise KeyError('mine')",
    ]
    assert hooked == "found 'mine'\n"


def test_it_is_said_how_a_program_ended(tmp_path: Path, here: Stage) -> None:
    codes = {
        "raise SystemExit": 0,
        "raise SystemExit(3)": 3,
        "raise SystemExit('sorry')": 1,
        "1 / 0": 1,
        "raise KeyboardInterrupt": -signal.SIGINT,
        "import os; os.kill(os.getpid(), 15)": -signal.SIGTERM,
        "import atexit, os; atexit.register(os._exit, 4)": 4,
        "import threading as t; t.Timer(0.1, print, ['late']).start()": 0,
        "import os; file = open(os.dup(1), 'w'); file.write('late')": 0,
    }
    out = tmp_path / "said.txt"
    for number, program in enumerate(codes):
        script = tmp_path / f"{number}.py"
        script.write_text(program)
        started = here.start(script, out=out, environment=dict(os.environ))
        assert started.wait(20) == codes[program], program
        assert started.poll() == started.returncode == codes[program]
    said = out.read_text()
    assert "sorry" in said
    assert "ZeroDivisionError" in said
    assert said.endswith("late\nlate")


def test_who_outlives_its_parent_is_found_and_ends_with_the_stage(tmp_path: Path) -> None:
    for forked in (False, True):
        with stage(forked=forked) as here:
            (pid,) = map(int, said_by(LEAVE, tmp_path, here))
            left = here.processes()
            assert [process.pid for process in left] == [pid]
        _, alive = psutil.wait_procs(left, timeout=1.0)
        assert [p for p in alive if p.status() != psutil.STATUS_ZOMBIE] == []


def test_a_test_that_is_killed_leaves_nothing_on_its_stage(tmp_path: Path) -> None:
    control = zygote().request()
    here = ForkedStage(control)
    script = tmp_path / "script.py"
    script.write_text("import time; time.sleep(600)")
    program = here.start(script, out=tmp_path / "said.txt", environment=dict(os.environ))
    watched = [psutil.Process(program.pid), *psutil.Process(program.pid).parents()[:1]]

    control.close()  # as the kernel does for one that is dead

    assert psutil.wait_procs(watched, timeout=20)[1] == []
