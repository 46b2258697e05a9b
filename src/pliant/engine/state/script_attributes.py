"""Script attributes: plain values of a model's modules, and what a dataset keeps, in words.

A tail that changes one (``Dropout.p``, a temperature) changes it on those who run that tail; a
joiner begins with what the script made, and so does a run that goes on.  Owns which values of
modules these are, which of them a forward changes, and when a difference is told: at the first step
here, if the script has not set the value by then.  Must not know who compares with whom.

Not seen: containers and objects in modules, names that begin with ``_``.
"""

from __future__ import annotations

import json
from collections.abc import Callable, Sequence

import torch

from pliant.engine.data.dataset_attributes import (
    DatasetAttributes,
    Words,
    different,
    told,
    unpacked,
    word_of,
)

LEARNED_FROM = 2
"""First steps of this process in which is seen what a forward changes; later ever more rarely."""

INSTEAD = (
    "what a tail changes in a module reaches a joiner in a buffer or by get_extra_state, or is set "
    "in the loop from step.index"
)

_PLAIN = (bool, int, float, str, type(None))


class ScriptAttributes:
    """Of one replica's dataset and model."""

    def __init__(
        self, dataset: DatasetAttributes, model: torch.nn.Module, noted: Callable[[str], None]
    ) -> None:
        """``noted`` is told what differs."""
        self.dataset = dataset
        self._model = model
        self._noted = noted
        self._volatile: set[str] = set()
        self._num_learned = 0
        self._before: Words | None = None
        self._unlike: list[tuple[Words, Words, str]] = []
        """Mine and theirs, and where those are; until the first step."""

    def pack(self) -> bytes:
        """Return what another replica compares with its own."""
        words = json.dumps([words_of_modules(self._model), sorted(self._volatile)])
        return self.dataset.pack() + b"\n" + words.encode()

    def compare(self, others: Sequence[bytes], where: str = "on the replicas that train") -> None:
        """Say what of the dataset differs from these, and remember what of the model does."""
        parts = [one.partition(b"\n") for one in others]
        if said := self.dataset.unlike([dataset for dataset, _, _ in parts], where):
            self._noted(said)
        mine = words_of_modules(self._model)
        for packed in (modules for _, _, modules in parts if modules):  # old ones have none
            theirs, volatile = unpacked(packed)
            self._volatile.update(volatile)
            self._unlike.append((mine, theirs, where))

    def begin(self, step: int) -> None:
        """A step is computed from here on; say what still differs."""
        is_time = self._num_learned < LEARNED_FROM or step & (step - 1) == 0
        if not is_time and not self._unlike:
            self._before = None
            return
        now = self._before = words_of_modules(self._model)
        unlike, self._unlike = self._unlike, []
        for mine, theirs, where in unlike:
            known = mine.keys() & theirs.keys() - self._volatile
            names = sorted(n for n in known if mine[n] != theirs[n] and mine[n] == now.get(n))
            if names:
                self._noted(
                    f"the model's {told(mine, theirs, names, where)}: if a forward depends on it, "
                    f"this run depends on who joined when; {INSTEAD}"
                )
                return

    def end(self) -> None:
        """All of a step has been computed here: what has changed since its begin, a forward did."""
        if self._before is not None:
            self._volatile.update(different(self._before, words_of_modules(self._model)))
            self._num_learned += 1
            self._before = None


def words_of_modules(model: torch.nn.Module) -> Words:
    """Return a word for each plain value among the attributes of the modules."""
    return {
        f"{path}.{name}" if path else name: word_of(value)
        for path, module in model.named_modules()
        for name, value in vars(module).items()
        if isinstance(value, _PLAIN) and not name.startswith("_") and name != "training"
    }
