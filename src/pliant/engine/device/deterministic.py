"""Deterministic: settings of torch with which a device gives the same bits each time.

Owns that they are set, said in a sentence, and put back, and which of them every accelerator has.
Must not know a vendor's, nor who wants equal bits.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable
from functools import partial
from typing import Any, NamedTuple

import torch
import torch.utils.deterministic

ERROR = 2
"""Of ``torch.set_deterministic_debug_mode``: what cannot give the same bits raises an error."""


class Setting(NamedTuple):
    """One of them: as a script would write it, what it is to be, and how to come by it."""

    said: str
    value: Any
    read: Callable[[], Any]
    write: Callable[[Any], object]


def attribute(owner: Any, name: str, value: Any, said: str) -> Setting:
    """Return a setting that is an attribute; ``said``: how its owner is called."""
    read, write = partial(getattr, owner, name), partial(setattr, owner, name)
    return Setting(f"{said}.{name}={value}", value, read, write)


def general() -> list[Setting]:
    """Return what is set for every accelerator."""
    import torch._inductor.config as inductor  # takes its time, as use_deterministic_algorithms

    read, write = torch.get_deterministic_debug_mode, torch.set_deterministic_debug_mode
    found = [Setting("torch.use_deterministic_algorithms(True)", ERROR, read, write)]
    if hasattr(inductor, "deterministic"):  # else it measures which kernel is the fastest
        found.append(attribute(inductor, "deterministic", True, "torch._inductor.config"))
    if not torch.are_deterministic_algorithms_enabled():  # else the script has chosen
        memory, said = torch.utils.deterministic, "torch.utils.deterministic"
        found.append(attribute(memory, "fill_uninitialized_memory", False, said))
    return found


class Deterministic:
    """Of one session; ``begin`` once, ``end`` any number of times."""

    def __init__(self) -> None:
        self._before: list[tuple[Setting, Any]] = []

    def begin(self, settings: Iterable[Setting]) -> str:
        """Set what is otherwise; return what that was, in one sentence; empty: nothing."""
        others = [(one, before) for one in settings if (before := one.read()) != one.value]
        self._before += others
        for setting, _ in others:
            setting.write(setting.value)
        said = ", ".join(setting.said for setting, _ in others)
        return said and f'until the session ends, reduction="exact" has set {said}'

    def end(self) -> None:
        """Put back what was there before."""
        while self._before:
            setting, before = self._before.pop()
            setting.write(before)
