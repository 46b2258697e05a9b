"""Script calls: lines of a plain loop that do harm, or nothing, in a loop over steps.

Owns four of them: a scheduler that the script steps, whose place in its schedule a joiner would
not have; functions of ``torch.nn.utils`` that clip where there is no gradient to clip; an optimizer
that is made for the next phase, while the session goes on with the one it was given; and data from
a DataLoader of the script's own, whose iterator goes on from where its replica left it, so that it
gives each replica something else, and no ledger knows of it.  Must not know how a step is computed.
The session's own calls, and those of hooks in them, are none of the script's.

Not seen: gradients that are changed by lines of the script's own, which find ``None``; data that
come in other ways (a queue, a generator, ``dataset[i]`` by an own order).
"""

from __future__ import annotations

import functools
import gc
import threading
import warnings
import weakref
from collections.abc import Callable, Collection, Iterable, Iterator, Mapping
from contextlib import ExitStack
from functools import partial
from typing import Any
from weakref import WeakKeyDictionary

import torch
from torch.nn.utils import clip_grad
from torch.optim.lr_scheduler import LRScheduler
from torch.utils.data import DataLoader
from torch.utils.data.dataloader import _BaseDataLoaderIter

from pliant.core.errors import UsageError
from pliant.engine.fingerprint import walk

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
    """Watches while the script's own code runs."""

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
        self._undo = ExitStack()
        self._idle: dict[int, weakref.ref[torch.optim.Optimizer]] = {}
        """Optimizers that the script has made since, over parameters here, and never stepped."""
        self._num_works = 0
        """The session is at work, so many times over."""
        self._is_inside = False
        """The script is in a loop over steps."""

    def on_session(self) -> None:
        """Begin to watch."""
        for function, words in _CLIPS.items():
            self._replace(_cell(getattr(clip_grad, function)), _BODY, partial(self._clip, *words))
        self._watch_making()
        for kind in _kinds(LRScheduler):
            if "step" in vars(kind):
                self._replace(kind, "step", self._check_scheduler, call=_warning_the_caller)

    def on_boundary(self) -> None:
        """Let the session do what it does between two steps."""
        self._is_inside = False

    def on_head(self, step: int | None) -> None:
        """Watch while the script is in steps."""
        self._is_inside = step is not None

    def on_work(self, begins: bool) -> None:
        """Let the session do what the script may not."""
        self._num_works += 1 if begins else -1

    def on_end(self) -> None:
        """Let everything be as it was; a second call does nothing."""
        self._undo.close()

    def on_step(self, step: int) -> None:
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
            groups = optimizer.param_groups if not self._num_works else []
            if any(id(one) in self._parameters for group in groups for one in group["params"]):
                key = id(optimizer)
                self._idle[key] = weakref.ref(optimizer)
                optimizer.register_step_pre_hook(lambda *_: self._forget_idle(key))

        _put(self._undo, kind, "__init__", made)

    def _replace(
        self,
        holder: Any,
        name: str,
        check: Callable[..., Any],
        call: Callable[..., Any] | None = None,
    ) -> None:
        original = getattr(holder, name)
        run = original if call is None else partial(call, original)

        @functools.wraps(original)
        def checked(*args: Any, **kwargs: Any) -> Any:
            if self._is_inside and not self._num_works and (read := check(*args, **kwargs)):
                args = read
                kwargs.pop("parameters", None)
            return run(*args, **kwargs)

        _put(self._undo, holder, name, checked)

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
            if any(held is scheduler for _, held in walk(part, depth=4)):
                said = scheduler.state_dict() if said is None else said
                kept = walk(part.state_dict(), objects=False)
                if any(isinstance(each, Mapping) and each == said for _, each in kept):
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


def _put(undo: ExitStack, holder: Any, name: str, function: Callable[..., Any]) -> None:
    """Replace a function until ``undo`` is closed."""
    undo.callback(setattr, holder, name, getattr(holder, name))
    setattr(holder, name, function)


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


def _cell(function: Any) -> Any:
    """Return where torch's decorator keeps the function that it wraps, under whatever name."""
    return next(cell for cell in function.__closure__ if callable(cell.cell_contents))


def _kinds(kind: type[LRScheduler]) -> set[type[LRScheduler]]:
    return {kind}.union(*map(_kinds, kind.__subclasses__()))


_TRAIN_ON = (
    "train on what `for batch in step:` gives (a session's dataset=, collate_fn= and num_workers= "
    "do what a DataLoader does)"
)


_iterate = DataLoader.__iter__
"""As torch has it: a watch puts another in its place."""


def has_own_iterator(loader: DataLoader[Any]) -> bool:
    """Whether a loader iterates otherwise than every DataLoader does."""
    return type(loader).__iter__ not in (_iterate, DataLoader.__iter__)


class OtherLoaders:
    """Watches every DataLoader of this process, from the head of a step to its commit."""

    def __init__(self, dataset: object) -> None:
        self._dataset = dataset
        self._undo = ExitStack()
        self._thread = 0
        self._visits = 0
        """Heads of steps and micro-batches that the script has entered."""
        self._step, self._is_head = -1, False
        """The step that the script is in; -1: it is elsewhere."""
        self._made: WeakKeyDictionary[object, tuple[int, bool]] = WeakKeyDictionary()
        """Iterators: in which visit each was made, and whether it is over the session's dataset."""

    def on_head(self, step: int | None) -> None:
        """From now on the script is in the head of a step."""
        if step is not None:
            self._step, self._is_head, self._visits = step, True, self._visits + 1

    def on_given(self, step: int) -> None:
        """From now on the script computes a micro-batch."""
        self._step, self._is_head, self._visits = step, False, self._visits + 1

    def on_batch(self, step: int) -> None:
        """From now on anything may be drawn."""
        self._step = -1

    def on_session(self) -> None:
        """Begin to watch."""
        make, draw = DataLoader.__iter__, _BaseDataLoaderIter.__next__
        self._thread = threading.get_ident()

        def made(loader: DataLoader[Any]) -> Iterator[Any]:
            iterator: Iterator[Any] = make(loader)
            visit = self._visits if self._step >= 0 else 0
            self._made[iterator] = visit, loader.dataset is self._dataset
            return iterator

        def drawn(iterator: _BaseDataLoaderIter) -> Any:
            if self._step >= 0 and threading.get_ident() == self._thread:
                self._check(iterator)
            return draw(iterator)

        _put(self._undo, DataLoader, "__iter__", made)
        _put(self._undo, _BaseDataLoaderIter, "__next__", drawn)

    def on_end(self) -> None:
        """Let every DataLoader be as it was; a second call does nothing."""
        self._undo.close()

    def _check(self, iterator: _BaseDataLoaderIter) -> None:
        visit, is_own = self._made.get(iterator, (0, False))
        if visit != self._visits:
            place = f"{'' if self._is_head else 'this micro-batch of '}step {self._step}"
            raise UsageError(
                f"an iterator of a DataLoader that was made before {place} was drawn from there: "
                f"what it gives is another thing on every replica; {_TRAIN_ON}, or make the "
                "iterator there"
            )
        if is_own and not self._is_head:
            raise UsageError(
                "a DataLoader over the session's own dataset was drawn from inside the loop over "
                f"step {self._step}; {_TRAIN_ON}"
            )
