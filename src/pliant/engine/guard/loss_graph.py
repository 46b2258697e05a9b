"""Loss graph: what the loss of a micro-batch goes back to, besides the model's parameters.

Owns three looks at it.  A loss that goes back to an earlier micro-batch, as where a script adds up
losses and calls ``step.backward`` for every second one: how many a replica computes differs, and so
would the gradient.  A tensor outside of the model that gets a gradient, and changes from step to
step: what it gets is of this replica's micro-batches only.  And kernels that were recorded, whose
backward is replayed (``engine.device.graphs``).  Must not know how gradients are added.

The first is looked for behind a micro-batch without a backward; the others in the first steps of
this process, and ever more rarely.
"""

from __future__ import annotations

import weakref
from collections.abc import Callable, Collection, Iterator
from typing import Any

import torch

from pliant.core.errors import UsageError
from pliant.engine.device import graphs, host
from pliant.engine.fingerprint import tensor_word, tensors_in
from pliant.engine.local_tensors import is_sharded

LOOKED_AT = 2
"""First steps of this process in which a graph is looked at: about 1 ms for 1,000 operations."""


class LossGraph:
    """Of one replica's micro-batches."""

    def __init__(self, model: torch.nn.Module, extra: Collection[Any]) -> None:
        """``extra``: what else travels."""
        self._model = model
        self._is_sharded = any(map(is_sharded, model.parameters()))
        """Then the graph has whole parameters, which the model has not."""
        self._extra = list(extra)
        self._step: int | None = None
        self._num_steps = 0
        self._has_looked = False
        self._has_backward = True
        self._passed_over: int | None = None
        """What autograd had recorded by the end of the last micro-batch without a backward."""
        self._outside: dict[int, tuple[Callable[[], object], str]] = {}

    def on_batch(self, step: int) -> None:
        """The next micro-batch of a step begins, or there is none."""
        if step != self._step:
            self._step, self._has_looked, self._passed_over = step, False, None
            self._num_steps += 1
        elif not self._has_backward:
            self._passed_over = _recorded()
        self._has_backward = False

    def on_loss(self, loss: object) -> None:
        """Look at what a loss goes back to.

        Raises:
            UsageError: it goes back to another micro-batch, or to what would differ elsewhere.
        """
        if not isinstance(loss, torch.Tensor):
            return
        self._has_backward = True
        number = self._num_steps
        is_time = number <= LOOKED_AT or number & (number - 1) == 0
        if self._passed_over is None and (self._has_looked or not is_time):
            return
        self._has_looked = True
        known = {id(parameter) for parameter in self._model.parameters()}
        for node in _nodes(loss.grad_fn):
            leaf = getattr(node, "variable", None)
            if leaf is None:
                self._refuse_earlier(node)
                graphs.refuse_recorded(node)
            elif id(leaf) not in known and not self._is_sharded:
                self._look_at_outside(leaf)

    def _refuse_earlier(self, node: Any) -> None:
        if self._passed_over is not None and _number_of(node) < self._passed_over:
            raise UsageError(
                "the loss of this micro-batch goes back to one before it, which had no "
                "step.backward: replicas compute other numbers of micro-batches, and would add up "
                "others; call step.backward(loss) for each, the session adds them up"
            )

    def _look_at_outside(self, leaf: torch.Tensor) -> None:
        """Refuse a tensor that has changed since a step before, and does not travel."""
        now = tensor_word(leaf)
        before, word = self._outside.get(id(leaf), (lambda: None, now))
        self._outside[id(leaf)] = (weakref.ref(leaf), now)
        if before() is not leaf or word == now or self._travels(leaf):
            return
        raise UsageError(
            f"a tensor {tuple(leaf.shape)} that is no parameter of the model gets a gradient from "
            "step.backward and changes from step to step: that gradient is of this replica's "
            "micro-batches only, and a joiner would have another tensor; make it a parameter of "
            "the model, or train it in the tail and keep it, and its optimizer, in extra_state="
        )

    def _travels(self, leaf: torch.Tensor) -> bool:
        kept = [part for each in self._extra for part in tensors_in(each.state_dict())]
        word = tensor_word(leaf)
        return any(
            host.address_of(part) == host.address_of(leaf) or tensor_word(part) == word
            for part in kept
        )


def _nodes(root: Any) -> Iterator[Any]:
    """Iterate over the operations that a result goes back to, each once."""
    seen: set[Any] = set()
    waiting = [root] if root is not None else []
    while waiting:
        node = waiting.pop()
        if node not in seen:
            seen.add(node)
            yield node
            waiting += [further for further, _ in node.next_functions if further is not None]


def _recorded() -> int:
    """Return a number above those of all operations that autograd has recorded in this thread."""
    with torch.enable_grad():
        return _number_of(torch.zeros((), requires_grad=True, device=host.LOCATION).clone().grad_fn)


def _number_of(node: Any) -> int:
    """Return when an operation was recorded in its thread; seen to work with torch 2.15."""
    number: int = node._sequence_nr()  # noqa: SLF001
    return number
