"""Script calls: lines of a plain loop that do harm, or nothing, in a loop over steps.

Owns three of them: a scheduler that the script steps, whose place in its schedule a joiner would
not have; functions of ``torch.nn.utils`` that clip where there is no gradient to clip; and an
optimizer that is made for the next phase, while the session goes on with the one it was given.
Must not know how a step is computed.  The session's own calls, and those of hooks in them, are none
of the script's.

A script that changes gradients by lines of its own finds ``None``: a method of it, or a
``_foreach`` function over no tensors, fails by itself; a loop over what is not None does nothing,
unseen.
"""

from __future__ import annotations

import functools
import gc
import warnings
import weakref
from collections.abc import Callable, Collection, Iterable, Iterator, Mapping
from contextlib import contextmanager
from functools import partial
from typing import Any

import torch
from torch.nn.utils import clip_grad
from torch.optim.lr_scheduler import LRScheduler

from pliant.core.errors import UsageError

_CLIPS = {
    "_clip_grads_with_norm_": ("clip_grad_norm_", "max_norm", "say Session(max_grad_norm={:g})"),
    "clip_grad_value_": (
        "clip_grad_value_",
        "clip_value",
        "let the optimizer do it before each of its steps: optimizer.register_step_pre_hook("
        "lambda *_: clip_grad_value_(model.parameters(), {:g}))",
    ),
}
"""Functions of torch: what scripts call them, the name of the bound, and what to do instead.

``clip_grad_norm_`` calls the first, and ``clip_grads_with_norm_`` is it."""

_BODY = "cell_contents"


class ScriptCalls:
    """Watches between ``open`` and ``close``, while the script's own code runs."""

    def __init__(
        self,
        parameters: Iterable[torch.Tensor],
        optimizers: Collection[torch.optim.Optimizer],
        schedulers: Collection[object],
        extra: Collection[Any] = (),
    ) -> None:
        """``extra``: what else travels; a scheduler among it is the script's own to step."""
        self._parameters = {id(parameter) for parameter in parameters}
        self._optimizers = {id(optimizer) for optimizer in optimizers}
        self._schedulers = {id(scheduler) for scheduler in schedulers}
        self._extra = list(extra)
        self._originals: list[tuple[Any, str, Callable[..., Any]]] = []
        self._idle: dict[int, weakref.ref[torch.optim.Optimizer]] = {}
        """Optimizers that the script has made since, over parameters here, and never stepped."""
        self._is_paused = False
        self.is_watching = False
        """The script is in a loop over steps, and the session is not at work."""

    def open(self) -> None:
        """Begin to watch."""
        for function, words in _CLIPS.items():
            self._replace(_cell(getattr(clip_grad, function)), _BODY, partial(self._clip, *words))
        self._watch_making()
        for kind in _kinds(LRScheduler):
            if "step" in vars(kind):
                self._replace(kind, "step", self._check_scheduler, call=_warning_the_caller)

    def close(self) -> None:
        """Let everything be as it was; a second call does nothing."""
        while self._originals:
            holder, name, original = self._originals.pop()
            setattr(holder, name, original)

    @contextmanager
    def paused(self) -> Iterator[None]:
        """Let the session do what the script may not."""
        before = self.is_watching, self._is_paused
        self.is_watching, self._is_paused = False, True
        try:
            yield
        finally:
            self.is_watching, self._is_paused = before

    def refuse_idle(self) -> None:
        """Refuse to go on beside an optimizer that the script made since, and does not use.

        Raises:
            UsageError: names its kind.
        """
        if not self._idle:
            return
        gc.collect()  # one that was thrown away may lie in a cycle, with a scheduler
        found, self._idle = [each() for each in self._idle.values()], {}
        for optimizer in found:
            if optimizer is not None:
                raise UsageError(
                    f"the script has made {type(optimizer).__name__} over the session's parameters "
                    "since it began, and the session goes on with the optimizer that it was given; "
                    "change the values of that one's groups for the next phase, or train it in a "
                    "run of its own (pliant run --init)"
                )

    def _forget_idle(self, key: int) -> None:
        self._idle.pop(key, None)

    def _watch_making(self) -> None:
        kind: Any = torch.optim.Optimizer
        make = kind.__init__

        @functools.wraps(make)
        def made(optimizer: torch.optim.Optimizer, *args: Any, **kwargs: Any) -> None:
            make(optimizer, *args, **kwargs)
            groups = optimizer.param_groups if not self._is_paused else []
            if any(id(one) in self._parameters for group in groups for one in group["params"]):
                key = id(optimizer)
                self._idle[key] = weakref.ref(optimizer)
                optimizer.register_step_pre_hook(lambda *_: self._forget_idle(key))

        self._originals.append((kind, "__init__", make))
        kind.__init__ = made

    def _replace(
        self,
        holder: Any,
        name: str,
        check: Callable[..., Any],
        call: Callable[..., Any] = lambda function, *args, **kwargs: function(*args, **kwargs),
    ) -> None:
        original = getattr(holder, name)

        @functools.wraps(original)
        def checked(*args: Any, **kwargs: Any) -> Any:
            if self.is_watching and (read := check(*args, **kwargs)):
                args = read
                kwargs.pop("parameters", None)
            return call(original, *args, **kwargs)

        self._originals.append((holder, name, original))
        setattr(holder, name, checked)

    def _clip(
        self, name: str, bound: str, instead: str, parameters: Any = None, *args: Any, **more: Any
    ) -> tuple[Any, ...]:
        """Refuse a call that clips nothing; return its arguments, read if they were a generator."""
        given = [parameters] if isinstance(parameters, torch.Tensor) else list(parameters)
        own = [parameter for parameter in given if id(parameter) in self._parameters]
        if own and all(parameter.grad is None for parameter in own):
            value = float(more[bound] if bound in more else args[0])
            raise UsageError(
                f"{name} was called where the model has no gradients, so it clips nothing; "
                + instead.format(value)
            )
        return given, *args

    def _travels(self, scheduler: Any) -> bool:
        """Whether it is among ``extra_state``, or an object there holds it and says where it is."""
        said = None
        for part in self._extra:
            if part is scheduler:
                return True
            if any(held is scheduler for held in _held(part)):
                said = scheduler.state_dict() if said is None else said
                if any(each == said for each in _mappings(part.state_dict())):
                    return True
        return False

    def _check_scheduler(self, scheduler: Any, *_: Any, **__: Any) -> None:
        if id(scheduler) in self._schedulers:
            raise UsageError(
                "scheduler.step() was called by the script; the session steps its schedulers with "
                "each optimizer step"
            )
        is_own = id(getattr(scheduler, "optimizer", None)) in self._optimizers
        is_own = is_own and not self._travels(scheduler)
        if is_own and not getattr(scheduler, "_is_initial", False):  # it is not just being made
            raise UsageError(
                f"{type(scheduler).__name__}.step() was called in a loop over steps on a scheduler "
                "that the session was not given, and a joiner would not know of it; say "
                "Session(scheduler=...), which steps it with each optimizer step, or step it "
                "between two calls of steps()"
            )


def _warning_the_caller(function: Callable[..., Any], *args: Any, **kwargs: Any) -> Any:
    """Call what warns of the line that calls it: that one is the script's, and not here.

    ``catch_warnings`` would make Python forget of every line that it has warned already.
    """
    here: list[tuple[Warning | str, type[Warning]]] = []
    show = warnings.showwarning

    def shown(message: Any, category: Any, filename: Any, lineno: int, *more: Any) -> None:
        if filename == __file__:
            here.append((message, category))
        else:
            show(message, category, filename, lineno, *more)

    warnings.showwarning = shown  # type: ignore[assignment]  # file and line may be left out
    try:
        result = function(*args, **kwargs)
    finally:
        warnings.showwarning = show
    for message, category in here:
        warnings.warn(message, category, stacklevel=3)
    return result


def _held(part: Any, depth: int = 3) -> Iterator[Any]:
    """Iterate over what an object holds, and what that holds."""
    if isinstance(part, Mapping):
        parts = list(part.values())
    elif isinstance(part, list | tuple):
        parts = list(part)
    else:
        parts = list(getattr(part, "__dict__", {}).values())
    for each in parts:
        yield each
        if depth and not isinstance(each, torch.Tensor | torch.nn.Module):
            yield from _held(each, depth - 1)


def _mappings(state: Any) -> Iterator[Mapping[Any, Any]]:
    """Iterate over the mappings in what a ``state_dict`` returned."""
    if isinstance(state, Mapping):
        yield state
        for part in state.values():
            yield from _mappings(part)
    elif isinstance(state, list | tuple):
        for part in state:
            yield from _mappings(part)


def _cell(function: Any) -> Any:
    """Return where torch's decorator keeps the function that it wraps, under whatever name."""
    return next(cell for cell in function.__closure__ if callable(cell.cell_contents))


def _kinds(kind: type[LRScheduler]) -> set[type[LRScheduler]]:
    return {kind}.union(*map(_kinds, kind.__subclasses__()))
