"""Deterministic: settings of torch with which a device gives the same bits each time.

Owns that they are set, said in a sentence, and put back, and which of them every accelerator has.
Must not know a vendor's, nor who wants equal bits.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable
from dataclasses import dataclass
from functools import partial
from typing import Any

import torch
import torch.utils.deterministic

ERROR = 2
"""Of ``torch.set_deterministic_debug_mode``: what cannot give the same bits raises an error."""


@dataclass(frozen=True, slots=True)
class Setting:
    """One of them."""

    said: str
    """As a script would write it."""
    value: Any
    """That it is to have."""
    read: Callable[[], Any]
    write: Callable[[Any], object]


def attribute(owner: Any, name: str, value: Any, said: str) -> Setting:
    """Return a setting that is an attribute; ``said``: how its owner is called."""
    read, write = partial(getattr, owner, name), partial(setattr, owner, name)
    return Setting(f"{said}.{name}={value}", value, read, write)


def general() -> list[Setting]:
    """Return what is set for every accelerator."""
    import torch._inductor.config as inductor  # takes its time, as use_deterministic_algorithms

    found = []
    if hasattr(inductor, "deterministic"):  # else it measures which kernel is the fastest
        found.append(attribute(inductor, "deterministic", True, "torch._inductor.config"))
    if not torch.are_deterministic_algorithms_enabled():  # else the script has chosen
        memory = torch.utils.deterministic
        said = "torch.utils.deterministic"
        found.append(attribute(memory, "fill_uninitialized_memory", False, said))
    read, write = torch.get_deterministic_debug_mode, torch.set_deterministic_debug_mode
    return [Setting("torch.use_deterministic_algorithms(True)", ERROR, read, write), *found]


class Deterministic:
    """Of one session; ``begin`` once, ``end`` any number of times."""

    def __init__(self) -> None:
        self._before: list[tuple[Setting, Any]] = []

    def begin(self, settings: Iterable[Setting]) -> str:
        """Set what is otherwise; return what that was, in one sentence; empty: nothing."""
        for setting in settings:
            before = setting.read()
            if before != setting.value:
                self._before.append((setting, before))
                setting.write(setting.value)
        if not self._before:
            return ""
        said = ", ".join(setting.said for setting, _ in self._before)
        return f'until the session ends, reduction="exact" has set {said}'

    def end(self) -> None:
        """Put back what was there before."""
        while self._before:
            setting, before = self._before.pop()
            setting.write(before)
