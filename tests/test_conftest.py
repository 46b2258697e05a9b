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
from tests import conftest, tiers

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


def test_what_may_take_longest_runs_first(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(tiers, "read_durations", lambda: {"known": 10.0, "quick": 0.5})
    limits = {"new": 40, "known": 20, "quick": 90, "patient": 240, "other": None, "third": 40}
    items: list[Any] = [
        SimpleNamespace(
            nodeid=name,
            add_marker=lambda _: None,
            get_closest_marker=lambda _, s=limit: s and pytest.mark.timeout(s).mark,
        )
        for name, limit in limits.items()
    ]

    conftest.pytest_collection_modifyitems(items)

    order = [item.nodeid for item in items]
    assert order == ["patient", "known", "new", "third", "quick", "other"]


def test_only_the_quickest_case_of_a_mechanism_is_not_slow(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(
        tiers, "tests_of_mechanisms", lambda: {"a kill": "tests/test_a.py::test_kill"}
    )
    took_s = {
        "tests/test_a.py::test_kill[early]": 9.0,
        "tests/test_a.py::test_kill[late]": 7.0,
        "tests/test_a.py::test_kill[never]": 1.0,
        "tests/test_a.py::test_other": 2.5,
        "tests/test_house.py::test_rule": 6.0,
    }
    nodes = [*took_s, "tests/test_a.py::test_new"]

    assert tiers.slow_tests(nodes, took_s) == {
        *("tests/test_a.py::test_kill[early]", "tests/test_a.py::test_kill[late]"),
        "tests/test_a.py::test_other",
    }


def test_what_was_recorded_is_read_again(tmp_path: Path) -> None:
    path = tmp_path / "durations.txt"

    tiers.write_durations({"tests/a.py::t[x y]": 3.25, "tests/a.py::quick": 0.1}, path)

    assert tiers.read_durations(path) == {"tests/a.py::t[x y]": 3.2}
    assert tiers.read_durations(tmp_path / "none") == {}


@pytest.mark.parametrize(("mechanism", "test"), sorted(tiers.tests_of_mechanisms().items()))
def test_each_mechanism_names_a_test_that_is_there(mechanism: str, test: str) -> None:
    path, function = test.split("::")

    assert f"def {function}(" in (tiers.TESTS.parent / path).read_text(), mechanism
