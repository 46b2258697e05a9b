"""Who prints what happens does not end with its reader."""

from __future__ import annotations

import os
import sys
from typing import TextIO

import pytest
from rich.console import Console

from pliant.cli.printing import tolerate_closed_output


@pytest.mark.parametrize("way", ["stdout", "stderr", "rich"])
def test_what_nobody_reads_any_more_goes_nowhere(monkeypatch: pytest.MonkeyPatch, way: str) -> None:
    readers, pipes = zip(*(os.pipe() for _ in range(2)), strict=True)
    out, err = (os.fdopen(pipe, "w") for pipe in pipes)
    monkeypatch.setattr(sys, "stdout", out)
    monkeypatch.setattr(sys, "stderr", err)

    with out, err, tolerate_closed_output():
        say = {"stdout": sys.stdout.write, "stderr": sys.stderr.write, "rich": Console().print}[way]
        for stream in (sys.stdout, sys.stderr):
            stream.write("first\n")
            stream.flush()
        heard = [os.read(reader, 100) for reader in readers]
        for reader in readers:
            os.close(reader)
        for _ in range(3):
            say("more\n" * 10_000)

    assert heard == [b"first\n", b"first\n"]


def test_what_a_test_reads_is_left_as_it_is(capsys: pytest.CaptureFixture[str]) -> None:
    before: TextIO = sys.stdout

    with tolerate_closed_output():
        assert sys.stdout is before
        sys.stdout.write("heard\n")

    assert capsys.readouterr().out == "heard\n"
