"""Script attributes: what a script keeps beside the state, in words; in what two replicas differ.

A tail that changes one (``Dropout.p``, a temperature) changes it on those who run that tail; a
joiner begins with what the script made, and so does a run that goes on.  Owns the plain values of
modules, which of them a forward changes, and when a difference is told, also of the dataset's and
of the script's variables: at the first step here, if the script has not set the value by then.
Must not know who compares with whom.

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
from pliant.engine.state import script_variables
from pliant.engine.state.script_variables import ScriptVariables

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
        self,
        dataset: DatasetAttributes,
        model: torch.nn.Module,
        noted: Callable[[str], None],
        variables: ScriptVariables,
    ) -> None:
        """``noted`` is told what differs."""
        self.dataset = dataset
        self._variables = variables
        self._model = model
        self._noted = noted
        self._volatile: set[str] = set()
        self._num_learned = 0
        self._before: Words | None = None
        self._unlike: list[tuple[Words, Words, str]] = []
        """Mine and theirs, and where those are; until the first step."""
        self._unlike_variables: tuple[Words, list[Words], str] | None = None

    def pack(self) -> bytes:
        """Return what another replica compares with its own."""
        words = json.dumps([words_of_modules(self._model), sorted(self._volatile)])
        variables = script_variables.pack(self._variables.words())
        return b"\n".join((self.dataset.pack(), words.encode(), variables))

    def compare(self, others: Sequence[bytes], where: str = "on the replicas that train") -> None:
        """Say what of the dataset differs from these, and remember what of the model does."""
        parts = [one.split(b"\n") for one in others]
        if said := self.dataset.unlike([dataset for dataset, *_ in parts], where):
            self._noted(said)
        mine = words_of_modules(self._model)
        for _, packed, *_ in (each for each in parts if len(each) > 1):  # old ones have none
            theirs, volatile = unpacked(packed)
            self._volatile.update(volatile)
            self._unlike.append((mine, theirs, where))
        variables = [script_variables.unpack(each[2]) for each in parts if len(each) > 2]
        self._unlike_variables = (self._variables.words(), variables, where) if variables else None

    def begin(self, step: int) -> None:
        """A step is computed from here on; say what still differs."""
        self._tell_variables()
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

    def _tell_variables(self) -> None:
        """Say which variables of the script are others, and were not set since."""
        unlike, self._unlike_variables = self._unlike_variables, None
        if unlike is None:
            return
        (mine, others, where), now = unlike, self._variables.words()
        for theirs in others:
            known = [name for name, word in mine.items() if now.get(name) == word]
            names = sorted(name for name in known if theirs.get(name, mine[name]) != mine[name])
            if names:
                self._noted(
                    f"the script's {told(mine, theirs, names, where)}: if what it trains or writes "
                    f"depends on it, this run depends on who joined when; "
                    f"{script_variables.INSTEAD}"
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
