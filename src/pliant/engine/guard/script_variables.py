"""Script variables: what the functions of a script keep beside the session's state, in words.

A tail that changes one (an annealed global, an average of the weights, a second model and its
optimizer, the patience of an early stop) changes it on those who run that tail; a joiner begins
with what the script made, and so does a run that goes on.  Owns which variables these are, and what
two replicas compare of them: variables of the functions that wait for the session, of their
modules, and attributes of objects whose class the script defines.  Must not know who compares with
whom, nor when that is told.

Not seen: variables that only a closure holds, what objects of installed packages keep.  What each
process has of its own is no difference: clock readings, texts that name a replica, host or device.
"""

from __future__ import annotations

import argparse
import inspect
import os
import re
import sys
import time
from collections.abc import Callable, Container, Iterable, Iterator
from functools import partial
from types import FrameType, SimpleNamespace
from typing import Any

import numpy as np
import torch

from pliant.engine import randomness
from pliant.engine.fingerprint import (
    CONTAINERS,
    SHOWN,
    Look,
    Words,
    digest,
    memory_of,
    shown,
    tensor_word,
)
from pliant.engine.local_tensors import is_sharded
from pliant.engine.script_files import callers, is_own
from pliant.machine.processes import process_started

FEW = 64
"""Numbers of a tensor that are looked at: 20 us, for survivors wait for it."""

UNKNOWN_AGE_S = 600.0
"""How long a process has lived, where that cannot be known."""

_NUMBERS = (bool, int, float, complex, np.generic, type(None))
_NAMESPACES = (argparse.Namespace, SimpleNamespace)
_PLAIN = (bool, int, float, str, type(None))
_OF_ALL_MODULES = frozenset(vars(torch.nn.Module()))
_OF_ONE_PROCESS = re.compile(rf"\br\d+\b|^(cuda|xpu|cpu):\d+$|\b{re.escape(os.uname().nodename)}\b")
_CLOCKS = (time.time, time.monotonic, time.perf_counter)


class ScriptVariables:
    """Of one replica's script."""

    def __init__(self, known: Iterable[object] = ()) -> None:
        """``known``: what travels, or is compared elsewhere."""
        self._known = list(known)
        age_s = _age_s()
        self._began = [(clock, clock() - age_s) for clock in _CLOCKS]
        """Clocks, and what they said when this process began: asking takes 10 ms here and there."""

    def words(self, besides: Iterable[object] = ()) -> Words:
        """Return a word for each variable but these; called inside a call of the script's."""
        look = _VariablesLook([*self._known, *besides], self._began)
        for name, value in _script_variables():
            look.note(name, value, look.depth)
        return look.found

    def generators(self) -> Words:
        """Return a word for each generator of random numbers that is not one of the global ones.

        Those of variables, and those that models and data sets hold, as far as that is seen.
        """
        found: Words = {}
        seen = {id(torch.default_generator)}
        for each in self._known:
            _find_generators(type(each).__name__, each, found, seen)
        for name, value in _script_variables():
            is_plain = isinstance(value, randomness.GENERATORS) or _is_the_scripts(value)
            if is_plain and not name.startswith("__"):
                _find_generators(name, value, found, seen)
        return found


class _VariablesLook(Look):
    """Objects of the script's are entered; the innermost variable of a name counts."""

    depth = 3
    has_names = False

    def __init__(
        self, known: Iterable[object], began: Iterable[tuple[Callable[[], float], float]]
    ) -> None:
        known = list(known)
        super().__init__(known)
        self._memory: set[int] = set()
        self._clocks = [(first, clock()) for clock, first in began]
        for each in known:
            if isinstance(each, torch.nn.Module):
                self.seen.update(map(id, each.modules()))
                self._memory.update(map(memory_of, _tensors_of(each)))

    def note(self, path: str, value: object, depth: int) -> None:
        name = path.rpartition(".")[2]
        if path in self.found or name == "_" or name.startswith("__") or id(value) in self.seen:
            return
        if isinstance(value, torch.nn.Module):
            words = words_of_modules(value, self.seen).items()
            self.found.update((f"{path}.{name}", word) for name, word in words)
        super().note(path, value, depth)

    def enters(self, value: object) -> bool:
        return _is_the_scripts(value)

    def rule(self, value: Any) -> str | None:
        if isinstance(value, str):
            return "" if _OF_ONE_PROCESS.search(value) else digest("text", [value])
        if isinstance(value, _NUMBERS):
            return "" if self._is_of_a_clock(value) else shown(value)
        if isinstance(value, torch.Tensor):
            is_known = is_sharded(value) or memory_of(value) in self._memory
            return "" if is_known else tensor_word(value, FEW)
        if isinstance(value, randomness.GENERATORS):
            return _word_of_generator(type(value).__qualname__, value)
        return "" if isinstance(value, (*SHOWN, partial)) else None

    def parts(self, value: Any) -> Iterable[Any] | None:
        if isinstance(value, torch.nn.Module):
            return _tensors_of(value)
        if isinstance(value, torch.optim.Optimizer):
            return _of_optimizer(value)
        return super().parts(value)

    def _is_of_a_clock(self, value: object) -> bool:
        """Whether a number may have been read from a clock since this process began."""
        return isinstance(value, float) and any(
            began <= value <= now for began, now in self._clocks
        )


def words_of_modules(model: torch.nn.Module, passed_over: Container[int] = ()) -> Words:
    """Return a word for each plain value among the attributes of the modules."""
    return {
        f"{path}.{name}" if path else name: shown(value)
        for path, module in model.named_modules()
        for name, value in vars(module).items()
        if isinstance(value, _PLAIN)
        and name not in _OF_ALL_MODULES
        and id(module) not in passed_over
    }


def _script_variables() -> Iterator[tuple[str, object]]:
    for frame in _script_frames():
        yield from (*frame.f_locals.items(), *frame.f_globals.items())


def _script_frames() -> Iterator[FrameType]:
    """Iterate over the script's functions that wait for this call, innermost first."""
    for frame in callers(inspect.currentframe()):
        if is_own(frame.f_code.co_filename):
            yield frame


def _find_generators(
    path: str, value: object, found: Words, seen: set[int], depth: int = 3
) -> None:
    """Note the generators that an object has, or its parts."""
    if id(value) in seen:
        return
    seen.add(id(value))
    if isinstance(value, randomness.GENERATORS):
        found.setdefault(path, _word_of_generator("", value))
    elif depth and not isinstance(value, type | torch.Tensor):
        parts = value.named_modules() if isinstance(value, torch.nn.Module) else ()
        for name, part in (*parts, *getattr(value, "__dict__", {}).items()):
            if not isinstance(part, _NUMBERS + CONTAINERS):
                _find_generators(f"{path}.{name}" if name else path, part, found, seen, depth - 1)


def _word_of_generator(kind: str, value: Any) -> str:
    state = randomness.state_of(value)
    return digest(kind, [repr(state.tolist() if isinstance(state, torch.Tensor) else state)])


def _is_the_scripts(value: object) -> bool:
    """Whether an object's class was defined by the script, and has attributes to look at."""
    if isinstance(value, torch.nn.Module | torch.optim.Optimizer | type | torch.Tensor):
        return False
    if isinstance(value, CONTAINERS) or not hasattr(value, "__dict__"):
        return False
    if isinstance(value, _NAMESPACES):
        return True
    module = sys.modules.get(type(value).__module__)
    return is_own(getattr(module, "__file__", None) or "")


def _of_optimizer(optimizer: torch.optim.Optimizer) -> Iterator[Any]:
    for group in optimizer.param_groups:
        yield [value for key, value in group.items() if key != "params"]
        for parameter in group["params"]:
            yield from optimizer.state.get(parameter, {}).values()


def _tensors_of(module: torch.nn.Module) -> list[torch.Tensor]:
    return [*module.parameters(), *module.buffers()]


def _age_s() -> float:
    """Return for how long this process has lived; clocks are asked by it."""
    started = process_started(os.getpid())
    if started is None:  # /proc is hidden
        return UNKNOWN_AGE_S
    return time.clock_gettime(time.CLOCK_BOOTTIME) - int(started) / os.sysconf("SC_CLK_TCK")
