"""A script that runs alone says as much as ``pliant run`` does: now and then, and at its end."""

from __future__ import annotations

from typing import Any

import pytest

from pliant.core.values import Incarnation, ReplicaId
from pliant.engine.worker.bootstrap import WorkerContext
from pliant.engine.worker.link import Link
from pliant.engine.worker.reporter import Printer, WireReporter
from pliant.observe.prose import PROGRESS_S
from pliant.wire.launch import Assignment
from pliant.wire.messages import Noted, Planned, Work


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


class Sent(Link):
    """Keeps what would be sent."""

    def __init__(self) -> None:
        self.sent: list[Any] = []

    def send(self, message: Any, *, urgent: bool = True) -> None:
        self.sent.append(message)


@pytest.mark.parametrize(("place", "workers"), [(0, 1), (0, 2), (1, 2)])
def test_of_several_workers_one_speaks_for_the_replica_and_all_for_themselves(
    place: int, workers: int
) -> None:
    replica, link = ReplicaId("r1"), Sent()
    assignment = Assignment(
        replica=replica,
        work=Work(job="j", command=("train.py",), cwd="/", out="/"),
        address="127.0.0.1",
        incarnation=Incarnation(1),
        place=place,
        workers_per_replica=workers,
    )
    reporter = WireReporter(WorkerContext(assignment, link))
    planned = Planned(
        replica=replica, num_slots=4, total_steps=9, num_samples=64, global_batch=8, micro_batch=2
    )

    reporter.planned(planned)
    reporter.logged(0, {"loss": 1.0})
    reporter.noted("a note")

    note = Noted(replica=replica, text="a note", worker=None if workers == 1 else place)
    assert link.sent[-1] == note
    assert (planned in link.sent) == (place == 0)
    assert len(link.sent) == (1 if place else 3)


def test_alone_a_lasting_note_is_said_again_at_the_end_once(
    capsys: pytest.CaptureFixture[str],
) -> None:
    printer = Printer()
    printer.noted("a note")
    printer.noted("'best' is 1 here", lasting=True)
    printer.noted("'best' is 2 here", lasting=True)
    capsys.readouterr()

    printer.closed()

    assert capsys.readouterr().err == "pliant: warning: 'best' is 1 here\n"
