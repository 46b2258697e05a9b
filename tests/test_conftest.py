"""What a run of the tests owes to whoever ends it."""

from __future__ import annotations

import os
import signal
import subprocess
import sys
import time
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import psutil
import pytest
from tests import conftest

pytestmark = [pytest.mark.processes, pytest.mark.timeout(40)]

A_TEST_THAT_STARTS_A_PROCESS = """
import subprocess
from contextlib import contextmanager
from pathlib import Path

import pytest

@contextmanager
def sleeping(path):
    child = subprocess.Popen(["sleep", "600"], start_new_session=True)
    path.write_text(str(child.pid))
    try:
        yield child
    finally:
        child.kill()
        child.wait()

@pytest.fixture(scope="module")
def first():
    with sleeping(Path("first")):
        yield

def test_it(first):
    with sleeping(Path("second")) as child:
        child.wait()
"""


def test_a_run_that_is_told_to_end_ends_what_its_tests_have_started(tmp_path: Path) -> None:
    (tmp_path / "test_it.py").write_text(A_TEST_THAT_STARTS_A_PROCESS)
    root = Path(__file__).parents[1]
    run = subprocess.Popen(
        [sys.executable, "-m", "pytest", "-q", "-p", "tests.conftest", "-p", "no:cacheprovider"],
        cwd=tmp_path,
        env={**os.environ, "PYTHONPATH": f"{root / 'src'}:{root}"},
        stdout=subprocess.PIPE,
        text=True,
    )
    with run:
        try:
            while not (tmp_path / "second").is_file():
                assert run.poll() is None
                time.sleep(0.02)
            for _ in range(2):  # as timeout does
                run.send_signal(signal.SIGTERM)
            code = run.wait(20)
        finally:
            run.kill()
    pids = [int((tmp_path / name).read_text()) for name in ("first", "second")]
    left = [pid for pid in pids if psutil.pid_exists(pid)]
    for pid in left:
        os.kill(pid, signal.SIGKILL)

    assert left == []
    assert code == pytest.ExitCode.INTERRUPTED


@pytest.mark.parametrize("drawn", [(90, None, 240, 90), (None, 240, 90, None)])
def test_what_may_take_longest_runs_first(drawn: tuple[int | None, ...]) -> None:
    marks = [limit and pytest.mark.timeout(limit).mark for limit in drawn]
    items: list[Any] = [SimpleNamespace(get_closest_marker=lambda _, m=m: m) for m in marks]
    equal = [item for item, limit in zip(items, drawn, strict=True) if drawn.count(limit) > 1]

    conftest.pytest_collection_modifyitems(items)

    limits = [mark.args[0] if (mark := item.get_closest_marker("")) else 0 for item in items]
    assert limits == sorted(limits, reverse=True)
    assert [item for item in items if item in equal] == equal
