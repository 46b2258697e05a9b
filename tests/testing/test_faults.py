"""A plan of faults says who does what to itself, where and once."""

from __future__ import annotations

import signal
from collections.abc import Iterator

import pytest

from pliant.testing import faults


@pytest.fixture(autouse=True)
def clean() -> Iterator[None]:
    yield
    faults.install(None)


def test_a_plan_is_read_from_text() -> None:
    assert faults.parse(
        "r2@vote:7=SIGKILL, r3@transfer=hang:2.5,r1@tail:3+=raise,*@tail=lock:1"
    ) == (
        faults.Fault(replica="r2", point="vote", step=7, or_later=False, action="SIGKILL"),
        faults.Fault(replica="r3", point="transfer", action="hang:2.5"),
        faults.Fault(replica="r1", point="tail", step=3, action="raise"),
        faults.Fault(replica="*", point="tail", action="lock:1"),
    )


@pytest.mark.parametrize("text", ["r2", "r2@vote", "r2@vote:=SIGKILL", "@vote=raise", "r2@=raise"])
def test_a_malformed_plan_is_refused(text: str) -> None:
    with pytest.raises(ValueError, match=r"a fault looks like|unknown point"):
        faults.parse(text)


def test_an_unknown_point_or_action_is_refused() -> None:
    with pytest.raises(ValueError, match="unknown point 'vte'"):
        faults.parse("r2@vte=SIGKILL")
    with pytest.raises(ValueError, match="unknown action 'SIGKIL'"):
        faults.parse("r2@vote=SIGKIL")


def test_a_fault_happens_once_and_only_to_its_replica() -> None:
    faults.install_plan("r1@vote:1=raise,r2@commit=raise", replica="r1")
    hook = faults.installed
    assert hook is not None

    hook("vote", 0)
    with pytest.raises(faults.InjectedError, match="r1 at vote of step 1"):
        hook("vote", 1)
    hook("vote", 1)
    hook("commit", 1)


def test_a_signal_reaches_this_process() -> None:
    heard: list[int] = []
    before = signal.signal(signal.SIGUSR1, lambda number, frame: heard.append(number))
    try:
        faults.Fault(replica="r1", point="tail", action="SIGUSR1").happen()
    finally:
        signal.signal(signal.SIGUSR1, before)
    assert heard == [signal.SIGUSR1]
