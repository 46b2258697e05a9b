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
import json
import os
import random
import re
import sys
import time
from collections import deque
from collections.abc import Callable, Container, Iterable, Iterator, Mapping
from itertools import islice
from pathlib import Path
from types import FrameType, SimpleNamespace
from typing import Any

import numpy as np
import torch

from pliant.engine.data.dataset_attributes import (
    Words,
    array_word,
    digest,
    shared_word,
    tensor_word,
    word_of,
)
from pliant.engine.local_tensors import is_sharded, local_of
from pliant.engine.state.kept_names import Names, loop_at
from pliant.engine.worker.script_files import is_own, text_of
from pliant.machine.processes import process_started

MAX_TENSORS = 500
"""Tensors and arrays that are looked at, in all: about 15 ms."""

FEW = 64
"""Numbers of a large tensor that are looked at."""

MAX_PARTS = 256
"""Elements of a container that are looked at."""

MAX_DEPTH = 3
"""Objects in objects: a trainer, what it has, what that has."""

UNKNOWN_AGE_S = 600.0
"""How long a process has lived, where that cannot be known."""

INSTEAD = (
    "what a tail changes reaches a joiner in extra_state= (objects with state_dict and "
    "load_state_dict), or is computed in the loop from step.index"
)

_NUMBERS = (bool, int, float, complex, np.generic, type(None))
_CONTAINERS = (dict, list, tuple, deque, set, frozenset)
_GENERATORS = (torch.Generator, random.Random, np.random.Generator, np.random.RandomState)
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
        look = _VariablesSeen([*self._known, *besides], self._began)
        for name, value in _script_variables():
            look.at(name, value, MAX_DEPTH)
        return look.found

    def loop(self) -> Names:
        """Return what the loop does with names whose head waits for this call."""
        for frame in _script_frames(inspect.currentframe()):
            if loop := loop_at(text_of(Path(frame.f_code.co_filename)), frame.f_lineno):
                return loop
        return Names()

    def generators(self) -> Words:
        """Return a word for each generator of random numbers that is not one of the global ones.

        Those of variables, and those that models and data sets hold, as far as that is seen.
        """
        found: Words = {}
        seen = {id(torch.default_generator)}
        for each in self._known:
            _find_generators(type(each).__name__, each, found, seen, MAX_DEPTH)
        for name, value in _script_variables():
            is_plain = isinstance(value, _GENERATORS) or _is_the_scripts(value)
            if is_plain and not name.startswith("__"):
                _find_generators(name, value, found, seen, MAX_DEPTH)
        return found


def pack(words: Words) -> bytes:
    """Return what another replica compares with its own."""
    return json.dumps(words).encode()


def unpack(packed: bytes) -> Words:
    """Return what ``pack`` made; nothing of what it did not make."""
    try:
        words = json.loads(packed)
    except ValueError:
        return {}
    return words if isinstance(words, dict) else {}


class _VariablesSeen:
    """One look: what was found, and what is not looked at again."""

    def __init__(
        self, known: Iterable[object], began: Iterable[tuple[Callable[[], float], float]]
    ) -> None:
        self.found: Words = {}
        self._tensors_left = MAX_TENSORS
        self._memory: set[int] = set()
        self._seen: set[int] = set()
        self._clocks = [(first, clock()) for clock, first in began]
        for each in known:
            self._pass_over(each)

    def at(self, path: str, value: object, depth: int) -> None:
        """Note a variable, or the attributes of an object of the script's."""
        name = path.rpartition(".")[2]
        if path in self.found or name == "_" or name.startswith("__") or id(value) in self._seen:
            return
        if isinstance(value, torch.nn.Module):
            words = words_of_modules(value, self._seen).items()
            self.found.update((f"{path}.{name}", word) for name, word in words)
        if _is_the_scripts(value):
            self._seen.add(id(value))
            for name, part in vars(value).items() if depth else ():
                self.at(f"{path}.{name}", part, depth - 1)
        elif (word := self._word(value)) and self._tensors_left > 0:
            self.found[path] = word

    def _pass_over(self, known: object) -> None:
        self._seen.add(id(known))
        if isinstance(known, torch.nn.Module):
            self._seen.update(map(id, known.modules()))
            self._memory.update(map(_memory_of, _tensors_of(known)))

    def _is_of_a_clock(self, value: object) -> bool:
        """Whether a number may have been read from a clock since this process began."""
        if not isinstance(value, float):
            return False
        return any(began <= value <= now for began, now in self._clocks)

    def _word(self, value: Any, depth: int = MAX_DEPTH) -> str:
        """Return a value in a word; empty: nothing that can be compared is in it."""
        if id(value) in self._seen:
            return ""
        if isinstance(value, _NUMBERS):
            return "" if self._is_of_a_clock(value) else word_of(value)
        if isinstance(value, str):
            return "" if _OF_ONE_PROCESS.search(value) else digest("text", [value])
        if isinstance(value, torch.Tensor):
            self._tensors_left -= 1
            is_known = is_sharded(value) or _memory_of(value) in self._memory
            return "" if is_known else _word_of_tensor(value)
        if isinstance(value, np.ndarray):
            self._tensors_left -= 1
            return array_word(value)
        if word := shared_word(value):
            return word
        state = _state_of(value)
        if state is None and isinstance(value, _CONTAINERS):
            state = _parts_of(value)
            kind = f"{type(value).__name__} of {len(value)}"
        else:
            kind = type(value).__qualname__
        if state is None or not depth:
            return ""
        words = [
            self._word(part, depth - 1)
            for part in islice(state, MAX_PARTS if isinstance(value, _CONTAINERS) else None)
            if self._tensors_left > 0
        ]
        return digest(kind, words) if any(words) or not words else ""


def words_of_modules(model: torch.nn.Module, passed_over: Container[int] = ()) -> Words:
    """Return a word for each plain value among the attributes of the modules."""
    return {
        f"{path}.{name}" if path else name: word_of(value)
        for path, module in model.named_modules()
        for name, value in vars(module).items()
        if isinstance(value, _PLAIN)
        and name not in _OF_ALL_MODULES
        and id(module) not in passed_over
    }


def _script_variables() -> Iterator[tuple[str, object]]:
    for frame in _script_frames(inspect.currentframe()):
        yield from (*frame.f_locals.items(), *frame.f_globals.items())


def _find_generators(path: str, value: object, found: Words, seen: set[int], depth: int) -> None:
    """Note the generators that an object has, or its parts."""
    if id(value) in seen:
        return
    seen.add(id(value))
    if isinstance(value, _GENERATORS):
        found.setdefault(path, digest("", [repr(_state_of_generator(value))]))
    elif depth and not isinstance(value, type | torch.Tensor):
        parts = value.named_modules() if isinstance(value, torch.nn.Module) else ()
        for name, part in (*parts, *getattr(value, "__dict__", {}).items()):
            if not isinstance(part, _NUMBERS + _CONTAINERS):
                _find_generators(f"{path}.{name}" if name else path, part, found, seen, depth - 1)


def _state_of_generator(value: Any) -> object:
    if isinstance(value, torch.Generator):
        return value.get_state().tolist()
    if isinstance(value, random.SystemRandom):
        return None  # it has none
    if isinstance(value, random.Random):
        return value.getstate()
    if isinstance(value, np.random.RandomState):
        return value.get_state(legacy=False)
    return value.bit_generator.state


def _script_frames(frame: FrameType | None) -> Iterator[FrameType]:
    """Iterate over the script's functions that wait for this one, innermost first."""
    while frame is not None:
        if is_own(frame.f_code.co_filename):
            yield frame
        frame = frame.f_back


def _is_the_scripts(value: object) -> bool:
    """Whether an object's class was defined by the script, and has attributes to look at."""
    if isinstance(value, torch.nn.Module | torch.optim.Optimizer | type | torch.Tensor):
        return False
    if isinstance(value, _CONTAINERS) or not hasattr(value, "__dict__"):
        return False
    if isinstance(value, _NAMESPACES):
        return True
    module = sys.modules.get(type(value).__module__)
    return is_own(getattr(module, "__file__", None) or "")


def _state_of(value: Any) -> Iterator[Any] | None:
    """Iterate over what an object of a kind that trains has in memory; None of other kinds."""
    if isinstance(value, torch.nn.Module):
        return iter(_tensors_of(value))
    if isinstance(value, torch.optim.Optimizer):
        return _of_optimizer(value)
    if isinstance(value, _GENERATORS):
        return iter([_number_of(_state_of_generator(value))])
    return None


def _number_of(state: object) -> int:
    """Return a number that stands for a state of a generator."""
    return int.from_bytes(digest("", [repr(state)]).encode(), "big")


def _of_optimizer(optimizer: torch.optim.Optimizer) -> Iterator[Any]:
    for group in optimizer.param_groups:
        yield [value for key, value in group.items() if key != "params"]
        for parameter in group["params"]:
            yield from optimizer.state.get(parameter, {}).values()


def _parts_of(value: Any) -> Iterator[Any]:
    if isinstance(value, set | frozenset):
        kinds = (bool | int | float, str)
        return (part for kind in kinds for part in sorted(p for p in value if isinstance(p, kind)))
    if isinstance(value, Mapping):
        pairs = list(value.items())
        return (part for key, each in pairs for part in (key, each)[isinstance(key, str) :])
    return iter(list(value))


def _tensors_of(module: torch.nn.Module) -> list[torch.Tensor]:
    return [*module.parameters(), *module.buffers()]


def _word_of_tensor(tensor: torch.Tensor) -> str:
    """Return a digest of a few of its numbers, far apart: 20 us, for survivors wait for it."""
    is_plain = tensor.layout is torch.strided and tensor.is_contiguous()
    if not is_plain or tensor.numel() <= FEW or tensor.device.type != "cpu" or tensor.is_quantized:
        return tensor_word(tensor)
    few = tensor.detach().reshape(-1)[:: tensor.numel() // FEW].contiguous().view(torch.uint8)
    kind = f"tensor {str(tensor.dtype).removeprefix('torch.')} {tuple(tensor.shape)}"
    return digest(kind, [few.numpy().tobytes()])


def _memory_of(tensor: torch.Tensor) -> int:
    here = local_of(tensor)
    is_here = here.layout is torch.strided and here.numel() > 0
    return here.untyped_storage().data_ptr() if is_here else -1


def _age_s() -> float:
    """Return for how long this process has lived; clocks are asked by it."""
    started = process_started(os.getpid())
    if started is None:  # /proc is hidden
        return UNKNOWN_AGE_S
    return time.clock_gettime(time.CLOCK_BOOTTIME) - int(started) / os.sysconf("SC_CLK_TCK")
