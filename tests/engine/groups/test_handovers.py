"""While members meet the interpreter's lock changes hands sooner, and as usual afterwards."""

from __future__ import annotations

import sys
from collections.abc import Iterator

import pytest

from pliant.engine.groups.handovers import INTERVAL_S, quick_handovers

USUAL_S = 0.004


@pytest.fixture(autouse=True)
def usual() -> Iterator[None]:
    before = sys.getswitchinterval()
    sys.setswitchinterval(USUAL_S)
    yield
    sys.setswitchinterval(before)


def test_it_is_quick_until_the_last_meeting_has_ended() -> None:
    first, second = quick_handovers(), quick_handovers()
    with first:
        second.__enter__()
        assert sys.getswitchinterval() == pytest.approx(INTERVAL_S)
    assert sys.getswitchinterval() == pytest.approx(INTERVAL_S)
    second.__exit__(None, None, None)

    assert sys.getswitchinterval() == pytest.approx(USUAL_S)


def test_it_is_as_usual_after_a_meeting_that_failed() -> None:
    with pytest.raises(OSError, match="nobody"), quick_handovers():
        raise OSError("nobody")

    assert sys.getswitchinterval() == pytest.approx(USUAL_S)


@pytest.mark.parametrize("own_s", [0.001, INTERVAL_S / 2])
def test_what_the_script_sets_meanwhile_stays(own_s: float) -> None:
    with quick_handovers():
        sys.setswitchinterval(own_s)

    assert sys.getswitchinterval() == pytest.approx(own_s)


def test_a_script_that_wants_it_quicker_is_left_alone() -> None:
    sys.setswitchinterval(INTERVAL_S / 2)

    with quick_handovers():
        assert sys.getswitchinterval() == pytest.approx(INTERVAL_S / 2)
    assert sys.getswitchinterval() == pytest.approx(INTERVAL_S / 2)
