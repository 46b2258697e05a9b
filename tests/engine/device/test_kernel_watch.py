"""A kernel that never ends is found while the main thread waits for it, and nothing else is."""

from __future__ import annotations

import threading
from collections.abc import Callable
from typing import Any

import pytest
import torch

from pliant.engine.device import kernel_watch
from pliant.engine.device.kernel_watch import KernelWatch

DEVICE = torch.device("meta")
DEADLINE_S = 30.0


class Stream:
    """Of a device that is at work; ``looked`` says how often somebody asked whether it still is."""

    def __init__(self, *, goes_on: bool) -> None:
        self.goes_on = goes_on
        self.looks = 0
        self.looked = threading.Event()

    def query(self) -> bool:
        return False

    def mark(self, _: object) -> Stream:
        mark = Stream(goes_on=self.goes_on)
        mark.query = self._is_reached  # type: ignore[method-assign]
        return mark

    def _is_reached(self) -> bool:
        self.looks += 1
        if self.looks > 3:
            self.looked.set()
        return self.goes_on


Watched = Callable[..., tuple[KernelWatch, list[str], threading.Event]]


@pytest.fixture
def watched(monkeypatch: pytest.MonkeyPatch) -> Watched:
    def make(stream: Any, limit_s: float = 0.2) -> tuple[KernelWatch, list[str], threading.Event]:
        monkeypatch.setattr(torch.accelerator, "current_stream", lambda _: stream)
        monkeypatch.setattr(kernel_watch, "_mark", stream.mark)
        said, ended = list[str](), threading.Event()

        def end(sentence: str) -> None:
            said.append(sentence)
            ended.set()

        return KernelWatch([DEVICE], end, name="sim:1", limit_s=limit_s), said, ended

    return make


def test_a_kernel_that_does_not_end_is_told_with_step_and_line(watched: Watched) -> None:
    watch, said, ended = watched(Stream(goes_on=False))
    watch.on_session()
    watch.on_step(7)

    assert ended.wait(DEADLINE_S)

    watch.on_end()
    (sentence,) = said
    assert sentence.startswith("sim:1 has not finished a kernel for 0.2 s, in or behind step 7 (")
    assert "test_kernel_watch.py, line " in sentence


def test_marks_that_are_reached_one_after_the_other_are_no_hang(watched: Watched) -> None:
    stream = Stream(goes_on=True)
    watch, said, _ = watched(stream)
    watch.on_session()

    assert stream.looked.wait(DEADLINE_S)

    watch.on_end()
    assert said == []


def test_what_is_announced_is_not_looked_at(
    watched: Watched, monkeypatch: pytest.MonkeyPatch
) -> None:
    stream = Stream(goes_on=False)
    watch, said, _ = watched(stream)
    rounds, over = list[None](), threading.Event()
    place = watch._place

    def count() -> Any:
        rounds.append(None)
        if len(rounds) > 2 * kernel_watch.LOOKS:
            over.set()
        return place()

    monkeypatch.setattr(watch, "_place", count)
    watch.busy(1000.0)
    watch.on_session()

    assert over.wait(DEADLINE_S)

    watch.on_end()
    assert (said, stream.looks) == ([], 0)
