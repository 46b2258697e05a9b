"""Script calls: lines of a plain loop that do harm, or nothing, in a loop over steps.

Owns two of them: a scheduler that the script steps, whose place in its schedule a joiner would not
have; and ``clip_grad_norm_`` where there is no gradient to clip.  Must not know how a step is
computed.  The session's own calls, and those of hooks in them, are none of the script's.
"""

from __future__ import annotations

import functools
from collections.abc import Callable, Collection, Iterable, Iterator
from contextlib import contextmanager
from typing import Any

import torch
from torch.nn.utils import clip_grad
from torch.optim.lr_scheduler import LRScheduler

from pliant.core.errors import UsageError

_CLIP = "_clip_grads_with_norm_"
"""What ``clip_grad_norm_`` calls, under whatever name a script has imported that."""


class ScriptCalls:
    """Watches between ``open`` and ``close``, while the script's own code runs."""

    def __init__(
        self,
        parameters: Iterable[torch.Tensor],
        optimizers: Collection[torch.optim.Optimizer],
        schedulers: Collection[object],
        extra: Collection[object] = (),
    ) -> None:
        """``extra``: what else travels; a scheduler among it is the script's own to step."""
        self._parameters = {id(parameter) for parameter in parameters}
        self._optimizers = {id(optimizer) for optimizer in optimizers}
        self._schedulers = {id(scheduler) for scheduler in schedulers}
        self._extra = {id(part) for part in extra}
        self._originals: list[tuple[Any, str, Callable[..., Any]]] = []
        self.is_watching = False
        """The script is in a loop over steps, and the session is not at work."""

    def open(self) -> None:
        """Begin to watch."""
        self._replace(clip_grad, _CLIP, self._check_clip)
        for kind in _kinds(LRScheduler):
            if "step" in vars(kind):
                self._replace(kind, "step", self._check_scheduler)

    def close(self) -> None:
        """Let everything be as it was; a second call does nothing."""
        while self._originals:
            holder, name, original = self._originals.pop()
            setattr(holder, name, original)

    @contextmanager
    def paused(self) -> Iterator[None]:
        """Let the session do what the script may not."""
        before, self.is_watching = self.is_watching, False
        try:
            yield
        finally:
            self.is_watching = before

    def _replace(self, holder: Any, name: str, check: Callable[..., None]) -> None:
        original = getattr(holder, name)

        @functools.wraps(original)
        def checked(*args: Any, **kwargs: Any) -> Any:
            if self.is_watching:
                check(*args, **kwargs)
            return original(*args, **kwargs)

        self._originals.append((holder, name, original))
        setattr(holder, name, checked)

    def _check_clip(self, parameters: Any, max_norm: float, *_: Any, **__: Any) -> None:
        given = [parameters] if isinstance(parameters, torch.Tensor) else parameters
        own = [parameter for parameter in given if id(parameter) in self._parameters]
        if own and all(parameter.grad is None for parameter in own):
            raise UsageError(
                "clip_grad_norm_ was called where the model has no gradients, so it clips nothing; "
                f"say Session(max_grad_norm={max_norm:g})"
            )

    def _check_scheduler(self, scheduler: Any, *_: Any, **__: Any) -> None:
        if id(scheduler) in self._schedulers:
            raise UsageError(
                "scheduler.step() was called by the script; the session steps its schedulers with "
                "each optimizer step"
            )
        is_own = id(getattr(scheduler, "optimizer", None)) in self._optimizers
        is_own = is_own and id(scheduler) not in self._extra
        if is_own and not getattr(scheduler, "_is_initial", False):  # it is not just being made
            raise UsageError(
                f"{type(scheduler).__name__}.step() was called in a loop over steps on a scheduler "
                "that the session was not given, and a joiner would not know of it; say "
                "Session(scheduler=...), which steps it with each optimizer step, or step it "
                "between two calls of steps()"
            )


def _kinds(kind: type[LRScheduler]) -> set[type[LRScheduler]]:
    return {kind}.union(*map(_kinds, kind.__subclasses__()))
