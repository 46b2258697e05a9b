"""Who prints what happens neither ends with its reader nor waits for it."""

from __future__ import annotations

import os
import sys
import threading
from typing import TextIO

import pytest
from rich.console import Console

from pliant.cli import patient_output as output
from pliant.cli.patient_output import patient_output


@pytest.mark.parametrize("way", ["stdout", "stderr", "rich"])
def test_what_nobody_reads_any_more_goes_nowhere(monkeypatch: pytest.MonkeyPatch, way: str) -> None:
    readers, pipes = zip(*(os.pipe() for _ in range(2)), strict=True)
    out, err = (os.fdopen(pipe, "w") for pipe in pipes)
    monkeypatch.setattr(sys, "stdout", out)
    monkeypatch.setattr(sys, "stderr", err)

    with out, err, patient_output():
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

    with patient_output():
        assert sys.stdout is before
        sys.stdout.write("heard\n")

    assert capsys.readouterr().out == "heard\n"


def test_nobody_waits_for_a_reader_that_has_stopped_and_it_gets_everything_later(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    reader, pipe = os.pipe()
    said = b"".join(b"line %d\n" % number for number in range(40_000))  # a pipe holds 64 kB
    heard: list[bytes] = []

    def read_on() -> None:
        while data := os.read(reader, 1 << 16):
            heard.append(data)

    reading = threading.Thread(target=read_on)
    with os.fdopen(pipe, "w") as out:
        monkeypatch.setattr(sys, "stdout", out)
        with patient_output():
            for line in said.decode().splitlines(keepends=True):
                sys.stdout.write(line)
            sys.stdout.flush()
            reading.start()
    reading.join()

    assert b"".join(heard) == said


def test_what_is_too_much_to_keep_is_left_out_and_that_is_told(
    monkeypatch: pytest.MonkeyPatch, capfd: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.setattr(output, "MAX_HELD_BYTES", 10)

    with patient_output():
        sys.stdout.write("too long for it\n")
        sys.stdout.flush()

    said = capfd.readouterr()
    assert said.out == ""
    assert said.err.startswith("pliant: 1 pieces of output were left out")
