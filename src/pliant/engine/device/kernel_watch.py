"""Kernel watch: whether this worker's devices finish what is queued on them.

Owns the one thread that looks, and from when on a kernel counts as one that never ends.  Must not
know what is trained, nor how the process ends then.

The main thread does nothing for it.  A device is asked only once that thread has stood still at one
instruction for a while: it waits, or a graph would be captured, which forbids to ask.  Then a mark
goes behind all that is queued; nobody waits for it.  What may go on for long is announced.

Where so much is queued that nothing more can be, torch waits for room with the interpreter's lock
held: then nobody here sees it, and the job ends the worker as one that hangs.
"""

from __future__ import annotations

import sys
import threading
import time
from collections.abc import Callable, Iterable
from pathlib import Path
from typing import Any

import torch

from pliant.engine import script_files

LOOKS = 30
"""In the time that a kernel may take."""

STILL = 0.25
"""Part of that time for which the main thread has stood still before a device is asked."""

_WAITING = (str(Path(__file__).parents[1]), threading.__file__)
"""Whose frames change while they wait: they look up now and then."""


class KernelWatch:
    """See the module's text; a guard of the session (``guard.base``)."""

    def __init__(
        self,
        devices: Iterable[torch.device],
        end: Callable[[str], None],
        *,
        name: str,
        limit_s: float,
    ) -> None:
        """``end`` takes the sentence; ``name``: what people call the device, if it has one.

        ``limit_s``: how long a kernel may take that nobody has announced.
        """
        self._devices = sorted(devices, key=str)
        self._end = end
        self._name = name or ", ".join(map(str, self._devices))
        self._limit_s = limit_s
        self._streams: list[torch.Stream] = []
        self._step: int | None = None
        self._busy_until_s = 0.0
        self._closed = threading.Event()

    def on_session(self) -> None:
        """Begin to look; called, as the rest, on the main thread."""
        self._streams = [torch.accelerator.current_stream(one) for one in self._devices]
        self._main = threading.get_ident()
        threading.Thread(target=self._run, name="kernels", daemon=True).start()

    def on_step(self, step: int) -> None:
        """Take note where the script has come to, and on which streams it computes."""
        self._step = step
        self._streams = [torch.accelerator.current_stream(one) for one in self._devices]

    def on_end(self) -> None:
        """Look no more."""
        self._closed.set()

    def busy(self, max_s: float) -> None:
        """Look away for so long."""
        self._busy_until_s = time.monotonic() + max_s

    def _run(self) -> None:
        place: tuple[int, int] | None = None
        since_s, marks = 0.0, list[Any]()
        while not self._closed.wait(self._limit_s / LOOKS):
            now_s, before, place = time.monotonic(), place, self._place()
            if place != before or now_s < self._busy_until_s:
                since_s, marks = now_s, []
            elif now_s - since_s > self._limit_s * STILL:
                try:
                    marks = marks or [_mark(one) for one in self._streams if not one.query()]
                    is_going_on = not marks or any(mark.query() for mark in marks)
                except RuntimeError:  # it has failed: the main thread is about to find out
                    return
                if is_going_on:
                    since_s, marks = now_s, []
                elif now_s - since_s > self._limit_s:
                    self._end(self._sentence())
                    return

    def _place(self) -> tuple[int, int] | None:
        """Return at which instruction the main thread is, of what is not the engine that waits."""
        frame = sys._current_frames().get(self._main)  # noqa: SLF001  # no other way
        while frame is not None and frame.f_code.co_filename.startswith(_WAITING):
            frame = frame.f_back
        return None if frame is None else (id(frame), frame.f_lasti)

    def _sentence(self) -> str:
        frame = sys._current_frames().get(self._main)  # noqa: SLF001
        step = "" if self._step is None else f", in or behind step {self._step}"
        return (
            f"{self._name} has not finished a kernel for {self._limit_s:g} s{step}"
            f"{script_files.at(script_files.place_of_call(frame))}; announce what takes longer "
            "with session.busy(max_s)"
        )


def _mark(stream: torch.Stream) -> torch.Event:
    event = torch.Event(stream.device)
    event.record(stream)
    return event
