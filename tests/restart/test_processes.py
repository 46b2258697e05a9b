"""What is known of a process of a script once it has ended."""

from __future__ import annotations

import json
import subprocess
import sys
from pathlib import Path
from typing import Any

import pytest

from pliant.restart.output import ERR, Logs, Output
from pliant.restart.page import Page
from pliant.restart.processes import Process, arguments_of

PRINTED = b"""[rank0]: warning
Traceback (most recent call last):
  File "train.py", line 3, in <module>
    main()
ValueError: no such sample
shutting down
"""


def process(directory: Path, *, tail: bytes = b"", error: Any = None) -> Process:
    file = directory / "error.json"
    if error is not None:
        file.write_text(json.dumps(error))
    page = Page(directory / "page", is_new=True)
    popen = subprocess.Popen(["printf", "%s", tail.decode()], stdout=subprocess.PIPE)
    popen.wait()
    assert popen.stdout is not None
    told = {"LOCAL_RANK": "0", "RANK": "0", "ROLE_NAME": "default"}
    output = Output(popen.stdout, ERR, Logs(directory=directory, redirects="3"), told)
    output.close()
    found = Process(0, popen, -1, [output], file, page)
    found.code = 1
    return found


def test_the_last_line_of_a_traceback_says_what_was_wrong(tmp_path: Path) -> None:
    last, traceback = process(tmp_path, tail=PRINTED).error()

    assert last == "ValueError: no such sample"
    assert traceback.endswith("    main()\nValueError: no such sample\n")


def test_what_torch_has_recorded_says_more(tmp_path: Path) -> None:
    said = {"message": "OSError: gone", "extraInfo": {"py_callstack": "Traceback ...", "t": 1}}
    found = process(tmp_path, tail=PRINTED, error={"message": said})

    assert found.error() == ("OSError: gone", "Traceback ...")


@pytest.mark.parametrize("error", [None, [], {"message": None}, {"other": 1}])
def test_a_file_of_another_shape_is_left_alone(tmp_path: Path, error: Any) -> None:
    assert process(tmp_path, tail=PRINTED, error=error).error()[0] != ""


def test_nothing_is_said_of_a_process_that_said_nothing(tmp_path: Path) -> None:
    assert process(tmp_path).error() == ("", "")
    assert process(tmp_path, tail=b"killed\n").error() == ("", "")


def test_a_script_a_module_and_a_program_are_executed() -> None:
    assert arguments_of(["train.py", "--lr", "1"]) == [
        sys.executable,
        "-u",
        "train.py",
        "--lr",
        "1",
    ]
    assert arguments_of(["-m", "pkg.train"]) == [sys.executable, "-u", "-m", "pkg.train"]
    assert arguments_of(["--no-python", "bash", "-c", "x"]) == ["bash", "-c", "x"]
