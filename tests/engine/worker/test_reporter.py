"""A script that runs alone says as much as ``pliant run`` does: now and then, and at its end."""

from __future__ import annotations

import pytest

from pliant.engine.worker.reporter import Printer
from pliant.observe.prose import PROGRESS_S


def test_what_is_logged_at_every_step_is_told_now_and_then_and_at_the_end(
    capsys: pytest.CaptureFixture[str],
) -> None:
    now_s = 0.0
    printer = Printer(lambda: now_s)
    for step in range(26):
        printer.logged(step, {"loss": step / 2})
        if step == 7:
            printer.logged(step, {"val": 0.5})  # once, between two lines of the other
        now_s += PROGRESS_S / 10
    printer.closed()
    printer.closed()

    assert capsys.readouterr().out.splitlines() == [
        "step 0  loss 0",
        "step 7  val 0.5",
        "step 10  loss 5",
        "step 20  loss 10",
        "step 25  loss 12.5",
    ]


def test_what_is_logged_twice_in_a_step_that_is_told_is_told_twice(
    capsys: pytest.CaptureFixture[str],
) -> None:
    printer = Printer(lambda: 0.0)
    for value in (1.0, 2.0):
        printer.logged(0, {"loss": value})
    printer.closed()

    assert capsys.readouterr().out == "step 0  loss 1\nstep 0  loss 2\n"
